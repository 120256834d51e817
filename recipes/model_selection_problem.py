"""The trainings that `model_selection.py` compares: settings, configurations, summaries, ways to train, and results that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from kept import kept, stored
from quick_scale import parse_settings
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.cli.distil import trainer_of, with_folder
from farzi_hf.cli.run_folder import check_files
from farzi_hf.data.seeds import Purpose, check_different, stream
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.distillation.checkpoints import discard_checkpoints
from farzi_hf.distillation.real_training import RealData
from farzi_hf.distillation.teacher import Labelling, TeacherTraining, label
from farzi_hf.engine import InnerAdam
from farzi_hf.report import Comparison, RunSettings, Student, TaskData
from farzi_hf.summary import FarziData
from farzi_hf.summary.initialization import set_ids
from farzi_hf.summary.store.atomic_folder import replace_file

DATASETS = ("ml-100k", "sample_interactions")
DISTILLED, START, WINDOWS = "the summary", "the summary before outer steps", "real windows, teacher's labels"
RANDOM, SAME_STEPS = "random users", "all real data, same steps"
SAME_COST, LONG = "all real data, same cost", "all real data, for long"
PARTS = ("validation", "test")
STEP = ("inner_lr_scheduler_type", "synthetic_batch_size", "num_sequences")
"""Settings of a step on real data."""
COMMON = ("dataset", "min_interactions", "sequence_length")
"""Settings of every training: `sequence_length` is the number of items that its model reads."""


@dataclass
class SelectionArguments:
    """The configurations to choose from, and the training that says which of them is best."""

    architectures: list[str] = field(
        default_factory=lambda: ["sasrec", "fmlp", "gru4rec"], metadata={"help": "model types of AutoConfig"}
    )
    widths: list[int] = field(default_factory=lambda: [8, 16, 32], metadata={"help": "hidden sizes"})
    layers: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "numbers of layers"})
    learning_rates: list[float] = field(
        default_factory=lambda: [0.003, 0.01, 0.03], metadata={"help": "of Adam, at the start"}
    )
    weight_decays: list[float] = field(default_factory=lambda: [0.0, 1e-3], metadata={"help": "of Adam"})
    per_architecture: int = field(default=8, metadata={"help": "configurations of each, drawn from all combinations"})
    same_cost_steps: int = field(
        default=340,
        metadata={
            "help": "steps on all real data that cost about as much as the summary in all, teachers and outer steps too. No "
            "formula gives them: the card says what they cost, and which number fits other settings"
        },
    )
    truth_steps: int = field(default=600, metadata={"help": "training steps of the truth"})
    truth_batch_size: int = field(default=32, metadata={"help": "real windows per step of the truth"})
    card_dir: str | None = field(default=None, metadata={"help": "folder of table and figure"})

    def __post_init__(self) -> None:
        for name in ("architectures", "widths", "layers", "learning_rates", "weight_decays"):
            check_different(name, getattr(self, name))
        combinations = len(self.widths) * len(self.layers) * len(self.learning_rates) * len(self.weight_decays)
        if not 1 <= self.per_architecture <= combinations:
            raise ValueError(
                f"per_architecture={self.per_architecture}, but widths, layers, learning_rates and weight_decays have {combinations} "
                f"combinations: give a number from 1 to {combinations}"
            )
        if (count := self.per_architecture * len(self.architectures)) < 3:
            raise ValueError(
                f"per_architecture={self.per_architecture} and architectures={self.architectures} give {count} configurations, "
                "which no correlation is made of: give at least 3"
            )
        for name in ("same_cost_steps", "truth_steps", "truth_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} trains nothing: give at least 1")


@dataclass(frozen=True)
class Configuration:
    """A model and its training."""

    architecture: str
    width: int
    layers: int
    learning_rate: float
    weight_decay: float

    @property
    def slug(self) -> str:
        return f"{self.architecture}-{self.width}x{self.layers}-{self.learning_rate:g}-{self.weight_decay:g}"

    @property
    def learner(self) -> dict[str, Any]:
        """Arguments of `AutoConfig.for_model`."""
        return {"model_type": self.architecture, "hidden_size": self.width, "num_hidden_layers": self.layers}

    @property
    def optimizer(self) -> InnerAdam:
        return InnerAdam(self.learning_rate, (0.9, 0.999), 1e-8, weight_decay=self.weight_decay)


def configurations_of(args: SelectionArguments) -> list[Configuration]:
    """Random combinations, as many of each architecture. Architectures take turns, so that the time left is a fair guess."""
    values = list(product(args.widths, args.layers, args.learning_rates, args.weight_decays))
    orders = [stream(0, Purpose.CONFIGURATIONS, i).permutation(len(values)) for i in range(len(args.architectures))]
    return [
        Configuration(architecture, *values[order[i]])
        for i in range(args.per_architecture)
        for architecture, order in zip(args.architectures, orders, strict=True)
    ]


# -- ways to train ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """What a configuration is trained on.

    Args:
        name: of its row.
        student: trains the model of a comparison.
        summary: the name of the comparison's summary. Where students do not read it, it only sets the tokens of a step.
        uses: the settings that the training depends on; None stands for all of the summary's recipe.
    """

    name: str
    student: Callable[[Comparison, SelectionArguments], Student]
    summary: str = START
    uses: tuple[str, ...] | None = None


def on_summary(c: Comparison, own: SelectionArguments) -> Student:
    return c.summary_student()


def random_users(c: Comparison, own: SelectionArguments) -> Student:
    """A student on users who together have as many items as the summary has positions."""
    items = c.farzi.config.num_sequences * c.farzi.config.sequence_length
    return c.real_student(c.draw_tokens(items, c.seeds[0]), c.steps, c.seeds[0])


def same_steps(c: Comparison, own: SelectionArguments) -> Student:
    return c.real_student(c.splits["train"], c.steps, c.seeds[0])


def same_cost(c: Comparison, own: SelectionArguments) -> Student:
    return c.real_student(c.splits["train"], own.same_cost_steps, c.seeds[0])


def for_long(c: Comparison, own: SelectionArguments) -> Student:
    return c.long_student(c.seeds[0])


WAYS = (
    *(Way(name, on_summary, name) for name in (DISTILLED, START, WINDOWS)),
    Way(RANDOM, random_users, uses=("inner_steps", *STEP)),
    Way(SAME_STEPS, same_steps, uses=("inner_steps", *STEP)),
    Way(SAME_COST, same_cost, uses=("same_cost_steps", *STEP)),
    Way(LONG, for_long, uses=("truth_steps", "truth_batch_size")),
)
PROXIES = WAYS[:-1]
"""All but the truth."""

# -- the problem -----------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None) -> tuple[str, SelectionProblem, Path]:
    """The data set's name, the trainings, and the card's folder."""
    kinds = (RunSettings, FarziConfig, SelectionArguments)
    name, (run, args, selection), folder = parse_settings(
        "model_selection", argv, DATASETS, "sample_interactions", kinds
    )
    return name, SelectionProblem(run.load(), args, selection), folder


class SelectionProblem:
    """All trainings of one data set. Each split of the users has summaries of its own.

    Raises:
        ValueError: the summary is not of the kind that teachers label, or has no outer steps.
    """

    def __init__(self, data: TaskData, args: FarziConfig, selection: SelectionArguments) -> None:
        if (args.inputs, args.labels) != ("tokens", "own"):
            raise ValueError(
                f"inputs={args.inputs!r} and labels={args.labels!r}: teachers label ids only, give inputs tokens and labels own"
            )
        if args.max_steps < 1:
            raise ValueError(
                f"max_steps={args.max_steps}: a summary with and one without outer steps are compared, give at least 1"
            )
        self.data, self.args, self.selection = data, args, selection
        self.folder = Path(args.output_dir)

    @cached_property
    def configurations(self) -> list[Configuration]:
        return configurations_of(self.selection)

    @property
    def splits(self) -> list[int]:
        """Seeds of the splits of the users, and of all that is trained on them."""
        return self.data.settings.splits

    # -- summaries ---------------------------------------------------------------------------------------------------

    def summary_seconds(self, split: int) -> dict[str, float]:
        """The CPU seconds that each summary took until it was ready. The first call makes them all."""
        return kept(self._seconds(split), self._recipe(split), lambda: self._make_summaries(split))

    @cache  # noqa: B019  one problem lives as long as the program
    def summary(self, split: int, name: str) -> FarziData:
        self.summary_seconds(split)
        farzi = self._trainer(split).model
        farzi.load_state_dict(load_file(self._tensors(split, name)))
        farzi.store_as(self.args.storage)
        return farzi

    def _make_summaries(self, split: int) -> dict[str, float]:
        trainer, args = self._trainer(split), self.args
        real = RealData(trainer.train_dataset, trainer.data_collator, args.device, args.disable_tqdm)
        self._seconds(split).unlink(missing_ok=True)  # from now on the files beside it are others
        begin = time.process_time()
        kinds = [self.data.learner_config(one, args.sequence_length) for one in self.data.settings.teachers]
        teachers = Labelling.by(kinds, trainer.learner).teachers(real, args.make_teacher_training(), split)
        for name, inputs in ((WINDOWS, "real_windows"), (START, args.input_sequences)):
            set_ids(trainer.model, trainer.train_dataset, split, inputs)
            label(trainer.model, teachers)
            self._save(trainer.model, split, name)
        labelled = time.process_time()
        discard_checkpoints(trainer.args.output_dir)  # of a run that was interrupted; its seconds would be missing
        trainer.saves_on_signal = False
        trainer.train()
        self._save(trainer.model, split, DISTILLED)
        seconds = {WINDOWS: labelled - begin, START: labelled - begin, DISTILLED: time.process_time() - begin}
        return {name: round(value, 2) for name, value in seconds.items()}

    def _trainer(self, split: int) -> FarziTrainer:
        args = with_folder(self.args, str(self.folder / f"split-{split}" / "distillation"))
        args.seed = split
        return trainer_of(self.data, args, split)

    def _seconds(self, split: int) -> Path:
        """It is written after all summaries, so it says that they are there, and with which settings they were made."""
        return self.folder / f"split-{split}" / "summaries.json"

    def check_files(self) -> None:
        """Raises ValueError if files of others would be overwritten. Call it before any work."""
        for split in self.splits:
            stored(self._seconds(split), self._recipe(split))
            for name in (WINDOWS, START, DISTILLED):
                check_files(
                    self.folder,
                    [self._tensors(split, name).relative_to(self.folder)],
                    _is_summary(self._tensors(split, name)),
                )
            for configuration, way in product(self.configurations, WAYS):
                stored(self._file(split, configuration, way), self._settings(split, way))

    def _tensors(self, split: int, name: str) -> Path:
        return self.folder / f"split-{split}" / f"{file_name(name)}.safetensors"

    def _save(self, farzi: FarziData, split: int, name: str) -> None:
        path = self._tensors(split, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda new: save_file(farzi.state_dict(), new))

    # -- trainings ---------------------------------------------------------------------------------------------------

    def trained(self, split: int, configuration: Configuration, way: Way) -> dict[str, Any]:
        """CPU seconds of one training, and the metrics on `PARTS`."""
        path = self._file(split, configuration, way)
        return kept(path, self._settings(split, way), lambda: self._train(split, configuration, way))

    def _file(self, split: int, configuration: Configuration, way: Way) -> Path:
        return self.folder / f"split-{split}" / file_name(way.name) / f"{configuration.slug}.json"

    def comparison(self, split: int, configuration: Configuration, summary: str) -> Comparison:
        """A model of this configuration beside a summary and the real data of a split."""
        args, own = self.args, self.selection
        config = self.data.learner_config(configuration.learner, args.sequence_length)
        training = SyntheticTraining(
            configuration.optimizer, args.tau, args.synthetic_batch_size, lr_scheduler_type=args.inner_lr_scheduler_type
        )
        return Comparison(
            task=self.data.task, splits=self.data.splits(split), config=config, learner=Learner(config).to(args.device),
            farzi=self.summary(split, summary), training=training, steps=args.inner_steps, length=args.sequence_length,
            long_training=TeacherTraining(configuration.optimizer, own.truth_steps, own.truth_batch_size),
            seed=split, num_students=1, batch_size=args.per_device_eval_batch_size, device=args.device, quiet=True,
        )  # fmt: skip

    def _train(self, split: int, configuration: Configuration, way: Way) -> dict[str, Any]:
        c = self.comparison(split, configuration, way.summary)
        begin = time.process_time()
        student = way.student(c, self.selection)
        seconds = round(time.process_time() - begin, 3)
        found = {part: c.task.metrics(c.statistics(student, c.splits[part])) for part in PARTS}
        return {"seconds": seconds, **found}

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _recipe(self, split: int) -> dict[str, Any]:
        """The settings that a summary depends on."""
        return {**self.data.recipe([split]), **self._data(split), **self.args.to_recipe()}

    def _settings(self, split: int, way: Way) -> dict[str, Any]:
        """The settings that a training depends on, beside its configuration, split and way, which name its file."""
        if way.uses is None:
            return self._recipe(split)
        settings = {**vars(self.data.settings), **vars(self.args), **vars(self.selection)}
        return {**self._data(split), **{name: settings[name] for name in (*COMMON, *way.uses)}}

    def _data(self, split: int) -> dict[str, str]:
        return {"data": self.data.fingerprint(split)}


def _is_summary(path: Path) -> bool:
    """Whether a file has the tensors of a summary."""
    with suppress(OSError, SafetensorError), safe_open(path, "pt") as file:
        return {"input_ids", "label_latents"} <= set(file.keys())
    return False


def file_name(name: str) -> str:
    """The name of a way without blanks and signs."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name).split())
