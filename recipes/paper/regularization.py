"""Measures the effect of factorising a summary: ranks, generalisation and quality against d, and for an unfactorised summary.

    python recipes/paper/regularization.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/regularization.py --dataset ptb --data_dir FOLDER --latent_dims 4 16
    python recipes/paper/regularization.py --dataset ml-100k --form paper              # the paper's form: d in place of e
    python recipes/paper/regularization.py --dataset sample                            # embedded: text, or sample_interactions

This stands in place of the paper's Theorem 3.1, which compares two upper bounds and ignores the softmax. The results here are measurements, not
a proof. An unfactorised summary has d = V and the identity as its decoder, so each probability has its own parameter. It starts at the soft tokens
of a factorised summary with the recipe's d. Of labels of their own, the last row is that of the largest e: all that the teachers predict, if e
is the width of all their heads together. Each (d, seed) is stored in `output_dir`, and a later start does not repeat it. The settings are in
`configs/tables/own_DATASET_SCALE.yaml`, or with `--form paper` in `…/paper_DATASET_SCALE.yaml`; the card goes to
`model_cards/regularization_DATASET/`, or to `…_shared/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from cells import LONG, Cell, Trained, evidence_of, full_cells, on_summary
from datasets import Dataset
from experiment import OWN_FORM, PAPER_FORM, Experiment
from torch import Tensor, nn

from farzi_hf import FarziData, FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.data import random_sequences
from farzi_hf.distillation import SyntheticTraining
from farzi_hf.metrics import token_statistics
from farzi_hf.report import Claim, Comparison, Student
from farzi_hf.report.plots import plot_comparison
from farzi_hf.summary.forms import Tensors, batch_of
from farzi_hf.summary.targets import SoftTokens
from farzi_hf.tasks import Row

NAIVE = "Farzi, unfactorised"
FIGURES = ("quality.png", "rank.png", "gap.png")
Soft = Callable[[Tensor], Tensor]
"""A function from indices (b,) of sequences to soft tokens (b, n, V)."""
Facts = Callable[[FarziTrainer, Comparison, Sequence[Student]], Mapping[str, float]]
NEGLIGIBLE = 1e-4  # share of the largest singular value; smaller values are float32 rounding errors
COLUMNS = {
    "rank": "rank", "effective_rank": "effective rank", "train_loss": "train loss", "validation_loss": "validation loss", "gap": "gap",
}  # fmt: skip


class UnfactorisedTraining(SyntheticTraining):
    """`SyntheticTraining` on latents (μ, ξ, V) that are the logits of the soft tokens. The decoder would be the identity and is not used."""

    def minibatch(self, tensors: Tensors, rows: Tensor | slice) -> tuple[SoftTokens, SoftTokens]:
        """As of `SyntheticTraining`, but of the latents alone."""
        inputs = SoftTokens(tensors["latents"][rows], None, self.tau)
        return inputs, inputs.following()


def main(argv: Sequence[str] | None = None) -> None:
    """The table and figures of one data set."""
    keep_freed_memory()
    with ends_in_one_line("regularization.py"):
        e = Experiment.parse("regularization", "Factorisation", argv, FIGURES, forms=OWN_FORM | PAPER_FORM)
        *factorised, whole = cells(e)
        evidence = evidence_of(e, [*factorised, whole, *full_cells()])
    by_d = [cell.method for cell in factorised]
    rows = list(evidence.rows.values())
    claims = [Claim(FACTORS[e.args.labels].claim, name, whole.method) for name in by_d]
    findings = [
        *evidence.verdicts(claims),
        *(evidence.finding(by_d[-1], name) for name in dict.fromkeys((LONG, by_d[0]))),
    ]
    findings += [compared(evidence.rows[name], evidence.rows[whole.method], len(e.seeds)) for name in by_d]
    e.write(rows, findings, explanation(), COLUMNS)
    plot_comparison(rows, e.folder / "quality.png", e.task.metric, metric_label=e.task.metric_label)
    plot_comparison(rows, e.folder / "rank.png", "effective_rank", metric_label="Effective rank of the soft tokens")
    plot_comparison(rows, e.folder / "gap.png", "gap", metric_label="Validation less training loss of students (nats)")


# -- without a decoder -----------------------------------------------------------------------------------------------


def unfactorise(trainer: FarziTrainer) -> None:
    """Turns the latents into logits, and excludes the decoder from the training."""
    farzi = trainer.model
    trainer.tune_initialization()
    with torch.no_grad():
        farzi.latents = nn.Parameter(farzi.latents @ farzi.decoder)
    farzi.decoder.requires_grad_(False)
    settings = {field.name: getattr(trainer.training, field.name) for field in fields(trainer.training)}
    trainer.training = UnfactorisedTraining(**settings)
    trainer.objective = replace(trainer.objective, training=trainer.training)


def on_unfactorised(trainer: FarziTrainer, c: Comparison) -> Trained:
    """Students on the summary. The bytes do not include the decoder."""
    latents = c.farzi.latents
    return replace(on_summary(trainer, c), nbytes=latents.numel() * latents.element_size())


# -- measurements ----------------------------------------------------------------------------------------------------


def measuring(soft: Callable[[FarziData], Soft]) -> Facts:
    """Measures the ranks of a summary's soft tokens, and the losses of its students."""

    def measured(trainer: FarziTrainer, c: Comparison, students: Sequence[Student]) -> Mapping[str, float]:
        return {**ranks(soft(c.farzi), c.farzi.config.num_sequences), **losses(c, students)}

    return measured


def labels_of(farzi: FarziData) -> Soft:
    """The labels that a summary has of its own."""
    return lambda rows: batch_of(farzi.tensors, rows, farzi.config.tau)[1].probabilities()


def unfactorised(farzi: FarziData) -> Soft:
    """The soft tokens of latents that are logits."""
    return lambda rows: torch.softmax(farzi.latents[rows] / farzi.config.tau, dim=-1)


@torch.no_grad()
def ranks(soft: Soft, count: int) -> dict[str, float]:
    """Two ranks of the matrix of soft tokens, μ ξ × V: the number of singular values that matter, and the effective rank.

    The effective rank is exp of the entropy of the singular values' shares (Roy & Vetterli, 2007). Both are computed from the (V, V)
    matrix of products in float64, one sequence at a time.

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
    """Mean next-token losses in nats on training and on validation sequences, as many of each, and the gap between them."""
    validation = c.splits["validation"]
    train = random_sequences(c.splits["train"], min(len(validation), len(c.splits["train"])), c.seed)
    means = {
        name: float(np.mean([mean_loss(c, student, sequences) for student in students]))
        for name, sequences in (("train_loss", train), ("validation_loss", validation))
    }
    return {**means, "gap": means["validation_loss"] - means["train_loss"]}


def mean_loss(c: Comparison, student: Student, sequences: Dataset) -> float:
    """The mean loss over all predicted tokens."""
    rows = c.outputs(student, c.training_rows(sequences), lambda z, batch: token_statistics(z, batch["labels"]))
    loss, _, count = np.sum([row.sum(axis=0, dtype=np.float64) for row in rows], axis=0)
    return float(loss / count)


def compared(row: Row, naive: Row, seeds: int) -> str:
    """A sentence with ranks and gaps of a factorised summary and of the unfactorised one."""

    def value(of: Row, name: str) -> str:
        return f"{of[name]:.3g} ± {of[f'{name}_std']:.2g}"

    return (
        f"{row['method']} against {naive['method']}, mean ± standard deviation over {seeds} seeds: effective rank "
        f"{value(row, 'effective_rank')} against {value(naive, 'effective_rank')}, generalisation gap {value(row, 'gap')} "
        f"against {value(naive, 'gap')} nats; bytes {row['bytes']:,} against {naive['bytes']:,}."
    )


def explanation() -> str:
    """The text below the table."""
    return (
        "\nRank: singular values of the matrix of soft tokens, μ ξ × V, above 1e-4 of the largest; effective rank: exp of the entropy of "
        "their shares. The softmax is not linear, so the rank is not bounded by d. Losses are of students on real sequences, in nats per "
        "token; gap: validation less training. Theorem 3.1 of the paper compares two upper bounds: nothing here proves it or depends on it.\n"
    )


# -- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """What of a summary is factorised.

    Args:
        setting: the number of factors, a setting of `FarziConfig`.
        symbol: its symbol.
        soft: makes a function from indices (b,) of sequences to soft tokens (b, n, V).
        whole: the row without factors; none if it is that of the largest number.
        claim: what the paper would say of a smaller number.
    """

    setting: str
    symbol: str
    soft: Callable[[FarziData], Soft]
    whole: tuple[Cell, ...]
    claim: str


FACTORS = {
    "shared": Factors(
        "latent_dim", "d", lambda farzi: farzi,
        (Cell(NAIVE, students=on_unfactorised, prepare=unfactorise, facts=measuring(unfactorised)),),
        "A factorised summary generalises better than an unfactorised one",
    ),
    "own": Factors("label_dim", "e", labels_of, (), "Labels of fewer numbers generalise better than those of the most"),
}  # fmt: skip
"""By the labels of the summary."""


def cells(e: Experiment) -> list[Cell]:
    """A row for each number of factors. The others are compared with the last one."""
    factors = FACTORS[e.args.labels]
    facts = measuring(factors.soft)
    names = {f"Farzi, {factors.symbol} = {n}": n for n in sorted(e.settings.latent_dims)}
    rows = [*(Cell(name, {factors.setting: n}, facts=facts) for name, n in names.items()), *factors.whole]
    if len(rows) < 2:
        raise ValueError(
            f"latent_dims={e.settings.latent_dims} leaves nothing to compare with; give at least two numbers"
        )
    return rows


if __name__ == "__main__":
    run(main)
