"""Metrics of language models and of recommenders, and their intervals. `farzi_hf.metrics` is this package."""

from farzi_hf.tasks.metrics.language_modeling import (
    corpus_perplexity,
    language_modeling_metrics,
    pad_statistics,
    perplexity_interval,
    sentence_totals,
    token_metrics,
    token_statistics,
)
from farzi_hf.tasks.metrics.ranking import (
    rank_metrics,
    rank_statistics,
    ranking_intervals,
    ranking_metrics,
    recommendation_metrics,
    target_ranks,
)
from farzi_hf.tasks.metrics.resampling import bootstrap_interval, mean_and_spread

__all__ = [
    "bootstrap_interval", "corpus_perplexity", "language_modeling_metrics", "mean_and_spread", "pad_statistics", "perplexity_interval",
    "rank_metrics", "rank_statistics", "ranking_intervals", "ranking_metrics", "recommendation_metrics", "sentence_totals",
    "target_ranks", "token_metrics", "token_statistics",
]  # fmt: skip
