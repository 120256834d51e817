"""Adam on the rows that have a gradient, and an inner loop that gets the sequences that it sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import LENGTH, V, tiny_model
from tiny_trainer import tensors, tiny_trainer

from farzi_hf import FarziConfig
from farzi_hf.distillation import Learner, SyntheticTraining, inner_training
from farzi_hf.distillation.sparse_adam import SparseAdamW
from farzi_hf.engine import InnerAdam, Reversible
from farzi_hf.summary import FarziData, FarziDataConfig

ROWS, SETTINGS = 7, {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.05}


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(ROWS, 3, 2, generator=torch.Generator().manual_seed(0)))


def gradients(steps: int) -> torch.Tensor:
    return torch.randn(steps, ROWS, 3, 2, generator=torch.Generator().manual_seed(1))


def stepped(optimizer: torch.optim.Optimizer, x: torch.nn.Parameter, grads: torch.Tensor) -> list[torch.Tensor]:
    """The parameter and its moments after all steps."""
    for grad in grads:
        x.grad = grad.clone()
        optimizer.step()
    return [x.detach(), optimizer.state[x]["exp_avg"], optimizer.state[x]["exp_avg_sq"]]


def test_where_all_rows_are_seen_it_is_adamw_bit_for_bit():
    ours, theirs = parameter(), parameter()
    found = stepped(SparseAdamW([ours], **SETTINGS), ours, gradients(6))
    expected = stepped(torch.optim.AdamW([theirs], **SETTINGS), theirs, gradients(6))
    assert all(map(torch.equal, found, expected))


def test_a_row_is_where_adamw_brings_it_with_its_own_gradients_alone():
    grads, seen = gradients(8), torch.rand(8, ROWS, generator=torch.Generator().manual_seed(2)) < 0.4
    seen[:, 0], seen[:, 1] = False, True
    x = parameter()
    found = stepped(SparseAdamW([x], **SETTINGS), x, grads * seen[:, :, None, None])
    assert torch.equal(found[0][0], parameter().detach()[0])  # never seen: not even its weights decay
    for row in range(1, ROWS):
        alone = torch.nn.Parameter(parameter().detach()[row : row + 1].clone())
        expected = stepped(torch.optim.AdamW([alone], **SETTINGS), alone, grads[seen[:, row], row : row + 1])
        assert all(torch.equal(a[row], b[0]) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("frozen_steps", [1, 3])
def test_unseen_rows_keep_weights_and_moments(frozen_steps):
    x = parameter()
    optimizer = SparseAdamW([x], **SETTINGS)
    before = [y.clone() for y in stepped(optimizer, x, gradients(2))]
    grads = gradients(frozen_steps)
    grads[:, 2:5] = 0
    after = stepped(optimizer, x, grads)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[2:5], new[2:5])
        assert not torch.isclose(old[5:], new[5:]).all()


@pytest.mark.parametrize("form", ["soft", "tokens"])
@pytest.mark.parametrize("steps", [2, 5])
def test_the_inner_loop_gets_the_sequences_it_sees_and_the_gradient_stays_the_same(form, steps, monkeypatch):
    """Bit for bit; 5 steps of 2 sequences go beyond an epoch of 9."""
    learner, config = Learner(lambda: tiny_model("gpt2")), FarziDataConfig(9, LENGTH, 4, V, latent_std=1.0)
    if form == "tokens":
        config = FarziDataConfig(9, LENGTH, vocab_size=V, inputs="tokens", labels="own", label_dim=4, latent_std=1.0)
    torch.manual_seed(0)
    farzi = FarziData(config)
    training = SyntheticTraining(InnerAdam(0.02, eps=1e-3), 1.0, batch_size=2, window=steps - 1, adjoint=Reversible())
    sizes, batch_of = set(), inner_training.batch_of

    def noted(summary, rows, tau):
        sizes.add(len(next(iter(summary.values()))))
        return batch_of(summary, rows, tau)

    monkeypatch.setattr(inner_training, "batch_of", noted)

    def result(training):
        theta = training(learner, farzi.tensors, start=learner.initial_parameters(3), steps=steps, seed=4)
        loss = sum(x.square().sum() for x in theta.values())
        return [*theta.values(), *torch.autograd.grad(loss, list(farzi.parameters()))]

    found = result(training)
    assert sizes == {2 * steps if steps < 5 else len(set(inner_training.minibatches(9, 2, 5, 4).flatten().tolist()))}
    monkeypatch.setattr(SyntheticTraining, "_compact", lambda self, summary, rows, *_: (summary, rows))
    assert all(map(torch.equal, found, result(replace(training))))


MANY = {"num_sequences": 40, "sparse_updates": True, "inner_steps_min": None, "window": None, "seed": 5}


def test_a_run_changes_only_what_it_saw_and_resumes_bit_for_bit(tmp_path, sequences, tokenizer):
    saved = {**MANY, "save_strategy": "steps", "save_steps": 2, "max_steps": 4, "weight_decay": 0.1}
    trainer = tiny_trainer(tmp_path / "whole", sequences, tokenizer, **saved)
    start = trainer.model.latents.detach().clone()
    trainer.train()
    moved = (trainer.model.latents != start).flatten(1).any(dim=1)
    counts = trainer.optimizer.state[trainer.model.latents]["step"]
    assert torch.equal(moved, counts > 0)  # 4 steps see 8 of 40 sequences each
    assert 8 <= moved.sum() <= 32
    assert counts.sum() == 32
    resumed = tiny_trainer(tmp_path / "other", sequences, tokenizer, **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert all(map(torch.equal, tensors(trainer), tensors(resumed)))


def test_sparse_updates_of_all_sequences_are_the_dense_ones(tmp_path, sequences, tokenizer):
    runs = []
    for sparse in (False, True):
        trainer = tiny_trainer(tmp_path / str(sparse), sequences, tokenizer, sparse_updates=sparse)
        trainer.train()  # 4 sequences, of which a window of 3 steps of 2 sees all
        runs.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(map(torch.equal, *runs))


def test_another_optimizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sparse_updates=True with optim='sgd'"):
        FarziConfig(str(tmp_path), sparse_updates=True, optim="sgd", use_cpu=True)
