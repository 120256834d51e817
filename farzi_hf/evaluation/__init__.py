"""Evaluation: metrics with intervals, baselines, and what tables are made of.

It imports all rooms before it. Recipes, tables and the command line use it.
Exports the metrics and the baselines.
"""

from farzi_hf.evaluation.baselines import InterpolatedBigram, Unigram, popularity

__all__ = ["InterpolatedBigram", "Unigram", "popularity"]
