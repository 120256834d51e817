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
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from experiment import CARDS
from torch import Tensor
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

Parameters = dict[str, Tensor]
TABLES = "tables"
MATRICES = "matrices"
VECTORS = "vectors"
RATES = (0.5, 1.0, 2.0, 4.0)
"""Times the rate of the command line, for the best fixed choice."""


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


def main(argv: Sequence[str] | None = None) -> None:
    """The table."""
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
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("warm_outer.py", OSError):
        farzi = FarziData.from_pretrained(args.summary)
        data = TaskData.of_summary(farzi, args.data_dir)
        default = CARDS / f"{data.settings.dataset.split('.')[0].lower()}_warm_outer"
        folder = Path(args.card_dir or default)
        check_outputs(folder, ("table.md", "table.csv", "table.json"))
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
    train = WarmTraining(training, learner, farzi, tables, args.steps)
    matrices = {name: x for name, x in tables.items() if group_of(name, x) == TABLES}
    real_data = comparison.real_data(comparison.splits["train"])
    rows = real_data.dataset

    def real(theta: Parameters, step: int) -> Tensor:
        numbers = range(128 * step % (len(rows) - 128), 128 * step % (len(rows) - 128) + 128)
        batch = data.task.collator([rows[i] for i in numbers])
        return learner.hard_loss(theta, batch)

    settings = {**vars(args), "summary": farzi.fingerprint(), "data": data.fingerprint(0)}
    del settings["card_dir"], settings["num_students"]

    def measured(name: str, numbers: Numbers, split: str, count: int) -> Measured:
        def make() -> dict[str, Any]:
            c = replace(comparison, splits={**comparison.splits, "test": comparison.splits[split]})

            def student(seed: int) -> Callable:
                with torch.no_grad():
                    return partial(learner.logits, train(numbers, seed))

            found = c.trained(name, student, range(count), farzi.nbytes, args.steps)
            return found.to_json()

        of_numbers = {"numbers": numbers.to_json(), "split": split, "count": count}
        path = folder / "kept" / f"{name.replace(' ', '_').replace(',', '')}_{split}.json"
        return Measured.from_json(kept(path, {**settings, **of_numbers}, make))

    fixed = {factor: Numbers.neutral(matrices, factor) for factor in RATES}
    errors = {
        factor: data.task.error(measured(f"rate x {factor:g}", it, "validation", 2).students[0])
        for factor, it in fixed.items()
    }
    best = min(errors, key=errors.get)
    found = {f"the best fixed rate ({best:g} times {args.rate:g})": fixed[best]}
    facts = {}
    for name, with_maps in (("learnt rates", False), ("learnt rates and maps", True)):
        path = folder / "kept" / f"{name.replace(' ', '_')}.json"
        how = (args.outer_steps, args.outer_rates, with_maps)
        make = partial(learn, train, real, fixed[best], *how)
        facts[name] = kept(path, {**settings, "best": best}, make)
        found[name] = Numbers.from_json(facts[name]["numbers"])
    measurements = {
        name: measured(f"row {i}", numbers, "test", args.num_students)
        for i, (name, numbers) in enumerate(found.items())
    }
    table = []
    findings = []
    first, *others = measurements
    for name, each in measurements.items():
        row = pooled_row(data.task, [replace(each, method=name)])
        table.append(row)
    for name in others:
        pairs = ([measurements[name].students], [measurements[first].students])
        share, (low, high) = data.task.ratio(*pairs)
        rates = {group: round(float(x.exp()), 2) for group, x in found[name].rates.items()}
        findings.append(
            f"{name}: {100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f}) of {first}"
            f" ({data.task.ratio_label}); {args.outer_steps} outer steps in"
            f" {facts[name]['seconds']:.0f} s; factors on rates {rates}"
        )
    text = f"# {args.student}, T = {args.steps}\n\n"
    text += markdown([data.task.readable(row) for row in table]) + "\n\n" + "\n".join(findings)
    save_text(text + "\n", folder / "table.md")
    save_csv(table, folder / "table.csv")
    save_json(
        {"rows": table, "findings": findings, **commit_of(Path(__file__))}, folder / "table.json"
    )
    print(text)


if __name__ == "__main__":
    run(main)
