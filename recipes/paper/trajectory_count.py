"""Shows how many pretrained trajectories are useful: the summary's quality against |Ω|, at equal
numbers of outer steps.

    python recipes/paper/trajectory_count.py --dataset ml-100k --data_dir FOLDER --counts 0 1 2 5 10 20
    python recipes/paper/trajectory_count.py --dataset sample

With |Ω| = 0, every inner loop starts from a fresh random initialisation. With Ω, the share
`--fresh_start_fraction` of the loops still does; the paper has 0 here. Everything else, configs
included, is as in `objectives.py`. Tables go to `model_cards/trajectory_count_DATASET/`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cells import Cell, compared
from curves import Panel, plot_curves
from evidence import Claim
from experiment import Experiment
from objectives import FORMS

from farzi_hf.cli.program import run
from farzi_hf.tasks import Task

FIGURE = "trajectory_count.png"
FEW = 5  # the paper's curve is flat from this number on


def main(argv: Sequence[str] | None = None) -> None:
    """The curve of one data set."""
    e, evidence = compared(
        "trajectory_count", "Number of trajectories", argv, cells, (FIGURE,), FORMS
    )
    counts = e.settings.counts
    e = replace(e, recording=replace(e.recording, num_recorded=max(counts)))
    rows = [
        {**row, "trajectories": count}
        for row, count in zip(evidence.rows.values(), counts, strict=True)
    ]
    facts = {**e.omega(), "inner optimizer": e.args.inner_settings()}
    e.write(rows, evidence.verdicts(claims(counts)), facts=facts)
    draw(rows, e.task, e.folder)


def draw(rows: Sequence[Mapping[str, Any]], task: Task | type[Task], folder: Path) -> None:
    """Quality over |Ω|: a point for each row, which has `trajectories`."""
    curve = [{**row, "method": "student on the summary"} for row in rows]
    label = "|Ω|, pretrained trajectories (0: random initialisation alone)"
    panel = Panel(curve, "trajectories", task.metric, label, task.metric_label, from_zero=False)
    plot_curves(folder / FIGURE, panel)


def cells(e: Experiment) -> list[Cell]:
    """One per |Ω|."""
    omega = {"trajectories": f"{e.args.output_dir}/trajectories/count"}
    return [
        Cell(name_of(count), {**omega, "num_trajectories": count} if count else {})
        for count in e.settings.counts
    ]


def name_of(count: int) -> str:
    """Of a row."""
    return f"trajectories: {count}"


def claims(counts: Sequence[int]) -> list[Claim]:
    """The paper's claims: a few trajectories are much better than none, and many are hardly better
    than a few.
    """
    some = sorted(count for count in counts if count)
    text = "{} trajectories are better than none, at equal numbers of outer steps"
    found = [Claim(text.format(count), name_of(count), name_of(0)) for count in some if 0 in counts]
    if some and some[0] < FEW < some[-1] and FEW in some:
        found.append(
            Claim(
                f"{FEW} are at least 98 % as good as {some[-1]}",
                name_of(FEW),
                name_of(some[-1]),
                0.98,
            )
        )
    return found


if __name__ == "__main__":
    run(main)
