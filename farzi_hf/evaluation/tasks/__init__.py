"""Tasks: what differs between language modelling and recommendation, from the collator to how a row of a table reads.

`FarziTrainer(task=…)`, recipes, tables and the command line take one of these objects, and ask it.
"""

from farzi_hf.evaluation.tasks.base import Row, Statistics, Task
from farzi_hf.evaluation.tasks.language_modeling import LanguageModeling
from farzi_hf.evaluation.tasks.recommendation import Recommendation

__all__ = ["LanguageModeling", "Recommendation", "Row", "Statistics", "Task"]
