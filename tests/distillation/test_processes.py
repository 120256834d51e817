"""Several processes: what their launcher asked for, and a distillation that two real ones share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from process_jobs import all_work, resumed_pool, shared_work
from tiny_trainer import PoisonedGradient, logged, tensors, tiny_trainer
from trainer_runs import run

from farzi_hf import FarziConfig
from farzi_hf.distillation.processes import SHARDING, check_launcher
from farzi_hf.distillation.run import last_checkpoint


@pytest.fixture
def plain(monkeypatch):
    """No launcher."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION", *SHARDING):
        monkeypatch.delenv(name, raising=False)


# -- what the launcher asked for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [*((name, "true") for name in SHARDING), ("ACCELERATE_MIXED_PRECISION", "fp16")],
)
def test_sharding_and_fp16_of_the_launcher_are_refused_in_one_line(
    plain, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=rf"^{variable}={value} is not supported[^\n]+$"):
        FarziConfig("out", use_cpu=True)


def test_several_processes_without_a_gpu_use_the_cpu(plain, monkeypatch):
    assert not check_launcher()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert check_launcher() is not torch.accelerator.is_available()


def test_one_process_with_several_gpus_is_refused(plain, monkeypatch):
    monkeypatch.setattr(FarziConfig, "n_gpu", 2)
    with pytest.raises(
        ValueError,
        match=r"sees 2 GPUs.*accelerate launch --num_processes 2 .*CUDA_VISIBLE_DEVICES=0",
    ):
        FarziConfig("out", use_cpu=True)


# -- a distillation --------------------------------------------------------------------------------


def test_two_processes_are_one_that_accumulates_two_batches(tmp_path, sequences, tokenizer):
    """Also: both find the same, both skip a step in which one of them finds a NaN, evaluate as one
    does, and stop at the same step when one of them gets a signal.
    """
    shared = {"max_steps": 2, "per_device_train_batch_size": 20}
    folder = tmp_path / "two"
    folder.mkdir()
    codes = run(folder, shared, processes=2)
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("two.*.log")]
    first, second = (torch.load(folder / f"process-{rank}.pt") for rank in (0, 1))
    assert first["world_size"] == second["world_size"] == 2

    one = tiny_trainer(
        tmp_path / "one", sequences, tokenizer, gradient_accumulation_steps=2, **shared
    )
    one.train()
    for a, b, expected in zip(first["tensors"], second["tensors"], tensors(one), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-6, atol=1e-6)
    assert first["losses"] == pytest.approx(logged(one, "loss"), rel=1e-6)
    assert first["evaluation"] == second["evaluation"]
    for name, value in one.evaluate().items():
        if (
            "loss" not in name
        ):  # as in every Trainer, eval_loss is a mean over batches, and these are cut differently
            assert first["evaluation"][name] == pytest.approx(value, rel=1e-4)

    assert (
        first["interrupted"] == second["interrupted"] == (143, 1)
    )  # both at the end of the same step
    assert last_checkpoint(folder) == str(folder / "checkpoint-1")

    one.objective = PoisonedGradient(one.objective, calls=(3,))
    one.train()
    assert (
        first["poisoned"]["skipped"]
        == second["poisoned"]["skipped"]
        == logged(one, "non_finite_steps")
        == [0, 1]
    )
    for a, b, expected in zip(
        *(x["poisoned"]["tensors"] for x in (first, second)), tensors(one), strict=True
    ):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-6, atol=1e-6)


def in_two(folder: Path, target: Any, **settings: Any) -> list[dict[str, Any]]:
    """What `target` leaves in two processes."""
    folder.mkdir()
    codes = run(folder, settings, processes=2, target=target)
    assert codes == [0, 0], [
        path.read_text() for path in folder.parent.glob(f"{folder.name}.*.log")
    ]
    found = [torch.load(folder / f"process-{rank}.pt") for rank in (0, 1)]
    assert [x["world_size"] for x in found] == [2, 2]
    assert [x["rank"] for x in found] == [0, 1]
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Bit for bit."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


# -- a pool in each process ------------------------------------------------------------------------

POOL = {
    "learner_pool": 2,
    "inner_steps": 6,
    "inner_steps_min": 4,
    "window": 2,
    "max_steps": 5,
    "logging_steps": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "per_device_train_batch_size": 20,
}


@pytest.mark.slow
def test_each_process_has_a_pool_of_its_own_and_resumes_bit_for_bit(tmp_path):
    whole = in_two(tmp_path / "whole", resumed_pool, **POOL)
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    assert {path.name for path in checkpoint.glob("state_of_process_*")} == {
        f"state_of_process_{rank}.safetensors" for rank in (0, 1)
    }
    assert whole[0]["turns"] == whole[1]["turns"] == 5
    learners = [name for name in whole[0]["pool"] if "." in name]
    assert learners
    assert not any(torch.equal(whole[0]["pool"][name], whole[1]["pool"][name]) for name in learners)
    assert same(whole[0]["tensors"], whole[1]["tensors"])

    resumed = in_two(
        tmp_path / "resumed", resumed_pool, **POOL, resume_from_checkpoint=str(checkpoint)
    )
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours["turns"] == 2
        assert same({**ours, "turns": 0}, {**theirs, "turns": 0})


# -- work that they share --------------------------------------------------------------------------

OWN = {
    "labels": "own",
    "inputs": "tokens",
    "teacher_steps": 6,
    "teacher_batch_size": 20,
    "num_teachers": 3,
    "label_dim": 20,
    "eval_students": 3,
}


def test_two_processes_share_teachers_students_and_recordings(tmp_path, sequences, tokenizer):
    """Each does its part, both end with the same, and it is what one process does."""
    first, second = in_two(tmp_path / "two", shared_work, **OWN)
    one = all_work(tiny_trainer(tmp_path / "one", sequences, tokenizer, **OWN))
    assert (first["taught"], second["taught"], one["taught"]) == (2, 1, 3)
    assert (first["studied"], second["studied"], one["studied"]) == ([0, 2], [1], [0, 1, 2])
    assert all(x["random"] for x in (first, second, one))
    for name in ("summary", "omega"):
        assert same(first[name], second[name])
        assert same(first[name], one[name])
    assert first["metrics"] == second["metrics"]
    for name, value in one["metrics"].items():
        if (
            "loss" not in name
        ):  # as in every Trainer, eval_loss is a mean over batches, and these are cut differently
            assert first["metrics"][name] == pytest.approx(value, rel=1e-5)

    assert (
        first["error"]
        == "RuntimeError: process 1 failed in work that all processes share; its own message"
        " says why"
    )
    assert second["error"] == "FloatingPointError: this one diverged"
