"""`farzi distil CONFIG` that a signal ends while its teacher is packed: the same command goes on from
there, and makes the summary that nobody interrupted.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipes import leave_out_figures, shorten_full_data, use_small_data

pytest.importorskip("matplotlib")
from farzi_hf import FarziData
from farzi_hf.cli import main
from farzi_hf.distillation import teacher

CARRIED = {
    "dataset": "sample",
    "vocab_size": 50,
    "learner": {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1},
    "labels": "teacher",
    "inputs": "drawn",
    "storage": "coded6",
    "num_sequences": 4,
    "sequence_length": 8,
    "teacher_steps": 40,
    "packing_steps": 40,
    "inner_steps": 2,
    "synthetic_batch_size": 2,
    "num_students": 1,
    "eval_students": 1,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"max_steps": 0}, marks=pytest.mark.slow, id="no step"),
        pytest.param({"max_steps": 1, "baselines": []}, id="a step"),
    ],
)
def test_the_same_command_goes_on_with_a_start(more, tmp_path, monkeypatch):
    """With outer steps, the start is made and measured before the training begins."""
    for prepare in (use_small_data, leave_out_figures, shorten_full_data):
        prepare(monkeypatch)
    monkeypatch.setattr(teacher, "_KEEPING", math.inf)
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump({**CARRIED, **more}), encoding="utf-8")
    whole = ["--compare"] if more["max_steps"] else []
    steps = 0
    train_on = teacher.train_on

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 61:
            signal.raise_signal(signal.SIGTERM)
        return train_on(*args, **kwargs)

    def distil(folder: Path) -> None:
        main(["distil", str(config), "--output_dir", str(folder), *whole])

    distil(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(teacher, "train_on", interrupted)
        with pytest.raises(SystemExit) as ended:
            distil(tmp_path / "ended")
        assert ended.value.code == 143
        assert (tmp_path / "ended" / "farzi_start" / "packing-0.safetensors").exists()
        steps = 100
        distil(tmp_path / "ended")
    one, two = (
        FarziData.from_pretrained(tmp_path / name / "summary") for name in ("whole", "ended")
    )
    assert one.fingerprint() == two.fingerprint()
    assert not (tmp_path / "ended" / "farzi_start").exists()
