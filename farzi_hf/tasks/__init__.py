"""Tasks: what differs between text and items, from the collator to the cells of a table.

`FarziTrainer(task=…)`, recipes, tables and the command line take one of these objects. `text` and
`items` have the same parts in the same order: metrics, the metric as a module of `evaluate`, models
that only count, and the task. The strongest of these models have files of their own,
`counted_text` and `counted_items`. This room imports data and models.
"""

from farzi_hf.tasks.base import ResultRow, Statistics, Task
from farzi_hf.tasks.counted import CountedModel, CountedRow
from farzi_hf.tasks.counted_items import SequenceRules
from farzi_hf.tasks.counted_text import KneserNey
from farzi_hf.tasks.items import Recommendation, popularity
from farzi_hf.tasks.text import InterpolatedBigram, LanguageModeling, Unigram

__all__ = [
    "CountedModel",
    "CountedRow",
    "InterpolatedBigram",
    "KneserNey",
    "LanguageModeling",
    "Recommendation",
    "ResultRow",
    "SequenceRules",
    "Statistics",
    "Task",
    "Unigram",
    "popularity",
]
