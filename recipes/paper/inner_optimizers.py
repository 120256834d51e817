"""Compares inner optimizers: SGD, SGD with momentum, and Adam, which is differentiated by us and by plain autograd.

    python recipes/paper/inner_optimizers.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/inner_optimizers.py --dataset ptb --data_dir FOLDER
    python recipes/paper/inner_optimizers.py --dataset sample                          # embedded: text, or sample_interactions

This makes the paper's figure of inner-loop optimizers. For quality, each row has one distillation, all with the same number of outer steps. For
time and memory of a meta-gradient against T, `recipes/benchmark/` measures each cell in its own process, at this summary's size; this needs
`pip install farzi-hf[bench]`. Each (method, seed) is stored in `output_dir`, and each cost in `cost/` of the card's folder; a later start does not
repeat them. The settings are in `configs/tables/paper_DATASET_SCALE.yaml`; the card goes to `model_cards/inner_optimizers_DATASET/`.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cells import FULL, LONG, Cell, evidence_of, full_cells
from experiment import Experiment
from objectives import sgd

from farzi_hf import FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import Claim, Comparison, Student

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmark"))
import benchmark
from harness import Facts, read_rows

OURS, AUTOGRAD = "Farzi, Adam", "Farzi, Adam by autograd"
SGD, MOMENTUM = "Farzi, SGD", "Farzi, SGD with momentum"
CLAIMS = (
    Claim("Adam inside makes better data than SGD", OURS, SGD),
    Claim("Adam inside makes better data than SGD with momentum", OURS, MOMENTUM),
    Claim("Reverse-mode Adam makes at least 95 % as good data as autograd's", OURS, AUTOGRAD, 0.95),
)
COSTS = ("autograd", "higher", "Tape", "Checkpoint", "Reversible")


def main(argv: Sequence[str] | None = None) -> None:
    """The tables and figures of one data set."""
    keep_freed_memory()
    with ends_in_one_line("inner_optimizers.py"):
        e = Experiment.parse("inner_optimizers", "Inner optimizers", argv, ("quality.png",))
        if importlib.util.find_spec("higher") is None:
            raise ValueError("the package higher is not installed: pip install farzi-hf[bench]")
        read_rows(e.folder / "cost", benchmark.FILES)  # before any work: they may be somebody else's
        evidence = evidence_of(e, [*cells(e), *full_cells()])
    rows = list(evidence.rows.values())
    findings = [*evidence.verdicts(CLAIMS), *(evidence.finding(OURS, name) for name in (LONG, FULL))]
    benchmark.main(cost_arguments(e))
    costs = read_rows(e.folder / "cost", benchmark.FILES)
    findings += cost_findings(costs)
    more = f"\nCost of one meta-gradient (`benchmark.py`), all T steps differentiated:\n\n{benchmark.tables(benchmark.in_order(costs))}"
    e.write(rows, findings, more, {"seconds_per_step": "s per outer step"})
    e.plot(rows, "quality.png")


def cells(e: Experiment) -> list[Cell]:
    """The cells. All have the same number of outer steps and the same kind of start.

    Adam has the recipe's settings. Both SGD have the settings with the least validation error after T steps on full data
    (`inner_sgd.py`).
    """
    return [
        Cell(SGD, sgd(e.settings.sgd_learning_rate, 0.0), facts=seconds_per_step),
        Cell(MOMENTUM, sgd(e.settings.momentum_learning_rate, e.settings.sgd_momentum), facts=seconds_per_step),
        Cell(OURS, facts=seconds_per_step),
        Cell(AUTOGRAD, {"adjoint": "direct"}, facts=seconds_per_step),
    ]


def seconds_per_step(trainer: FarziTrainer, c: Comparison, students: Sequence[Student]) -> Mapping[str, float]:
    """The median of the logged means. If nothing was logged, an empty dict."""
    logged = [entry["seconds_per_step"] for entry in trainer.state.log_history if "seconds_per_step" in entry]
    return {"seconds_per_step": statistics.median(logged)} if logged else {}


def cost_arguments(e: Experiment) -> list[str]:
    """Arguments of `benchmark.py`: as many sequences as an inner step has, the same ξ, d, V and b, and a learner of the same width."""
    args, learner = e.args, e.data.settings.learner
    sizes = {
        "num_sequences": args.synthetic_batch_size or args.num_sequences, "sequence_length": args.sequence_length,
        "latent_dim": args.latent_dim, "vocab_size": len(e.task.processing_class), "batch_size": args.per_device_train_batch_size,
        "hidden_size": learner.get("hidden_size", learner.get("n_embd", 16)), "time_limit": 600,
        "output_dir": e.folder / "cost",
    }  # fmt: skip
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    return [*flags, "--methods", *COSTS, "--steps", *map(str, sorted(e.settings.cost_steps))]


def cost_findings(costs: Sequence[Facts]) -> list[str]:
    """Our time and memory divided by those of plain autograd, at the largest T that both reached, and the growth with T."""
    measured = {(row["method"], row["steps"]): row for row in costs if row.get("seconds") and row.get("memory_bytes")}
    sentences = []
    for method in COSTS[1:]:
        steps = [t for name, t in measured if name == method and ("autograd", t) in measured]
        if not steps:
            continue
        first, last = min(steps), max(steps)
        ours, plain = measured[method, last], measured["autograd", last]
        sentences.append(
            f"{method} at T = {last}: {ours['seconds'] / plain['seconds']:.2f} times the time of plain autograd and "
            f"{ours['memory_bytes'] / plain['memory_bytes']:.3f} times its memory; from T = {first} on, memory grows "
            f"{ours['memory_bytes'] / measured[method, first]['memory_bytes']:.2f}-fold, autograd's "
            f"{plain['memory_bytes'] / measured['autograd', first]['memory_bytes']:.2f}-fold."
        )
    return sentences


if __name__ == "__main__":
    run(main)
