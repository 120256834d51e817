"""The trainings whose sequences `attribution.py` scores: settings, data, and results
that are kept.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradient_scores import gradient_cosines, gradient_products
from torch import Tensor

from farzi_hf.attribution import WeightedTraining
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.run_folder import kept
from farzi_hf.common.checks import check_different
from farzi_hf.common.settings import setting
from farzi_hf.data import minibatches
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation import Learner
from farzi_hf.engine import OPTIMIZERS, InnerOptimizer
from farzi_hf.report import RunSettings, TaskData
from farzi_hf.tasks import Recommendation

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "tables"
CARDS = Path(__file__).resolve().parents[2] / "model_cards"
DATASETS = ("ptb", "ml-100k", "sample", "sample_interactions")
EXACT = "exact influence"
TRACIN = "TracIn, 3 checkpoints"
COSINE = "gradient cosine"
RANDOM = "random"
TRAK_MODELS = 3
TRAK = f"TRAK, {TRAK_MODELS} models"
RESAMPLES = 1000
RULE = "Intervals are the middle 95 % over resampled retrainings; all seeds are averaged."
WAYS = (
    "ordinary loop",
    "training alone",
    "autograd",
    "torch.utils.checkpoint",
    "Tape",
    "Checkpoint",
    "Reversible",
    "training alone, compiled",
    "Tape, compiled",
    "Checkpoint, compiled",
    "Reversible, compiled",
)


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


@dataclass
class AttributionArguments:
    """The trainings, the retrainings and the measurements of cost."""

    num_train: int = setting(1000, "training sequences; all, if there are fewer")
    num_test: int = setting(200, "test sequences; their mean loss is explained")
    shortest: int = setting(5, "leave out sequences with fewer ids")
    longest: int = setting(
        20, "ids of a sequence: sentences lose their ends, histories their beginnings"
    )
    batch_size: int = setting(4, "sequences per step")
    steps: list[int] = field(
        default_factory=lambda: [100, 300, 1000], metadata={"help": "values of T"}
    )
    inner_optimizer: str = setting("adam", "adam | sgd")
    learning_rate: float = setting(0.01, "at the start; it falls to 0 as a cosine")
    epsilon: float = setting(0.01, "of Adam; a large one makes training smooth")
    momentum: float = setting(0.9, "of SGD, and the first beta of Adam")
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2],
        metadata={"help": "of start, minibatches and retrainings"},
    )
    retrainings: int = setting(100, "per seed and T")
    left_out: float = setting(0.05, "share of the sequences that a retraining leaves out")
    cost_steps: list[int] = field(
        default_factory=lambda: [100, 1000, 5000], metadata={"help": "T of time and memory"}
    )
    ways: list[str] = field(
        default_factory=lambda: list(WAYS), metadata={"help": "that are measured"}
    )
    memory_limit: float = setting(2.0, "GiB of a process that is measured")
    time_limit: float = setting(900.0, "seconds of a process that is measured")
    output_dir: str = setting("outputs/attribution", "folder of what is kept")
    card_dir: str | None = setting(None, "folder of table and figure")

    def __post_init__(self) -> None:
        if self.inner_optimizer not in ("adam", "sgd"):
            raise ValueError(
                f"inner_optimizer={self.inner_optimizer!r} is unknown; choose from adam, sgd"
            )
        for name, least in (("steps", 1), ("seeds", 0), ("cost_steps", 1)):
            check_different(name, getattr(self, name), least)
        check_different("ways", self.ways)
        for name in self.ways:
            if name not in WAYS:
                raise ValueError(
                    f"ways: {name!r} is unknown; choose from {', '.join(map(repr, WAYS))}"
                )
        if self.retrainings < 3 or not 0 < self.left_out < 1:
            raise ValueError(
                f"retrainings={self.retrainings} and left_out={self.left_out} give no correlation:"
                " at least 3, and a share between 0 and 1"
            )

    def optimizer(self, steps: int) -> InnerOptimizer:
        """The optimizer of a training of T steps, with a rate that falls to 0 as a cosine."""
        kind = OPTIMIZERS[self.inner_optimizer]
        common = {"lr": self.learning_rate, "lr_schedule": Cosine(steps)}
        if self.inner_optimizer == "sgd":
            return kind(momentum=self.momentum, **common)
        return kind(betas=(self.momentum, 0.999), eps=self.epsilon, **common)


@dataclass(frozen=True)
class Cosine:
    """A multiplier of the learning rate: 1 at step 1, and almost 0 at step T."""

    steps: int

    def __call__(self, step: int) -> float:
        return 0.5 * (1 + float(np.cos(np.pi * (step - 1) / self.steps)))


def parse(argv: Sequence[str] | None) -> tuple[str, TaskData, AttributionArguments, Path]:
    """The data set's name, its data, the settings and the card's folder."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dataset", choices=DATASETS, default="sample")
    known, rest = parser.parse_known_args(argv)
    name = f"attribution_{known.dataset}"
    run, args = parse_arguments(
        (RunSettings, AttributionArguments), CONFIGS / f"{name}_quick.yaml", rest
    )
    return known.dataset, run.load(), args, Path(args.card_dir or CARDS / name)


class AttributionProblem:
    """Training and test sequences of one data set, and the learner's training on them."""

    def __init__(self, data: TaskData, args: AttributionArguments) -> None:
        self.data = data
        self.args = args
        self.task = data.task

    @cached_property
    def learner(self) -> Learner:
        return Learner(self.data.task.learner_config(self.data.settings.learner, self.args.longest))

    @cached_property
    def train_ids(self) -> list[list[int]]:
        return self._drawn("train", self.args.num_train)

    @cached_property
    def test(self) -> dict[str, Tensor]:
        """The test sequences as a batch."""
        return self.collated(self._drawn("test", self.args.num_test))

    def collated(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return dict(self.task.collator([{"input_ids": list(row)} for row in rows]))

    def training(self, seed: int, steps: int) -> WeightedTraining:
        """T steps on the training sequences."""
        ids = self.train_ids
        args = self.args
        batches = minibatches(len(ids), args.batch_size, steps, seed)
        if batches is None:
            raise ValueError(
                f"batch_size={args.batch_size} takes all {len(ids)} sequences: give a smaller one"
            )
        start = self.learner.initial_parameters(seed)
        return WeightedTraining(
            self.learner, self.collated(ids), batches, args.optimizer(steps), start
        )

    def left_out(self, seed: int) -> Tensor:
        """(K, n): the training sequences that each retraining leaves out."""
        n = len(self.train_ids)
        found = torch.zeros(self.args.retrainings, n, dtype=torch.bool)
        for k in range(len(found)):
            chosen = stream(seed, Purpose.LEFT_OUT, k).permutation(n)[
                : max(1, round(self.args.left_out * n))
            ]
            found[k, torch.from_numpy(chosen)] = True
        return found

    def simple_scores(self, seed: int, training: WeightedTraining) -> dict[str, Tensor]:
        """(n,) of the methods that need single gradients alone, and random ones."""
        checkpoints = [training.train(steps=max(1, training.steps * k // 3)) for k in (1, 2, 3)]
        return {
            TRACIN: gradient_products(training, self.test, checkpoints),
            COSINE: gradient_cosines(training, self.test, checkpoints[-1]),
            RANDOM: torch.from_numpy(
                stream(seed, Purpose.RANDOM_SCORES).normal(size=training.num_rows)
            ),
        }

    def by_trak(self, seed: int, steps: int) -> dict[str, list[float]]:
        """The scores (n,) of TRAK, over models that differ in start and minibatches."""
        from trak_scores import trak_scores  # the library is not needed for the rest

        seeds = [seed, *(derive(seed, Purpose.LEARNER, k) for k in range(1, TRAK_MODELS))]
        models = [self.training(s, steps).train() for s in seeds]
        return {TRAK: trak_scores(self.training(seed, steps), self.test, models).mean(0).tolist()}

    def kept(
        self,
        name: str,
        make: Callable[[], Any],
        *uses: str,
        unless: Callable[[Any], bool] | None = None,
    ) -> Any:
        """What `make` returns, from a file if an earlier run with the same settings has made it.

        Args:
            uses: the settings that it depends on, beside those of all.
            unless: a value of which this is true is not kept.
        """
        path = Path(self.args.output_dir) / f"{name}.json"
        own = {key: value for key, value in asdict(self.args).items() if key in (*_COMMON, *uses)}
        return kept(path, {**own, **self.data.identity(0)}, make, unless)

    def _drawn(self, split: str, count: int) -> list[list[int]]:
        """Random sequences of a split, each cut to `longest` ids."""
        ends = (
            slice(-self.args.longest, None)
            if isinstance(self.task, Recommendation)
            else slice(self.args.longest)
        )
        rows = [
            row
            for row in self.data.splits(0)[split][:]["input_ids"]
            if len(row) >= self.args.shortest
        ]
        chosen = stream(derive(0, Purpose.SUBSET), Purpose.SUBSET, len(split)).permutation(
            len(rows)
        )[:count]
        return [rows[i][ends] for i in chosen]


def resampled(
    left_out: torch.Tensor, scores: Sequence[float], losses: Sequence[float]
) -> np.ndarray:
    """(1 + resamples,): the rank correlation of predicted and true losses, first over all
    retrainings, then over resampled ones.
    """
    generator = stream(0, Purpose.BOOTSTRAP)
    count = len(losses)
    chosen = np.stack(
        [np.arange(count), *(generator.integers(count, size=count) for _ in range(RESAMPLES))]
    )
    predicted = (left_out.double() @ torch.tensor(scores).double()).numpy()
    true = np.array(losses)
    return spearman(predicted[chosen], true[chosen])


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation of lists of numbers (…, n): that of their ranks, where equal numbers
    share the mean of theirs.
    """

    def ranks(values: np.ndarray) -> np.ndarray:
        one = values[..., None]
        other = values[..., None, :]
        found = (one > other).sum(-1) + (one == other).sum(-1) / 2
        return found - found.mean(-1, keepdims=True)

    x = ranks(x)
    y = ranks(y)
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


_COMMON = (
    "num_train",
    "num_test",
    "shortest",
    "longest",
    "batch_size",
    "inner_optimizer",
    "learning_rate",
    "epsilon",
    "momentum",
)
