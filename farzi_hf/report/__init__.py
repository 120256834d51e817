"""Reports: students on summaries and on real data, the rows and tables made of them, and figures.

This room imports all rooms before it. Recipes and the command line use it. `report.plots` has the
figures.
"""

from farzi_hf.report.comparison import Comparison, Measured, Student, pooled_row, pooled_rows
from farzi_hf.report.counted import CountedItems, CountedText, count
from farzi_hf.report.rows import BASELINES
from farzi_hf.report.suggestion import suggest
from farzi_hf.report.tables import listed, markdown, save_csv, save_json, save_text
from farzi_hf.report.task_data import RunSettings, TaskData
from farzi_hf.report.trials import Suggestion
from farzi_hf.report.verdict import Verdict, compare

__all__ = [
    "BASELINES",
    "Comparison",
    "CountedItems",
    "CountedText",
    "Measured",
    "RunSettings",
    "Student",
    "Suggestion",
    "TaskData",
    "Verdict",
    "compare",
    "count",
    "listed",
    "markdown",
    "pooled_row",
    "pooled_rows",
    "save_csv",
    "save_json",
    "save_text",
    "suggest",
]
