"""The metrics as modules of `evaluate`, which gather statistics batch by batch."""

from farzi_hf.evaluation.modules.language_modeling import LanguageModeling
from farzi_hf.evaluation.modules.ranking import Ranking

__all__ = ["LanguageModeling", "Ranking"]
