"""Does the outer loop improve the start of students? Their rates and the maps of the teacher's tables
are learnt by the exact meta-gradient through whole trainings.

    python recipes/paper/warm_outer.py SUMMARY --data_dir FOLDER --student "Llama 64" --steps 100

The summary carries its teacher. A student begins with the teacher's tables, as `farzi.start` sets
them, times a matrix for each table; each group of its parameters has a rate of its own. Outer steps
learn these numbers: the loss is that of the trained student on real training rows, each outer step
has a fresh start and fresh inputs. Then students of fresh seeds are compared on the test part: with
what was learnt, with the rates alone, and with the best rate of a fixed list, which the validation
part chooses. Everything is kept in the folder of the card.

A rate of a group is learnt through the units of its parameters: a training of θ/s with the rate η is
one of θ with the rate s·η, because the steps of Adam do not depend on the size of a gradient.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from experiment import CARDS
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm
from warm import STUDENTS

from farzi_hf import FarziData, unroll
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.comparison import pooled_row
from farzi_hf.report.rendering import commit_of
from farzi_hf.summary.start import start_values
from farzi_hf.tasks import Task

Parameters = dict[str, Tensor]
TABLES = "tables"
MATRICES = "matrices"
VECTORS = "vectors"
RATES = (0.5, 1.0, 2.0, 4.0)
"""Times the rate of the command line, for the best fixed choice."""
ROWS_OF_OUTER_STEP = 128
"""Real rows on which an outer step measures its student."""


@dataclass(frozen=True)
class Numbers:
    """What the outer loop learns.

    Attributes:
        rates: the logarithm of the factor on the rate of each group.
        maps: (e, e) by the name of a table: what its rows are multiplied by.
    """

    rates: Mapping[str, Tensor]
    maps: Mapping[str, Tensor]

    @classmethod
    def neutral(cls, tables: Mapping[str, Tensor], factor: float = 1.0) -> Numbers:
        """Nothing is changed, but for one factor on all rates."""
        factor = torch.tensor(factor).log()
        rates = {group: factor.clone() for group in (TABLES, MATRICES, VECTORS)}
        return cls(rates, {name: torch.eye(table.shape[1]) for name, table in tables.items()})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Numbers:
        """The inverse of `to_json`."""
        rates = {group: torch.tensor(value) for group, value in values["rates"].items()}
        return cls(rates, {name: torch.tensor(rows) for name, rows in values["maps"].items()})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        rates = {group: value.item() for group, value in self.rates.items()}
        return {"rates": rates, "maps": {name: x.tolist() for name, x in self.maps.items()}}

    def learnable(self) -> Numbers:
        """Copies that have gradients."""
        rates = {group: x.clone().requires_grad_() for group, x in self.rates.items()}
        maps = {name: x.clone().requires_grad_() for name, x in self.maps.items()}
        return Numbers(rates, maps)


@dataclass(frozen=True)
class WarmTraining:
    """Trains a student from numbers.

    Attributes:
        training: on the summary.
        learner: the student.
        farzi: the summary.
        tables: the values that `farzi.start` sets, by name.
        steps: T.
    """

    training: SyntheticTraining
    learner: Learner
    farzi: FarziData
    tables: Mapping[str, Tensor]
    steps: int

    def __call__(self, numbers: Numbers, seed: int) -> Parameters:
        """θ_T, differentiable in the numbers."""
        fresh = self.learner.initial_parameters(seed)
        start = {**fresh, **self.tables}
        for name, matrix in numbers.maps.items():
            start[name] = start[name] @ matrix
        factors = {name: numbers.rates[group_of(name, x)].exp() for name, x in start.items()}
        summary = self.farzi.tensors
        loss = self.training.inner_loss(self.learner, summary, self.steps, seed)
        names = tuple(factors)

        def scaled_loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            scales = dict(zip(names, inputs[: len(names)], strict=True))
            theta = {name: x * scales[name] for name, x in params.items()}
            return loss(theta, inputs[len(names) :], step)

        theta = unroll(
            scaled_loss,
            {name: x / factors[name] for name, x in start.items()},
            (*factors.values(), *summary.values()),
            optimizer=self.training.optimizer_for(self.learner, self.steps),
            steps=self.steps,
        )
        return {name: x * factors[name] for name, x in theta.items()}


def group_of(name: str, x: Tensor) -> str:
    """The group of a parameter."""
    is_table = any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
    if is_table and x.dim() > 1:
        return TABLES
    return MATRICES if x.dim() > 1 else VECTORS


def learn(
    train: WarmTraining,
    real: Callable[[Parameters, int], Tensor],
    start: Numbers,
    outer_steps: int,
    outer_rates: Sequence[float],
    with_maps: bool,
) -> dict[str, Any]:
    """The numbers after so many outer steps, and the loss of each step.

    Args:
        real: the loss of a student on real rows, which depend on the number of the step.
        start: the numbers before.
        outer_rates: of Adam in the outer loop: for the logarithms of rates, and for the entries of
            maps. They fall to 0 on a straight line.
        with_maps: whether the maps are learnt, too.
    """
    numbers = start.learnable()
    groups = [{"params": list(numbers.rates.values()), "lr": outer_rates[0]}]
    if with_maps:
        groups.append({"params": list(numbers.maps.values()), "lr": outer_rates[1]})
    optimizer = torch.optim.Adam(groups, betas=(0.8, 0.95))
    losses = []
    began = time.perf_counter()
    shown = tqdm(range(outer_steps), "Outer steps", dynamic_ncols=True)
    for step in shown:
        fraction = step / outer_steps
        for group, rate in zip(optimizer.param_groups, outer_rates, strict=False):
            group["lr"] = rate * (1 - fraction)
        optimizer.zero_grad()
        loss = real(train(numbers, 10_000 + step), step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        shown.set_postfix(loss=f"{losses[-1]:.3f}")
    return {
        "numbers": numbers.to_json(),
        "losses": losses,
        "seconds": time.perf_counter() - began,
    }


@dataclass(frozen=True)
class LossOnRealRows:
    """The loss of a trained student on real training rows. Each outer step reads the next ones.

    Attributes:
        learner: the student.
        task: collates the rows.
        rows: of the training part.
    """

    learner: Learner
    task: Task
    rows: Dataset

    def __call__(self, theta: Parameters, step: int) -> Tensor:
        first = ROWS_OF_OUTER_STEP * step % (len(self.rows) - ROWS_OF_OUTER_STEP)
        read = [self.rows[i] for i in range(first, first + ROWS_OF_OUTER_STEP)]
        return self.learner.hard_loss(theta, self.task.collator(read))


@dataclass(frozen=True)
class Experiment:
    """What is learnt for one kind of student, and how good such students are. All of it is kept in
    the folder of the card.

    Attributes:
        args: the options.
        folder: of the card.
        comparison: measures students.
        train: makes them.
        settings: identify what is kept.
    """

    args: Namespace
    folder: Path
    comparison: Comparison
    train: WarmTraining
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, args: Namespace, farzi: FarziData, data: TaskData, folder: Path) -> Experiment:
        """That of the options."""
        if args.inputs != farzi.config.inputs:
            farzi = farzi.with_inputs(args.inputs)
        config = data.task.learner_config(STUDENTS[args.student], farzi.config.sequence_length)
        comparison = Comparison.of_summary(farzi, data, config)
        inner = {
            **farzi.config.inner,
            "optimizer": "adam",  # the steps of SOAP have no derivative
            "steps": args.steps,
            "lr": args.rate,
            "synthetic_batch_size": args.rows,
        }
        learner = comparison.learner
        tables = start_values(farzi.teacher, learner.model)
        training = SyntheticTraining.of(inner, farzi.forms)
        settings = {**vars(args), "summary": farzi.fingerprint(), "data": data.fingerprint(0)}
        del settings["card_dir"], settings["num_students"]
        train = WarmTraining(training, learner, farzi, tables, args.steps)
        return cls(args, folder, comparison, train, settings)

    def best_fixed_factor(self) -> float:
        """Of `RATES`, the one with the lowest error on validation rows."""
        errors = {}
        for factor in RATES:
            students = self.measured(f"rate x {factor:g}", self.fixed(factor), "validation", 2)
            errors[factor] = self.comparison.task.error(students.students[0])
        return min(errors, key=errors.get)

    def fixed(self, factor: float) -> Numbers:
        """The rate of the command line, times a factor, and no maps."""
        tables = self.train.tables
        matrices = {name: x for name, x in tables.items() if group_of(name, x) == TABLES}
        return Numbers.neutral(matrices, factor)

    def learnt(self, name: str, best: float, with_maps: bool) -> dict[str, Any]:
        """What `learn` makes, beginning at the best fixed factor."""
        rows = self.comparison.real_data(self.comparison.splits["train"]).dataset
        real = LossOnRealRows(self.train.learner, self.comparison.task, rows)
        how = (self.args.outer_steps, self.args.outer_rates, with_maps)
        make = partial(learn, self.train, real, self.fixed(best), *how)
        path = self.folder / "kept" / f"{name.replace(' ', '_')}.json"
        return kept(path, {**self.settings, "best": best}, make)

    def measured(self, name: str, numbers: Numbers, split: str, count: int) -> Measured:
        """Students of fresh seeds on a part of the data."""

        def make() -> dict[str, Any]:
            splits = {**self.comparison.splits, "test": self.comparison.splits[split]}
            on_split = replace(self.comparison, splits=splits)
            student = partial(self._student, numbers)
            nbytes = self.train.farzi.nbytes
            return on_split.trained(name, student, range(count), nbytes, self.args.steps).to_json()

        of_numbers = {"numbers": numbers.to_json(), "split": split, "count": count}
        path = self.folder / "kept" / f"{name.replace(' ', '_').replace(',', '')}_{split}.json"
        return Measured.from_json(kept(path, {**self.settings, **of_numbers}, make))

    def _student(self, numbers: Numbers, seed: int) -> Callable:
        """The logits of a trained student."""
        with torch.no_grad():
            return partial(self.train.learner.logits, self.train(numbers, seed))


def main(argv: Sequence[str] | None = None) -> None:
    """The table."""
    args = parse(argv)
    keep_freed_memory()
    with ends_in_one_line("warm_outer.py", OSError):
        farzi = FarziData.from_pretrained(args.summary)
        data = TaskData.of_summary(farzi, args.data_dir)
        default = CARDS / f"{data.settings.dataset.split('.')[0].lower()}_warm_outer"
        folder = Path(args.card_dir or default)
        check_outputs(folder, ("table.md", "table.csv", "table.json"))
    experiment = Experiment.of(args, farzi, data, folder)
    best = experiment.best_fixed_factor()
    numbers = {
        f"the best fixed rate ({best:g} times {args.rate:g})": experiment.fixed(best),
    }
    seconds = {}
    for name, with_maps in (("learnt rates", False), ("learnt rates and maps", True)):
        outcome = experiment.learnt(name, best, with_maps)
        numbers[name] = Numbers.from_json(outcome["numbers"])
        seconds[name] = outcome["seconds"]
    measurements = {
        name: experiment.measured(f"row {i}", each, "test", args.num_students)
        for i, (name, each) in enumerate(numbers.items())
    }
    first, *others = measurements
    findings = []
    for name in others:
        compared = ratio_line(data.task, measurements, name, first)
        rates = {group: round(float(x.exp()), 2) for group, x in numbers[name].rates.items()}
        findings.append(
            f"{compared}; {args.outer_steps} outer steps in {seconds[name]:.0f} s; factors on"
            f" rates {rates}"
        )
    rows = [
        pooled_row(data.task, [replace(each, method=name)]) for name, each in measurements.items()
    ]
    write_table(folder, f"{args.student}, T = {args.steps}", data.task, rows, findings)


def ratio_line(task: Task, measurements: Mapping[str, Measured], name: str, first: str) -> str:
    """How good the students of one row are beside those of the first."""
    pairs = ([measurements[name].students], [measurements[first].students])
    share, (low, high) = task.ratio(*pairs)
    return (
        f"{name}: {100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f}) of {first}"
        f" ({task.ratio_label})"
    )


def write_table(
    folder: Path,
    title: str,
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    findings: Sequence[str],
) -> None:
    """Writes the table and prints it."""
    table = markdown([task.readable(row) for row in rows])
    text = f"# {title}\n\n{table}\n\n" + "\n".join(findings)
    save_text(text + "\n", folder / "table.md")
    save_csv(rows, folder / "table.csv")
    save_json(
        {"rows": rows, "findings": findings, **commit_of(Path(__file__))}, folder / "table.json"
    )
    print(text)


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summary", help="folder or dataset repository; it carries a teacher")
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument("--student", default="Llama 64", help=f"one of {', '.join(STUDENTS)}")
    parser.add_argument("--inputs", default="written")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10, help="of a step")
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--outer_steps", type=int, default=40)
    parser.add_argument(
        "--outer_rates", type=float, nargs=2, default=[0.1, 0.01], help="for rates, for maps"
    )
    parser.add_argument("--num_students", type=int, default=5)
    parser.add_argument("--card_dir", help="folder of the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
