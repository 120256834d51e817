"""The summary: soft tokens, `FarziData` and its config, where a new summary starts, and training on
it with the stock Trainer.

It imports data and models, and knows nothing of how a summary is distilled. Exports `FarziData`,
`FarziDataConfig`, `attach_soft_inputs`, `sample`, `soft_cross_entropy`, `soft_tokens`, and the
starts by name.
"""

from farzi_hf.summary.config import FarziDataConfig
from farzi_hf.summary.farzi_data import FarziData
from farzi_hf.summary.initialization import INITIALIZATIONS
from farzi_hf.summary.sample_summary import sample
from farzi_hf.summary.soft_tokens import soft_tokens
from farzi_hf.summary.soft_training import attach_soft_inputs, soft_cross_entropy

__all__ = [
    "INITIALIZATIONS",
    "FarziData",
    "FarziDataConfig",
    "attach_soft_inputs",
    "sample",
    "soft_cross_entropy",
    "soft_tokens",
]
