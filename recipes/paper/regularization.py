"""Measures the effect of factorising the labels of a summary: ranks, generalisation and quality
against e, the numbers of a label.

    python recipes/paper/regularization.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/regularization.py --dataset ptb --data_dir FOLDER --label_dims 4 16
    python recipes/paper/regularization.py --dataset sample                            # embedded: text, or sample_interactions

This stands in place of the paper's Theorem 3.1, which compares two upper bounds and ignores the
softmax. The results here are measurements, not a proof. The last row is that of the largest e: all
that the teachers predict, if e is the width of all their heads together. The paper's form, with d
in place of e and a row without factors, was measured at 6a0d672.
"""  # noqa: E501

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from cells import LONG, Cell, compared, full_cells
from datasets import Dataset
from evidence import Claim
from experiment import OWN_FORM, Experiment
from torch import Tensor

from farzi_hf import FarziTrainer
from farzi_hf.cli.program import run
from farzi_hf.data import random_sequences
from farzi_hf.metrics import token_statistics
from farzi_hf.report import Comparison, Student

CLAIM = "Labels of fewer numbers generalise better than those of the most"
FIGURES = ("quality.png", "rank.png", "gap.png")
NEGLIGIBLE = 1e-4  # share of the largest singular value; smaller values are float32 rounding errors
COLUMNS = {
    "rank": "rank",
    "effective_rank": "effective rank",
    "train_loss": "train loss",
    "validation_loss": "validation loss",
    "gap": "gap",
}

EXPLANATION = """
Rank: singular values of the matrix of soft tokens, μ ξ × V, above 1e-4 of the largest; effective rank: exp of the entropy of their shares.
The softmax is not linear, so the rank is not bounded by e. Losses are of students on real sequences, in nats per token; gap: validation less
training. Theorem 3.1 of the paper compares two upper bounds: nothing here proves it or depends on it.
"""  # noqa: E501


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figures of one data set."""
    e, evidence = compared("regularization", "Factorisation", argv, cells, FIGURES, forms=OWN_FORM)
    *by_e, whole = (name for name in evidence.rows if name.startswith("Farzi"))
    rows = list(evidence.rows.values())
    findings = evidence.verdicts([Claim(CLAIM, name, whole) for name in by_e])
    findings += [evidence.finding(by_e[-1], name) for name in dict.fromkeys((LONG, by_e[0]))]
    e.write(rows, findings, EXPLANATION, COLUMNS)
    e.plot(rows, "quality.png")
    e.plot(rows, "rank.png", "effective_rank", "Effective rank of the soft tokens")
    e.plot(rows, "gap.png", "gap", "Validation less training loss of students (nats)")


# -- measurements ----------------------------------------------------------------------------------


def measured(trainer: FarziTrainer, c: Comparison) -> Mapping[str, float]:
    """The ranks of a summary's labels, and the losses of its students."""
    farzi = c.farzi
    labels = lambda rows: farzi.forms.batch(farzi.tensors, rows)[1].probabilities()  # noqa: E731
    students = [c.summary_student(i) for i in range(c.num_students)]
    return {**ranks(labels, farzi.config.num_sequences), **losses(c, students)}


@torch.no_grad()
def ranks(soft: Callable[[Tensor], Tensor], count: int) -> dict[str, float]:
    """Two ranks of the matrix of soft tokens, μ ξ × V: the number of singular values that matter,
    and the effective rank.

    The effective rank is exp of the entropy of the singular values' shares (Roy & Vetterli, 2007).
    Both are computed from the (V, V) matrix of products in float64, one sequence at a time.

    Args:
        soft: a function from indices (b,) of sequences to soft tokens (b, ξ, V).
        count: μ.
    """
    gram: Tensor | float = 0.0
    for i in range(count):
        tokens = soft(torch.tensor([i]))[0].double().cpu()
        gram = gram + tokens.T @ tokens
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    shares = values / values.sum()
    return {
        "rank": float((values > NEGLIGIBLE * values.max()).sum()),
        "effective_rank": float(torch.special.entr(shares).sum().exp()),
    }


def losses(c: Comparison, students: Sequence[Student]) -> dict[str, float]:
    """Mean next-token losses in nats on training and on validation sequences, as many of each, and
    the gap between them.
    """
    validation = c.splits["validation"]
    train = random_sequences(
        c.splits["train"], min(len(validation), len(c.splits["train"])), c.seed
    )
    means = {
        name: float(np.mean([mean_loss(c, student, sequences) for student in students]))
        for name, sequences in (("train_loss", train), ("validation_loss", validation))
    }
    return {**means, "gap": means["validation_loss"] - means["train_loss"]}


def mean_loss(c: Comparison, student: Student, sequences: Dataset) -> float:
    """The mean loss over all predicted tokens."""
    rows = c.outputs(
        student,
        c.real_data(sequences).dataset,
        lambda z, batch: token_statistics(z, batch["labels"]),
    )
    loss, _, count = np.sum([row.sum(axis=0, dtype=np.float64) for row in rows], axis=0)
    return float(loss / count)


def cells(e: Experiment) -> list[Cell]:
    """A row for each e. The others are compared with the last one."""
    sizes = sorted(e.settings.label_dims)
    if len(sizes) < 2:
        raise ValueError(
            f"label_dims={sizes} leaves nothing to compare with; give at least two numbers"
        )
    return [
        *(Cell(f"Farzi, e = {n}", {"label_dim": n}, facts=measured) for n in sizes),
        *full_cells(),
    ]


if __name__ == "__main__":
    run(main)
