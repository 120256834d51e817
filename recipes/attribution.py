"""Which training sequences made a model do well on the test sequences? Exact influences beside simpler scores and real retrainings.

    python recipes/attribution.py --dataset ptb --data_dir FOLDER
    python recipes/attribution.py --dataset ml-100k --data_dir FOLDER
    python recipes/attribution.py --dataset sample                      # the embedded corpus, a minute

With `pip install farzi-hf[bench]` there is a row of TRAK too.

Each score is judged by the linear datamodelling score (Park et al., 2023): the rank correlation of predicted and true test loss over
retrainings that leave out random sequences. Then a share of the sequences is spoilt, and the scores should find them. Last, time and
memory of each way to differentiate are measured over T. Everything is kept in `output_dir`, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attribution_cost import measured
from attribution_problem import AttributionProblem, parse
from torch import Tensor

from farzi_hf.attribution import (
    WeightedTraining,
    gradient_cosines,
    gradient_products,
    influence,
    recall_at,
    spearman,
)
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.data import IGNORED
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation import Parameters
from farzi_hf.engine import Reversible
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text
from farzi_hf.report.plots import plot_attribution

DRAWN = ("training alone", "autograd", "torch.utils.checkpoint", "Tape", "Checkpoint", "Reversible")
"""The ways whose memory the figure shows. That of compiled ones is about the same."""
FILES = ("table.json", "table.md", "table.csv", "costs.csv", "attribution.png")
RESAMPLES = 1000
EXACT, TRACIN, COSINE, RANDOM = "exact influence", "TracIn, 3 checkpoints", "gradient cosine", "random"
TRAK_MODELS = 3
TRAK = f"TRAK, {TRAK_MODELS} models"


def main(argv: Sequence[str] | None = None) -> None:
    """Scores, retrainings, faults and costs of one data set, and its card."""
    keep_freed_memory()
    argv = sys.argv[1:] if argv is None else list(argv)
    with ends_in_one_line("attribution.py"):
        name, data, args, folder = parse(argv)
        check_outputs(folder, FILES)
        problem = AttributionProblem(data, args)
    scored = [row for steps in args.steps for row in lds_rows(problem, steps)]
    faults = fault_rows(problem.of_faults)
    costs = measured(problem, argv, say)
    write(name, problem, folder, scored, faults, costs)


def say(text: str) -> None:
    print(text, flush=True)


# -- scores and retrainings ------------------------------------------------------------------------------------------


def lds_rows(problem: AttributionProblem, steps: int) -> list[dict[str, Any]]:
    """A row per method: the datamodelling score of the mean test loss and of single test sequences, over all seeds."""
    found = []
    for seed in problem.args.seeds:
        scores = problem.kept(f"seed-{seed}/T-{steps}/scores", lambda seed=seed: scores_of(problem, seed, steps))[
            "scores"
        ]
        if find_spec("trak"):
            scores |= problem.kept(f"seed-{seed}/T-{steps}/trak", lambda seed=seed: trak_of(problem, seed, steps))
        losses = torch.tensor(retrained(problem, seed, steps))
        left_out = problem.left_out(seed)
        found.append({method: samples(torch.tensor(rows), left_out, losses) for method, rows in scores.items()})
        say(f"T = {steps}, seed {seed}: " + ", ".join(f"{method} {x[0, 0]:.3f}" for method, x in found[-1].items()))
    rows = []
    for method in found[0]:
        values = np.stack([seed[method] for seed in found])  # (seeds, 1 + resamples, 1 + m)
        mean = values.mean(0)
        row = {"method": method, "steps": steps, "lds": mean[0, 0], "lds_interval": interval(mean[1:, 0])}
        row["lds_seeds"] = values[:, 0, 0].tolist()
        if mean.shape[1] > 1:
            row |= {"lds_single": mean[0, 1:].mean(), "lds_single_interval": interval(mean[1:, 1:].mean(1))}
        rows.append(row)
    return rows


def samples(scores: Tensor, left_out: Tensor, losses: Tensor) -> np.ndarray:
    """(1 + resamples, 1 + m): the score of each test loss; the first row with all retrainings, the others with resampled ones."""
    generator = stream(0, Purpose.BOOTSTRAP)
    chosen = [np.arange(len(losses)), *(generator.integers(len(losses), size=len(losses)) for _ in range(RESAMPLES))]
    predicted, true = (scores.double() @ left_out.double().T).numpy(), losses.double().numpy().T
    return np.array([[spearman(x[k], y[k]) for x, y in zip(predicted, true, strict=True)] for k in chosen])


def interval(values: np.ndarray) -> list[float]:
    """The middle 95 %."""
    return np.quantile(values, (0.025, 0.975)).tolist()


def scores_of(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (1 + m, n) of all methods, CPU seconds of training and of the exact influence, and the test losses."""
    training = problem.training(seed, steps)
    begin = time.process_time()
    theta = training.train()
    trained = time.process_time()
    exact = influence(training, lambda theta: problem.test_losses(theta)[0], adjoint=Reversible())
    done = time.process_time()
    single = [
        influence(training, lambda theta, j=j: problem.test_losses(theta)[j], adjoint=Reversible())
        for j in range(1, 1 + problem.args.single_tests)
    ]
    checkpoints = [training.train(steps=max(1, steps * k // 3)) for k in (1, 2)] + [theta]
    tests = [lambda theta, j=j: problem.test_losses(theta)[j] for j in range(len(single) + 1)]
    scores = {
        EXACT: torch.stack([exact, *single]),
        TRACIN: torch.stack([gradient_products(training, test, checkpoints) for test in tests]),
        COSINE: torch.stack([gradient_cosines(training, test, theta) for test in tests]),
        RANDOM: torch.from_numpy(stream(seed, Purpose.RANDOM_SCORES).normal(size=(len(tests), training.num_rows))),
    }
    with torch.no_grad():
        before, after = (problem.test_losses(x).tolist() for x in (training.start, theta))
    return {
        "scores": {method: x.tolist() for method, x in scores.items()},
        "training_seconds": trained - begin, "influence_seconds": done - trained, "test_before": before, "test_after": after,
    }  # fmt: skip


def trak_of(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (1 + m, n) of TRAK, over models that differ in start and minibatches."""
    from attribution_trak import trak_scores  # the library is not needed for the rest

    seeds = [seed, *(derive(seed, Purpose.LEARNER, k) for k in range(1, TRAK_MODELS))]
    models = [problem.training(s, steps).train() for s in seeds]
    scores = trak_scores(problem.training(seed, steps), problem.test, models)
    return {TRAK: torch.cat([scores.mean(0, keepdim=True), scores[: problem.args.single_tests]]).tolist()}


def retrained(problem: AttributionProblem, seed: int, steps: int) -> list[list[float]]:
    """(K, 1 + m): the test losses after each retraining."""
    return [
        losses
        for first in range(0, problem.args.retrainings, problem.args.together)
        for losses in part_retrained(problem, seed, steps, first)
    ]


def part_retrained(problem: AttributionProblem, seed: int, steps: int, first: int) -> list[list[float]]:
    """The same of those retrainings that take their steps together. They are kept as soon as they are done."""
    left_out, together = problem.left_out(seed)[first:], problem.args.together

    def part() -> list[list[float]]:
        training = problem.training(seed, steps)
        weights = 1.0 - left_out[:together].float()
        with torch.no_grad():
            return [problem.test_losses(theta).tolist() for theta in training.train_each(weights, together)]

    last = first + len(left_out[:together])
    found = problem.kept(f"seed-{seed}/T-{steps}/retrainings-{first}-{last}", part, "left_out")
    say(f"T = {steps}, seed {seed}: retrainings {first + 1} to {last}")
    return found


# -- planted faults --------------------------------------------------------------------------------------------------


def fault_rows(problem: AttributionProblem) -> list[dict[str, Any]]:
    """A row per method: the share of the planted faults that it finds among as many sequences."""
    (steps,) = problem.args.steps
    found = [
        problem.kept(f"seed-{seed}/T-{steps}/faults", lambda seed=seed: faults_found(problem, seed, steps), "faults")
        for seed in problem.args.seeds
    ]
    say(f"faults: {found}")
    names = found[0]
    return [
        {
            "method": name,
            "steps": steps,
            "recall": float(np.mean([x[name] for x in found])),
            "recall_seeds": [x[name] for x in found],
        }
        for name in names
    ]


def faults_found(problem: AttributionProblem, seed: int, steps: int) -> dict[str, float]:
    """The recall of each method."""
    rows, planted = problem.faulty(seed)
    training = problem.training(seed, steps, rows)
    tokens = (training.rows["labels"][:, 1:] != IGNORED).sum(1)
    theta = training.train()
    checkpoints = [training.train(steps=max(1, steps * k // 3)) for k in (1, 2)] + [theta]
    exact, products = (
        influence(training, problem.test, adjoint=Reversible()),
        gradient_products(training, problem.test, checkpoints),
    )
    own = own_losses(training, theta)
    copies = [own_losses(replace(training, rows=x), theta) for x in problem.corrupted(rows, seed)]
    scores = {
        EXACT: exact,
        f"{EXACT} per token": exact / tokens,
        TRACIN: products,
        f"{TRACIN}, per token": products / tokens,
        COSINE: gradient_cosines(training, problem.test, theta),
        "own loss": -own,
        "own loss less that of corrupted copies": torch.stack(copies).mean(0) - own,
        RANDOM: torch.from_numpy(stream(seed, Purpose.RANDOM_SCORES).normal(size=len(tokens))),
    }
    return {method: recall_at(x, planted) for method, x in scores.items()}


def own_losses(training: WeightedTraining, theta: Parameters) -> Tensor:
    """(n,): the mean loss of each sequence at θ, in nats per token: the derivative of the loss in the weight, over the tokens."""
    found = []
    for chosen in torch.arange(training.num_rows).split(64):
        batch, w = training.minibatch(chosen), training.ones[chosen].requires_grad_()
        tokens = (batch["labels"][:, 1:] != IGNORED).sum(1)
        slope = torch.autograd.grad(training.learner.hard_loss(theta, batch, w), w)[0]
        found.append(slope * tokens.sum() / tokens)
    return torch.cat(found)


# -- the card --------------------------------------------------------------------------------------------------------


def write(
    name: str, problem: AttributionProblem, folder: Path, scored: list[dict], faults: list[dict], costs: list[dict]
) -> None:
    """The card: `table.json`, `table.md`, `table.csv`, `costs.csv` and the figure."""
    args, steps = problem.args, max(problem.args.steps)
    kept = [problem.kept(f"seed-{seed}/T-{steps}/scores", dict) for seed in args.seeds]
    planted = problem.of_faults.faulty(args.seeds[0])[1]
    training, exact = (float(np.mean([x[f"{key}_seconds"] for x in kept])) for key in ("training", "influence"))
    facts = {
        "training sequences, tokens": f"{len(problem.train_ids)}, {sum(map(len, problem.train_ids))}",
        "learner": json.dumps(problem.data.settings.learner),
        "sequences per step": args.batch_size,
        "optimizer": f"{args.optimizer(steps)}",
        "retrainings per seed and T": f"{args.retrainings}, each without {args.left_out:.0%} of the sequences",
        "seeds": args.seeds,
        "mean test loss in nats per token, before and after": f"{kept[0]['test_before'][0]:.3f}, {kept[0]['test_after'][0]:.3f}",
        f"CPU ms per step at T = {steps}": f"training {1e3 * training / steps:.1f}, exact influence {1e3 * exact / steps:.1f} "
        f"({exact / training:.2f} times training)",
        "planted faults": f"{planted.sum()} of {len(planted)} sequences for each seed, k of recall@k; T = {args.fault_steps:,}",
        "TRAK": "its authors' library, the margin of each token"
        if find_spec("trak")
        else "not measured: pip install farzi-hf[bench]",
        "torch": torch.__version__,
    }
    tables = [lds_table(scored), fault_table(faults), cost_table(costs, args.memory_limit)]
    folder.mkdir(parents=True, exist_ok=True)
    titles = ("Linear datamodelling score", "Recall of planted faults", "CPU seconds per step, and peak memory")
    text = f"# Attribution, {name}, quick scale\n\n" + "\n\n".join(
        f"**{title}**\n\n{table}" for title, table in zip(titles, tables, strict=True)
    )
    rule = (
        "Intervals are the middle 95 % over resampled retrainings; all seeds are averaged. Corrupted copies of a sequence have the "
        "kind of fault that was planted, so that row knows what to look for; the others do not."
    )
    save_text(f"{text}\n\n{rule}\n\n{listed(facts)}\n\n![attribution](attribution.png)\n", folder / "table.md")
    content = {"scores": scored, "faults": faults, "costs": costs, **facts}
    save_json(content, folder / "table.json")
    save_csv([*scored, *faults], folder / "table.csv")
    save_csv(costs, folder / "costs.csv")
    plot_attribution(scored, [row for row in costs if row["method"] in DRAWN], folder / "attribution.png")
    say(f"\n{(folder / 'table.md').read_text(encoding='utf-8')}\nTable: {folder / 'table.md'}")


def lds_table(rows: list[dict]) -> str:
    def cell(row: dict, name: str) -> str:
        return (
            f"{row[name]:.3f} ({row[f'{name}_interval'][0]:.3f}–{row[f'{name}_interval'][1]:.3f})"
            if name in row
            else ""
        )

    lines = [
        {
            "method": row["method"], "T": f"{row['steps']:,}", "mean test loss": cell(row, "lds"),
            "seeds": ", ".join(f"{x:.3f}" for x in row["lds_seeds"]), "single test sequences": cell(row, "lds_single"),
        }
        for row in rows
    ]  # fmt: skip
    return markdown(lines)


def fault_table(rows: list[dict]) -> str:
    return markdown(
        [
            {
                "method": row["method"],
                "recall@k": f"{row['recall']:.2f}",
                "seeds": ", ".join(f"{x:.2f}" for x in row["recall_seeds"]),
            }
            for row in rows
        ]
    )


def cost_table(rows: list[dict], limit: float) -> str:
    def cell(row: dict) -> str:
        if row["status"] != "ok":
            return f"{row['status']} ({limit:g} GiB)" if row["status"] == "out of memory" else row["status"]
        return f"{1e3 * row['cpu_seconds'] / row['steps']:.1f} ms, {row['memory_bytes'] / 2**20:,.0f} MiB"

    methods = dict.fromkeys(row["method"] for row in rows)
    return markdown(
        [{"": m, **{f"T = {row['steps']:,}": cell(row) for row in rows if row["method"] == m}} for m in methods]
    )


if __name__ == "__main__":
    run(main)
