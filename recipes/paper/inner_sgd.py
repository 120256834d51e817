"""Chooses learning rate and momentum of an inner SGD by validation. The configs of `objectives.py` have the best values.

    python recipes/paper/inner_sgd.py --dataset ptb --data_dir FOLDER

For each setting, one student takes T steps on full data, and another one on the summary before any outer step. Both are measured
on the validation split. A last row has Adam with the config's settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiment import Experiment, changed
from objectives import FORMS, ObjectiveArguments, sgd

from farzi_hf.cli.distil import comparison_of, trainer_of
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import markdown


@dataclass
class GridArguments(ObjectiveArguments):
    """What is tried."""

    learning_rates: list[float] = field(default_factory=lambda: [0.03, 0.1, 0.3, 1.0, 3.0], metadata={"help": "α"})
    momenta: list[float] = field(default_factory=lambda: [0.0, 0.5, 0.9], metadata={"help": "of SGD"})


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the grid and prints it as a table."""
    keep_freed_memory()
    with ends_in_one_line("inner_sgd.py"):
        e = Experiment.parse("inner_sgd", "Inner SGD", argv, settings=GridArguments, forms=FORMS)
        rows = [measured(e, "Adam", inner_optimizer="adam")]
        for momentum in e.settings.momenta:
            for rate in e.settings.learning_rates:
                rows.append(measured(e, f"SGD {rate:g}, momentum {momentum:g}", **sgd(rate, momentum)))
    print(f"\n{markdown(rows)}")


def measured(e: Experiment, name: str, **settings) -> dict[str, str]:
    """Validation errors of each seed's two students (`Comparison.validation_error`; a smaller error is better)."""
    comparisons = []
    for seed in e.seeds:
        trainer = trainer_of(e.data, changed(e.args, seed=seed, **settings), seed)
        trainer.tune_initialization()
        comparisons.append(comparison_of(trainer, e.data, seed))
    real = [c.validation_error(c.real_student(c.splits["train"], c.steps, c.seeds[0])) for c in comparisons]
    start = [c.validation_error(c.summary_student()) for c in comparisons]
    real, start = (" ".join(f"{error:.4g}" for error in errors) for errors in (real, start))
    print(f"{name}, {real}, {start}", flush=True)
    return {"inner optimizer": name, "full data": real, "summary before any outer step": start}


if __name__ == "__main__":
    run(main)
