"""Shows how much data is enough: performance against μ, for a summary, for as many real sequences,
and for full data.

    python recipes/paper/sample_efficiency.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/sample_efficiency.py --dataset ptb --data_dir FOLDER --budgets 10 50
    python recipes/paper/sample_efficiency.py --dataset sample                        # embedded: text, or sample_interactions
    python recipes/paper/sample_efficiency.py --dataset ptb --form paper              # the paper's form of a summary
    python recipes/paper/sample_efficiency.py --dataset ptb --form paper --scale paper # for a GPU

This makes the paper's figures of sample efficiency and its table of sizes. All students take the
same number of steps, except in the row "full data, long".
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cells import (
    FULL,
    LONG,
    Cell,
    Students,
    compared,
    full_cells,
    on_head,
    on_random,
    on_random_bytes,
    on_summary,
)
from curves import Panel, plot_curves
from evidence import Claim
from experiment import OWN_FORM, PAPER_FORM, Experiment, full_data_claim

from farzi_hf.cli.program import run
from farzi_hf.report import markdown
from farzi_hf.tasks import Task

FIGURE = "sample_efficiency.png"
FAMILIES: dict[
    str, tuple[Students, bool, str]
] = {  # students, whether they need a summary, title of a row
    "Farzi": (on_summary, True, "Farzi [{size}×{length}]"),
    "random": (on_random, False, "random, {size} sequences"),
    "random, same bytes": (on_random_bytes, False, "random, bytes of [{size}×{length}]"),
    "head (longest)": (on_head, False, "head (longest), {size} sequences"),
}
Share = tuple[float, tuple[float, float]]
"""A share of full data's quality, and its interval."""


def main(argv: Sequence[str] | None = None) -> None:
    """The table and the figure of one data set."""
    forms = OWN_FORM | PAPER_FORM
    e, evidence = compared(
        "sample_efficiency", "Sample efficiency", argv, cells, (FIGURE,), forms=forms
    )
    budgets = sorted(e.settings.budgets)
    sized = sized_cells(e)
    rows = evidence.rows
    largest = sized["Farzi", budgets[-1]].method
    shares = {
        f"{size}×{e.args.sequence_length}": evidence.ratio(sized["Farzi", size].method, LONG)
        for size in budgets
    }
    title = f"share of full data's quality, % ({e.task.ratio_label})"
    table = [
        {title: f"[{size}]", "of full data, long": percent(share)} for size, share in shares.items()
    ]
    findings = [*evidence.verdicts(claims(e, sized, budgets)), evidence.finding(largest, FULL)]
    e.write([*rows.values(), *e.counted()], findings, f"\n{markdown(table)}\n")
    curves = [
        {**rows[cell.method], "method": family, "μ": size} for (family, size), cell in sized.items()
    ]
    draw(curves, {name: rows[name] for name in (FULL, LONG)}, e.task, e.folder)


def draw(
    curves: Sequence[Mapping[str, Any]],
    lines: Mapping[str, Mapping[str, Any]],
    task: Task | type[Task],
    folder: Path,
) -> None:
    """Quality over the number of sequences.

    Args:
        curves: rows with `μ`, whose methods are names of `FAMILIES`.
        lines: rows that do not depend on μ, by name.
        task: of the students, or its class.
    """
    top = 3 * max(row[task.metric] for row in curves if row["method"] == "Farzi")
    panel = Panel(
        curves,
        "μ",
        task.metric,
        "Synthetic sequences μ",
        task.metric_label,
        "x" if task.percent else "xy",
        lines={name: row[task.metric] for name, row in lines.items()},
        top=top,
        from_zero=False,
    )
    plot_curves(folder / FIGURE, panel)


def sized_cells(e: Experiment) -> dict[tuple[str, int], Cell]:
    """The points of the curves."""
    return {
        (family, size): sized_cell(e, family, size)
        for family in FAMILIES
        for size in sorted(e.settings.budgets)
    }


def cells(e: Experiment) -> list[Cell]:
    """The points, and full data."""
    return [*sized_cells(e).values(), *full_cells()]


def sized_cell(e: Experiment, family: str, size: int) -> Cell:
    """One point of a curve."""
    students, distils, title = FAMILIES[family]
    settings = {"num_sequences": size}
    if e.args.synthetic_batch_size is not None:  # at most the number of sequences
        settings["synthetic_batch_size"] = min(size, e.args.synthetic_batch_size)
    return Cell(
        title.format(size=size, length=e.args.sequence_length), settings, students, distils=distils
    )


def claims(
    e: Experiment, sized: Mapping[tuple[str, int], Cell], budgets: Sequence[int]
) -> list[Claim]:
    """The paper's claims for this task: summaries are as good as full data in recommendation, and
    worse in text.
    """
    smallest, largest = (sized["Farzi", size].method for size in (budgets[0], budgets[-1]))
    found = [full_data_claim(e.task, "a summary", largest, LONG)]
    for family in ("random", "head (longest)"):
        for size in budgets:
            text = f"A summary of {size} sequences is better than as many real ones, {family}"
            found.append(Claim(text, sized["Farzi", size].method, sized[family, size].method))
    return (
        [*found, Claim("More synthetic sequences are better", largest, smallest)]
        if smallest != largest
        else found
    )


def percent(share: Share) -> str:
    """The share in per cent, with its interval."""
    value, (low, high) = share
    return f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


if __name__ == "__main__":
    run(main)
