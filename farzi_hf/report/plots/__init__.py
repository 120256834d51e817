"""The figures of recipes and cards: of a distillation, of its summary, of tables, and of measurements of cost.

Figures are built without pyplot, so there is no global state and no display. They are safe in threads and in notebooks.
"""

from farzi_hf.report.plots.comparison import plot_budget, plot_comparison, plot_deciles, plot_trajectory_count
from farzi_hf.report.plots.costs import plot_attribution, plot_benchmark, plot_memory, plot_scaling
from farzi_hf.report.plots.distillation import plot_distillation, plot_entropy, plot_popularity, plot_tokens

__all__ = [
    "plot_attribution", "plot_benchmark", "plot_budget", "plot_comparison", "plot_deciles", "plot_distillation", "plot_entropy",
    "plot_memory", "plot_popularity", "plot_scaling", "plot_tokens", "plot_trajectory_count",
]  # fmt: skip
