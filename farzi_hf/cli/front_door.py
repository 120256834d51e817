"""Data of one's own on the command line: what it is, where its run goes, and the settings that
trials choose for it.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path

import datasets
import transformers
from transformers import HfArgumentParser

from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.common.files import is_taken, load_record, status_of
from farzi_hf.common.settings import setting
from farzi_hf.common.text import yaml_text
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.report import RunSettings
from farzi_hf.report.suggestion import KEPT, Search, to_stderr
from farzi_hf.report.tables import save_text
from farzi_hf.report.trials import Suggestion, words_of
from farzi_hf.summary.forms import TeacherLabels

USAGE = "farzi distil DATA [--bytes 200kB] [--minutes 10] [--compare] [--dry_run] [--FIELD VALUE …]"
TRIALS, CONFIG = "trials", "config.yaml"
_ALWAYS = ("labels", "inputs", "storage")  # in the config, whatever the defaults are
_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3}


@dataclass
class Options:
    """What the front door asks beside the fields of `RunSettings` and `FarziConfig`."""

    bytes: str | None = setting(
        None, "the most that the summary may have, such as 200kB; by default as many as the data"
    )
    minutes: float | None = setting(None, "for the trials; by default 10, or 30 for many entries")
    compare: bool = setting(False, "the whole table, with every baseline, beside the verdict")
    dry_run: bool = setting(False, "say what would be read and made, and stop")


class FrontDoor:
    """The command `farzi distil DATA …` or `farzi suggest DATA …`. Making it reads the data.

    Args:
        argv: DATA and the options.

    Attributes:
        options: see `Options`.
        settings, data: what was read.
        folder: of the run: `output_dir`, by default `farzi-NAME` in the working directory. Where
            that has another run, `farzi-NAME-2`, ….

    Raises:
        ValueError: an option or the data cannot be used.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        how = {"return_remaining_strings": True, "look_for_args_file": False}
        self.options, rest = HfArgumentParser(
            Options, allow_abbrev=False
        ).parse_args_into_dataclasses(list(argv[1:]), **how)
        named = {
            word[2:].partition("=")[0].replace("-", "_").removeprefix("no_")
            for word in rest
            if word.startswith("--")
        }
        if "config" in named:
            raise ValueError("--config is for a run without DATA: give the YAML in its place")
        self.settings, self._args = parse_arguments(
            (RunSettings, FarziConfig), None, ["--dataset", argv[0], *rest]
        )
        fixed = {
            f.name: getattr(self._args, f.name)
            for f in fields(FarziConfig)
            if f.name in named - {"output_dir", "seed"}
        }
        if self._args.world_size > 1:
            remedy = (
                "choose with farzi suggest DATA > config.yaml, and launch farzi distil config.yaml"
            )
            raise ValueError(
                f"{self._args.world_size} processes would all make the trials; {remedy}"
            )
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        self.data = self.settings.load()
        self.seed, *others = self.data.seeds(self._args.seed)
        if others:
            remedy = (
                "choose with farzi suggest DATA > config.yaml, then farzi distil config.yaml"
                " --splits …"
            )
            raise ValueError(
                f"splits={[self.seed, *others]}: the trials see one split, so test users of the"
                f" others; {remedy}"
            )
        self.splits = self.data.splits(self.seed)
        self.search = Search(
            self.splits,
            self.data.task,
            Path(),
            self._args.output_dir,
            self._args.seed,
            None if self.options.bytes is None else _bytes(self.options.bytes),
            self.options.minutes,
            self.settings.learner if "learner" in named else None,
            fixed,
            to_stderr,
        )
        self.folder = self._given_folder() if "output_dir" in named else self._free_folder(argv[0])
        self.search.folder, self.search.output_dir = self.folder / TRIALS, str(self.folder)

    def choose(self) -> Suggestion:
        """The settings, by trials that are kept in the folder. They are written to `config.yaml`
        there, a config for `farzi distil`.
        """
        transformers.utils.logging.disable_progress_bar()  # of files that trials write and read
        to_stderr(self.counted())
        to_stderr(f"{self.data.description}\nTrials and the summary go to {self.folder}")
        found = self.search.run()
        self.settings.learner = found.learner
        save_text(self.config(found), self.folder / CONFIG)
        return found

    def counted(self) -> str:
        """What counting alone has on the validation part, in words: it takes seconds, and students
        have to be better.
        """
        task, validation = self.data.task, self.search.validation
        parts = (self.splits["train"], validation, validation)
        rows = task.count(*parts, self.search.vocab_size)
        best = min(rows, key=lambda row: task.error(row.statistics))
        figure = task.headline(task.metrics(best.statistics))
        return (
            f"Counting alone, {best.seconds:.1f} s: {best.method}: {figure} on the validation part."
            f" A student has to beat it; farzi count keeps it"
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
        search, rows = (
            self.search,
            ", ".join(f"{len(split):,} {name}" for name, split in self.splits.items()),
        )
        learners = ", ".join(words_of(learner) for learner in search.learners)
        return (
            f"{self.data.description}\n{rows} rows; {search.vocab_size:,} entries; rows of"
            f" {search.length} in the summary\nTrials for {search.minutes:.0f} minutes; a summary"
            f" of {search.most:,} bytes at most; learners: {learners}\nTrials and the summary would"
            f" go to {self.folder}"
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
            return load_record(path).get("settings") == self.search.settings
        except ValueError as error:
            raise ValueError(
                f"{str(path)!r} is damaged ({error}): move {str(folder)!r} away, or name another"
                " --output_dir"
            ) from None


def _bytes(text: str) -> int:
    """The number of bytes that is written as 200kB or 1.5 MB."""
    parts = re.fullmatch(r"\s*(\d*\.?\d+|\d{1,3}(?:,\d{3})+)\s*([a-zA-Z]*)\s*", text)
    try:
        return int(float(parts[1].replace(",", "")) * _UNITS[parts[2].lower()])
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"--bytes {text!r} is no size: write 200kB or 1.5MB") from None
