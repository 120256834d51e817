"""Recommenders measured as most papers do it: the last item of each user is the target, and all items
are ranked that the user has not had. A table of recall and nDCG at 10 and 20, with published figures
beside.

    farzi distil recipes/configs/beauty_last_items.yaml --data_dir FOLDER --output_dir RUN
    python recipes/paper/last_items.py RUN/split-0/summary --data_dir FOLDER

The rows are those of what only counts, of the teacher that each summary carries, and of students of
the summaries. A summary that stores its teacher exactly (`--storage exact --packing_steps 0`) has
a row of all data in its place, and no students. Recall at k is the share of users whose target is
among the first k: with one target for a user, other papers call it the hit rate. What was measured
is kept in the folder of the card, and a later start does not repeat it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from experiment import CARDS

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.rendering import commit_of
from farzi_hf.report.rows import on_summary, teacher
from farzi_hf.report.trials import words_of
from farzi_hf.tasks.items import rank_metrics, ranking_intervals

KS = (10, 20)
SHOWN = {"hr@10": "recall@10", "ndcg@10": "nDCG@10", "hr@20": "recall@20", "ndcg@20": "nDCG@20"}
PUBLISHED = (
    ("SASRec, RecBole's benchmark", 0.083, 0.042),
    ("SASRec with sampled softmax, published", 0.092, 0.053),
    ("BSARec, published", 0.101, 0.061),
)
"""Of Amazon Beauty: recall and nDCG at 10, of models of width 64 with two layers."""


def main(argv: Sequence[str] | None = None) -> None:
    """The table of the summaries."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summaries", nargs="+", help="folders, all of the same data")
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument("--num_students", type=int, default=1, help="of a summary; 0: none")
    parser.add_argument("--card_dir", type=Path, default=CARDS / "beauty_last_items")
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("last_items.py", OSError):
        found = [FarziData.from_pretrained(name) for name in args.summaries]
        data = [TaskData.of_summary(farzi, args.data_dir) for farzi in found]
        check_outputs(args.card_dir, ("table.md", "table.csv", "table.json"))
    rows: list[dict[str, Any]] = []
    for farzi, of_summary in zip(found, data, strict=True):
        rows += rows_of(farzi, of_summary, args, with_counted=not rows)
    rows += [published(*each) for each in PUBLISHED]
    table = markdown([readable(row) for row in rows])
    title = f"# {data[0].settings.dataset.split('.')[0]}, the last item of each user"
    save_text(f"{title}\n\n{data[0].description}\n\n{table}\n", args.card_dir / "table.md")
    save_csv(rows, args.card_dir / "table.csv")
    settings = {
        "summaries": [farzi.fingerprint() for farzi in found],
        "num_students": args.num_students,
    }
    facts = {"settings": settings, **commit_of(Path(__file__))}
    save_json({"rows": rows, **facts}, args.card_dir / "table.json")
    print(table)


def rows_of(
    farzi: FarziData, data: TaskData, args: Any, with_counted: bool
) -> list[dict[str, Any]]:
    """The rows of one summary.

    Args:
        farzi: carries its teacher.
        data: that its recipe names.
        args: of the command line.
        with_counted: whether rows of models that only count come first.
    """
    c = Comparison.of_summary(farzi, data, num_students=max(1, args.num_students))
    learner = words_of(data.settings.learner)
    is_exact = farzi.config.storage == "exact"
    of_teacher = f"{learner}: {'all data' if is_exact else 'the packed teacher'}"
    of_students = f"{learner}: students, {farzi.config.inputs} ids, T = {c.steps}"

    def measured(name: str, make: Callable[[], list[Measured]]) -> list[Measured]:
        settings = {"summary": farzi.fingerprint(), "students": c.num_students}
        path = args.card_dir / "kept" / f"{name}_{farzi.fingerprint()[:8]}.json"
        values = kept(path, settings, lambda: [row.to_json() for row in make()])
        return [Measured.from_json(each) for each in values]

    rows = []
    if with_counted:
        rows += [row_of(row.method, row) for row in measured("counted", c.counted)]
    [of_all] = measured("teacher", lambda: [teacher(c)])
    if is_exact:  # one needs the data for it
        of_all = replace(of_all, nbytes=c.nbytes(c.splits["train"]))
    rows.append(row_of(of_teacher, of_all))
    if args.num_students and not is_exact:
        students = measured("students", lambda: [on_summary(c, of_students)])
        rows += [row_of(of_students, row) for row in students]
    return rows


def row_of(method: str, found: Measured) -> dict[str, Any]:
    """The row of one method: means over its students, and intervals over users.

    Args:
        method: its name.
        found: ranks (users, 2) of each student.
    """
    means = [rank_metrics(ranks, KS) for ranks in found.students]
    intervals = ranking_intervals(np.stack(found.students), KS)
    row: dict[str, Any] = {"method": method}
    for name in SHOWN:
        row[name] = float(np.mean([each[name] for each in means]))
        row[f"{name}_interval"] = list(intervals[name])
    row["bytes"] = found.nbytes
    row["seconds"] = found.seconds
    row["steps"] = found.steps
    row["students"] = None if found.steps is None else len(found.students)
    return row


def published(method: str, recall: float, ndcg: float) -> dict[str, Any]:
    """The row of a figure that others have measured."""
    return {"method": method, "hr@10": recall, "ndcg@10": ndcg}


def readable(row: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a row, in %."""

    def percent(name: str) -> str:
        if name not in row:
            return ""
        edges = row.get(f"{name}_interval")
        interval = f" ({100 * edges[0]:.1f}–{100 * edges[1]:.1f})" if edges else ""
        return f"{100 * row[name]:.1f}{interval}"

    cells = {f"{title}, %": percent(name) for name, title in SHOWN.items()}
    counts = {}
    for name in ("bytes", "seconds", "steps", "students"):
        counts[name] = f"{row[name]:,}" if row.get(name) is not None else ""
    return {"trained on": row["method"], **cells, **counts}


if __name__ == "__main__":
    run(main)
