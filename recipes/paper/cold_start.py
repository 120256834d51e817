"""Whether a summary serves rare items and users with short histories worse: performance in tenths by popularity.

    python recipes/paper/cold_start.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/cold_start.py --dataset magazine --data_dir FOLDER
    python recipes/paper/cold_start.py --dataset sample_interactions                   # embedded

The paper's figure of cold users and items. Items are in ten equal groups by their count in the training users' histories, and a group's
figure is that of the test users whose last item is in it; test users are in ten equal groups by the length of what is known of them. Ties go
by number, so groups are equal in size. The test users of all splits stand together. Each (method, seed) is kept in `output_dir`: started again,
what is done stays done; where `sample_efficiency.py` has distilled the same, it is found again. The settings are in
`configs/paper_DATASET_SCALE.yaml`; the card goes to `model_cards/cold_start_DATASET/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cells import FULL, LONG, evidence_of, full_cells
from experiment import Experiment
from sample_efficiency import sized_cell

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.evaluation import Recommendation, markdown, popularity, save_csv, save_text
from farzi_hf.evaluation.baselines import ranks_of_scores
from farzi_hf.evaluation.evidence import AGREES, DIFFERS, OPEN, counted
from farzi_hf.evaluation.metrics import bootstrap_interval
from farzi_hf.evaluation.tasks import Statistics
from farzi_hf.plots import plot_deciles

TENTHS = 10
REGIONS = {
    "items": ("in the three most popular tenths of items", "in the seven less popular tenths of items"),
    "users": ("of the three tenths of users with the longest histories", "of the seven tenths with shorter histories"),
}
FIRST = {"items": "1, most popular", "users": "1, longest histories"}
POPULARITY = "popularity"


@dataclass(frozen=True)
class Strata:
    """Of each test user of all splits the tenth, 0 … 9, of the target item and of the user's history; 0 has the most popular, the longest."""

    items: np.ndarray
    users: np.ndarray

    @classmethod
    def of(cls, e: Experiment) -> tuple[Strata, np.ndarray]:
        """And the ranks (N,) that popularity gives the targets."""
        items, lengths, ranks = [], [], []
        vocab_size = len(e.task.processing_class)
        for seed in e.seeds:
            splits = e.data.splits(seed)
            histories = splits["test"]["input_ids"]
            counts = popularity(splits["train"], vocab_size)
            items.append(tenths(counts[1:])[[history[-1] - 1 for history in histories]])  # 0 is the padding
            lengths.append([len(history) - 1 for history in histories])
            ranks.append(ranks_of_scores(lambda history, counts=counts: counts, histories)[:, 0])
        return cls(np.concatenate(items), tenths(np.concatenate(lengths))), np.concatenate(ranks)


def main(argv: Sequence[str] | None = None) -> None:
    """The tables and the figure of one data set."""
    keep_freed_memory()
    with ends_in_one_line("cold_start.py"):
        e = Experiment.parse("cold_start", "Cold start", argv, ("strata.csv", "strata.json", "cold_start.png"))
        if e.data.task_class is not Recommendation:
            raise ValueError(f"--dataset {e.dataset} has no users and items: choose one of interactions")
        ours = sized_cell(e, "Farzi", e.args.num_sequences)
        evidence = evidence_of(e, [ours, *full_cells()])
    strata, popular = Strata.of(e)
    hits = {name: hits_of(students) for name, students in evidence.students.items()} | {
        POPULARITY: (popular <= 100).astype(float)
    }
    strata_rows = [
        {"method": name, "by": by, **row}
        for by in ("items", "users")
        for name in hits
        for row in tenths_rows(hits[name], getattr(strata, by))
    ]
    judged = [v for by in ("items", "users") for v in regions(ours.method, LONG, by, hits, getattr(strata, by))]
    findings = [
        f"{counted([verdict for verdict, _ in judged])} Decided is what the 95 % interval (of test users) says."
    ]
    findings += [f"- {verdict}: {text}" for verdict, text in judged]
    findings += [evidence.finding(ours.method, name) for name in (LONG, FULL)]
    rows = [*evidence.rows.values(), *e.counted()]
    more = "\n" + "\n\n".join(strata_table(strata_rows, by) for by in ("items", "users")) + "\n"
    e.write(rows, findings, more)
    save_csv(strata_rows, e.folder / "strata.csv")
    save_text(json.dumps(strata_rows, indent=1), e.folder / "strata.json")
    plot_deciles(strata_rows, e.folder / "cold_start.png", metric_label="Test HR@100")


def tenths(values: np.ndarray) -> np.ndarray:
    """(N,): the tenth in which each value is, 0 being that of the largest; of equal values the earlier one is in front."""
    order = np.argsort(-np.asarray(values), kind="stable")
    places = np.empty(len(order), dtype=int)
    for tenth, members in enumerate(np.array_split(order, TENTHS)):
        places[members] = tenth
    return places


def hits_of(students: Statistics) -> np.ndarray:
    """(N,) of all splits' test users: share of the students that rank the target among the first hundred."""
    return np.concatenate([(np.asarray(seed)[:, :, 0] <= 100).mean(axis=0) for seed in students])


def tenths_rows(hits: np.ndarray, tenth: np.ndarray) -> list[dict[str, Any]]:
    """HR@100 of each tenth with its interval, and how many test users it is of; where there are none, no figure."""
    rows = []
    for number in range(TENTHS):
        inside = hits[tenth == number]
        row: dict[str, Any] = {"tenth": number + 1, "n": len(inside)}
        if len(inside):
            row |= {"hr@100": float(inside.mean()), "hr@100_interval": list(bootstrap_interval(inside))}
        rows.append(row)
    return rows


def regions(ours: str, full: str, by: str, hits: Mapping[str, np.ndarray], tenth: np.ndarray) -> list[tuple[str, str]]:
    """Whether ours is worse than full data where much is known, and better elsewhere, as the paper has it: verdicts and why."""
    difference, judged = 100 * (hits[ours] - hits[full]), []
    for which, inside, side in ((0, tenth < 3, -1), (1, tenth >= 3, 1)):
        claim = f"{REGIONS[by][which]}, a summary is {'better' if side > 0 else 'worse'} than full data."
        values = difference[inside]
        if not len(values):
            judged.append((OPEN, f"{claim} There is no test user."))
            continue
        low, high = bootstrap_interval(values)
        least, most = sorted((side * low, side * high))
        verdict = AGREES if least > 0 else DIFFERS if most < 0 else OPEN
        figures = f"{values.mean():+.1f} points ({low:+.1f} … {high:+.1f}, {len(values)} test users)"
        judged.append((verdict, f"{claim} {ours} less {full}, HR@100: {figures}."))
    return judged


def strata_table(rows: Sequence[Mapping[str, Any]], by: str) -> str:
    """Tenths down, methods across."""

    def cell(row: Mapping[str, Any]) -> str:
        low, high = row.get("hr@100_interval", (0, 0))
        return f"{100 * row['hr@100']:.0f} ({100 * low:.0f}–{100 * high:.0f})" if row["n"] else ""

    methods = list(dict.fromkeys(row["method"] for row in rows))
    chosen = {(row["method"], row["tenth"]): row for row in rows if row["by"] == by}
    table = [
        {
            f"tenth of {by}, HR@100 in %": FIRST[by] if tenth == 1 else str(tenth),
            "n": str(chosen[methods[0], tenth]["n"]),
            **{method: cell(chosen[method, tenth]) for method in methods},
        }
        for tenth in range(1, TENTHS + 1)
    ]
    return markdown(table)


if __name__ == "__main__":
    run(main)
