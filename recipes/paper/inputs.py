"""Compares the inputs that a teacher can label: made-up sequences, real windows, and windows that
cover the vocabulary.

    python recipes/paper/inputs.py --dataset ptb --data_dir FOLDER
    python recipes/paper/inputs.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/inputs.py --dataset sample                                    # embedded: text, or sample_interactions

The paper does not have this table. All rows have the labels of the same teachers, the same bytes
and, unless the settings say more, no outer step.
"""  # noqa: E501

from collections.abc import Sequence

from cells import FULL, LONG, Cell, compared, full_cells

from farzi_hf.cli.program import run
from farzi_hf.summary.initialization import INPUT_SEQUENCES


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figure of one data set."""
    cells = [Cell(title(name), {"input_sequences": name}) for name in INPUT_SEQUENCES]
    rows = [*cells, *full_cells()]
    files = ("inputs.png",)
    forms = {"inputs": "inputs"}
    e, evidence = compared(
        "inputs", "Inputs with a teacher's labels", argv, lambda e: rows, files, forms=forms
    )
    findings = [
        evidence.finding(title(name), title("real_windows"))
        for name in ("made_up", "made_up_by_root")
    ]
    findings += [evidence.finding(cell.method, other) for cell in cells for other in (LONG, FULL)]
    rows = list(evidence.rows.values())
    e.write(rows, findings)
    e.plot(rows, "inputs.png")


def title(name: str) -> str:
    """The name of a row."""
    return name.replace("_", " ")


if __name__ == "__main__":
    run(main)
