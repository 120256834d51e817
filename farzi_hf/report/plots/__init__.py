"""The figures of recipes and cards: of a distillation, of its summary, and of tables.

Figures are built without pyplot, so there is no global state and no display. They are safe in threads and in notebooks.
"""

from farzi_hf.report.plots.comparison import Panel, plot_comparison, plot_curves
from farzi_hf.report.plots.distillation import plot_distillation, plot_tokens

__all__ = ["Panel", "plot_comparison", "plot_curves", "plot_distillation", "plot_tokens"]
