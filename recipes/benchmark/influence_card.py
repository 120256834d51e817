"""The card of `attribution.py`: how well scores predict retrainings, and what the exact ones cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from influence import AttributionProblem, say

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
from curves import Panel, plot_curves

Rows = list[dict[str, Any]]
FILES = ("table.json", "table.md", "table.csv", "costs.csv", "attribution.png")
DRAWN = ("training alone", "autograd", "torch.utils.checkpoint", "Tape", "Checkpoint", "Reversible")
"""The ways whose memory the figure shows. That of compiled ones is about the same."""
RESAMPLES = 1000
RULE = "Intervals are the middle 95 % over resampled retrainings; all seeds are averaged."


def datamodelling_rows(
    problem: AttributionProblem, steps: int, scores: Sequence[Mapping[str, Any]], losses: Sequence[Sequence[float]]
) -> Rows:
    """A row per method: its datamodelling score, in the mean over the seeds.

    Args:
        scores: for each seed, the scores (n,) of each method.
        losses: for each seed, the test losses (K,) of the retrainings.
    """
    rows = []
    for method in scores[0]:
        pairs = zip(problem.args.seeds, scores, losses, strict=True)
        values = np.stack([resampled(problem.left_out(seed), found[method], true) for seed, found, true in pairs])
        mean = values.mean(0)
        interval = np.quantile(mean[1:], (0.025, 0.975)).tolist()
        lds = {"lds": mean[0], "lds_interval": interval, "lds_seeds": values[:, 0].tolist()}
        rows.append({"method": method, "steps": steps, **lds})
        say(f"T = {steps}: {method} {mean[0]:.3f}")
    return rows


def resampled(left_out: torch.Tensor, scores: Sequence[float], losses: Sequence[float]) -> np.ndarray:
    """(1 + resamples,): the rank correlation of predicted and true losses, first over all retrainings, then over resampled ones."""
    generator, count = stream(0, Purpose.BOOTSTRAP), len(losses)
    chosen = [np.arange(count), *(generator.integers(count, size=count) for _ in range(RESAMPLES))]
    predicted, true = (left_out.double() @ torch.tensor(scores).double()).numpy(), np.array(losses)
    return np.array([spearman(predicted[k], true[k]) for k in chosen])


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation of two lists of numbers: that of their ranks, where equal numbers share the mean of theirs."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(sizes) - (sizes + 1) / 2)[group]

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def write(name: str, problem: AttributionProblem, folder: Path, scored: Rows, costs: Rows) -> None:
    """The card: `table.json`, `table.md`, `table.csv`, `costs.csv` and the figure."""
    facts = facts_of(problem)
    tables = {
        "Linear datamodelling score": datamodelling_table(scored),
        "CPU seconds per step, and peak memory": cost_table(costs, problem.args.memory_limit),
    }
    parts = "\n\n".join(f"**{title}**\n\n{table}" for title, table in tables.items())
    text = f"# Attribution, {name}, quick scale\n\n{parts}\n\n{RULE}\n\n{listed(facts)}\n\n![attribution](attribution.png)\n"
    save_json({"scores": scored, "costs": costs, **facts}, folder / "table.json")
    save_text(text, folder / "table.md")
    save_csv(scored, folder / "table.csv")
    save_csv(costs, folder / "costs.csv")
    drawn, steps = [row for row in costs if row["method"] in DRAWN], "Training steps T"
    scores = Panel(scored, "steps", "lds", steps, "Linear datamodelling score", "x")
    memory = Panel(drawn, "steps", "memory_bytes", steps, "Peak memory above the start (MiB)", "xy", 2.0**-20)
    plot_curves(folder / "attribution.png", scores, memory)
    say(f"\n{text}\nTable: {folder / 'table.md'}")


def facts_of(problem: AttributionProblem) -> dict[str, Any]:
    """The circumstances of the measurement."""
    args, steps, lengths = problem.args, max(problem.args.steps), list(map(len, problem.train_ids))
    kept = [problem.kept(f"seed-{seed}/T-{steps}/scores", dict) for seed in args.seeds]
    training, exact = (float(np.mean([x[f"{key}_seconds"] for x in kept])) for key in ("training", "influence"))
    return {
        "training sequences, tokens": f"{len(lengths)}, {sum(lengths)}",
        "learner": json.dumps(problem.data.settings.learner),
        "sequences per step": args.batch_size,
        "optimizer": f"{args.optimizer(steps)}",
        "retrainings per seed and T": f"{args.retrainings}, each without {args.left_out:.0%} of the sequences",
        "seeds": args.seeds,
        "mean test loss in nats per token, before and after": f"{kept[0]['test_before']:.3f}, {kept[0]['test_after']:.3f}",
        f"CPU ms per step at T = {steps}": f"training {1e3 * training / steps:.1f}, exact influence {1e3 * exact / steps:.1f} "
        f"({exact / training:.2f} times training)",
        "TRAK": "its authors' library, the margin of each token"
        if find_spec("trak")
        else "not measured: pip install farzi-hf[bench]",
        "torch": torch.__version__,
    }


def datamodelling_table(rows: Rows) -> str:
    """A line per method and T."""
    return markdown([
        {
            "method": row["method"], "T": f"{row['steps']:,}",
            "mean test loss": "{:.3f} ({:.3f}–{:.3f})".format(row["lds"], *row["lds_interval"]),
            "seeds": ", ".join(f"{x:.3f}" for x in row["lds_seeds"]),
        }
        for row in rows
    ])  # fmt: skip


def cost_table(rows: Rows, limit: float) -> str:
    """A line per way to differentiate, and a column per T."""

    def cell(row: dict[str, Any]) -> str:
        if row["status"] != "ok":
            return f"{row['status']} ({limit:g} GiB)" if row["status"] == "out of memory" else row["status"]
        return f"{1e3 * row['cpu_seconds'] / row['steps']:.1f} ms, {row['memory_bytes'] / 2**20:,.0f} MiB"

    methods = dict.fromkeys(row["method"] for row in rows)
    return markdown([{"": m, **{f"T = {row['steps']:,}": cell(row) for row in rows if row["method"] == m}} for m in methods])
