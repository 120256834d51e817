"""Models of the paper that transformers lacks. Importing this package registers them with transformers' Auto classes."""

from farzi_hf.models.fmlp import FMLPConfig, FMLPForNextItem
from farzi_hf.models.gru4rec import GRU4RecConfig, GRU4RecForNextItem
from farzi_hf.models.rnn import RNNConfig, RNNForCausalLM
from farzi_hf.models.sasrec import SASRecConfig, SASRecForNextItem

__all__ = [
    "FMLPConfig", "FMLPForNextItem", "GRU4RecConfig", "GRU4RecForNextItem", "RNNConfig", "RNNForCausalLM", "SASRecConfig", "SASRecForNextItem",
]  # fmt: skip
