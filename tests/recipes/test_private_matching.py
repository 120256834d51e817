"""Differential privacy: samples, clipping, noise, the account, and what would break it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from private_matching import PrivateMatching, clipped_sum, register
from tiny_models import LENGTH, PAPER, V, config_of, tiny_model, tiny_summary
from tiny_trainer import SETTINGS, tensors, tiny_trainer
from torch import Tensor
from transformers import AutoModelForCausalLM

from farzi_hf import FarziConfig, FarziData
from farzi_hf.data import SequenceCollator
from farzi_hf.distillation import OBJECTIVES, Learner, MetaMatching, SyntheticTraining
from farzi_hf.distillation.rows import RealData
from farzi_hf.engine import InnerAdam

N, B, C, SIGMA = 50, 10, 0.5, 1.7


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(lambda: tiny_model("gpt2").double())


@pytest.fixture
def farzi() -> FarziData:
    return tiny_summary(4).double()


def private(noise: float = SIGMA, norm: float = C, key: int = 11) -> PrivateMatching:
    rows = np.random.default_rng(0).integers(4, V, (N, LENGTH)).tolist()
    real = RealData(Dataset.from_dict({"input_ids": rows}), SequenceCollator(), "cpu")
    matching = MetaMatching(
        SyntheticTraining(InnerAdam(0.02, eps=1e-3), PAPER, 2), steps=3, steps_min=3
    )
    return PrivateMatching(matching, real, B, noise, 1e-3, norm, key=key)


def rows_of(objective: PrivateMatching, numbers: list[int]) -> list[dict[str, Tensor]]:
    return [objective.real.batch(objective.real.rows([number])) for number in numbers]


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in gradients.values()])


def test_each_row_is_in_a_sample_with_probability_q_independent_of_others():
    objective, steps = private(), 4000
    drawn = np.zeros((steps, N))
    for step in range(steps):
        drawn[step, objective.sample(step)] = 1
    q = B / N
    assert abs(drawn.mean(axis=0) - q).max() < 5 * (q * (1 - q) / steps) ** 0.5
    assert np.var(drawn.sum(axis=1)) == pytest.approx(
        N * q * (1 - q), rel=0.1
    )  # binomial: the size of a sample varies
    assert abs(np.corrcoef(drawn.T) - np.eye(N)).max() < 5 / steps**0.5


@pytest.mark.parametrize(("noise", "norm"), [(1.7, 0.5), (0.6, 3.0)])
def test_the_noise_has_the_variance_of_sigma_and_c(noise, norm):
    zero = {"a": torch.zeros(300, 200), "b": torch.zeros(40_000, dtype=torch.float64)}
    found = flat(private(noise, norm)._noisy(zero, secret=1))
    assert found.mean().abs() < 5 * noise * norm / len(found) ** 0.5
    assert found.var().item() == pytest.approx((noise * norm) ** 2, rel=0.03)


def test_noise_and_samples_are_of_one_release_alone():
    """The same θ, settings and step have the same release, as a run that resumes needs it. Every
    other release has noise of its own.
    """
    theta, one = {"a": torch.ones(5), "b": torch.zeros(2)}, private()
    secret = one.secret(theta, 3)
    assert secret == private().secret({name: x.clone() for name, x in theta.items()}, 3)
    others = {
        private(key=12).secret(theta, 3),
        one.secret(theta, 4),
        one.secret({**theta, "b": torch.tensor([0.0, 1e-20])}, 3),
        private(noise=SIGMA + 1e-9).secret(theta, 3),
        private(norm=2 * C).secret(theta, 3),
        replace(one, batch_size=B + 1).secret(theta, 3),
        replace(
            one, real=replace(one.real, dataset=one.real.dataset.select([*range(1, N), 1]))
        ).secret(theta, 3),
    }
    assert len({secret, *others}) == 8
    zero = {"a": torch.zeros(9)}
    for other in others:
        assert not torch.isclose(one._noisy(zero, secret)["a"], one._noisy(zero, other)["a"]).any()
        assert not np.array_equal(one.sample(secret), one.sample(other))
    noises = [
        one._noisy({"a": torch.full((9,), x)}, secret)["a"] for x in (0.0, 1e-20)
    ]  # whatever makes another sum
    assert not torch.isclose(*noises).any()
    keys = {PrivateMatching(one.matching, one.real, B, SIGMA, 1e-3, C).key for _ in range(4)}
    assert len(keys) == 4  # without a key, the system draws one


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_one_row_changes_the_sum_by_at_most_c(learner, scale):
    """At 300 times the weights, where a wrong prediction has an enormous gradient."""
    theta = {name: x * scale for name, x in learner.initial_parameters(0).items()}
    rows, lengths = rows_of(private(), [*range(12)]), []
    without = flat(clipped_sum(learner, theta, rows[:3], C)[0])
    for row in rows[3:]:
        change = flat(clipped_sum(learner, theta, [*rows[:2], row, rows[2]], C)[0]) - without
        lengths.append(change.norm().item())
        own = {name: x.requires_grad_() for name, x in theta.items()}
        gradient = torch.autograd.grad(
            learner.hard_loss(own, row), list(own.values()), materialize_grads=True
        )
        gradient = torch.cat([g.flatten() for g in gradient])
        torch.testing.assert_close(change, gradient * min(1, C / gradient.norm().item()))
    assert max(lengths) <= C * (1 + 1e-9)
    assert max(lengths) == pytest.approx(C)  # some row is clipped, so the bound is tried


def test_a_row_without_a_finite_gradient_adds_nothing(learner, monkeypatch):
    theta, rows, hard_loss = (
        learner.initial_parameters(0),
        rows_of(private(), [0, 1, 2]),
        learner.hard_loss,
    )
    expected, rest = clipped_sum(learner, theta, [rows[0], rows[2]], C)
    monkeypatch.setattr(
        learner,
        "hard_loss",
        lambda p, row: hard_loss(p, row) * (torch.nan if row is rows[1] else 1),
    )
    found, loss = clipped_sum(learner, theta, rows, C)
    assert torch.equal(flat(found), flat(expected))
    assert loss == rest


def test_without_noise_and_clipping_it_is_the_gradient_of_the_mean_loss(learner, farzi):
    objective, parameters = private(noise=0.0, norm=1e9), list(farzi.parameters())
    loss = objective(learner, farzi.tensors, {}, seed=5)
    found = torch.autograd.grad(loss, parameters)
    theta = objective.matching.trained(learner, farzi.tensors, 5)
    rows = rows_of(objective, objective.sample(objective.secret(theta, 5)).tolist())
    losses = [learner.hard_loss(theta, row) for row in rows]
    expected = torch.autograd.grad(sum(losses) / B, parameters)
    assert len(rows) > 1
    assert loss.item() == pytest.approx(sum(losses).item() / len(rows))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_loss_of_an_empty_sample_is_not_known(learner, farzi):
    """It is left out of the log. Its gradient is that of the noise."""
    objective = private()
    objective.sample = lambda secret: np.array([], dtype=int)
    loss = objective(learner, farzi.tensors, {}, 5)
    assert loss.isnan()
    gradients = torch.autograd.grad(loss, list(farzi.parameters()))
    assert all(g.isfinite().all() and g.any() for g in gradients)


def test_a_clipped_noisy_release_is_all_that_the_summary_sees(learner, farzi):
    """Two data sets with the same release give the same gradient: after it, nothing looks at the
    data.
    """
    objective = private()
    given = {name: torch.ones_like(x) for name, x in learner.initial_parameters(0).items()}
    gradients = []
    for numbers in (slice(0, 25), slice(25, 50)):
        real = replace(objective.real, dataset=Dataset.from_dict(objective.real.dataset[numbers]))
        other = replace(objective, real=real)
        other._noisy = lambda total, secret: given
        gradients.append(
            torch.autograd.grad(other(learner, farzi.tensors, {}, 5), list(farzi.parameters()))
        )
    assert all(map(torch.equal, *gradients))


# -- trainer ---------------------------------------------------------------------------------------


@pytest.fixture
def settings():
    yield {**SETTINGS, "objective": register(1.3, delta=1e-3), "initialization": "random"}
    del OBJECTIVES["private_1.3"]


@pytest.mark.slow
def test_epsilon_is_the_accountants(tmp_path, sequences, tokenizer, settings):
    accountants = pytest.importorskip("opacus.accountants")
    trainer = tiny_trainer(
        tmp_path / "out", sequences, tokenizer, **settings, gradient_accumulation_steps=2
    )
    assert trainer.objective.epsilon == 0
    trainer.train()
    accountant, q = accountants.RDPAccountant(), 40 / len(trainer.train_dataset)
    for _ in range(4 * 2):
        accountant.step(noise_multiplier=1.3, sample_rate=q)
    assert trainer.objective.epsilon == pytest.approx(accountant.get_epsilon(1e-3))
    assert (trainer.objective.releases, trainer.objective.sampling_rate) == (8, q)
    trainer.save_model(str(tmp_path / "artefact"))
    files, key = (
        [p.read_bytes() for p in (tmp_path / "artefact").rglob("*") if p.is_file()],
        trainer.objective.key,
    )
    assert not any(
        secret in content
        for secret in (str(key).encode(), key.to_bytes(8, "little"))
        for content in files
    )


def test_a_resumed_run_has_the_same_noise_and_account(tmp_path, sequences, tokenizer, settings):
    pytest.importorskip("opacus.accountants")
    saved = {**settings, "save_strategy": "steps", "save_steps": 2}
    trainer = tiny_trainer(tmp_path / "whole", sequences, tokenizer, **saved)
    trainer.train()
    resumed = tiny_trainer(tmp_path / "other", sequences, tokenizer, **saved)
    assert resumed.objective.key != trainer.objective.key
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert all(map(torch.equal, tensors(trainer), tensors(resumed)))
    assert resumed.objective.epsilon == trainer.objective.epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"initialization": "spectral"},
            "initialization='spectral': other starts are computed from the data",
        ),
        (
            {"inputs": "tokens", "labels": "own"},
            "inputs='tokens': ids would be drawn by their frequency",
        ),
        ({"labels": "own"}, "labels='own': a teacher would be trained on the data"),
        ({"trajectories": "omega"}, "trajectories='omega': they were trained on the data"),
    ],
)
def test_settings_that_break_privacy_are_refused(tmp_path, settings, changes, message):
    with pytest.raises(ValueError, match=message):
        FarziConfig(str(tmp_path), **{**settings, **changes})


@pytest.mark.parametrize(
    ("size", "delta", "stream", "message"),
    [
        (40, 1e-3, True, "needs all rows at hand for a sample: give a Dataset"),
        (40, 0.01, False, "delta=0.01 is not less than 1 / 160"),
        (161, 1e-3, False, "per_device_train_batch_size=161 is more than the 160 rows"),
    ],
)
def test_a_trainer_refuses_what_breaks_privacy(
    tmp_path, sequences, tokenizer, settings, size, delta, stream, message
):
    register(1.3, delta=delta)
    given = {"train_dataset": sequences["train"].to_iterable_dataset()} if stream else {}
    with pytest.raises(ValueError, match=message):
        tiny_trainer(
            tmp_path / "out",
            sequences,
            tokenizer,
            given,
            **{**settings, "per_device_train_batch_size": size},
        )


def test_constants_have_no_part_in_gradients_clipping_and_noise():
    """As of a base under adapters: its gradients would take most of C."""

    def head_alone() -> torch.nn.Module:
        model = AutoModelForCausalLM.from_config(
            config_of("gpt2", tie_word_embeddings=False)
        ).requires_grad_(False)
        model.lm_head.requires_grad_(True)
        return model

    frozen = Learner(head_alone)
    total, _ = clipped_sum(frozen, frozen.initial_parameters(0), rows_of(private(), [0]), norm=1e-3)
    assert list(total) == ["lm_head.weight"]
    assert torch.linalg.vector_norm(total["lm_head.weight"]).item() == pytest.approx(1e-3)
