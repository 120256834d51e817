"""Recommenders measured as most papers do it: the last item of each user is the target, and all items
are ranked that the user has not had. A table of recall and nDCG at 10 and 20, with published figures
beside.

    farzi distil recipes/configs/beauty_last_items.yaml --data_dir FOLDER --output_dir RUN --compare
    python recipes/paper/seconds.py RUN --data_dir FOLDER --student "SASRec 32" --steps 100
        --random_steps --seconds 3 30 --card_dir CARD
    python recipes/paper/last_items.py RUN CARD

Both programs keep the rank of each user's target in their folders, and this one reads them. Recall
at k is the share of users whose target is among the first k: with one target for a user, other
papers call it the hit rate.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiment import CARDS

from farzi_hf.cli.distil import RESULTS
from farzi_hf.cli.program import ends_in_one_line, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.common.files import load_record
from farzi_hf.report import Measured, markdown, save_csv, save_json, save_text
from farzi_hf.report.rendering import commit_of
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
    """The table of the folders."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="of runs of either program")
    parser.add_argument("--card_dir", type=Path, default=CARDS / "beauty_last_items")
    args = parser.parse_args(argv)
    with ends_in_one_line("last_items.py", OSError):
        check_outputs(args.card_dir, ("table.md", "table.csv", "table.json"))
        rows = [row for folder in args.folders for row in measured(folder)]
        if not rows:
            raise ValueError(
                f"{', '.join(map(str, args.folders))}: no folder keeps a row; give folders of runs of"
                " farzi distil or of seconds.py"
            )
    rows += [published(*each) for each in PUBLISHED]
    table = markdown([readable(row) for row in rows])
    save_text(f"# Beauty, the last item of each user\n\n{table}\n", args.card_dir / "table.md")
    save_csv(rows, args.card_dir / "table.csv")
    save_json({"rows": rows, **commit_of(Path(__file__))}, args.card_dir / "table.json")
    print(table)


def measured(folder: Path) -> list[dict[str, Any]]:
    """The rows that a folder of either program keeps, the best one last."""
    rows = []
    if (run_of := folder / RESULTS).is_file():
        record = load_record(run_of)
        rows += [row_of(found, record["settings"]) for found in record["value"]["measured"]]
    for path in sorted((folder / "kept").glob("*.json")):
        record = load_record(path)
        if "students" in record["value"]:  # and not the ways to train that were tried
            rows.append(row_of(record["value"], record["settings"]))
    return sorted(rows, key=lambda row: row["ndcg@10"])


def row_of(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one method: means over its students, and intervals over users.

    Args:
        values: of a `Measured`, with ranks (users, 2) of each student.
        settings: under which it was made.
    """
    found = Measured.from_json(values)
    learner = settings["learner"]
    is_counted = found.steps is None and not found.is_model
    model = "" if is_counted else f"{learner['model_type']} {learner['hidden_size']}, "
    means = [rank_metrics(ranks, KS) for ranks in found.students]
    intervals = ranking_intervals(np.stack(found.students), KS)
    row: dict[str, Any] = {"method": f"{model}{found.method}"}
    for name in SHOWN:
        row[name] = float(np.mean([each[name] for each in means]))
        row[f"{name}_interval"] = list(intervals[name])
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
    for name in ("seconds", "steps", "students"):
        counts[name] = f"{row[name]:,}" if row.get(name) is not None else ""
    return {"trained on": row["method"], **cells, **counts}


if __name__ == "__main__":
    run(main)
