"""Time and memory of an outer step for many synthetic sequences, of which a step sees a few.

    python recipes/benchmark/many_sequences.py 100 1000 10000 100000

Each μ runs in a process of its own. Times are processor time of one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from transformers import GPT2Config
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import load_sample_text, tokenize, word_tokenizer

ROW = "{:>9} {:>13} {:>13} {:>13}"


class StepTimes(TrainerCallback):
    """Processor seconds of each outer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self._begun)


def measure(num_sequences: int, steps: int) -> tuple[float, float, float]:
    """Seconds of a step (the median), MiB of the process before the training, and its peak."""
    text = load_sample_text(200)
    tokenizer = word_tokenizer(text["train"]["text"], vocab_size=50)
    learner = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        args = FarziConfig(
            folder, inputs="soft", labels="shared", num_sequences=num_sequences, sequence_length=20, latent_dim=8, initialization="random",
            inner_steps=50, window=25, synthetic_batch_size=8, max_steps=steps, per_device_train_batch_size=16, adjoint="reversible",
            save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none", logging_steps=1000,
        )  # fmt: skip
        trainer = FarziTrainer(
            learner,
            args,
            train_dataset=tokenize(text, tokenizer)["train"],
            processing_class=tokenizer,
            callbacks=[times],
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        trainer.train()
    return sorted(times.seconds)[steps // 2], before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Prints a row for each μ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_sequences", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--here", action="store_true", help="measure in this process, and print one row")
    args = parser.parse_args()
    if args.here:
        torch.set_num_threads(1)
        (number,) = args.num_sequences
        seconds, before, peak = measure(number, args.steps)
        print(ROW.format(number, f"{seconds:.3f}", f"{before:.0f}", f"{peak - before:.0f}"))
        return
    print(ROW.format("μ", "s per step", "MiB before", "MiB more"), flush=True)
    for number in args.num_sequences:
        command = [sys.executable, "-W", "ignore", __file__, str(number), "--steps", str(args.steps), "--here"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(out.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
