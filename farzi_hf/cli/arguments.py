"""Settings from a YAML file and the command line."""

import re
import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, NoReturn

from datasets import disable_progress_bars
from transformers import HfArgumentParser, TrainingArguments

from farzi_hf.cli import wrapped
from farzi_hf.common.checks import did_you_mean
from farzi_hf.common.files import read_plain_file
from farzi_hf.common.settings import converted
from farzi_hf.common.text import YAML_BYTES, read_plain, terminal_text

_NUMBERS = {"int": "a whole number, such as 10", "float": "a number, such as 10 or 0.5"}


class CommandParser(ArgumentParser):
    """The options of a command, by their whole names. A mistake ends the program with one line,
    which names the option and a remedy, and with the exit status of argparse, 2.

    Args:
        prog: the command, such as "farzi show".
        how: as for `ArgumentParser`.
    """

    def __init__(self, prog: str, **how: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **how)

    def error(self, message: str) -> NoReturn:
        line = f"{self.prog}: {self._in_our_words(message)}"
        self.exit(2, terminal_text(line, most=2000) + "\n")

    def _in_our_words(self, message: str) -> str:
        message = message.removeprefix("argument ")
        see_help = f"see {self.prog} --help"
        if wrong := re.fullmatch(r".*: invalid (int|float) value: .*", message):
            return f"{message}; give {_NUMBERS[wrong[1]]}"
        unknown = re.fullmatch(r"unrecognized arguments: (\S+).*", message)
        if unknown is None:
            return f"{message}; {see_help}"
        if not unknown[1].startswith("-"):
            return f"{unknown[1]!r} is one argument too many; {see_help}"
        return f"{not_an_option(unknown[1], self._option_string_actions)}; {see_help}"


def not_an_option(word: str, options: Iterable[str]) -> str:
    """What an error says of a word that is none of these options, with the one that is meant."""
    return f"{word!r} is not an option{did_you_mean(word.partition('=')[0], options)}"


def option_parser(types: type | Sequence[type], **how: Any) -> HfArgumentParser:
    """A parser of the fields of dataclasses, for `parsed`. `how` is as for `ArgumentParser`."""
    return HfArgumentParser(types, allow_abbrev=False, exit_on_error=False, **how)


def parsed(parser: HfArgumentParser, argv: Sequence[str]) -> tuple[Any, ...]:
    """One instance of each dataclass of an `option_parser`, and the words that are left.

    Raises:
        ValueError: an option has a value of another type, or none. The message names both.
    """
    try:
        return parser.parse_args_into_dataclasses(
            list(argv), return_remaining_strings=True, look_for_args_file=False
        )
    except ArgumentError as error:
        remedy = "see --help"
        if wrong := re.fullmatch(r"invalid (int|float) value: (.*)", error.message):
            remedy = f"give {_NUMBERS[wrong[1]]}"
        option = str(error.argument_name).partition("/")[0]  # without its other spellings
        raise ValueError(f"{option}: {error.message}; {remedy}") from None


def parse_arguments(
    types: Sequence[type],
    default_config: Path | None,
    argv: Sequence[str] | None = None,
    usage: str | None = None,
    more: Sequence[str] = (),
) -> tuple[Any, ...]:
    """One instance of each dataclass. The YAML file that `--config` names overrides defaults; the
    command line overrides both. Raises ValueError if the file cannot be read, or has keys that no
    dataclass has, or if an option or its value cannot be used.

    YAML reads some numbers, such as 1e-2, as text. The file's values therefore become the parser's
    defaults, and the parser converts them like command-line arguments. By default, the outputs of a
    file NAME.yaml go to outputs/NAME.

    Args:
        default_config: the file without `--config`; None for none.
        usage: the usage line for `--help`.
        more: options that the caller has read already, for the hint after a misspelt one.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        print(wrapped(help_screen(types, default_config, usage)))
        sys.exit(0)
    first = ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path, default=default_config)
    config = first.parse_known_args(argv)[0].config
    parser = option_parser(types, usage="%(prog)s [--config FILE.yaml] [--FIELD VALUE …]")
    known = {field.name for kind in types for field in fields(kind) if field.init}
    values = {} if config is None else read_yaml(config, known)
    for kind in types:
        try:
            values |= converted(kind, values)
        except ValueError as error:
            raise ValueError(f"config={str(config)!r}: {error}") from None
    named = {} if config is None else {"config": str(config)}
    parser.set_defaults(
        **{**named, "output_dir": "outputs/" + ("run" if config is None else config.stem), **values}
    )
    *given, rest = parsed(parser, argv)
    if rest:
        options = [f"--{name}" for name in (*known, *more)]
        raise ValueError(f"{not_an_option(rest[0], options)}; see --help")
    if any(getattr(part, "disable_tqdm", False) for part in given):
        disable_progress_bars()  # `datasets` has progress bars of its own
    return tuple(given)


def help_screen(types: Sequence[type], default_config: Path, usage: str | None = None) -> str:
    """A program's own fields. `TrainingArguments` has far more fields; the screen names only a few
    of these.
    """
    known = {"config", *(field.name for field in fields(TrainingArguments))}
    config = "" if default_config is None else f" (by default {default_config.name})"
    lines = [
        f"usage: {usage or f'{Path(sys.argv[0]).name} [--config FILE.yaml] [--FIELD VALUE …]'}",
        f"\nGive fields in the YAML file{config} or on the command line, which overrides the file.",
    ]
    for kind in types:
        own = [field for field in fields(kind) if field.init and field.name not in known]
        lines += [
            "",
            *(f"  {'--' + field.name:<26}  {field.metadata.get('help', '')}" for field in own),
        ]
    examples = (
        "--output_dir, --max_steps, --learning_rate, --per_device_train_batch_size, --seed,"
        " --eval_steps, --save_steps, --use_cpu"
    )
    lines += [
        "",
        "All fields of transformers.TrainingArguments work too, for the outer loop:",
        f"  {examples}, …",
    ]
    return "\n".join(lines)


def example_configs() -> dict[str, Path]:
    """Example configs by name, from the installed distribution. If the package is not installed,
    from its checkout.
    """
    installed = []
    folder = Path(__file__).resolve().parents[2] / "recipes" / "configs"
    with suppress(PackageNotFoundError):
        installed = [
            Path(file.locate())
            for file in files("farzi-hf") or []
            if file.match("share/farzi_hf/configs/*.yaml")
        ]
    return {
        path.stem: path for path in sorted(installed or folder.glob("*.yaml"))
    }  # those of other recipes are in folders


def read_yaml(path: Path, known: set[str]) -> dict[str, Any]:
    """The mapping in a YAML file, whose keys must be `known`. Others may have written the file."""
    try:
        values = read_plain(read_plain_file(path, YAML_BYTES), "YAML") or {}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"config={str(path)!r} cannot be read: {error}; give a YAML file in UTF-8"
        ) from None
    if not isinstance(values, dict):
        raise ValueError(
            f"config={str(path)!r} holds a {type(values).__name__}: write lines of `field: value`"
        )
    for key in values:
        if key not in known:
            raise ValueError(
                f"config={str(path)!r} has an unknown key {key!r}{did_you_mean(key, known)}; see"
                " --help"
            )
    return values
