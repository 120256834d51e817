"""Evaluation: tasks, metrics with intervals, baselines, students on summaries and on real data, and the tables made of them.

This room imports all rooms before it. The trainer, recipes, tables and the command line use this room.
Exports the tasks, `Comparison` with its rows, `Evidence`, the data sets by name and the baselines.
"""

from farzi_hf.evaluation.baselines import InterpolatedBigram, Unigram, popularity
from farzi_hf.evaluation.comparison import Comparison, Measured, Student, pooled_row, pooled_rows
from farzi_hf.evaluation.evidence import Claim, Evidence
from farzi_hf.evaluation.rows import BASELINES
from farzi_hf.evaluation.tables import listed, markdown, save_csv, save_json, save_text
from farzi_hf.evaluation.task_data import InteractionData, RunSettings, TaskData, TextData
from farzi_hf.evaluation.tasks import LanguageModeling, Recommendation, Row, Task

__all__ = [
    "BASELINES", "Claim", "Comparison", "Evidence", "InteractionData", "InterpolatedBigram", "LanguageModeling", "Measured",
    "Recommendation", "Row", "RunSettings", "Student", "Task", "TaskData", "TextData", "Unigram", "listed", "markdown", "pooled_row", "pooled_rows",
    "popularity", "save_csv", "save_json", "save_text",
]  # fmt: skip
