"""What `attribute` costs beside the training by the stock Trainer: CPU seconds and memory, each cell in a process of its own.

    python recipes/benchmark/attribute_cost.py

GPT-2 of two layers, width 48, tied embeddings, V = 1,000; 512 rows of 32 drawn ids, 16 rows a step, AdamW, T = 100 steps.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from farzi_hf.attribution import attribute
from farzi_hf.data import SequenceCollator
from farzi_hf.engine import ADJOINTS

V, LENGTH, STEPS, BATCH = 1000, 32, 100, 16
CELLS: dict[str, dict[str, Any]] = {
    "stock Trainer": {"queries": 0},
    "None": {},
    "None, 8 queries": {"queries": 8},
    "None, 4 micro-batches": {"accumulated": 4},
    **{name: {"adjoint": name} for name in ("gradient_graphs", "tape", "reversible", "checkpoint")},
}


def cell(folder: str, queries: int = 1, accumulated: int = 1, adjoint: str | None = None) -> tuple[float, float, float]:
    """CPU seconds, MiB by which the process grew, and the relative difference from the Trainer's weights."""
    set_seed(0)
    torch.set_num_threads(1)
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, **drops))
    ids = torch.multinomial(1 / torch.arange(1.0, V + 1), 512 * LENGTH, replacement=True).view(512, LENGTH).tolist()
    args = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=BATCH // accumulated, gradient_accumulation_steps=accumulated, warmup_steps=10,
        learning_rate=1e-3, weight_decay=0.01, adam_epsilon=1e-6, save_strategy="no", logging_strategy="no", report_to="none", use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model, args, SequenceCollator(), Dataset.from_dict({"input_ids": ids}))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if not queries:
        trainer.train()
    else:
        test = Dataset.from_dict({"input_ids": ids[:queries]})
        found = attribute(trainer, test, None if adjoint is None else ADJOINTS[adjoint]())
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if not queries:
        return seconds, grown, 0.0
    trainer.train()
    return seconds, grown, found.check(trainer.model)


def main() -> None:
    """Prints a row of each cell."""
    fresh, plain = multiprocessing.get_context("spawn"), 0.0
    for name, settings in CELLS.items():
        with tempfile.TemporaryDirectory() as folder, fresh.Pool(1) as pool:
            seconds, grown, difference = pool.apply(cell, (folder,), settings)
        plain = plain or seconds
        print(
            f"| {name} | {seconds:.1f} s | {seconds / plain:.1f} × | {grown:.0f} MiB | {difference:.1e} |", flush=True
        )


if __name__ == "__main__":
    main()
