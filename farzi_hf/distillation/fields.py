"""The settings of ours in `FarziConfig`, each with its default and with what reads it.

`python docs/config_fields.py` writes this file from what the variants declare.
"""

from dataclasses import dataclass, field

from transformers import TrainingArguments


@dataclass(repr=False)  # the inherited repr hides tokens
class ConfigFields(TrainingArguments):
    """`transformers.TrainingArguments` with the settings of a distillation."""

    num_sequences: int = field(default=50, metadata={"help": "μ, synthetic sequences"})
    """μ, synthetic sequences."""

    sequence_length: int = field(default=50, metadata={"help": "ξ, tokens per synthetic sequence"})
    """ξ, tokens per synthetic sequence."""

    labels: str | None = field(
        default=None,
        metadata={
            "help": (
                "what a student should predict, see `summary.forms`; by default a teacher's, "
                "or own where inputs are soft or tokens: shared | own | teacher | real"
            )
        },
    )
    """What a student should predict, see `summary.forms`; by default a teacher's, or own where
    inputs are soft or tokens: shared | own | teacher | real.
    """

    label_dim: int | None = field(
        default=None,
        metadata={"help": "e, numbers per own label; by default those of a teacher's head"},
    )
    """e, numbers per own label; by default those of a teacher's head. Read with `labels=own`."""

    num_teachers: int = field(
        default=1,
        metadata={
            "help": (
                "teachers; the labels are those of the mean of their logits; the carried one "
                "learns in its packing what all predict on average"
            )
        },
    )
    """Teachers; the labels are those of the mean of their logits; the carried one learns in its
    packing what all predict on average. Read with `labels=own`, `labels=teacher`.
    """

    student_start: str | None = field(
        default=None,
        metadata={
            "help": (
                "how students begin: with the carried teacher's tables, and its layers where "
                "they fit, or at random; by default teacher, or random where there are outer "
                "steps: random | teacher"
            )
        },
    )
    """How students begin: with the carried teacher's tables, and its layers where they fit, or
    at random; by default teacher, or random where there are outer steps: random | teacher.
    Read with `labels=teacher`.
    """

    inputs: str | None = field(
        default=None,
        metadata={
            "help": (
                "what it reads; by labels, soft / tokens / drawn / rows: soft | tokens | "
                "drawn | written | rows"
            )
        },
    )
    """What it reads; by labels, soft / tokens / drawn / rows: soft | tokens | drawn | written |
    rows.
    """

    latent_dim: int = field(default=16, metadata={"help": "d, numbers per synthetic token"})
    """d, numbers per synthetic token. Read with `inputs=soft`."""

    tau: float = field(default=1.0, metadata={"help": "τ, softmax temperature"})
    """τ, softmax temperature. Read with `inputs=soft`."""

    initialization: str = field(
        default="spectral",
        metadata={"help": "where soft inputs start: spectral | clusters | random"},
    )
    """Where soft inputs start: spectral | clusters | random. Read with `inputs=soft`."""

    concentration: float | None = field(
        default=None,
        metadata={
            "help": (
                "κ of a spectral start, by default 8; about 2 suits ten sequences; κ of a "
                "start in clusters, by default 0.5"
            )
        },
    )
    """κ of a spectral start, by default 8; about 2 suits ten sequences; κ of a start in
    clusters, by default 0.5. Read with `initialization=spectral`, `initialization=clusters`.
    """

    input_sequences: str = field(
        default="made_up",
        metadata={
            "help": (
                "where the ids come from: made_up | made_up_by_root | real_windows | "
                "covering_windows"
            )
        },
    )
    """Where the ids come from: made_up | made_up_by_root | real_windows | covering_windows. Read
    with `inputs=tokens`.
    """

    storage: str | None = field(
        default=None,
        metadata={
            "help": (
                "how the finished summary is stored; by labels, exact / exact / coded5 / "
                "exact: exact | int8 | int6 | int5 | int4 | coded6 | coded5 | coded4 | "
                "coded3 | coded2"
            )
        },
    )
    """How the finished summary is stored; by labels, exact / exact / coded5 / exact: exact |
    int8 | int6 | int5 | int4 | coded6 | coded5 | coded4 | coded3 | coded2.
    """

    inner_optimizer: str | None = field(
        default=None,
        metadata={
            "help": (
                "of the learners; by labels, adam / adam / soap / adam, adam where there are "
                "outer steps: adam | adamw | sgd | soap"
            )
        },
    )
    """Of the learners; by labels, adam / adam / soap / adam, adam where there are outer steps:
    adam | adamw | sgd | soap.
    """

    inner_learning_rate: float | None = field(
        default=None, metadata={"help": "α, the learning rate of the inner optimizer"}
    )
    """α, the learning rate of the inner optimizer. Read with `inner_optimizer=adam`,
    `inner_optimizer=adamw`, `inner_optimizer=sgd`, `inner_optimizer=soap`.
    """

    inner_betas: list[float] | None = field(
        default=None,
        metadata={"help": "β1 β2 of the inner Adam; in a few hundred steps, β1 = 0.9 overshoots"},
    )
    """β1 β2 of the inner Adam; in a few hundred steps, β1 = 0.9 overshoots. Read with
    `inner_optimizer=adam`, `inner_optimizer=adamw`, `inner_optimizer=soap`.
    """

    inner_epsilon: float = field(
        default=1e-06,
        metadata={
            "help": (
                "ε of the inner Adam; a larger one, such as 1e-4, keeps the meta-gradient of "
                "a long unroll smooth"
            )
        },
    )
    """ε of the inner Adam; a larger one, such as 1e-4, keeps the meta-gradient of a long unroll
    smooth. Read with `inner_optimizer=adam`, `inner_optimizer=adamw`, `inner_optimizer=soap`.
    """

    inner_weight_decay: float = field(default=0.0, metadata={"help": "λ of the inner optimizer"})
    """λ of the inner optimizer. Read with `inner_optimizer=adam`, `inner_optimizer=adamw`,
    `inner_optimizer=sgd`, `inner_optimizer=soap`.
    """

    inner_max_grad_norm: float | None = field(
        default=None,
        metadata={
            "help": (
                "C, to which an inner gradient's norm is clipped, as `max_grad_norm` of the "
                "stock Trainer clips; by default it is not"
            )
        },
    )
    """C, to which an inner gradient's norm is clipped, as `max_grad_norm` of the stock Trainer
    clips; by default it is not. Read with `inner_optimizer=adam`, `inner_optimizer=adamw`,
    `inner_optimizer=sgd`, `inner_optimizer=soap`.
    """

    inner_momentum: float = field(default=0.0, metadata={"help": "momentum of the inner SGD"})
    """Momentum of the inner SGD. Read with `inner_optimizer=sgd`."""

    inner_lr_scheduler_type: str | None = field(
        default=None,
        metadata={
            "help": (
                "how the inner learning rate falls over the T steps; by labels, constant / "
                "constant / warmup_stable_decay / constant: constant | linear | cosine | "
                "warmup_stable_decay"
            )
        },
    )
    """How the inner learning rate falls over the T steps; by labels, constant / constant /
    warmup_stable_decay / constant: constant | linear | cosine | warmup_stable_decay.
    """

    inner_warmup_steps: int = field(
        default=0,
        metadata={"help": "inner steps in which the inner learning rate rises from 0 first"},
    )
    """Inner steps in which the inner learning rate rises from 0 first."""

    inner_steps: int | None = field(
        default=None, metadata={"help": "T, steps of a student; by labels, 100 / 100 / 300 / 100"}
    )
    """T, steps of a student; by labels, 100 / 100 / 300 / 100."""

    window: int | None = field(
        default=None,
        metadata={"help": "last inner steps that are differentiated; by default, or with 0, all"},
    )
    """Last inner steps that are differentiated; by default, or with 0, all."""

    synthetic_batch_size: int | None = field(
        default=None, metadata={"help": "b_syn, sequences of an inner step; default: all, or 40"}
    )
    """b_syn, sequences of an inner step; default: all, or 40."""

    objective: str = field(
        default="meta_matching",
        metadata={
            "help": "the outer loss: meta_matching | gradient_matching | trajectory_matching"
        },
    )
    """The outer loss: meta_matching | gradient_matching | trajectory_matching."""

    inner_steps_min: int | None = field(
        default=None, metadata={"help": "an outer step draws T from inner_steps_min … inner_steps"}
    )
    """An outer step draws T from inner_steps_min … inner_steps. Read with
    `objective=meta_matching`.
    """

    learner_pool: int | None = field(
        default=None,
        metadata={
            "help": (
                "learners that go on from outer step to outer step (`LearnerPool`); by "
                "default, none"
            )
        },
    )
    """Learners that go on from outer step to outer step (`LearnerPool`); by default, none. Read
    with `objective=meta_matching`.
    """

    synthetic_steps: int | None = field(
        default=None, metadata={"help": "N of trajectory matching; by default inner_steps"}
    )
    """N of trajectory matching; by default inner_steps. Read with
    `objective=trajectory_matching`.
    """

    expert_steps: int = field(
        default=50, metadata={"help": "M: N steps on the summary should do the same as M real ones"}
    )
    """M: N steps on the summary should do the same as M real ones. Read with
    `objective=trajectory_matching`.
    """

    last_start: int | None = field(
        default=None,
        metadata={"help": "latest step of Ω from which an inner loop starts; by default all"},
    )
    """Latest step of Ω from which an inner loop starts; by default all. Read with
    `objective=trajectory_matching`, `trajectories`.
    """

    trajectories: str | None = field(
        default=None,
        metadata={"help": "Ω, a folder of `record_trajectories`, where inner loops start"},
    )
    """Ω, a folder of `record_trajectories`, where inner loops start."""

    num_trajectories: int | None = field(
        default=None, metadata={"help": "|Ω|, the first ones of the folder; by default all"}
    )
    """|Ω|, the first ones of the folder; by default all. Read with `trajectories`."""

    fresh_start_fraction: float = field(
        default=0.5, metadata={"help": "share of the inner loops that start fresh and not from Ω"}
    )
    """Share of the inner loops that start fresh and not from Ω. Read with `trajectories`."""

    adjoint: str = field(
        default="auto",
        metadata={
            "help": (
                "auto: the fastest that fits into memory: auto | gradient_graphs | direct | "
                "tape | reversible | checkpoint"
            )
        },
    )
    """Auto: the fastest that fits into memory: auto | gradient_graphs | direct | tape |
    reversible | checkpoint.
    """

    checkpoint_layers: bool = field(
        default=False,
        metadata={"help": "keep only the inputs of the learner's layers: less memory, more time"},
    )
    """Keep only the inputs of the learner's layers: less memory, more time."""

    eval_students: int = field(
        default=3,
        metadata={"help": "students that `evaluate()` trains from scratch, each from its own θ0"},
    )
    """Students that `evaluate()` trains from scratch, each from its own θ0."""

    max_non_finite: int = field(
        default=20,
        metadata={"help": "most outer steps that are skipped for a NaN or infinite meta-gradient"},
    )
    """Most outer steps that are skipped for a NaN or infinite meta-gradient."""

    teacher_steps: int = field(
        default=2000, metadata={"help": "most steps of a teacher; it stops early by eval_dataset"}
    )
    """Most steps of a teacher; it stops early by eval_dataset."""

    teacher_cuts: list[int] = field(
        default_factory=lambda: [],
        metadata={
            "help": (
                "how a search ended a teacher's training in time: pairs of the steps after "
                "which the rate began to fall, and of all steps then"
            )
        },
    )
    """How a search ended a teacher's training in time: pairs of the steps after which the rate
    began to fall, and of all steps then.
    """

    teacher_optimizer: str = field(
        default="adam", metadata={"help": "of the teacher; soap is better for text: adam | soap"}
    )
    """Of the teacher; soap is better for text: adam | soap."""

    teacher_learning_rate: float = field(
        default=0.01,
        metadata={"help": "of that optimizer, for half of its steps; then it falls to 0"},
    )
    """Of that optimizer, for half of its steps; then it falls to 0."""

    teacher_batch_size: int = field(
        default=16, metadata={"help": "real sequences per step of the teacher"}
    )
    """Real sequences per step of the teacher."""

    teacher_weight_decay: float = field(
        default=0.0,
        metadata={"help": "λ of the teacher; it helps where learners overfit, on items"},
    )
    """λ of the teacher; it helps where learners overfit, on items."""

    teacher_counted_share: float = field(
        default=0.0,
        metadata={
            "help": (
                "of what a teacher of text should predict, the share that counted n-grams "
                "predict; the rest is the next token"
            )
        },
    )
    """Of what a teacher of text should predict, the share that counted n-grams predict; the rest
    is the next token.
    """

    teacher_nested_widths: list[int] = field(
        default_factory=lambda: [],
        metadata={
            "help": (
                "of narrower students: in half of the rows a teacher's head reads so many "
                "dimensions alone (nested dropout), so that these students lose less"
            )
        },
    )
    """Of narrower students: in half of the rows a teacher's head reads so many dimensions alone
    (nested dropout), so that these students lose less.
    """

    packing_penalty: float = field(
        default=0.15, metadata={"help": "λ of a carried teacher: the larger, the fewer bytes"}
    )
    """λ of a carried teacher: the larger, the fewer bytes."""

    packing_steps: int | None = field(
        default=None, metadata={"help": "steps in few bits; by default teacher_steps"}
    )
    """Steps in few bits; by default teacher_steps."""

    packing_cuts: list[int] = field(
        default_factory=lambda: [],
        metadata={"help": "the same as teacher_cuts, of the steps in few bits"},
    )
    """The same as teacher_cuts, of the steps in few bits."""
