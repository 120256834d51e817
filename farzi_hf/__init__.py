"""farzi_hf: distil text and interaction histories into a few soft sequences that train a model from scratch.

    from farzi_hf import FarziConfig, FarziTrainer                           # distil
    from farzi_hf import FarziData, attach_soft_inputs, soft_cross_entropy   # train on a summary with the stock Trainer
    from farzi_hf import unroll, InnerAdam, Reversible                       # the meta-gradient engine alone

A name is imported when it is first used, so that `import farzi_hf` itself is fast.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "FarziConfig": "distillation",
    "FarziTrainer": "distillation",
    "FarziData": "summary",
    "FarziDataConfig": "summary",
    "attach_soft_inputs": "summary",
    "soft_cross_entropy": "summary",
    "LanguageModeling": "tasks",
    "Recommendation": "tasks",
    "Learner": "distillation",
    "suggest": "report",
    "unroll": "engine",
    "Direct": "engine",
    "GradientGraphs": "engine",
    "Tape": "engine",
    "Checkpoint": "engine",
    "Reversible": "engine",
    "InnerAdam": "engine",
    "InnerAdamW": "engine",
    "InnerSGD": "engine",
    "PaperAdam": "engine",
    "MetaMatching": "distillation",
    "GradientMatching": "distillation",
    "TrajectoryMatching": "distillation",
    "TrajectoryBank": "distillation",
    "PretrainedStarts": "distillation",
    "record_trajectories": "distillation",
    "FMLPConfig": "models",
    "FMLPForNextItem": "models",
    "GRU4RecConfig": "models",
    "GRU4RecForNextItem": "models",
    "SASRecConfig": "models",
    "SASRecForNextItem": "models",
    "RNNConfig": "models",
    "RNNForCausalLM": "models",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'farzi_hf' has no attribute {name!r}")
    value = getattr(import_module(f"farzi_hf.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
