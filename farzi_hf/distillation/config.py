"""FarziConfig: all settings of a distillation. It adds the summary and the inner loop to `TrainingArguments`, the outer loop."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from transformers import TrainingArguments

from farzi_hf.data.seeds import check_seed
from farzi_hf.distillation.config_checks import (
    AUTO,
    check_checkpointed_layers,
    check_choices,
    check_counts,
    check_ranges,
    check_trainer_fields,
    warn_of_idle_settings,
)
from farzi_hf.distillation.field_types import check_types, numbers_from_text
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.launch import check_supported, check_world_size, processes_without_gpu, warn_of_bf16
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import OBJECTIVES, Objective, PrivateMatching
from farzi_hf.distillation.real_training import RealData
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.distillation.trajectory_bank import TrajectoryBank
from farzi_hf.engine import ADJOINTS, OPTIMIZERS, InnerAdam, InnerOptimizer
from farzi_hf.summary import INITIALIZATIONS, FarziDataConfig, initialization
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.summary.input_sequences import INPUT_SEQUENCES
from farzi_hf.summary.lr_schedules import LR_SCHEDULES
from farzi_hf.summary.store.storage import STORAGES

_OPTIMIZER_FIELDS = {
    "lr": "inner_learning_rate", "weight_decay": "inner_weight_decay", "betas": "inner_betas", "eps": "inner_epsilon",
    "eps_root": "inner_epsilon_root", "momentum": "inner_momentum",
}  # fmt: skip
"""Arguments of inner optimizers, and the field of this config for each. An optimizer takes only its own arguments."""


@dataclass(repr=False)  # the inherited repr hides tokens
class FarziConfig(TrainingArguments):
    """Settings of `FarziTrainer`. Fields that are not listed here are inherited from `transformers.TrainingArguments`.

    The inherited fields set the outer loop, except that `torch_compile` compiles the inner loop (see `unroll`).
    Some inherited defaults are different here:

    | field | here | because |
    |---|---|---|
    | `learning_rate` | 0.01 | the rate of Adam on the summary. Soft inputs with shared labels stand 0.03 |
    | `max_grad_norm` | 0.1 | about the usual norm of the meta-gradient: a chaotic learner cannot outweigh the others |
    | `lr_scheduler_type` | cosine | with small last steps, the summary becomes an average over many θ0 |
    | `max_steps` | 400 | an outer step trains a whole learner; epochs of real data mean little. 0 leaves the summary at its start |
    | `num_train_epochs` | 0 | `max_steps` sets the length; set it to -1 to count epochs of the real data |
    | `per_device_train_batch_size` | 64 | b, real sequences in the outer loss |
    | `per_device_eval_batch_size` | 128 | learners are small |
    | `logging_steps` | 10 | an outer step takes seconds |
    | `save_steps` | 20 | a checkpoint has some megabytes; writing it is much faster than a step |
    | `save_total_limit` | 3 | counts only checkpoints of this library: see `farzi_hf.distillation.checkpoints` |
    | `optim` | adamw_torch | the fused version is not exact across devices |
    | `ddp_find_unused_parameters` | False | latents and decoder are used in every step |
    | `dataloader_pin_memory` | False on a CPU | without a GPU, pinned memory is useless and torch warns about it |
    | `greater_is_better` | False for a perplexity | Trainer assumes that a higher metric is better, unless it is a loss |

    Args:
        num_sequences: μ, synthetic sequences.
        sequence_length: ξ, tokens per synthetic sequence.
        latent_dim: d, numbers per token.
        inputs: "tokens" (ids that are not learnt) or "soft" (learnt distributions, as in the paper); see `farzi_hf.summary.forms`.
        labels: "own" (distributions of their own, which start from a teacher) or "shared" (a position predicts the next input, as in the paper).
        storage: how the finished summary is stored: "exact", or rounded to bits: "int8", "int6", "int5", "int4"; see `summary.store.storage`.
        label_dim: e, numbers per label of its own; None takes as many as the head of one teacher has.
        input_sequences: the ids of token inputs, a function of `farzi_hf.summary.input_sequences`.
        teacher_steps: steps that the teacher of own labels trains on real data, before the first outer step.
        teacher_learning_rate: of the teacher's Adam, for half of its steps; then it falls to 0.
        teacher_batch_size: real sequences per step of the teacher.
        teacher_weight_decay: λ of the teacher. Where the learner overfits the data, as recommenders do, its labels are better with it.
        num_teachers: the number of teachers. The labels are those of the mean of their logits.
        tau: τ, softmax temperature.
        latent_std: standard deviation of a random start.
        initialization: of soft inputs: "spectral", "clusters" (for own labels) or "random", the functions of
            `farzi_hf.summary.initialization`.
        concentration: κ of a spectral start. None tries a few values when training starts, and takes the value whose students are
            best on training data.
        inner_optimizer: "adam" (`InnerAdam`) or "sgd" (`InnerSGD`).
        inner_learning_rate: α of the inner optimizer.
        inner_betas: β1, β2 of the inner Adam. In a few hundred steps, β1 = 0.9 overshoots.
        inner_epsilon: ε of the inner Adam. Students learn most with 1e-6; a larger ε, such as 1e-4, keeps the meta-gradient of a long unroll smooth.
        inner_epsilon_root: ε_root of the inner Adam.
        inner_momentum: momentum of the inner SGD.
        inner_weight_decay: λ of the inner optimizer.
        inner_lr_scheduler_type: how the inner learning rate falls over the T steps, as in transformers: "constant", "linear", "cosine" or
            "warmup_stable_decay" (constant for half of the steps, then linear).
        inner_steps: T, the number of inner steps. A student must take the same number of steps to reproduce the figures.
        inner_steps_min: in each outer step, T is drawn from inner_steps_min … inner_steps. None means T = inner_steps always.
        window: only the last `window` inner steps are differentiated; None or 0 differentiates all T.
        synthetic_batch_size: b_syn, synthetic sequences per inner step; None takes all μ.
        learner_pool: the number of learners that go on from outer step to outer step, at ages of inner_steps_min … inner_steps (see
            `LearnerPool`). None trains a fresh learner in each outer step.
        learners_per_step: K, the number of learners that train at once in an outer step, from different θ0. Their losses are averaged.
        objective: "meta_matching" (`MetaMatching`), "gradient_matching" (`GradientMatching`) or "trajectory_matching"
            (`TrajectoryMatching`).
        trajectories: Ω, a folder that `record_trajectories` has filled; None starts every inner loop from a fresh initialisation.
        num_trajectories: |Ω|, the number of trajectories to use, the first ones of the folder; None uses all.
        fresh_start_fraction: share of the inner loops that start from a fresh initialisation and not from Ω.
        last_start: no inner loop starts after this step of a trajectory; None allows all steps.
        synthetic_steps: N of trajectory matching, steps on the summary; None takes inner_steps.
        expert_steps: M of trajectory matching. N steps on the summary should do the same as M steps of real training.
        adjoint: "auto" (the fastest adjoint for which there is memory), "gradient_graphs" (`GradientGraphs`), "direct" (`Direct`), "tape"
            (`Tape`), "checkpoint" (`Checkpoint`) or "reversible" (`Reversible`).
        checkpoint_layers: whether the learner keeps of each layer only the inputs, and computes it again for the derivatives. For deep
            learners: less memory per inner step, more time.
        eval_students: number of students that `evaluate()` trains from scratch, each from its own θ0.
        privacy_noise_multiplier: σ of a differentially private distillation, see `farzi_hf.distillation.objectives.private`. None: not private.
        privacy_max_grad_norm: C, to which the gradient of each real row in θ is clipped.
        privacy_delta: δ, at which ε is computed; less than 1 over the number of rows.
        max_non_finite: the run stops after more than this number of outer steps with a NaN or infinite meta-gradient. Such
            steps are skipped.

    Raises:
        ValueError: a setting is out of range or unknown.
    """

    num_sequences: int = field(default=50, metadata={"help": "μ, synthetic sequences"})
    sequence_length: int = field(default=50, metadata={"help": "ξ, tokens per synthetic sequence"})
    latent_dim: int = field(default=16, metadata={"help": "d, numbers per synthetic token"})
    inputs: str = field(default="tokens", metadata={"help": " | ".join(INPUTS)})
    labels: str = field(default="own", metadata={"help": " | ".join(LABELS)})
    storage: str = field(default="exact", metadata={"help": f"of the finished summary: {' | '.join(STORAGES)}"})
    label_dim: int | None = field(default=None, metadata={"help": "e, numbers per own label; by default the teacher's"})
    input_sequences: str = field(default="made_up", metadata={"help": " | ".join(INPUT_SEQUENCES)})
    teacher_steps: int = field(default=2000, metadata={"help": "training steps of the teacher of own labels"})
    teacher_learning_rate: float = field(
        default=0.01, metadata={"help": "of the teacher; it falls to 0 in the second half"}
    )
    teacher_batch_size: int = field(default=16, metadata={"help": "real sequences per step of the teacher"})
    teacher_weight_decay: float = field(default=0.0, metadata={"help": "λ of the teacher"})
    num_teachers: int = field(default=1, metadata={"help": "teachers, whose logits are averaged"})
    tau: float = field(default=1.0, metadata={"help": "τ, softmax temperature"})
    latent_std: float = field(default=0.1, metadata={"help": "standard deviation of a random start"})
    initialization: str = field(default="spectral", metadata={"help": " | ".join(INITIALIZATIONS)})
    concentration: float | None = field(
        default=None, metadata={"help": "κ of a spectral start; by default a few values are tried"}
    )

    inner_optimizer: str = field(default="adam", metadata={"help": " | ".join(OPTIMIZERS)})
    inner_learning_rate: float = field(default=0.02, metadata={"help": "α of the inner optimizer"})
    inner_betas: list[float] = field(default_factory=lambda: [0.7, 0.999], metadata={"help": "β1 β2 of the inner Adam"})
    inner_epsilon: float = field(default=1e-6, metadata={"help": "ε of the inner Adam"})
    inner_epsilon_root: float = field(default=0.0, metadata={"help": "ε_root of the inner Adam"})
    inner_momentum: float = field(default=0.0, metadata={"help": "momentum of the inner SGD"})
    inner_weight_decay: float = field(default=0.0, metadata={"help": "λ of the inner optimizer"})
    inner_lr_scheduler_type: str = field(default="constant", metadata={"help": " | ".join(LR_SCHEDULES)})
    inner_steps: int = field(default=100, metadata={"help": "T, inner steps"})
    inner_steps_min: int | None = field(
        default=None, metadata={"help": "least T; T is drawn between this and inner_steps"}
    )
    window: int | None = field(default=None, metadata={"help": "number of last inner steps to differentiate; 0: all"})
    synthetic_batch_size: int | None = field(default=None, metadata={"help": "b_syn, sequences per inner step"})

    learner_pool: int | None = field(
        default=None,
        metadata={"help": "learners that go on from outer step to outer step; by default each step has a fresh one"},
    )
    learners_per_step: int = field(default=1, metadata={"help": "K, learners trained at once from different starts"})
    objective: str = field(default="meta_matching", metadata={"help": " | ".join(OBJECTIVES)})
    trajectories: str | None = field(default=None, metadata={"help": "Ω, a folder of recorded trajectories"})
    num_trajectories: int | None = field(default=None, metadata={"help": "|Ω|, number of trajectories to use"})
    fresh_start_fraction: float = field(default=0.5, metadata={"help": "share of inner loops that do not start from Ω"})
    last_start: int | None = field(default=None, metadata={"help": "latest step of Ω from which an inner loop starts"})
    synthetic_steps: int | None = field(default=None, metadata={"help": "N of trajectory matching, synthetic steps"})
    expert_steps: int = field(default=50, metadata={"help": "M of trajectory matching, steps of real training"})
    adjoint: str = field(default="auto", metadata={"help": " | ".join((AUTO, *ADJOINTS))})
    checkpoint_layers: bool = field(default=False, metadata={"help": "recompute the learner's layers, to save memory"})
    eval_students: int = field(default=3, metadata={"help": "students trained from scratch by evaluate()"})
    privacy_noise_multiplier: float | None = field(default=None, metadata={"help": "σ of differential privacy"})
    privacy_max_grad_norm: float = field(default=1.0, metadata={"help": "C, of a real row's gradient, with privacy"})
    privacy_delta: float = field(default=1e-5, metadata={"help": "δ of differential privacy"})
    max_non_finite: int = field(default=20, metadata={"help": "most skipped outer steps of a run"})

    learning_rate: float = 0.01
    max_grad_norm: float = 0.1
    lr_scheduler_type: str = "cosine"
    max_steps: int = 400
    num_train_epochs: float = 0.0
    per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int = 128
    logging_steps: float = 10
    save_steps: float = 20
    save_total_limit: int | None = 3
    optim: str = "adamw_torch"
    ddp_find_unused_parameters: bool | None = False

    def __post_init__(self) -> None:
        numbers_from_text(self)
        check_trainer_fields(self)
        check_seed(self.seed, bits=32)  # transformers seeds NumPy's old generator with this number; it takes 32 bits
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("perplexity"):
            self.greater_is_better = False
        if (self.num_train_epochs > 0) == (self.max_steps >= 0):
            raise ValueError(
                f"num_train_epochs={self.num_train_epochs} and max_steps={self.max_steps}: exactly one of them must set the length; "
                "give max_steps, the number of outer steps, or num_train_epochs together with max_steps=-1"
            )
        check_supported()
        self.use_cpu |= processes_without_gpu()
        # torch_compile means the inner loop here. Trainer must not see it: it would compile the summary.
        compiled, self.torch_compile = self.torch_compile, False
        super().__post_init__()
        self.torch_compile = compiled
        check_world_size(self.world_size, self.n_gpu)
        if self.mixed_precision == "bf16":  # of this config or of the launcher
            warn_of_bf16()
        self.dataloader_pin_memory &= self.device.type != "cpu"
        self.check()

    def check(self) -> None:
        """The checks of our settings. Call it where fields were set afterwards.

        Raises:
            ValueError: a setting is out of range, or does not fit another one.
        """
        check_counts(self)
        check_types(self, [f.name for f in fields(self) if f.name not in _STOCK])
        check_choices(self)
        warn_of_idle_settings(self)
        check_ranges(self)
        check_checkpointed_layers(self)
        OBJECTIVES[self.objective].check(self)
        PrivateMatching.check(self)
        teacher = f"teacher, teacher_learning_rate={self.teacher_learning_rate}, teacher_weight_decay={self.teacher_weight_decay}"
        for make, what in (
            (self.make_inner_optimizer, "inner optimizer, inner_…"),
            (self.make_teacher_training, teacher),
        ):
            try:
                make()
            except (TypeError, ValueError) as error:
                raise ValueError(f"settings of the {what}: {error}") from None

    def summary_config(self, vocab_size: int, label_dim: int | None = None) -> FarziDataConfig:
        """The config of the summary to be distilled, with the settings of the inner loop.

        Args:
            vocab_size: V, of the learner.
            label_dim: e, where this config says none.
        """
        return FarziDataConfig(
            num_sequences=self.num_sequences,
            sequence_length=self.sequence_length,
            latent_dim=self.latent_dim,
            vocab_size=vocab_size,
            tau=self.tau,
            latent_std=self.latent_std,
            inner=self.inner_settings(),
            inputs=self.inputs,
            labels=self.labels,
            label_dim=(self.label_dim or label_dim) if self.labels == "own" else None,
            storage=self.storage,
        )

    def optimizer_settings(self) -> dict[str, Any]:
        """Arguments of the inner optimizer's class."""
        kind = OPTIMIZERS[self.inner_optimizer]
        names = [argument.name for argument in fields(kind) if argument.name in _OPTIMIZER_FIELDS]
        values = {name: getattr(self, _OPTIMIZER_FIELDS[name]) for name in names}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    def inner_settings(self) -> dict[str, Any]:
        """The settings with which a student trains like the learners of the distillation."""
        settings = self.optimizer_settings()
        return {
            "optimizer": self.inner_optimizer,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
            "steps": self.inner_steps,
            "lr_scheduler_type": self.inner_lr_scheduler_type,
            "synthetic_batch_size": self.synthetic_batch_size or self.num_sequences,
        }

    def to_recipe(self) -> dict[str, Any]:
        """The settings that another run needs to make the same summary: all fields of ours, and some of the outer loop."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _STOCK or f.name in _OUTER}
        if not self.load_best_model_at_end:
            settings |= {"metric_for_best_model": None, "greater_is_better": None}
        return json.loads(json.dumps(settings))  # plain types: enums become strings, tuples lists

    def make_inner_optimizer(self) -> InnerOptimizer:
        return OPTIMIZERS[self.inner_optimizer](**self.optimizer_settings())

    @property
    def start_is_open(self) -> bool:
        """Whether `FarziTrainer.tune_initialization` has something to add to the start of a summary."""
        spectral = INITIALIZATIONS[self.initialization] is initialization.spectral
        return self.labels == "own" or (spectral and self.concentration is None)

    def make_teacher_training(self) -> TeacherTraining:
        """How a teacher of labels is trained."""
        optimizer = InnerAdam(self.teacher_learning_rate, (0.5, 0.999), 1e-4, weight_decay=self.teacher_weight_decay)
        return TeacherTraining(optimizer, self.teacher_steps, self.teacher_batch_size, self.num_teachers)

    def make_training(self) -> SyntheticTraining:
        """The inner loop."""
        return SyntheticTraining(
            optimizer=self.make_inner_optimizer(),
            tau=self.tau,
            batch_size=self.synthetic_batch_size,
            window=self.window or None,
            adjoint=None if self.adjoint == AUTO else ADJOINTS[self.adjoint](),
            torch_compile=self.torch_compile,
            lr_scheduler_type=self.inner_lr_scheduler_type,
        )

    def make_objective(
        self,
        learner: Learner | None = None,
        training: SyntheticTraining | None = None,
        real: RealData | None = None,
    ) -> Objective:
        """Makes the outer loss.

        Args:
            learner: if given, the trajectories must belong to this model, and to the rows of `real`.
            training: the inner loop; by default a new one.
            real: the rows that a private distillation protects.
        """
        bank = None if self.trajectories is None else TrajectoryBank(self.trajectories, self.num_trajectories)
        if bank is not None and learner is not None:
            bank.check(learner, None if real is None else real.dataset)
        objective = OBJECTIVES[self.objective].from_config(self, training or self.make_training(), bank)
        if self.privacy_noise_multiplier is None:
            return objective
        return PrivateMatching.from_config(self, objective, real or RealData(None, None))


_STOCK = {f.name for f in fields(TrainingArguments)}
_OUTER = (
    "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps",
    "max_grad_norm", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "warmup_steps", "bf16", "seed",
    "num_train_epochs", "data_seed", "dataloader_drop_last", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
)  # fmt: skip
"""Fields of `TrainingArguments` that belong to a recipe."""
