"""A data set that a config names, together with its task: splits by seed, and a learner for the
data's vocabulary.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets import DatasetDict

from farzi_hf.common.checks import check_different, check_licence_name
from farzi_hf.common.settings import converted, from_json, setting
from farzi_hf.data import SAMPLE_INTERACTIONS, TEXTS, recognise
from farzi_hf.data.own import INTERACTIONS, TEXT
from farzi_hf.data.readers import SOURCES
from farzi_hf.data.seeds import check_seed
from farzi_hf.data.streams import described
from farzi_hf.models.base import check_fields
from farzi_hf.report.provenance import PROVENANCES
from farzi_hf.report.rows import BASELINES
from farzi_hf.summary import FarziData
from farzi_hf.summary.origins import may_be_passed_on
from farzi_hf.tasks import LanguageModeling, Recommendation, Task
from farzi_hf.tasks.items import HELD_OUT

KNOWN = (*TEXTS, *SOURCES, SAMPLE_INTERACTIONS)
TASKS: dict[str, type[Task]] = {TEXT: LanguageModeling, INTERACTIONS: Recommendation}
_ALWAYS = ("max_length", "teacher")  # in recipes, also where they are None


@dataclass
class RunSettings:
    """The settings of a run that are not in `FarziConfig`: the data, the learner, and the rows to
    compare the summary with.
    """

    config: str = setting("", "YAML file with any of these fields")
    dataset: str | None = setting(
        "ptb", f"{', '.join(KNOWN)}, or your own: file, folder, pattern, data set of the Hub"
    )
    data_dir: str | None = setting(None, "folder with the files of the data set")
    task: str | None = setting(
        None, f"{' or '.join(TASKS)}; by default what the columns of the data say"
    )
    name: str | None = setting(
        None, "a data set of the Hub: its subset, as in datasets.load_dataset"
    )
    split: str | None = setting(None, "a data set of the Hub: the only split to read")
    revision: str | None = setting(None, "a data set of the Hub: branch, tag or commit")
    text_column: str | None = setting(
        None, "text: its column; by default the only one that can be text"
    )
    tokenizer: str | None = setting(
        None, "text: name or folder of a fast tokenizer; by default one is made"
    )
    rows: str | None = setting(
        None, "plain text: a row is a line or a paragraph; by default as its lines are wrapped"
    )
    vocab_size: int | None = setting(
        None, "text: entries of the tokenizer that is made; by default by the text's size"
    )
    max_length: int | None = setting(
        None, "text: cut training sequences to this many ids; your own into pieces of 128"
    )
    user_column: str | None = setting(
        None, "interactions: the column of users; by default the first usual name, as user_id"
    )
    item_column: str | None = setting(None, "interactions: the column of items, likewise")
    time_column: str | None = setting(
        None, "interactions: the column of times, likewise; without any, the order of the rows"
    )
    min_interactions: int = setting(3, "interactions: leave out users with fewer")
    min_item_interactions: int | None = setting(
        None, "interactions: leave out items with fewer, too"
    )
    held_out: str | None = setting(
        None, f"interactions: {' | '.join(HELD_OUT)}; by default own, if any, else users"
    )
    splits: list[int] = field(
        default_factory=lambda: [0], metadata={"help": "interactions: seeds of users' splits"}
    )
    learner: dict | str | None = field(
        default=None, metadata={"help": "arguments of AutoConfig.for_model, as JSON"}
    )
    teacher: dict | str | None = (
        field(  # or a list of dicts, a type that HfArgumentParser does not know
            default=None,
            metadata={
                "help": (
                    "the same of the model, or of a list of them, that labels the inputs; by"
                    " default the learner's"
                )
            },
        )
    )
    num_students: int = setting(3, "students per row, each from its own start")
    baselines: list[str] = field(
        default_factory=lambda: list(BASELINES),
        metadata={"help": f"rows to show: {', '.join(BASELINES)}"},
    )
    long_steps: int | None = setting(
        None, "steps of the row 'full data, long'; by default the teacher's"
    )
    long_batch_size: int | None = setting(
        None, "real sequences per step of that row; by default the teacher's"
    )
    licence: str | None = setting(
        None, "your own data: their licence, as the Hub names it, such as cc-by-4.0"
    )
    language: str | None = setting(
        None, "your own text: its language, as the Hub names it, such as en"
    )
    show_rows: bool = setting(
        False,
        "card, viewer.html and figures show rows of the data, too, where the licence allows it",
    )

    def __post_init__(self) -> None:
        if self.dataset is None:
            raise ValueError(
                "dataset=None: the summary of this recipe was distilled in Python; give --dataset"
            )
        self._find()
        self.learner = _model(
            "learner", self.task_class.learner if self.learner is None else self.learner
        )
        if self.teacher is not None:
            self.teacher = from_json("teacher", self.teacher)
            _ = self.teachers  # raises where one of them is no model
        for name in ("num_students", "long_steps", "long_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} trains nothing: give at least 1")
        if self.held_out not in (None, *HELD_OUT):
            raise ValueError(
                f"held_out={self.held_out!r} is unknown: give one of {', '.join(HELD_OUT)}"
            )
        if self.held_out in ("last_items", "own") and len(self.splits) > 1:
            raise ValueError(
                f"splits={self.splits}, but held_out={self.held_out!r} has one split for all seeds:"
                " give one seed"
            )
        check_different("splits", self.splits, 0)
        for seed in self.splits:
            check_seed(seed, "splits")
        self._check_of_task()
        self._check_licence()
        for name in self.baselines:
            if name not in BASELINES:
                raise ValueError(
                    f"baselines: {name!r} is unknown; choose from {', '.join(BASELINES)}"
                )

    def _check_licence(self) -> None:
        """Takes over the licence of a data set that this library knows, and refuses rows that it
        does not allow to be shown: now, and not when the summary is saved.
        """
        check_licence_name("licence", self.licence)
        if self.dataset in PROVENANCES:
            known = PROVENANCES[self.dataset]["licence"]
            if self.licence not in (None, known):
                raise ValueError(
                    f"licence={self.licence!r}: that of {self.dataset} is {known!r}; leave it out"
                )
            self.licence = known
        if self.show_rows and not may_be_passed_on(self.licence):
            raise ValueError(
                f"show_rows=True with licence={self.licence!r}: it does not say that rows of the"
                " data may be passed on; leave show_rows out, or name a licence of the data that"
                " allows it, such as cc-by-4.0"
            )

    def _find(self) -> None:
        """Where the data are, and of which task."""
        if not self.is_own:
            self.task = TEXT if self.dataset in TEXTS else INTERACTIONS
            if self.task == TEXT and self.vocab_size is None:
                self.vocab_size = 2000
            return
        path = Path(self.data_dir or "", self.dataset).expanduser()
        if path.exists() or glob.has_magic(
            self.dataset
        ):  # a recipe names the data, and not their folder
            path = path.absolute()
            self.dataset = path.name + "/" * (path.name in KNOWN)
            self.data_dir = str(path.parent)
        if self.tokenizer and Path(self.tokenizer).is_dir():
            self.tokenizer = str(Path(self.tokenizer).absolute())
        if self.task is None:
            names = ("text_column", "user_column", "item_column", "name", "split", "revision")
            self.task = recognise(
                self.dataset, self.data_dir, **{name: getattr(self, name) for name in names}
            )
        if self.task not in TASKS:
            raise ValueError(
                f"task={self.task!r} is unknown: give one of {', '.join(TASKS)}, or leave it out"
            )
        if self.task == TEXT and self.max_length is None:
            self.max_length = 128

    def _check_of_task(self) -> None:
        """Raises ValueError if a setting is given that is for another task, where it would have no
        effect.
        """
        ours = {*self.task_class.data_settings, *self.task_class.more_settings}
        defaults = {
            each.name: each.default if each.default_factory is MISSING else each.default_factory()
            for each in fields(self)
        }
        for task, each in TASKS.items():
            for name in (*each.data_settings, *each.more_settings):
                value = getattr(self, name)
                if name not in ours and value != defaults[name]:
                    raise ValueError(
                        f"{name}={value!r} is for {task}, and {self.dataset!r} is read as"
                        f" {self.task}: leave it out, or name the task, if that is wrong (task, or"
                        " --task)"
                    )

    @property
    def task_class(self) -> type[Task]:
        """The class of the task."""
        return TASKS[self.task]

    @property
    def is_own(self) -> bool:
        """Whether this is no data set of the library."""
        return self.dataset not in KNOWN

    @property
    def teachers(self) -> list[dict[str, Any]]:
        """The architectures of the models that label the inputs."""
        given = self.learner if self.teacher is None else self.teacher
        return [_model("teacher", one) for one in (given if isinstance(given, list) else [given])]

    def load(self) -> TaskData:
        """The data set. Its files are read at the first use."""
        return TaskData(self)


class TaskData:
    """The data set that these settings name, and its task.

    Args:
        tokenizer: of your own text, in place of that of the settings.
    """

    def __init__(self, settings: RunSettings, tokenizer: Any = None) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self.task_class = settings.task_class
        self._fingerprints: dict[int, str] = {}

    @classmethod
    def of_summary(cls, farzi: FarziData, data_dir: str | None = None, **changes: Any) -> TaskData:
        """The real data that the recipe of a summary names, in the folder `data_dir`. Their
        vocabulary is then the summary's. `changes` are settings in place of the recipe's. Raises
        ValueError if the recipe names no data set, or one that it may not choose, if a setting has
        another type, or the data have another vocabulary.
        """
        recipe = {**farzi.results.recipe, **changes}
        name = recipe.get("dataset")
        if name is None:
            raise ValueError(
                "summary: it has no recipe.yaml that names its dataset; leave the real data out"
            )
        is_name = isinstance(name, str) and Path(name).name == name.removesuffix("/") not in (
            "",
            "..",
        )
        if not (name in KNOWN or (is_name and data_dir is not None) or "dataset" in changes):
            why = "is not of this library, and a recipe chooses no files"
            raise ValueError(
                f"recipe.yaml: dataset={name!r:.200} {why}: give data_dir, the folder that has it"
            )
        try:
            settings = {
                f.name: recipe[f.name] for f in fields(RunSettings) if f.name in recipe
            } | converted(RunSettings, recipe)
            if "tokenizer" not in changes:  # a recipe chooses no tokenizer, and the summary has it
                settings["tokenizer"] = None
            settings = RunSettings(**{**settings, "data_dir": data_dir})
            own = settings.is_own and settings.task == TEXT and settings.tokenizer is None
            data = cls(settings, farzi.processing_class if own else None)
        except ValueError as error:
            raise ValueError(f"recipe.yaml: {error}") from None
        farzi.adopt_processing_class(data.task.processing_class, f"data_dir={data_dir!r}")
        return data

    @cached_property
    def _loaded(self) -> tuple[Task, Callable[[int], DatasetDict], str]:
        given = {
            name: x
            for name in self.task_class.data_settings
            if (x := getattr(self.settings, name)) is not None
        }
        if self._tokenizer is not None:
            given["tokenizer"] = self._tokenizer
        loaded = self.task_class.load(self.settings.dataset, self.settings.data_dir, **given)
        if len(self.settings.splits) > 1 and not loaded[0].splits_differ:
            raise ValueError(
                f"splits={self.settings.splits}, but {self.settings.dataset!r} has splits of its"
                " own, the same for all seeds: give one seed, or held_out='users'"
            )
        return loaded

    @property
    def description(self) -> str:
        """What was read, in one line."""
        return self._loaded[2]

    @property
    def task(self) -> Task:
        """The task, an object of `task_class`."""
        return self._loaded[0]

    def seeds(self, seed: int) -> list[int]:
        """The seeds of a run's distillations. `seed` is the seed of its config."""
        return self.settings.splits if self.task_class.splits_differ else [seed]

    def splits(self, seed: int) -> DatasetDict:
        """Train, validation and test as sequences in `input_ids`."""
        return self._loaded[1](seed)

    def run_folder(self, output_dir: str, seed: int) -> str:
        """The folder for the results of one seed, in a run of several seeds."""
        return f"{output_dir}/split-{seed}" if self.task_class.splits_differ else output_dir

    def recipe(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The settings that determine the learner and the data of these seeds."""
        return (
            {**self._named, "splits": list(seeds)} if self.task_class.splits_differ else self._named
        )

    @property
    def of_the_run(self) -> dict[str, Any]:
        """What the recipe says that stays beside a run, and not that of a summary: the folder of
        your own data, their licence and language, and whether rows are shown.
        """
        settings = self.settings
        if not settings.is_own:
            return {"show_rows": True} if settings.show_rows else {}
        given = {
            "data_dir": settings.data_dir,
            "licence": settings.licence,
            "language": settings.language,
            "show_rows": settings.show_rows,
        }
        return {name: value for name, value in given.items() if value}

    def identity(self, seed: int) -> dict[str, Any]:
        """The settings that determine the data and the learner, and a hash of the splits: every
        kept result depends on them.
        """
        return {**self._named, "data": self.fingerprint(seed)}

    def fingerprint(self, seed: int) -> str:
        """A hash of all sequences of these splits, on which every result depends."""
        if seed not in self._fingerprints:
            parts = self.splits(seed).items()
            self._fingerprints[seed] = " ".join(
                f"{name} {described(rows)['fingerprint']}" for name, rows in parts
            )
        return self._fingerprints[seed]

    @property
    def _named(self) -> dict[str, Any]:
        own = ["task"] * self.settings.is_own
        names = ("dataset", *own, *self.task_class.data_settings, "learner", "teacher")
        given = {name: getattr(self.settings, name) for name in names}
        return {
            name: value for name, value in given.items() if value is not None or name in _ALWAYS
        }


def _model(name: str, value: Any) -> dict[str, Any]:
    """The arguments of `AutoConfig.for_model`."""
    value = from_json(name, value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r} is not a mapping: write fields with their values")
    if "model_type" not in value:
        raise ValueError(
            f"{name}={dict(value)} has no model_type: name an architecture, for instance gpt2"
        )
    check_fields(value, name)
    return dict(value)
