"""Data of one's own on the command line: what it is, where its run goes, and the settings that
trials choose for it.
"""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path

import datasets
import transformers

from farzi_hf.cli.arguments import option_parser, parse_arguments, parsed
from farzi_hf.common.files import is_taken, load_record, status_of
from farzi_hf.common.settings import setting
from farzi_hf.common.text import yaml_text
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.report import RunSettings
from farzi_hf.report.suggestion import Search, to_stderr
from farzi_hf.report.tables import save_text
from farzi_hf.report.trial_folder import KEPT
from farzi_hf.report.trials import CountingWins, NoTimeLeft, Suggestion, words_of
from farzi_hf.summary.forms import TeacherLabels

USAGE = (
    "farzi distil DATA [--bytes 200kB] [--minutes 10] [--go_on] [--compare] [--dry_run]"
    " [--FIELD VALUE …]"
)
TRIALS = "trials"
CONFIG = "config.yaml"
_HOW_TO_READ = (
    "How to read the lines below: a teacher is a small model that trains on your data; packed into"
    " few bits a number (coded6: at most six), it is the summary. A student is a new model that"
    " trains on the summary alone, on rows of ids that are drawn by frequency, or that the teacher"
    " writes. Figures are for the validation part, which is held out;"
)
_ALWAYS = ("labels", "inputs", "storage")  # in the config, whatever the defaults are
_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3}


@dataclass
class Options:
    """What the front door asks beside the fields of `RunSettings` and `FarziConfig`."""

    bytes: str | None = setting(
        None, "the most that the summary may have, such as 200kB; by default as many as the data"
    )
    minutes: float | None = setting(
        None, "until the verdict; by default 10, or 30 for many entries"
    )
    go_on: bool = setting(False, "go on where a model that only counts will be better")
    compare: bool = setting(False, "the whole table, with every baseline, beside the verdict")
    dry_run: bool = setting(False, "say what would be read and made, and stop")


def check_data(argv: Sequence[str], kinds: str) -> None:
    """Raises ValueError unless the first word may name data.

    Args:
        kinds: what may be given, for the error.
    """
    if not argv:
        raise ValueError(f"DATA is missing: give {kinds}")
    if argv[0] == "-":
        raise ValueError("DATA is '-', but standard input is not read: save it in a file")
    if argv[0].startswith("-"):
        raise ValueError(
            f"DATA is missing: the first word is {argv[0]!r}, and options come after DATA; give"
            f" {kinds}"
        )


class FrontDoor:
    """The command `farzi distil DATA …` or `farzi suggest DATA …`. Making it reads the data.

    Args:
        argv: DATA and the options.
        goes_on: whether the search goes on where counting will win; by default `--go_on` says.
        began: `time.perf_counter()` when the minutes began; by default now.

    Attributes:
        options: see `Options`.
        settings, data: what was read.
        folder: of the run: `output_dir`, by default `farzi-NAME` in the working directory. Where
            that has another run, `farzi-NAME-2`, ….

    Raises:
        ValueError: an option or the data cannot be used.
    """

    def __init__(
        self, argv: Sequence[str], goes_on: bool | None = None, began: float | None = None
    ) -> None:
        began = time.perf_counter() if began is None else began
        self.options, rest = parsed(option_parser(Options), argv[1:])
        named = _names(rest)
        if "config" in named:
            raise ValueError("--config is for a run without DATA: give the YAML in its place")
        self.settings, self._args = parse_arguments(
            (RunSettings, FarziConfig),
            None,
            ["--dataset", argv[0], *rest],
            more=[each.name for each in fields(Options)],
        )
        if self._args.world_size > 1:
            raise ValueError(
                f"{self._args.world_size} processes would all make the trials; choose with farzi"
                " suggest DATA > config.yaml, and launch farzi distil config.yaml"
            )
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        self.data = self.settings.load()
        self.seed = self._only_seed()
        self.splits = self.data.splits(self.seed)
        given = [each.name for each in fields(FarziConfig) if each.name in named]
        search = Search(
            splits=self.splits,
            task=self.data.task,
            folder=Path(),
            output_dir=self._args.output_dir,
            seed=self._args.seed,
            most=None if self.options.bytes is None else _bytes(self.options.bytes),
            minutes=self.options.minutes,
            learner=self.settings.learner if "learner" in named else None,
            fixed={
                name: getattr(self._args, name)
                for name in given
                if name not in ("output_dir", "seed")
            },
            goes_on=self.options.go_on if goes_on is None else goes_on,
            began=began,
        )
        self._of_trials = search.settings
        self.folder = self._given_folder() if "output_dir" in named else self._free_folder(argv[0])
        self.search = search.in_folder(self.folder / TRIALS, self.folder)

    def _only_seed(self) -> int:
        """The seed of the one split that trials see."""
        seed, *others = self.data.seeds(self._args.seed)
        if others:
            raise ValueError(
                f"splits={[seed, *others]}: the trials see one split, and in it test users of the"
                " others; choose with farzi suggest DATA > config.yaml, then farzi distil"
                " config.yaml --splits …"
            )
        return seed

    def choose(self) -> Suggestion | CountingWins | NoTimeLeft:
        """The settings, by trials that are kept in the folder. They are written to `config.yaml`
        there, a config for `farzi distil`. Where counting will win, or no time is left, the search
        may say that, and nothing else is written.
        """
        transformers.utils.logging.disable_progress_bar()  # of files that trials write and read
        to_stderr(self.data.description)
        to_stderr(self.counted())
        to_stderr(f"Trials and the summary go to {self.folder}")
        to_stderr(f"{_HOW_TO_READ} {self.data.task.figures}.")
        found = self.search.run()
        if isinstance(found, Suggestion):
            self.settings.learner = found.learner
            save_text(self.config(found), self.folder / CONFIG)
        return found

    def counted(self) -> str:
        """What counting alone has on the validation part, in words: it takes seconds, and students
        have to be better.
        """
        best = self.search.counted
        return (
            f"Counting alone, {best.seconds:.1f} s: {best.method}: {self.search.counted_figure} on"
            " the validation part. A student has to beat this; farzi count DATA --output_dir OUT"
            " keeps the counted model"
        )

    def config(self, found: Suggestion) -> str:
        """The choice as a YAML config, with the reasons as comments."""
        plain = FarziConfig(str(self.folder), labels=TeacherLabels.name).to_recipe()
        changed = {
            name: x
            for name, x in found.config.to_recipe().items()
            if x != plain.get(name) or name in _ALWAYS
        }
        reasons = "".join(f"# {line}\n" for line in found.reasons())
        return reasons + yaml_text(
            {
                **self.data.recipe([self.seed]),
                "data_dir": self.settings.data_dir,
                **self.data.of_the_run,
                **changed,
            }
        )

    def plan(self) -> str:
        """What would be done, in words. Nothing is written."""
        search = self.search
        rows = ", ".join(f"{len(split):,} {name}" for name, split in self.splits.items())
        learners = "; ".join(words_of(learner) for learner in search.learners)
        return (
            f"{self.data.description}\n{rows} rows; a vocabulary of {search.vocab_size:,} ids;"
            f" rows of {search.length} ids in the summary\nA verdict in {search.minutes:.0f}"
            f" minutes; a summary of {search.most:,} bytes at most\nModels to try: {learners}\n"
            f"Trials and the summary would go to {self.folder}. To start, leave out --dry_run"
        )

    def _given_folder(self) -> Path:
        """The folder that the user names, if it is free or has trials of this very command."""
        folder = Path(self._args.output_dir)
        if is_taken(folder) and not self._is_ours(folder):
            what = "is not empty, and has no trials of these data with these settings"
            raise ValueError(f"output_dir={str(folder)!r} {what}: choose another folder")
        return folder

    def _free_folder(self, name: str) -> Path:
        """The first folder of this name that is free, or that has trials of this very command."""
        stem = re.sub(r"[^\w.-]+", "-", Path(name).name.partition(".")[0]).strip("-.") or "data"
        folders = (
            Path(f"farzi-{stem}" if number == 1 else f"farzi-{stem}-{number}")
            for number in count(1)
        )
        return next(folder for folder in folders if not folder.exists() or self._is_ours(folder))

    def _is_ours(self, folder: Path) -> bool:
        """Whether the folder has trials of the same data with the same settings. Raises ValueError
        if its trials cannot be read.
        """
        path = folder / TRIALS / KEPT
        if status_of(path) is None:
            return False
        try:
            return load_record(path).get("settings") == self._of_trials
        except ValueError as error:
            raise ValueError(
                f"{str(path)!r} is damaged ({error}): move {str(folder)!r} away, or name another"
                " --output_dir"
            ) from None


def _names(words: Sequence[str]) -> set[str]:
    """The names of the options among these words, as fields have them."""
    options = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    return {option.replace("-", "_").removeprefix("no_") for option in options}


def _bytes(text: str) -> int:
    """The number of bytes that is written as 200kB or 1.5 MB."""
    parts = re.fullmatch(r"\s*(\d*\.?\d+|\d{1,3}(?:,\d{3})+)\s*([a-zA-Z]*)\s*", text)
    try:
        return int(float(parts[1].replace(",", "")) * _UNITS[parts[2].lower()])
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"--bytes {text!r} is not a size: write 200kB or 1.5MB") from None
