"""What differential privacy costs: summaries whose meta-gradient is clipped and noised, for several σ, beside one without privacy.

    pip install opacus
    python recipes/paper/privacy.py --dataset ptb --data_dir FOLDER
    python recipes/paper/privacy.py --dataset sample                                   # embedded

The paper names this as future work. All summaries start at random, because a start from the data is not private, and have the paper's form,
because a teacher's labels are not private either. ε holds for one sentence at δ; it does not cover the search for these settings. Each
(row, seed) is stored in `output_dir`, and a later start does not repeat it. The settings are in `configs/tables/privacy_DATASET_SCALE.yaml`; the card
goes to `model_cards/privacy_DATASET/`. The objective is `private_matching.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cells import FULL, Cell, evidence_of, full_cells, on_start
from experiment import Experiment, PaperArguments
from private_matching import register

from farzi_hf import FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import Comparison, Student

START, OPEN, CLIPPED = "no outer step", "not private", "clipped, no noise"
COLUMNS = {"epsilon": "ε", "releases": "releases"}


@dataclass
class PrivacyArguments(PaperArguments):
    """Settings of the table."""

    noise_multipliers: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0], metadata={"help": "σ of rows"})

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.noise_multipliers
        if not given or min(given) <= 0 or len(set(given)) < len(given):
            raise ValueError(f"noise_multipliers={given} is not usable: give different numbers above 0")


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figure of one data set."""
    keep_freed_memory()
    with ends_in_one_line("privacy.py"):
        forms = {"paper": "privacy"}
        e = Experiment.parse("privacy", "Differential privacy", argv, ("privacy.png",), PrivacyArguments, forms)
        evidence = evidence_of(e, cells(e.settings.noise_multipliers))
    private = [private_row(sigma) for sigma in e.settings.noise_multipliers]
    findings = [evidence.finding(name, other) for name in private for other in (OPEN, START)]
    rows = [*evidence.rows.values(), *e.counted()]
    e.write(rows, [*findings, evidence.finding(OPEN, FULL)], columns=COLUMNS)
    e.plot(rows, "privacy.png")


def private_row(sigma: float) -> str:
    """The name of a row."""
    return f"private, σ = {sigma:g}"


def cells(noise_multipliers: Sequence[float]) -> list[Cell]:
    """The summaries, from most to least free to use the data, and full data."""
    return [
        Cell(START, students=on_start, distils=False),
        Cell(OPEN),
        Cell(CLIPPED, private(0.0)),
        *(Cell(private_row(sigma), private(sigma), facts=spent) for sigma in noise_multipliers),
        *full_cells(),
    ]


def private(sigma: float) -> dict[str, Any]:
    """Settings of a private distillation."""
    return {"objective": register(sigma)}


def spent(trainer: FarziTrainer, c: Comparison, students: Sequence[Student]) -> Mapping[str, float]:
    """ε after the last step, and the releases that it counts."""
    return {"epsilon": trainer.objective.epsilon, "releases": trainer.objective.releases}


if __name__ == "__main__":
    run(main)
