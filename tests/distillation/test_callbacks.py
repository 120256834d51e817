"""What FarziTrainer measures and shows beside the training."""

from __future__ import annotations

import psutil
import torch

from farzi_hf.distillation.callbacks import peak_memory

CPU = torch.device("cpu")


def test_peak_memory_is_that_of_the_process():
    before = peak_memory(CPU)
    assert before >= 0.95 * psutil.Process().memory_info().rss  # Linux counts the two in different ways
    torch.ones(before // 4 + 2**24)  # float32
    assert peak_memory(CPU) > before


def test_nothing_is_shown_where_bars_are_off(make, capfd):
    make(concentration=None, max_steps=1, eval_strategy="steps", eval_steps=1).train()
    assert capfd.readouterr().err == ""
