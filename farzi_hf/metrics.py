"""The metrics under their short name: `from farzi_hf.metrics import ranking_metrics`. They live in
`farzi_hf.tasks`.
"""

from farzi_hf.tasks.base import bootstrap_interval, mean_and_spread
from farzi_hf.tasks.items import (
    rank_metrics,
    rank_statistics,
    ranking_intervals,
    ranking_metrics,
    recommendation_metrics,
    target_ranks,
)
from farzi_hf.tasks.text import (
    corpus_perplexity,
    language_modeling_metrics,
    pad_statistics,
    perplexity_interval,
    sentence_totals,
    token_metrics,
    token_statistics,
)

__all__ = [
    "bootstrap_interval",
    "corpus_perplexity",
    "language_modeling_metrics",
    "mean_and_spread",
    "pad_statistics",
    "perplexity_interval",
    "rank_metrics",
    "rank_statistics",
    "ranking_intervals",
    "ranking_metrics",
    "recommendation_metrics",
    "sentence_totals",
    "target_ranks",
    "token_metrics",
    "token_statistics",
]
