"""Attribution: which training sequences made a model do well on those test sequences?

`attribute` answers it for a stock Trainer. This room imports engine, data, models, summary and
distillation.
"""

from farzi_hf.attribution.attribution import Attribution, attribute
from farzi_hf.attribution.weighted_training import WeightedTraining, influence

__all__ = ["Attribution", "WeightedTraining", "attribute", "influence"]
