"""Tasks: the differences between language modelling and recommendation, from the collator to the cells of a table.

`FarziTrainer(task=…)`, recipes, tables and the command line take one of these objects.
"""

from farzi_hf.evaluation.tasks.base import Row, Statistics, Task
from farzi_hf.evaluation.tasks.language_modeling import LanguageModeling
from farzi_hf.evaluation.tasks.recommendation import Recommendation

__all__ = ["LanguageModeling", "Recommendation", "Row", "Statistics", "Task"]
