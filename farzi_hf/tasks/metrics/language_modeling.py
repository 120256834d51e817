"""Perplexity and accuracy from three numbers per predicted token. Evaluation therefore never stores the logits of a whole data set.

`token_statistics` is a Trainer's ``preprocess_logits_for_metrics`` and `language_modeling_metrics` its ``compute_metrics``. Between
them travels one array of shape (sequences, length − 1, 3): negative log-likelihood, correct, valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.nn import functional as F
from transformers import EvalPrediction

from farzi_hf.data import IGNORED
from farzi_hf.tasks.metrics.resampling import bootstrap_interval


def token_statistics(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Per predicted token: negative log-likelihood in nats, 1 if the top prediction is right, 1 if the token counts.

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j predict the label at j + 1.
        labels: (B, L) ids, −100 where nothing is to be predicted.

    Returns:
        float32 (B, L − 1, 3); ignored positions are all zero.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    scores, targets = scores[:, :-1].float(), labels[:, 1:]
    valid = targets != IGNORED
    nll = F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    correct = (scores.argmax(-1) == targets) & valid
    return torch.stack([nll, correct.float(), valid.float()], dim=-1)


def sentence_totals(statistics: np.ndarray) -> np.ndarray:
    """Sums per sequence, (N, 3) float64: negative log-likelihood, correct tokens, tokens. Rows without a token are left out.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them. A valid flag ≤ 0 is padding: the Trainer pads with −100.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if statistics.ndim != 3 or statistics.shape[-1] != 3:
        raise ValueError(
            f"statistics has shape {statistics.shape}, not (sequences, length − 1, 3): "
            "give the Trainer preprocess_logits_for_metrics=token_statistics."
        )
    totals = np.where(statistics[..., 2:] > 0, statistics, 0.0).sum(axis=1)
    totals = totals[totals[:, 2] > 0]
    if len(totals) == 0:
        raise ValueError("statistics holds no predicted token: every label is −100.")
    return totals


def pad_statistics(statistics: Sequence[ArrayLike], dtype: type = np.float32) -> np.ndarray:
    """Statistics of sentences of different lengths, each (L_i − 1, 3), as one array (N, L − 1, 3) with valid = 0 as padding."""
    rows = [np.asarray(row, dtype=dtype).reshape(-1, 3) for row in statistics]
    padded = np.zeros((len(rows), max(map(len, rows), default=0), 3), dtype=dtype)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def corpus_perplexity(totals: np.ndarray) -> np.ndarray | float:
    """exp(mean negative log-likelihood over all tokens), from `sentence_totals`: (N, 3), or (N, …, 3) with one perplexity for each …."""
    sums = totals.sum(axis=0)
    return _exp(sums[..., 0] / sums[..., 2])


def _exp(nll: np.ndarray | float) -> np.ndarray | float:
    with np.errstate(over="ignore"):  # a diverged model has infinite perplexity; that is the answer, not an accident
        return np.exp(nll)


def token_metrics(statistics: np.ndarray) -> dict[str, float]:
    """``perplexity`` of the corpus, ``sentence_perplexity`` (mean of the sentences' perplexities), ``accuracy`` over tokens.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them.
    """
    totals = sentence_totals(statistics)
    return {
        "perplexity": float(corpus_perplexity(totals)),
        "sentence_perplexity": float(np.mean(_exp(totals[:, 0] / totals[:, 2]))),
        "accuracy": float(totals[:, 1].sum() / totals[:, 2].sum()),
    }


def language_modeling_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `token_metrics` of predictions that went through `token_statistics`."""
    return token_metrics(eval_prediction.predictions)


def perplexity_interval(
    statistics: np.ndarray, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the corpus perplexity, resampling sentences: tokens of one sentence are not independent.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them.
    """
    return bootstrap_interval(sentence_totals(statistics), corpus_perplexity, confidence, resamples, seed)
