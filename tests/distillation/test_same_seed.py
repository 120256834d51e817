"""The same seed gives the same summary: once more, resumed, over two processes, compiled. How exactly is stated here."""

from __future__ import annotations

import shutil

import pytest
import torch
from tiny_trainer import tensors, tiny_trainer
from trainer_runs import run

from farzi_hf.distillation.trainer import last_checkpoint

TOLERANCES = {
    "once more": 0.0,  # bit for bit
    "resumed": 0.0,  # from a checkpoint in the middle
    "two processes": 1e-6,  # each has half of the batches; gradients are added in another order
    "compiled": 1e-5,  # the compiler fuses sums of the inner loop, whose rounding four steps of training pass on
}
"""Of every number of latents, decoder and the optimizer's moments after four steps: absolute, and relative as well."""
SETTINGS = {
    "max_steps": 4, "per_device_train_batch_size": 20, "save_strategy": "steps", "save_steps": 2,
    "inner_steps_min": None, "window": None,  # or the compiler has more to do
}  # fmt: skip
BOTH = {"gradient_accumulation_steps": 2}  # one process takes the batches of two


@pytest.fixture(scope="module")
def reference(tmp_path_factory, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path_factory.mktemp("reference"), sequences, tokenizer, **SETTINGS, **BOTH)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "variant",
    [
        "once more",
        "resumed",
        pytest.param("two processes", marks=pytest.mark.slow),  # beside the one in test_trainer_recovery.py
        pytest.param(
            "compiled",
            marks=[
                pytest.mark.slow,
                pytest.mark.filterwarnings("default"),  # the compiler has some of its own
                pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
            ],
        ),
    ],
)
def test_the_same_seed_gives_the_same_summary(reference, tmp_path, sequences, tokenizer, variant):
    if variant == "two processes":
        assert run(tmp_path, {**SETTINGS, "save_strategy": "no"}, processes=2) == [0, 0]
        found = torch.load(tmp_path / "process-0.pt")["tensors"]
    else:
        changes = {"torch_compile": True} if variant == "compiled" else {}
        trainer = tiny_trainer(tmp_path, sequences, tokenizer, **SETTINGS, **BOTH, **changes)
        halfway = f"{reference.args.output_dir}/checkpoint-2" if variant == "resumed" else None
        assert last_checkpoint(tmp_path) is None
        trainer.train(resume_from_checkpoint=halfway)
        found = tensors(trainer)
    tolerance = TOLERANCES[variant]
    for ours, theirs in zip(found, tensors(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
