"""Attribution: which training sequences made a model do well on those test sequences, and on which
rows to train?

`attribute` answers the first question for a stock Trainer, and `weigh` the second; `clusters` makes
groups of rows for both. `choosers` has cheaper ways to choose rows, and `choice` compares them. This
room imports engine, data, models, tasks, summary and distillation.
"""

from farzi_hf.attribution.attribution import Attribution, attribute
from farzi_hf.attribution.clusters import clusters
from farzi_hf.attribution.weighing import weigh
from farzi_hf.attribution.weighted_training import WeightedTraining, influence

__all__ = ["Attribution", "WeightedTraining", "attribute", "clusters", "influence", "weigh"]
