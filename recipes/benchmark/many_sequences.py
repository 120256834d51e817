"""Time and memory of an outer step for many synthetic sequences, of which a step sees a few.

    python recipes/benchmark/many_sequences.py 100 1000 10000 100000

Each μ runs in a process of its own (`harness.py`). Times are those of the clock, with one thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Sequence
from statistics import median
from typing import Any

from harness import Limits, Report, in_process
from transformers import GPT2Config

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import load_sample_text, tokenize, word_tokenizer
from farzi_hf.report import markdown

LIMITS = Limits(memory=64.0, seconds=3600.0)


def measure(report: Report, num_sequences: int, steps: int) -> None:
    """Seconds of a step (the median), MiB of the process before the training, and its peak."""
    text = load_sample_text(200)
    tokenizer = word_tokenizer(text["train"]["text"], vocab_size=50)
    learner = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        args = FarziConfig(
            folder, inputs="soft", labels="shared", num_sequences=num_sequences, sequence_length=20, latent_dim=8, initialization="random",
            inner_steps=50, window=25, synthetic_batch_size=8, max_steps=steps, per_device_train_batch_size=16, adjoint="reversible",
            save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none", logging_steps=1,
        )  # fmt: skip
        data = tokenize(text, tokenizer)["train"]
        trainer = FarziTrainer(learner, args, train_dataset=data, processing_class=tokenizer)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        trainer.train()
        seconds = [entry["seconds_per_step"] for entry in trainer.state.log_history if "seconds_per_step" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report({"seconds": median(seconds), "before": before, "more": peak - before})


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a row for each μ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_sequences", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args(argv)
    columns = {
        "num_sequences": "μ", "seconds": "s per step", "before": "MiB before", "more": "MiB more", "status": "status",
    }  # fmt: skip
    rows = [{"num_sequences": number, "steps": args.steps} for number in args.num_sequences]
    rows = [{**row, **in_process(measure, row, LIMITS)} for row in rows]
    print(markdown([{title: shown(row.get(name, "")) for name, title in columns.items()} for row in rows]))


def shown(value: Any) -> str:
    """A number with two decimals, a count or a word as it is."""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
