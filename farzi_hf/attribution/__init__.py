"""Attribution: which training sequences made a model do well on those test sequences, and on which
rows to train?

`attribute` answers the first question for a stock Trainer, and `weigh` the second; `clusters` makes
groups of rows for both. `choosers` has cheaper ways to choose rows, and `choice` compares them. This
room imports engine, data, models, tasks, summary and distillation.

The files build on each other in this order:

1. `weighted_training`: a training as a function of how much each row counts, and its derivative.
2. `replay`: the training of a stock Trainer as such a function.
3. `queries`: the losses that are explained; `scoring`: the scores of all rows for them.
4. `groups`, `attribution`: what `attribute` returns.
5. `trainings`: fresh trainings in which rows are read as often as weights say; `outer_steps` learns
   the weights, `smoothness` says whether that can work, `weighing` is `weigh`.
6. `choosers`, `choice`: other ways to choose rows, compared with it.
"""

from farzi_hf.attribution.attribution import Attribution, attribute
from farzi_hf.attribution.clusters import clusters
from farzi_hf.attribution.weighing import weigh
from farzi_hf.attribution.weighted_training import WeightedTraining, influence

__all__ = ["Attribution", "WeightedTraining", "attribute", "clusters", "influence", "weigh"]
