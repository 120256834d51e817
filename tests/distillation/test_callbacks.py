"""What FarziTrainer says, measures and shows beside the training."""

from __future__ import annotations

import re

import psutil
import torch

from farzi_hf.distillation.callbacks import peak_memory

CPU = torch.device("cpu")


def shown(text: str) -> list[str]:
    """What a terminal would have shown, one state of a bar after the other."""
    return [line.strip() for line in re.split(r"[\r\n]|\x1b\[A", text) if line.strip()]


def test_peak_memory_is_that_of_the_process():
    before = peak_memory(CPU)
    assert before >= 0.95 * psutil.Process().memory_info().rss  # Linux counts the two in different ways
    torch.ones(before // 4 + 2**24)  # float32
    assert peak_memory(CPU) > before


def test_an_evaluation_has_one_bar_of_students_that_ends_at_its_total(make, capfd):
    """Before, a bar of one student's batches ran on: 6it of 2."""
    settings = {"eval_students": 3, "per_device_eval_batch_size": 10, "eval_strategy": "steps", "eval_steps": 1}
    make(disable_tqdm=False, max_steps=1, **settings).train()
    terminal = capfd.readouterr().err
    states = [line for line in shown(terminal) if line.startswith("Students")]
    assert "0/3" in states[0]  # before the first is trained
    assert not re.search(r"\d+it \[", terminal)


def test_nothing_is_shown_where_bars_are_off(make, capfd):
    trainer = make(concentration=None, max_steps=1, eval_strategy="steps", eval_steps=1)
    trainer.train()
    assert capfd.readouterr().err == ""
