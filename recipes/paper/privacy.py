"""What differential privacy costs: summaries whose meta-gradient is clipped and noised, for several
σ, beside one without privacy.

    pip install opacus
    python recipes/paper/privacy.py --dataset ptb --data_dir FOLDER
    python recipes/paper/privacy.py --dataset sample                                   # embedded

The paper names this as future work. All summaries start at random, because a start from the data is
not private, and have the paper's form, because a teacher's labels are not private either. ε holds
for one sentence at δ; it does not cover the search for these settings. The objective is
`private_matching.py`.
"""

from collections.abc import Mapping, Sequence

from cells import FULL, Cell, compared, full_cells, on_start
from experiment import Experiment
from private_matching import register

from farzi_hf import FarziTrainer
from farzi_hf.cli.program import run
from farzi_hf.report import Comparison

START = "no outer step"
OPEN = "not private"
CLIPPED = "clipped, no noise"
COLUMNS = {"epsilon": "ε", "releases": "releases"}


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figure of one data set."""
    e, evidence = compared(
        "privacy", "Differential privacy", argv, cells, ("privacy.png",), {"paper": "privacy"}
    )
    private = [private_row(sigma) for sigma in e.settings.noise_multipliers]
    findings = [evidence.finding(name, other) for name in private for other in (OPEN, START)]
    rows = [*evidence.rows.values(), *e.counted()]
    e.write(rows, [*findings, evidence.finding(OPEN, FULL)], columns=COLUMNS)
    e.plot(rows, "privacy.png")


def private_row(sigma: float) -> str:
    """The name of a row."""
    return f"private, σ = {sigma:g}"


def cells(e: Experiment) -> list[Cell]:
    """The summaries, from most to least free to use the data, and full data."""
    return [
        Cell(START, students=on_start, distils=False),
        Cell(OPEN),
        Cell(CLIPPED, {"objective": register(0.0)}),
        *(
            Cell(private_row(sigma), {"objective": register(sigma)}, facts=spent)
            for sigma in e.settings.noise_multipliers
        ),
        *full_cells(),
    ]


def spent(trainer: FarziTrainer, c: Comparison) -> Mapping[str, float]:
    """ε after the last step, and the releases that it counts."""
    return {"epsilon": trainer.objective.epsilon, "releases": trainer.objective.releases}


if __name__ == "__main__":
    run(main)
