"""The settings of ours in `FarziConfig`: those that belong to no variant or name one, and with them
those that the variants declare.
"""

from dataclasses import dataclass

from farzi_hf.common.settings import Setting, collected, setting
from farzi_hf.distillation.objectives import OBJECTIVES
from farzi_hf.distillation.packing import Packing
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.distillation.trajectories import PretrainedStarts, TrajectoryBank
from farzi_hf.engine import ADJOINTS, OPTIMIZERS
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.summary.inner_settings import LR_SCHEDULES
from farzi_hf.summary.store.tensor_file import STORAGES


def _by_labels(name: str) -> str:
    """The defaults of a setting, in words."""
    return "by labels, " + " / ".join(f"{form.defaults[name]}" for form in LABELS.values())


@dataclass
class DistillationSettings:
    """The settings of every distillation. Each variant that one of them names adds its own."""

    num_sequences: int = setting(50, "μ, synthetic sequences", least=1)
    sequence_length: int = setting(50, "ξ, tokens per synthetic sequence", least=2)
    labels: str | None = setting(
        None,
        "what a student should predict, see `summary.forms`; by default a teacher's, or own where"
        " inputs are soft or tokens",
        table=LABELS,
    )
    inputs: str | None = setting(None, f"what it reads; {_by_labels('inputs')}", table=INPUTS)
    storage: str | None = setting(
        None, f"how the finished summary is stored; {_by_labels('storage')}", table=STORAGES
    )

    inner_optimizer: str | None = setting(
        None,
        f"of the learners; {_by_labels('inner_optimizer')}, adam where there are outer steps",
        table=OPTIMIZERS,
    )
    inner_lr_scheduler_type: str | None = setting(
        None,
        "how the inner learning rate falls over the T steps;"
        f" {_by_labels('inner_lr_scheduler_type')}",
        table=LR_SCHEDULES,
    )
    inner_warmup_steps: int = setting(
        0, "inner steps in which the inner learning rate rises from 0 first", least=0
    )
    inner_steps: int | None = setting(
        None, f"T, steps of a student; {_by_labels('inner_steps')}", least=1
    )
    window: int | None = setting(
        None, "last inner steps that are differentiated; by default, or with 0, all", least=0
    )
    synthetic_batch_size: int | None = setting(
        None, "b_syn, sequences of an inner step; default: all, or 40", least=1
    )

    objective: str = setting("meta_matching", "the outer loss", table=OBJECTIVES)
    trajectories: str | None = setting(
        None,
        "Ω, a folder of `record_trajectories`, where inner loops start",
        parts=(TrajectoryBank, PretrainedStarts),
    )
    adjoint: str = setting(
        "auto", "auto: the fastest that fits into memory", table={"auto": None, **ADJOINTS}
    )
    checkpoint_layers: bool = setting(
        False, "keep only the inputs of the learner's layers: less memory, more time"
    )
    eval_students: int = setting(
        3, "students that `evaluate()` trains from scratch, each from its own θ0", least=1
    )
    max_non_finite: int = setting(
        20, "most outer steps that are skipped for a NaN or infinite meta-gradient", least=0
    )


SETTINGS: dict[str, Setting] = collected(DistillationSettings, TeacherTraining, Packing)
"""All of them, by name, in the order of the fields of `FarziConfig`."""
