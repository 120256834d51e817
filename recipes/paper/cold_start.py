"""Tests whether a summary is worse for rare items and for users with short histories: performance
in tenths by popularity.

    python recipes/paper/cold_start.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/cold_start.py --dataset magazine --data_dir FOLDER
    python recipes/paper/cold_start.py --dataset sample_interactions                   # embedded

This makes the paper's figure of cold users and items. Items are in ten equal groups by their count
in the training users' histories, and a test user is in the group of the last item. Test users are
in ten equal groups by the length of their known history. The users of all splits are together.
Cells that `sample_efficiency.py` has distilled with the same settings are used again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cells import FULL, LONG, Cell, compared, full_cells
from curves import Panel, plot_curves
from evidence import AGREES, DIFFERS, OPEN, counted
from experiment import OWN_FORM, PAPER_FORM, Experiment
from sample_efficiency import sized_cell

from farzi_hf.cli.program import run
from farzi_hf.metrics import bootstrap_interval
from farzi_hf.report import markdown, save_csv, save_json
from farzi_hf.tasks import Recommendation, Statistics, popularity
from farzi_hf.tasks.items import ranks_of_scores

TENTHS = 10
REGIONS = {
    "items": (
        "in the three most popular tenths of items",
        "in the seven less popular tenths of items",
    ),
    "users": (
        "of the three tenths of users with the longest histories",
        "of the seven tenths with shorter histories",
    ),
}
FIRST = {"items": "1, most popular", "users": "1, longest histories"}
POPULARITY = "popularity"


def strata_of(e: Experiment) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """For each test user of all splits, the tenth (0 … 9) of the target item and of the user's
    history; and popularity's ranks (N,) of the targets.

    Tenth 0 has the most popular items and the longest histories.
    """
    items = []
    lengths = []
    ranks = []
    vocab_size = len(e.task.processing_class)
    for seed in e.seeds:
        splits = e.data.splits(seed)
        histories = splits["test"]["input_ids"]
        counts = popularity(splits["train"], vocab_size)
        # 0 is the padding.
        items.append(tenths(counts[1:])[[history[-1] - 1 for history in histories]])
        lengths.append([len(history) - 1 for history in histories])
        ranks.append(ranks_of_scores(lambda history, counts=counts: counts, histories)[:, 0])
    return {
        "items": np.concatenate(items),
        "users": tenths(np.concatenate(lengths)),
    }, np.concatenate(ranks)


def main(argv: Sequence[str] | None = None) -> None:
    """The tables and the figure of one data set."""
    files = ("strata.csv", "strata.json", "cold_start.png")
    e, evidence = compared(
        "cold_start", "Cold start", argv, cells, files, forms=OWN_FORM | PAPER_FORM
    )
    ours = next(iter(evidence.rows))
    strata, popular = strata_of(e)
    hits = {name: hits_of(students) for name, students in evidence.students.items()}
    hits[POPULARITY] = (popular <= 100).astype(float)
    pairs = [(by, name) for by in strata for name in hits]
    strata_rows = [
        {"method": name, "by": by, **row}
        for by, name in pairs
        for row in tenths_rows(hits[name], strata[by])
    ]
    judged = [
        verdict for by, tenth in strata.items() for verdict in regions(ours, LONG, by, hits, tenth)
    ]
    findings = [
        f"{counted([verdict for verdict, _ in judged])} The 95 % interval (over test users)"
        " decides."
    ]
    findings += [f"- {verdict}: {text}" for verdict, text in judged]
    findings += [evidence.finding(ours, name) for name in (LONG, FULL)]
    rows = [*evidence.rows.values(), *e.counted()]
    more = "\n" + "\n\n".join(strata_table(strata_rows, by) for by in ("items", "users")) + "\n"
    e.write(rows, findings, more)
    save_csv(strata_rows, e.folder / "strata.csv")
    save_json(strata_rows, e.folder / "strata.json")
    drawn = {by: [row for row in strata_rows if row["by"] == by] for by in strata}
    titles = {by: f"Tenths of the {by}, {FIRST[by].removeprefix('1, ')} first" for by in strata}
    panels = (
        Panel(rows, "tenth", "hr@100", titles[by], "Test HR@100") for by, rows in drawn.items()
    )
    plot_curves(e.folder / "cold_start.png", *panels)


def cells(e: Experiment) -> list[Cell]:
    """The summary first."""
    if e.data.task_class is not Recommendation:
        raise ValueError(
            f"--dataset {e.dataset} has no users and items: choose a data set of interactions"
        )
    return [sized_cell(e, "Farzi", e.args.num_sequences), *full_cells()]


def tenths(values: np.ndarray) -> np.ndarray:
    """(N,): the tenth of each value; tenth 0 has the largest values. Among equal values, the
    earlier one comes first.
    """
    order = np.argsort(-np.asarray(values), kind="stable")
    places = np.empty(len(order), dtype=int)
    for tenth, members in enumerate(np.array_split(order, TENTHS)):
        places[members] = tenth
    return places


def hits_of(students: Statistics) -> np.ndarray:
    """(N,), for the test users of all splits: the share of the students that rank the target among
    the first hundred.
    """
    return np.concatenate([(np.asarray(seed)[:, :, 0] <= 100).mean(axis=0) for seed in students])


def tenths_rows(hits: np.ndarray, tenth: np.ndarray) -> list[dict[str, Any]]:
    """HR@100 of each tenth with its interval, and the number of its test users. A tenth without
    users has no figure.
    """
    rows = []
    for number in range(TENTHS):
        inside = hits[tenth == number]
        row: dict[str, Any] = {"tenth": number + 1, "n": len(inside)}
        if len(inside):
            row |= {
                "hr@100": float(inside.mean()),
                "hr@100_interval": list(bootstrap_interval(inside)),
            }
        rows.append(row)
    return rows


def regions(
    ours: str, full: str, by: str, hits: Mapping[str, np.ndarray], tenth: np.ndarray
) -> list[tuple[str, str]]:
    """Verdicts, with reasons, on the paper's statement: ours is worse than full data for popular
    items or long histories, and better for others.
    """
    difference = 100 * (hits[ours] - hits[full])
    judged = []
    for which, inside, side in ((0, tenth < 3, -1), (1, tenth >= 3, 1)):
        claim = (
            f"{REGIONS[by][which]}, a summary is {'better' if side > 0 else 'worse'} than full"
            " data."
        )
        values = difference[inside]
        if not len(values):
            judged.append((OPEN, f"{claim} There is no test user."))
            continue
        low, high = bootstrap_interval(values)
        least, most = sorted((side * low, side * high))
        verdict = AGREES if least > 0 else DIFFERS if most < 0 else OPEN
        figures = (
            f"{values.mean():+.1f} points ({low:+.1f} … {high:+.1f}, {len(values)} test users)"
        )
        judged.append((verdict, f"{claim} {ours} less {full}, HR@100: {figures}."))
    return judged


def strata_table(rows: Sequence[Mapping[str, Any]], by: str) -> str:
    """A table with a row per tenth and a column per method."""

    def cell(row: Mapping[str, Any]) -> str:
        low, high = row.get("hr@100_interval", (0, 0))
        return f"{100 * row['hr@100']:.0f} ({100 * low:.0f}–{100 * high:.0f})" if row["n"] else ""

    methods = list(dict.fromkeys(row["method"] for row in rows))
    chosen = {(row["method"], row["tenth"]): row for row in rows if row["by"] == by}
    table = []
    for tenth in range(1, TENTHS + 1):
        first = {
            f"tenth of {by}, HR@100 in %": FIRST[by] if tenth == 1 else str(tenth),
            "n": str(chosen[methods[0], tenth]["n"]),
        }
        table.append(first | {method: cell(chosen[method, tenth]) for method in methods})
    return markdown(table)


if __name__ == "__main__":
    run(main)
