"""Do the scores of `attribution.py` find planted faults, training sequences that were spoilt?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from influence import COSINE, EXACT, RANDOM, TRACIN, AttributionProblem, say
from torch import Tensor

from farzi_hf.attribution import WeightedTraining, gradient_cosines, gradient_products, influence, recall_at
from farzi_hf.data import IGNORED
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation import Parameters
from farzi_hf.engine import Reversible


def fault_rows(problem: AttributionProblem) -> list[dict[str, Any]]:
    """A row per method: the share of the planted faults that it finds among as many sequences."""
    (steps,) = problem.args.steps
    found = [
        problem.kept(f"seed-{seed}/T-{steps}/faults", lambda seed=seed: faults_found(problem, seed, steps), "faults")
        for seed in problem.args.seeds
    ]
    say(f"faults: {found}")
    recalls = {name: [seed[name] for seed in found] for name in found[0]}
    return [
        {"method": name, "steps": steps, "recall": float(np.mean(values)), "recall_seeds": values}
        for name, values in recalls.items()
    ]


def faults_found(problem: AttributionProblem, seed: int, steps: int) -> dict[str, float]:
    """The recall of each method."""
    rows, planted = problem.faulty(seed)
    training, test = problem.training(seed, steps, rows), problem.test
    tokens = (training.rows["labels"][:, 1:] != IGNORED).sum(1)
    theta = training.train()
    checkpoints = [training.train(steps=max(1, steps * k // 3)) for k in (1, 2)] + [theta]
    exact = influence(training, test, adjoint=Reversible())
    products = gradient_products(training, test, checkpoints)
    own = own_losses(training, theta)
    copies = [own_losses(replace(training, rows=x), theta) for x in problem.corrupted(rows, seed)]
    scores = {
        EXACT: exact,
        f"{EXACT} per token": exact / tokens,
        TRACIN: products,
        f"{TRACIN}, per token": products / tokens,
        COSINE: gradient_cosines(training, test, theta),
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
