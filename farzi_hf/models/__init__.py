"""Models of the paper that transformers does not have; importing one registers it with transformers' Auto classes."""

from farzi_hf.models.rnn import RNNConfig, RNNForCausalLM

__all__ = ["RNNConfig", "RNNForCausalLM"]
