"""Tasks: the differences between language modelling and recommendation, from the collator to the cells of a table.

`FarziTrainer(task=…)`, recipes, tables and the command line take one of these objects.
"""

from farzi_hf.tasks.base import Row, Statistics, Task
from farzi_hf.tasks.baselines import InterpolatedBigram, Unigram, popularity
from farzi_hf.tasks.language_modeling import LanguageModeling
from farzi_hf.tasks.recommendation import Recommendation

__all__ = [
    "InterpolatedBigram",
    "LanguageModeling",
    "Recommendation",
    "Row",
    "Statistics",
    "Task",
    "Unigram",
    "popularity",
]
