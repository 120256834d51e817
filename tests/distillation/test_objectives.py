"""The outer loss and its gradient in latents and decoder, against a loop written out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from meta_problems import MetaProblem, gradients, reference_unroll, relative_error
from torch import Tensor
from torch.func import functional_call
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf.data import minibatches
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation import (
    GradientMatching,
    Learner,
    MetaMatching,
    PretrainedStarts,
    SyntheticTraining,
    TrajectoryBank,
    TrajectoryMatching,
    record_trajectories,
)
from farzi_hf.distillation.objectives.gradient_matching import _cosine_distance
from farzi_hf.engine import Checkpoint, Direct, InnerAdam, InnerSGD, Reversible, Tape
from farzi_hf.summary import FarziDataConfig
from farzi_hf.summary.forms import forms_of

MU, XI, D, V = 6, 5, 3, 11
TAU, SEED = 0.7, 5
FORMS = forms_of(FarziDataConfig(tau=TAU))
ADAM = InnerAdam(lr=0.05, betas=(0.8, 0.99), eps=1e-2)
SGD = InnerSGD(lr=0.3, momentum=0.5)


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=V,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config).double()


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(gpt2)


@pytest.fixture
def leaves() -> tuple[Tensor, Tensor]:
    """Latents and decoder."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((MU, XI, D), (D, V))
    return tuple(
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    )


@pytest.fixture
def batch() -> dict[str, Tensor]:
    ids = torch.randint(V, (4, XI), generator=torch.Generator().manual_seed(1))
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[0, 3:], mask[0, 3:] = -100, 0
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def named(leaves) -> dict[str, Tensor]:
    """Latents and decoder as a summary has them."""
    return dict(zip(("latents", "decoder"), leaves, strict=True))


def training(optimizer=ADAM, **settings) -> SyntheticTraining:
    return SyntheticTraining(optimizer=optimizer, forms=FORMS, **settings)


# -- the gradient ----------------------------------------------------------------------------------


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Of soft targets, or of ids with -100; the mean over predicted tokens."""
    log_p = logits[:, :-1].log_softmax(-1)
    if targets.is_floating_point():
        return -(targets[:, 1:] * log_p).sum(-1).mean()
    known = targets[:, 1:] >= 0
    return -log_p[known, targets[:, 1:][known]].mean()


def by_hand(
    latents: Tensor,
    decoder: Tensor,
    batch: dict[str, Tensor],
    training: SyntheticTraining,
    steps: int,
) -> Tensor:
    """θ0 from the seed, T steps in textbook form, the loss on real data; autograd through the last
    `window` of them.
    """
    return real_loss(trained(initial(), latents, decoder, training, steps), batch)


def initial() -> dict[str, Tensor]:
    torch.manual_seed(SEED)
    return {name: w.detach().requires_grad_() for name, w in gpt2().named_parameters()}


def real_loss(theta: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    inputs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "use_cache": False,
    }
    return nats(functional_call(gpt2().eval(), theta, kwargs=inputs).logits, batch["labels"])


def synthetic_loss(theta: dict[str, Tensor], latents: Tensor, decoder: Tensor) -> Tensor:
    tokens = torch.softmax(latents @ decoder / TAU, -1)
    inputs = {"inputs_embeds": tokens @ theta["transformer.wte.weight"], "use_cache": False}
    return nats(functional_call(gpt2().eval(), theta, kwargs=inputs).logits, tokens)


def trained(
    theta: dict[str, Tensor],
    latents: Tensor,
    decoder: Tensor,
    training: SyntheticTraining,
    steps: int,
) -> dict[str, Tensor]:
    rows_of = minibatches(MU, training.batch_size, steps, SEED)

    def loss(theta: dict[str, Tensor], inputs: tuple[Tensor, Tensor], step: int) -> Tensor:
        latents, decoder = inputs
        return synthetic_loss(
            theta, latents if rows_of is None else latents[rows_of[step - 1]], decoder
        )

    problem = MetaProblem(loss, theta, (latents, decoder))
    return reference_unroll(problem, training.optimizer, steps, training.window)


SETTINGS = {
    "all": {},
    "minibatches": {"batch_size": 4},
    "window": {"window": 3},
    "window_of_minibatches": {"window": 3, "batch_size": 2},
    "sgd": {"optimizer": SGD, "batch_size": 3},
}


def same(
    found: Tensor, expected: Tensor, leaves: tuple[Tensor, Tensor], tolerance: float = 1e-9
) -> bool:
    """Whether the losses are the same, and their gradients."""
    losses, wanted = (
        relative_error([found.detach()], [expected.detach()]),
        gradients(expected, list(leaves)),
    )
    assert all(gradient.abs().max() > 1e-5 for gradient in wanted)
    errors = (
        relative_error([x], [y])
        for x, y in zip(gradients(found, list(leaves)), wanted, strict=True)
    )
    return max(losses, *errors) < tolerance


@pytest.mark.parametrize("adjoint", [None, Direct(), Tape()], ids=str)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_meta_gradient_is_that_of_the_loop_written_out(
    learner, leaves, batch, settings, adjoint
):
    inner = training(**settings)
    objective = MetaMatching(training=replace(inner, adjoint=adjoint), steps=5, steps_min=5)
    assert same(
        objective(learner, named(leaves), batch, SEED), by_hand(*leaves, batch, inner, 5), leaves
    )


# -- other objectives ------------------------------------------------------------------------------

ADJOINT = pytest.mark.parametrize(
    "adjoint", [Direct(), Tape(), Checkpoint(), Reversible()], ids=str
)
OPTIMIZER = pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])


@pytest.fixture(scope="module")
def bank(learner, tmp_path_factory) -> TrajectoryBank:
    """Two trajectories of eight steps, checkpoints every second one."""
    ids = torch.randint(V, (20, XI), generator=torch.Generator().manual_seed(2))
    data = Dataset.from_dict({"input_ids": ids.tolist()})

    def collate(rows):
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"input_ids": ids, "labels": ids}

    folder = tmp_path_factory.mktemp("trajectories")
    return record_trajectories(
        learner,
        InnerAdam(lr=0.03),
        data,
        collate,
        folder,
        num=2,
        steps=8,
        save_every=2,
        batch_size=5,
        seed=0,
    )


def tolerance_of(adjoint) -> float:
    """The reversible adjoint trains in fixed point, which is not float64 to the last bit."""
    return 1e-6 if isinstance(adjoint, Reversible) else 1e-9


def distance(found: list[Tensor], wanted: list[Tensor]) -> Tensor:
    return sum(
        1 - (a * b).sum() / ((a**2).sum() ** 0.5 * (b**2).sum() ** 0.5)
        for a, b in zip(found, wanted, strict=True)
    )


@OPTIMIZER
@pytest.mark.parametrize("batch_size", [None, 2])
def test_gradient_matching_is_the_cosine_distance_written_out(
    learner, leaves, batch, optimizer, batch_size
):
    inner = training(optimizer=optimizer, batch_size=batch_size)
    found = GradientMatching(training=inner, steps=6)(learner, named(leaves), batch, SEED)
    taken = int(stream(SEED, Purpose.MATCHED_STEP).integers(6))
    assert taken > 1
    theta = trained(initial(), *leaves, inner, taken)
    theta = {name: x.detach().requires_grad_() for name, x in theta.items()}
    rows_of, (latents, decoder) = minibatches(MU, batch_size, taken + 1, SEED), leaves
    synthetic = synthetic_loss(
        theta, latents if rows_of is None else latents[rows_of[taken]], decoder
    )
    g = torch.autograd.grad(synthetic, list(theta.values()), create_graph=True)
    expected = distance(
        list(g), list(torch.autograd.grad(real_loss(theta, batch), list(theta.values())))
    )
    assert same(found, expected, leaves)


@ADJOINT
@OPTIMIZER
def test_trajectory_matching_is_the_normalised_distance_written_out(
    learner, leaves, batch, bank, optimizer, adjoint
):
    inner = training(optimizer=optimizer, batch_size=4, adjoint=adjoint)
    found = TrajectoryMatching(inner, bank, synthetic_steps=3, expert_steps=4)(
        learner, named(leaves), batch, SEED
    )
    start, target = bank.segment(SEED, 4)
    theta = trained({name: x.requires_grad_() for name, x in start.items()}, *leaves, inner, 3)
    expected = sum(((x - target[name]) ** 2).sum() for name, x in theta.items())
    expected = expected / sum(((start[name] - x) ** 2).sum() for name, x in target.items()).detach()
    assert same(found, expected, leaves, tolerance_of(adjoint))


@ADJOINT
@OPTIMIZER
def test_starting_from_trajectories_is_training_from_their_checkpoints(
    learner, leaves, batch, bank, optimizer, adjoint
):
    inner = training(optimizer=optimizer, adjoint=adjoint)
    objective = MetaMatching(
        training=inner, steps=3, steps_min=3, starts=PretrainedStarts(bank, fresh=0.0)
    )
    found = objective(learner, named(leaves), batch, SEED)
    theta = {name: x.requires_grad_() for name, x in bank.sample(SEED).items()}
    expected = real_loss(trained(theta, *leaves, inner, 3), batch)
    assert same(found, expected, leaves, tolerance_of(adjoint))
    fresh = MetaMatching(
        training=inner, steps=3, steps_min=3, starts=PretrainedStarts(bank, fresh=1.0)
    )
    alone = MetaMatching(training=inner, steps=3, steps_min=3)
    assert (
        fresh(learner, named(leaves), batch, SEED)
        == alone(learner, named(leaves), batch, SEED)
        != found
    )


def test_objectives_are_functions_of_the_seed(learner, leaves, batch, bank):
    inner = training(batch_size=2)
    for objective in (
        MetaMatching(inner, steps=4, steps_min=2),
        GradientMatching(inner, steps=4),
        TrajectoryMatching(inner, bank, synthetic_steps=2, expert_steps=4),
    ):
        losses = [objective(learner, named(leaves), batch, seed).item() for seed in (1, 1, 2)]
        assert losses[0] == losses[1] != losses[2]


def test_a_tensor_whose_gradient_is_rounding_has_no_direction_to_match():
    wanted = [torch.tensor([3.0, 4.0]), torch.tensor([1e-9, 0.0])]
    found = [torch.tensor(x, requires_grad=True) for x in ([4.0, 3.0], [0.0, 1e-9], [0.0, 0.0])]
    loss = _cosine_distance(found[:2], wanted)
    assert loss.item() == pytest.approx(1 - 24 / 25)
    assert gradients(loss, found[:2])[1].norm() == 0
    loss = _cosine_distance(found[2:], wanted[:1])  # far from any direction, and no NaN
    assert loss.item() == 1
    assert torch.isfinite(gradients(loss, found[2:])[0]).all()


# -- T ---------------------------------------------------------------------------------------------


def test_steps_are_drawn_from_the_whole_range_and_by_the_seed(learner, batch):
    drawn = []

    def recorder(learner, summary, *, start, steps, seed, of_steps):
        assert of_steps == 7
        drawn.append((seed, steps))
        return start

    objective = MetaMatching(training=recorder, steps=7, steps_min=4, starts=lambda *_: {})
    for seed in [*range(200), *range(200)]:
        objective.trained(learner, named((torch.zeros(1), torch.zeros(1))), seed)
    counts = np.bincount([steps for _, steps in drawn[:200]])
    assert len(counts) == 8
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 25  # about 50 each
    assert drawn[:200] == drawn[200:]
