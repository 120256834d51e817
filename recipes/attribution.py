"""Which training sequences made a model do well on the test sequences? Exact influences beside simpler scores and real retrainings.

    python recipes/attribution.py --dataset ptb --data_dir FOLDER
    python recipes/attribution.py --dataset ml-100k --data_dir FOLDER
    python recipes/attribution.py --dataset sample                      # the embedded corpus, a minute

With `pip install farzi-hf[bench]` there is a row of TRAK too.

Each score is judged by the linear datamodelling score (Park et al., 2023): the rank correlation of predicted and true test loss over
retrainings that leave out random sequences. Then time and memory of each way to differentiate are measured over T. Everything is kept in
`output_dir`, so a run that was stopped goes on.
The settings are in `configs/tables/attribution_DATASET_quick.yaml`; the card goes to `model_cards/attribution_DATASET/`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from farzi_hf.attribution import influence
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.engine import Reversible

sys.path.append(str(Path(__file__).resolve().parent / "benchmark"))
from gradient_scores import gradient_cosines, gradient_products
from influence import COSINE, EXACT, RANDOM, TRACIN, TRAK, TRAK_MODELS, AttributionProblem, parse, say
from influence_card import FILES, datamodelling_rows, write
from influence_cost import measured

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
        scores = [scores_of(problem, seed, steps) for seed in args.seeds]  # what each method says of each sequence
        losses = [retrained(problem, seed, steps) for seed in args.seeds]  # and what really happens without some of them
        scored += datamodelling_rows(problem, steps, scores, losses)
    write(name, problem, folder, scored, measured(problem, argv))


def scores_of(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (n,) of all methods for one seed and T; kept."""
    found = problem.kept(f"seed-{seed}/T-{steps}/scores", lambda: scored(problem, seed, steps))["scores"]
    if find_spec("trak"):
        found |= problem.kept(f"seed-{seed}/T-{steps}/trak", lambda: by_trak(problem, seed, steps))
    return found


def scored(problem: AttributionProblem, seed: int, steps: int) -> dict[str, Any]:
    """The scores (n,) of all methods but TRAK, CPU seconds of training and of the exact influence, and the test losses."""
    training, test = problem.training(seed, steps), problem.test
    begin = time.process_time()
    theta = training.train()
    trained = time.process_time()
    exact = influence(training, test, adjoint=Reversible())
    done = time.process_time()
    checkpoints = [training.train(steps=max(1, steps * k // 3)) for k in (1, 2)] + [theta]
    scores = {
        EXACT: exact,
        TRACIN: gradient_products(training, test, checkpoints),
        COSINE: gradient_cosines(training, test, theta),
        RANDOM: torch.from_numpy(stream(seed, Purpose.RANDOM_SCORES).normal(size=training.num_rows)),
    }
    with torch.no_grad():
        before, after = (float(training.learner.hard_loss(x, test)) for x in (training.start, theta))
    return {
        "scores": {method: x.tolist() for method, x in scores.items()},
        "training_seconds": trained - begin, "influence_seconds": done - trained, "test_before": before, "test_after": after,
    }  # fmt: skip


def by_trak(problem: AttributionProblem, seed: int, steps: int) -> dict[str, list[float]]:
    """The scores (n,) of TRAK, over models that differ in start and minibatches."""
    from trak_scores import trak_scores  # the library is not needed for the rest

    seeds = [seed, *(derive(seed, Purpose.LEARNER, k) for k in range(1, TRAK_MODELS))]
    models = [problem.training(s, steps).train() for s in seeds]
    return {TRAK: trak_scores(problem.training(seed, steps), problem.test, models).mean(0).tolist()}


def retrained(problem: AttributionProblem, seed: int, steps: int) -> list[float]:
    """(K,): the test loss after each retraining. Some at a time are kept as soon as they are done."""
    losses: list[float] = []
    while len(losses) < problem.args.retrainings:
        first = len(losses)
        left_out = problem.left_out(seed)[first : first + PART]

        def part(left_out: torch.Tensor = left_out) -> list[float]:
            training, weights = problem.training(seed, steps), 1.0 - left_out.float()
            with torch.no_grad():
                return [float(training.learner.hard_loss(training.train(w), problem.test)) for w in weights]

        name = f"seed-{seed}/T-{steps}/retrainings-{first}-{first + len(left_out)}"
        losses += problem.kept(name, part, "left_out")
        say(f"T = {steps}, seed {seed}: retrainings {first + 1} to {len(losses)}")
    return losses


if __name__ == "__main__":
    run(main)
