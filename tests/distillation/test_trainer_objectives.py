"""FarziTrainer with each objective, and with Ω."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny_trainer import tensors, tiny_learner, tiny_trainer
from transformers import DataCollatorForLanguageModeling

from farzi_hf.distillation import OBJECTIVES, Learner, record_trajectories
from farzi_hf.engine import InnerAdam

V = 54
NAMES = list(OBJECTIVES)
INNER = {
    "adam": {},
    "sgd": {"inner_optimizer": "sgd", "inner_learning_rate": 0.3, "inner_momentum": 0.5},
}
OFTEN = {("gradient_matching", "adam"), ("trajectory_matching", "adam")}


@pytest.fixture(scope="module")
def omega(tmp_path_factory, sequences, tokenizer) -> str:
    """Three trajectories of twelve steps, checkpoints every third one."""
    folder, collator = (
        tmp_path_factory.mktemp("omega"),
        DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    record_trajectories(
        Learner(tiny_learner(V)),
        InnerAdam(lr=0.05, eps=1e-3),
        sequences["train"],
        collator,
        folder,
        num=3,
        steps=12,
        save_every=3,
        batch_size=20,
        seed=0,
    )
    return str(folder)


@pytest.fixture
def make(tmp_path, sequences, tokenizer, omega):
    """`tiny_trainer` with Ω, in a folder of its own."""
    return partial(
        tiny_trainer, tmp_path / "out", sequences, tokenizer, trajectories=omega, expert_steps=9
    )


def assert_equal(trainer, expected) -> None:
    assert len(tensors(trainer)) == 2 + 2 * 3
    assert all(map(torch.equal, tensors(trainer), tensors(expected)))
    for name in ("loss", "grad_norm"):
        ours, theirs = (
            [x[name] for x in t.state.log_history if name in x] for t in (trainer, expected)
        )
        assert ours == theirs


@pytest.mark.parametrize(
    ("objective", "inner"),
    [
        pytest.param(
            objective, inner, marks=[] if (objective, inner) in OFTEN else pytest.mark.slow
        )
        for objective in NAMES
        for inner in INNER
        if (objective, inner)
        != (
            "gradient_matching",
            "sgd",
        )  # soft tokens near uniform have no direction, which Adam alone overcomes
    ],
)
def test_each_objective_improves_its_own_criterion(make, sequences, tokenizer, objective, inner):
    """On real sequences and seeds that training has not seen, from soft tokens near uniform."""
    trainer = make(
        objective=objective,
        initialization="random",
        max_steps=15,
        learning_rate=0.2,
        inner_steps=6,
        inner_steps_min=None,
        window=None,
        inner_epsilon=1e-2,
        **INNER[inner],
    )
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(list(sequences["validation"]))

    def criterion() -> float:
        summary = {
            name: tensor.detach().requires_grad_() for name, tensor in trainer.model.tensors.items()
        }
        losses = [
            trainer.objective(trainer.learner, summary, batch, seed).item()
            for seed in range(1000, 1006)
        ]
        return float(np.mean(losses))

    before = criterion()
    trainer.train()
    assert criterion() < 0.95 * before


POOL = {"learner_pool": 3, "inner_steps_min": 4, "inner_steps": 8}


@pytest.mark.parametrize("changes", [*({"objective": name} for name in NAMES), POOL])
def test_a_run_with_trajectories_resumes_bit_identically(make, tmp_path, changes):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, **changes}
    whole = make(**settings)
    whole.args.output_dir = str(tmp_path / "whole")
    whole.train()
    trainer = make(**settings)
    trainer.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-4")
    assert_equal(trainer, whole)


def test_where_inner_loops_start_changes_the_run(make):
    runs = [
        make(fresh_start_fraction=1.0),
        make(fresh_start_fraction=0.0),
        make(fresh_start_fraction=0.0, num_trajectories=1),
        make(trajectories=None),
    ]
    for trainer in runs:
        trainer.train()
    assert_equal(runs[0], runs[3])
    losses = [[x["loss"] for x in trainer.state.log_history if "loss" in x] for trainer in runs]
    assert losses[0] != losses[1] != losses[2]


@pytest.mark.parametrize("objective", NAMES)
def test_an_objective_takes_what_it_needs_from_the_config(make, objective):
    """And the inner loop is the trainer's own."""
    settings = {
        "inner_steps": 9,
        "inner_steps_min": 4,
        "synthetic_steps": 5,
        "expert_steps": 3,
        "last_start": 6,
    }
    trainer = make(objective=objective, fresh_start_fraction=0.25, **settings)
    found, expected = (
        vars(trainer.objective),
        {"steps": 9, "steps_min": 4, "synthetic_steps": 5, "expert_steps": 3, "last_step": 6},
    )
    assert type(trainer.objective) is OBJECTIVES[objective]
    assert found["training"] is trainer.training
    assert all(found.get(name, value) == value for name, value in expected.items())
    if "starts" in found:
        assert (found["starts"].fresh, found["starts"].last_step) == (0.25, 6)


def test_a_pool_of_learners_takes_the_place_of_fresh_ones(make):
    trainer = make(**POOL, max_steps=8)
    trainer.train()
    assert trainer.objective.pool.state_dict()["members"][:, 1].min() > 0
    assert all(
        entry["grad_norm"] > 0 for entry in trainer.state.log_history if "grad_norm" in entry
    )
    assert make().objective.pool is None


@pytest.mark.parametrize(
    "changes", [{"window": None}, {"inner_steps_min": None}, {"inner_steps_min": 8}, {"window": 4}]
)
def test_a_pool_that_cannot_be_is_refused(make, changes):
    _, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f"learner_pool=3 needs window < .*got .*{value}"):
        make(**{**POOL, **changes})


def test_trajectories_of_another_model_are_refused_at_once(make):
    learner = tiny_learner(V)
    learner.n_inner = 24
    with pytest.raises(
        ValueError, match=r"another model: parameter transformer\.h\.0\.mlp\.c_fc\.weight is"
    ):
        make({"learner_init": learner})
    with pytest.raises(ValueError, match=r"folder='nowhere' has no readable manifest\.json"):
        make(trajectories="nowhere")


def test_an_objective_of_ones_own(make):
    """A function of the contract is enough; its name in the recipe is not one that a config would
    take for another.
    """

    def closeness(learner, summary, batch, seed):
        return summary["latents"].square().mean() + 0 * summary["decoder"].sum()

    trainer = make({"objective": closeness}, max_steps=3)
    before = trainer.model.latents.square().mean().item()
    trainer.train()
    assert trainer.model.latents.square().mean().item() < before
    trainer.save_model()
    recipe = yaml.safe_load(
        Path(trainer.args.output_dir, "recipe.yaml").read_text(encoding="utf-8")
    )
    assert recipe["objective"] == "function"
