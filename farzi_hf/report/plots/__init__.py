"""The figures of recipes and cards, a file each.

Figures are built without pyplot, so there is no global state and no display. They are safe in threads and in notebooks.
"""

from farzi_hf.report.plots.attribution import plot_attribution
from farzi_hf.report.plots.benchmark import plot_benchmark
from farzi_hf.report.plots.budget import plot_budget
from farzi_hf.report.plots.comparison import plot_comparison
from farzi_hf.report.plots.deciles import plot_deciles
from farzi_hf.report.plots.distillation import plot_distillation
from farzi_hf.report.plots.memory import plot_memory
from farzi_hf.report.plots.scaling import plot_scaling
from farzi_hf.report.plots.summary import plot_entropy, plot_popularity, plot_tokens
from farzi_hf.report.plots.trajectory_count import plot_trajectory_count

__all__ = [
    "plot_attribution", "plot_benchmark", "plot_budget", "plot_comparison", "plot_deciles", "plot_distillation", "plot_entropy",
    "plot_memory", "plot_popularity", "plot_scaling", "plot_tokens", "plot_trajectory_count",
]  # fmt: skip
