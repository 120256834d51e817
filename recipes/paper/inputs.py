"""Compares the inputs that a teacher can label: made-up sequences, real windows, and windows that cover the vocabulary.

    python recipes/paper/inputs.py --dataset ptb --data_dir FOLDER
    python recipes/paper/inputs.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/inputs.py --dataset sample                                    # embedded: text, or sample_interactions

The paper does not have this table. All rows have the labels of the same teachers, the same bytes and, unless the settings say more, no outer
step. Each (inputs, seed) is stored in `output_dir`, and a later start does not repeat it. The settings are in
`configs/tables/inputs_DATASET_SCALE.yaml`; the card goes to `model_cards/inputs_DATASET/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cells import FULL, LONG, Cell, evidence_of, full_cells
from experiment import Experiment

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.summary.initialization import INPUT_SEQUENCES


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figure of one data set."""
    keep_freed_memory()
    with ends_in_one_line("inputs.py"):
        forms = {"inputs": "inputs"}
        e = Experiment.parse("inputs", "Inputs with a teacher's labels", argv, ("inputs.png",), forms=forms)
        cells = [Cell(title(name), {"input_sequences": name}) for name in INPUT_SEQUENCES]
        evidence = evidence_of(e, [*cells, *full_cells()])
    findings = [evidence.finding(title(name), title("real_windows")) for name in ("made_up", "made_up_by_root")]
    findings += [evidence.finding(cell.method, other) for cell in cells for other in (LONG, FULL)]
    rows = list(evidence.rows.values())
    e.write(rows, findings)
    e.plot(rows, "inputs.png")


def title(name: str) -> str:
    """The name of a row."""
    return name.replace("_", " ")


if __name__ == "__main__":
    run(main)
