"""The metrics as modules of `evaluate`, which gather statistics batch by batch. Tables use these modules."""

from __future__ import annotations

from functools import cache

import evaluate

from farzi_hf.tasks.modules.language_modeling import LanguageModeling
from farzi_hf.tasks.modules.ranking import Ranking

MODULES = {"language_modeling": LanguageModeling, "ranking": Ranking}

__all__ = ["MODULES", "LanguageModeling", "Ranking", "evaluate_module"]


@cache
def evaluate_module(name: str) -> evaluate.Metric:
    """The metric of that name. It works in memory and writes nothing to the cache of `evaluate`."""
    return MODULES[name](keep_in_memory=True)
