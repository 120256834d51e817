"""Time and memory of an outer step for many synthetic sequences, of which a step sees a few.

    python recipes/benchmark/many_sequences.py 100 1000 10000 100000

Each μ runs in a process of its own (`harness.py`). Times are processor time of one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from harness import Limits, Report, in_process
from transformers import GPT2Config
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import load_sample_text, tokenize, word_tokenizer
from farzi_hf.report import markdown

LIMITS = Limits(memory=64.0, seconds=3600.0)


class StepTimes(TrainerCallback):
    """Processor seconds of each outer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self._begun)


def measure(report: Report, num_sequences: int, steps: int) -> None:
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
        data = {"train_dataset": tokenize(text, tokenizer)["train"], "processing_class": tokenizer}
        trainer = FarziTrainer(learner, args, callbacks=[times], **data)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        trainer.train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report({"seconds": sorted(times.seconds)[steps // 2], "before": before, "more": peak - before})


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a row for each μ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_sequences", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args(argv)
    columns = {
        "num_sequences": "μ",
        "seconds": "s per step",
        "before": "MiB before",
        "more": "MiB more",
        "status": "status",
    }
    rows = [{"num_sequences": number, "steps": args.steps} for number in args.num_sequences]
    rows = [{**row, **in_process(measure, row, LIMITS)} for row in rows]
    print(markdown([{title: shown(row.get(name, "")) for name, title in columns.items()} for row in rows]))


def shown(value: Any) -> str:
    """A number with two decimals, a count or a word as it is."""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
