"""farzi_hf: distil text, or the item histories of users, into a small summary that trains new
models fast.

    # distil
    from farzi_hf import FarziConfig, FarziTrainer
    # train on a summary with the stock Trainer
    from farzi_hf import FarziData
    # the meta-gradient engine alone
    from farzi_hf import InnerAdam, Reversible, unroll

A name is imported when it is first used, so that `import farzi_hf` itself is fast.
"""

from importlib import import_module
from typing import Any

_ROOMS = {
    "engine": (
        "unroll Direct GradientGraphs Tape Checkpoint Reversible InnerAdam InnerAdamW InnerSGD"
        " PaperAdam"
    ),
    "models": (
        "FMLPConfig FMLPForNextItem GRU4RecConfig GRU4RecForNextItem SASRecConfig SASRecForNextItem"
        " RNNConfig RNNForCausalLM"
    ),
    "tasks": "LanguageModeling Recommendation",
    "summary": "FarziData FarziDataConfig attach_soft_inputs sample soft_cross_entropy",
    "distillation": (
        "FarziConfig FarziTrainer Learner MetaMatching GradientMatching TrajectoryMatching"
        " TrajectoryBank PretrainedStarts record_trajectories"
    ),
    "attribution": "attribute weigh",
    "report": "count suggest",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = sorted(_HOME)
__version__ = "1.0.0rc1"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'farzi_hf' has no attribute {name!r}")
    value = getattr(import_module(f"farzi_hf.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
