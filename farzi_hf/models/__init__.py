"""Models of the paper that transformers lacks. Importing this package registers them with
transformers' Auto classes.
"""

from farzi_hf.models.fmlp import FMLPConfig, FMLPForNextItem
from farzi_hf.models.recurrent import GRU4RecConfig, GRU4RecForNextItem, RNNConfig, RNNForCausalLM
from farzi_hf.models.sasrec import SASRecConfig, SASRecForNextItem

__all__ = [
    "FMLPConfig",
    "FMLPForNextItem",
    "GRU4RecConfig",
    "GRU4RecForNextItem",
    "RNNConfig",
    "RNNForCausalLM",
    "SASRecConfig",
    "SASRecForNextItem",
]
