"""Which training sequences made a model do well on the test sequences? Exact influences beside
simpler scores and real retrainings.

    python recipes/attribution.py --dataset ptb --data_dir FOLDER
    python recipes/attribution.py --dataset ml-100k --data_dir FOLDER
    python recipes/attribution.py --dataset sample                      # the embedded corpus, a minute

With `pip install farzi-hf[bench]` there is a row of TRAK too.

Each score is judged by the linear datamodelling score (Park et al., 2023): the rank correlation of
predicted and true test loss over retrainings that leave out random sequences. Then time and memory
of each way to differentiate are measured over T. Everything is kept in `output_dir`, so a run that
was stopped goes on. The settings are in `configs/tables/attribution_DATASET_quick.yaml`; the card
goes to `model_cards/attribution_DATASET/`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farzi_hf.attribution import influence
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.engine import Reversible
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text

sys.path += [str(Path(__file__).resolve().parent / folder) for folder in ("benchmark", "paper")]
from curves import Panel, plot_curves
from influence import EXACT, RULE, AttributionProblem, parse, resampled, say
from influence_cost import measured

FILES = ("table.json", "table.md", "table.csv", "costs.csv", "attribution.png")
Rows = list[dict[str, Any]]
DRAWN = ("training alone", "autograd", "torch.utils.checkpoint", "Tape", "Checkpoint", "Reversible")
"""The ways whose memory the figure shows. That of compiled ones is about the same."""
PART = 20
"""Retrainings that are kept at a time."""


def main(argv: Sequence[str] | None = None) -> None:
    """Scores, retrainings and costs of one data set, and its card."""
    keep_freed_memory()
    argv = sys.argv[1:] if argv is None else list(argv)
    with ends_in_one_line("attribution.py"):
        name, data, args, folder = parse(argv)
        check_outputs(folder, FILES)
        problem = AttributionProblem(data, args)
    scored = []
    for steps in args.steps:
        # What each method says of each sequence.
        scores = [scores_of(problem, seed, steps) for seed in args.seeds]
        # And what really happens without some of them.
        losses = [retrained(problem, seed, steps) for seed in args.seeds]
        scored += datamodelling_rows(problem, steps, scores, losses)
    write(name, problem, folder, scored, measured(problem, argv))


def scores_of(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (n,) of all methods for one seed and T; kept."""
    found = problem.kept(f"seed-{seed}/T-{steps}/scores", lambda: scored(problem, seed, steps))[
        "scores"
    ]
    if find_spec("trak"):
        found |= problem.kept(f"seed-{seed}/T-{steps}/trak", lambda: problem.by_trak(seed, steps))
    return found


def scored(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (n,) of all methods but TRAK, CPU seconds of training and of the exact influence,
    and the test losses.
    """
    training = problem.training(seed, steps)
    test = problem.test
    begin = time.process_time()
    theta = training.train()
    trained = time.process_time()
    exact = influence(training, test, adjoint=Reversible())
    done = time.process_time()
    scores = {EXACT: exact, **problem.simple_scores(seed, training)}
    with torch.no_grad():
        before, after = (
            float(training.learner.hard_loss(x, test)) for x in (training.start, theta)
        )
    return {
        "scores": {method: x.tolist() for method, x in scores.items()},
        "training_seconds": trained - begin,
        "influence_seconds": done - trained,
        "test_before": before,
        "test_after": after,
    }


def retrained(problem: AttributionProblem, seed: int, steps: int) -> list[float]:
    """(K,): the test loss after each retraining. Some at a time are kept as soon as
    they are done.
    """
    losses: list[float] = []
    while len(losses) < problem.args.retrainings:
        first = len(losses)
        left_out = problem.left_out(seed)[first : first + PART]

        def part(left_out: torch.Tensor = left_out) -> list[float]:
            training = problem.training(seed, steps)
            weights = 1.0 - left_out.float()
            with torch.no_grad():
                return [
                    float(training.learner.hard_loss(training.train(w), problem.test))
                    for w in weights
                ]

        name = f"seed-{seed}/T-{steps}/retrainings-{first}-{first + len(left_out)}"
        losses += problem.kept(name, part, "left_out")
        say(f"T = {steps}, seed {seed}: retrainings {first + 1} to {len(losses)}")
    return losses


def datamodelling_rows(
    problem: AttributionProblem,
    steps: int,
    scores: Sequence[Mapping[str, Any]],
    losses: Sequence[Sequence[float]],
) -> Rows:
    """A row per method: its datamodelling score, in the mean over the seeds.

    Args:
        scores: for each seed, the scores (n,) of each method.
        losses: for each seed, the test losses (K,) of the retrainings.
    """
    rows = []
    for method in scores[0]:
        pairs = zip(problem.args.seeds, scores, losses, strict=True)
        values = np.stack(
            [resampled(problem.left_out(seed), found[method], true) for seed, found, true in pairs]
        )
        mean = values.mean(0)
        seeds = values[:, 0].tolist()
        lds = {
            "lds": mean[0],
            "lds_interval": np.quantile(mean[1:], (0.025, 0.975)).tolist(),
            "lds_seeds": seeds,
        }
        rows.append({"method": method, "steps": steps, **lds})
        say(f"T = {steps}: {method} {mean[0]:.3f}")
    return rows


def write(name: str, problem: AttributionProblem, folder: Path, scored: Rows, costs: Rows) -> None:
    """The card: `table.json`, `table.md`, `table.csv`, `costs.csv` and the figure."""
    facts = facts_of(problem)
    tables = {
        "Linear datamodelling score": datamodelling_table(scored),
        "CPU seconds per step, and peak memory": cost_table(costs, problem.args.memory_limit),
    }
    parts = "\n\n".join(f"**{title}**\n\n{table}" for title, table in tables.items())
    text = (
        f"# Attribution, {name}, quick"
        f" scale\n\n{parts}\n\n{RULE}\n\n{listed(facts)}\n\n![attribution](attribution.png)\n"
    )
    save_json({"scores": scored, "costs": costs, **facts}, folder / "table.json")
    save_text(text, folder / "table.md")
    save_csv(scored, folder / "table.csv")
    save_csv(costs, folder / "costs.csv")
    drawn = [row for row in costs if row["method"] in DRAWN]
    steps = "Training steps T"
    scores = Panel(scored, "steps", "lds", steps, "Linear datamodelling score", "x")
    memory = Panel(
        drawn, "steps", "memory_bytes", steps, "Peak memory above the start (MiB)", "xy", 2.0**-20
    )
    plot_curves(folder / "attribution.png", scores, memory)
    say(f"\n{text}\nTable: {folder / 'table.md'}")


def facts_of(problem: AttributionProblem) -> dict[str, Any]:
    """The circumstances of the measurement."""
    args, steps, lengths = problem.args, max(problem.args.steps), list(map(len, problem.train_ids))
    kept = [problem.kept(f"seed-{seed}/T-{steps}/scores", dict) for seed in args.seeds]
    training, exact = (
        float(np.mean([x[f"{key}_seconds"] for x in kept])) for key in ("training", "influence")
    )
    return {
        "training sequences, tokens": f"{len(lengths)}, {sum(lengths)}",
        "learner": json.dumps(problem.data.settings.learner),
        "sequences per step": args.batch_size,
        "optimizer": f"{args.optimizer(steps)}",
        "retrainings per seed and T": (
            f"{args.retrainings}, each without {args.left_out:.0%} of the sequences"
        ),
        "seeds": args.seeds,
        "mean test loss in nats per token, before and after": (
            f"{kept[0]['test_before']:.3f}, {kept[0]['test_after']:.3f}"
        ),
        f"CPU ms per step at T = {steps}": (
            f"training {1e3 * training / steps:.1f}, exact influence {1e3 * exact / steps:.1f} "
            f"({exact / training:.2f} times training)"
        ),
        "TRAK": (
            "its authors' library, the margin of each token"
            if find_spec("trak")
            else "pip install farzi-hf[bench]"
        ),
        "torch": torch.__version__,
    }


def datamodelling_table(rows: Rows) -> str:
    """A line per method and T."""
    return markdown(
        [
            {
                "method": row["method"],
                "T": f"{row['steps']:,}",
                "mean test loss": "{:.3f} ({:.3f}–{:.3f})".format(row["lds"], *row["lds_interval"]),
                "seeds": ", ".join(f"{x:.3f}" for x in row["lds_seeds"]),
            }
            for row in rows
        ]
    )


def cost_table(rows: Rows, limit: float) -> str:
    """A line per way to differentiate, and a column per T."""

    def cell(row: dict[str, Any]) -> str:
        if row["status"] != "ok":
            return (
                f"{row['status']} ({limit:g} GiB)"
                if row["status"] == "out of memory"
                else row["status"]
            )
        return (
            f"{1e3 * row['cpu_seconds'] / row['steps']:.1f} ms,"
            f" {row['memory_bytes'] / 2**20:,.0f} MiB"
        )

    methods = dict.fromkeys(row["method"] for row in rows)
    return markdown(
        [
            {"": m, **{f"T = {row['steps']:,}": cell(row) for row in rows if row["method"] == m}}
            for m in methods
        ]
    )


if __name__ == "__main__":
    run(main)
