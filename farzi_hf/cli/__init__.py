"""The command line: `farzi distil DATA`, `farzi count DATA`, `farzi suggest DATA`, `farzi show
SUMMARY`, `farzi train SUMMARY`, `farzi export SUMMARY OUT`, `farzi attribute MODEL DATA --test
TEST`, `farzi weigh MODEL DATA --target TARGET`, `farzi push SUMMARY REPO`.

Recipes use these modules too: settings from YAML (`arguments`), the folder of a run (`run_folder`),
and the run itself (`distil`). A command's module is imported when the command is called. Help
screens are in `help.json`, because the modules import torch, which takes seconds; `python
docs/help_screens.py` writes it anew. That of data of one's own is `front_door.txt`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill

__all__ = ["COMMANDS", "main"]
COMMANDS = {
    "distil": "distil your own data, or those of a config, and say whether it was worth it",
    "count": (
        "count n-grams of a text, or which item follows which, in seconds; score, generate or"
        " recommend with the counts"
    ),
    "suggest": "choose settings for your own data by short trials, and print them as a config",
    "show": "print the facts of a summary, the likeliest entries of its positions, and its results",
    "train": "train a model on a summary, with the settings that it carries",
    "export": (
        "write the teacher that a summary carries, or rows of it, for programs without this library"
    ),
    "attribute": "say which training rows, or users, made a model good or bad at other rows",
    "weigh": "choose the rows, or users, to train a model on, so that it is good at a target",
    "push": "upload a summary to a dataset repository of the Hugging Face Hub, as one commit",
}
"""A description of each command. The module of the same name has the function `command(argv)`."""

FRONT = {
    "distil": "Chooses settings by short trials, distils, and says whether it was worth it.",
    "suggest": "Chooses settings by short trials, and prints them as a config. It does not distil.",
}
"""Commands that choose settings, and what each does."""
_ALSO = {"distill": "distil"}  # the other spelling
_COLUMN_OF_ARGPARSE = 24
_COLUMN_OF_FRONT = 30
"""Where the texts of options begin: on screens of argparse, and in `front_door.txt` and
`--help_all`.
"""
_FIRST_OF_USAGE = "usage: "
_SECONDS_OF_A_LINE = "10"
"""Between the lines of a progress bar that goes into a file or a pipe."""
SCREENS = Path(__file__).with_name("help.json")

_USAGE = """usage: farzi COMMAND …

Distil a text, or users' histories of items, into a small summary that trains new models fast.

commands:
{commands}

`farzi COMMAND --help` says more. Python: from farzi_hf import FarziTrainer, FarziConfig, FarziData, unroll
"""


def wrapped(screen: str, indent: int = _COLUMN_OF_FRONT) -> str:
    """A help screen, whose lines are broken at the terminal's width; those of arguments go on in
    column `indent`, and the usage behind its first word.
    """
    how = {"width": max(2 * indent, get_terminal_size().columns), "break_on_hyphens": False}
    lines = []
    for line in screen.splitlines():
        column = indent if line.startswith("  ") else 0
        if line.startswith(_FIRST_OF_USAGE):
            column = len(_FIRST_OF_USAGE)
        lines.append(fill(line, subsequent_indent=" " * column, **how))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The program `farzi`."""
    began = time.perf_counter()
    is_program = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if is_program and {"-h", "--help", "help"} & {name, *rest} and hasattr(signal, "SIGPIPE"):
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # `farzi --help | head` ends without a traceback
    if name in ("-h", "--help", "help"):
        print(
            wrapped(
                _USAGE.format(
                    commands="\n".join(f"  {name:<11}{text}" for name, text in COMMANDS.items())
                ),
                13,
            )
        )
        return
    if name == "--version":
        import farzi_hf

        print(f"farzi {farzi_hf.__version__}")
        return
    name = _ALSO.get(name, name)
    if name not in COMMANDS:
        sys.exit(f"farzi: {name!r} is not a command: choose from {', '.join(COMMANDS)}")
    if {"-h", "--help"} & set(rest):
        if name in FRONT:
            template = SCREENS.with_name("front_door.txt").read_text(encoding="utf-8")
            screen = template.format(name=name, what=FRONT[name])
        else:
            screen = json.loads(SCREENS.read_text(encoding="utf-8"))[name]
        print(wrapped(screen, _COLUMN_OF_FRONT if name in FRONT else _COLUMN_OF_ARGPARSE))
        return

    if not sys.stderr.isatty():
        # A file keeps every line of a progress bar. This is read when tqdm is imported.
        os.environ.setdefault("TQDM_MININTERVAL", _SECONDS_OF_A_LINE)

    # Imports take seconds, which count among the minutes of a search.
    more = {"began": began} if name in FRONT else {}

    def command() -> None:
        import_module(f"farzi_hf.cli.{name}").command(rest, **more)

    import_module("farzi_hf.cli.program").run(command, f"farzi {name}")
