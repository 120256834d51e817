"""What FarziTrainer measures and shows beside the training."""

from __future__ import annotations

import psutil
import torch
from transformers import ProgressCallback, TrainerState

from farzi_hf.distillation.run import peak_memory, without_prediction_bar

CPU = torch.device("cpu")


def test_peak_memory_is_that_of_the_process():
    before = peak_memory(CPU)
    assert (
        before >= 0.95 * psutil.Process().memory_info().rss
    )  # Linux counts the two in different ways
    torch.ones(before // 4 + 2**24)  # float32
    assert peak_memory(CPU) > before


def test_after_a_resume_the_bar_counts_only_the_steps_since(monkeypatch):
    monkeypatch.setattr("tqdm.std.tqdm.refresh", lambda *args, **kwargs: None)
    callback = without_prediction_bar(ProgressCallback)()
    state = TrainerState(global_step=90, max_steps=100, is_world_process_zero=True)
    callback.on_train_begin(None, state, None)
    state.global_step = 91
    callback.on_step_end(None, state, None)
    bar = callback.training_bar
    assert (bar.n, bar.initial, bar.total) == (91, 90, 100)  # the rate is that of n - initial steps
    bar.close()


def test_nothing_is_shown_where_bars_are_off(make, capfd):
    make(concentration=None, max_steps=1, eval_strategy="steps", eval_steps=1).train()
    assert capfd.readouterr().err == ""
