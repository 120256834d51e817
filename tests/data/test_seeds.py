"""Streams of random numbers: none is used twice."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_trainer import tiny_trainer

import farzi_hf
from farzi_hf.common.checks import check_different
from farzi_hf.data import Interactions, random_sequences
from farzi_hf.data.seeds import Purpose, check_seed, derive, stream
from farzi_hf.summary.initialization import Spectral

numbers = (
    st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.sampled_from([2**32 - 1, 2**32, 2**32 + 1])
)
keys = st.tuples(numbers, st.sampled_from(Purpose), st.lists(numbers, max_size=4).map(tuple))


def state(generator: np.random.Generator) -> tuple[int, int]:
    return tuple(generator.bit_generator.state["state"].values())


@pytest.mark.fuzz
@fuzzed
@example(a=(2, Purpose.LEARNER, (2,)), b=(2, Purpose.LEARNER, (2, 0)))
@example(a=(2, Purpose.LEARNER, ()), b=(2, Purpose.LEARNER, (0,)))
@example(a=(0, Purpose.LEARNER, (2**32,)), b=(0, Purpose.LEARNER, (0, 1)))
@example(a=(1, Purpose(0), ()), b=(1 + 2**32, Purpose(0), ()))
@given(a=keys, b=keys)
def test_another_seed_purpose_or_path_is_another_stream(a, b):
    same = a == b
    assert (state(stream(a[0], a[1], *a[2])) == state(stream(b[0], b[1], *b[2]))) is same
    assert (derive(a[0], a[1], *a[2]) == derive(b[0], b[1], *b[2])) is same


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "3", None])
def test_a_seed_that_is_none_is_refused(seed):
    message = r"^seed=.* is not usable; give an integer from 0 to 2\*\*64 - 1$"
    with pytest.raises(ValueError, match=message):
        stream(seed, Purpose.SPLIT)
    with pytest.raises(ValueError, match=message):
        derive(seed, Purpose.SPLIT)
    assert check_seed(np.int64(3)) == 3
    assert derive(2**64 - 1, Purpose.SPLIT) >= 0


def test_the_table_is_what_it_was():
    """Another number for a purpose, or another way to draw, changes every figure."""
    numbers = [purpose.value for purpose in Purpose]
    assert numbers == sorted(set(numbers))  # a number is never used again
    fixed = ("SUMMARY_NORMAL", "OUTER_STEP", "MINIBATCH", "BOOTSTRAP", "POOL", "TEACHER_KIND")
    assert [Purpose[name] for name in fixed] == [0, 5, 9, 20, 24, 35]
    assert derive(42, Purpose.OUTER_STEP, 3, 0) == 17334878898376616393


def test_no_two_streams_of_a_distillation_are_one(monkeypatch, tmp_path, sequences, tokenizer):
    """Outer steps with several epochs of minibatches, Ω in the mix, and two students."""
    from farzi_hf.distillation import PretrainedStarts, record_trajectories

    # 4 sequences, 2 a step: an epoch has 2 steps, and T = 10 has epochs 0 … 4, two of which had the
    # numbers of Ω's streams
    settings = {"inner_steps": 10, "inner_steps_min": None, "max_steps": 2}
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, **settings)
    trained = sequences["train"].select_columns("input_ids")
    bank = record_trajectories(
        trainer.learner,
        trainer.args.make_inner_optimizer(),
        trained,
        trainer.data_collator,
        tmp_path / "omega",
        num=2,
        steps=2,
        save_every=1,
        batch_size=80,
        seed=3,
    )
    objective = trainer.objective
    trainer.objective = type(objective)(
        **{**vars(objective), "starts": PretrainedStarts(bank, 0.5)}
    )
    begun, make, seed_torch, own = (
        [],
        np.random.default_rng,
        torch.manual_seed,
        torch.default_generator.manual_seed,
    )

    def default_rng(*args):
        generator = make(*args)
        begun.append(state(generator))
        return generator

    monkeypatch.setattr(np.random, "default_rng", default_rng)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: begun.append(seed) or seed_torch(seed))
    seeding = SimpleNamespace(manual_seed=lambda seed: begun.append(seed) or own(seed))
    monkeypatch.setattr(torch, "default_generator", seeding)
    trainer.train()
    trainer.evaluate()
    random_sequences(trained, 10, trainer.args.seed)
    Spectral()(trainer.model, trained, trainer.args.seed)
    Interactions([np.array([1, 2])] * 10, 2).strong_generalization_split(trainer.args.seed)
    ours = [
        one for one in begun if one != trainer.args.seed
    ]  # torch's, by transformers and for each process
    assert len(ours) > 30
    assert not {one for one in ours if ours.count(one) > 1}


@pytest.mark.parametrize("values", [["0", "1"], ["a"], [[0]], [0, 0], [-1], [], 3, "01"])
def test_a_list_that_is_none_of_different_numbers_is_refused(values):
    with pytest.raises(
        ValueError, match=r"^splits=.* give a list of different numbers of at least 0"
    ):
        check_different("splits", values, 0)
    check_different("splits", [0, 1], 0)


CHECKS = ("distillation/learner_model.py", "summary/teacher.py")
"""Their generators have a fixed seed: what they decide does not depend on the numbers."""
OWN_SEEDS = ("data/seeds.py", "data/samples.py")


def test_nothing_is_drawn_outside_the_table():
    package = Path(farzi_hf.__file__).parent
    others = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name in OWN_SEEDS:
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            function = getattr(call.func, "attr", getattr(call.func, "id", None))
            if function == "default_rng":
                others.append(f"{name}:{call.lineno}")
            elif function == "manual_seed":
                is_fixed = isinstance(call.args[0], ast.Constant)
                if is_fixed and name not in CHECKS:
                    others.append(f"{name}:{call.lineno}")
    assert not others
