"""A distillation of seconds, for the tests of FarziTrainer; `run` is the same one for processes to
share or to kill.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from torch import Tensor
from transformers import GPT2Config, PreTrainedTokenizerFast
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import load_sample_text, tokenize, word_tokenizer
from farzi_hf.distillation.run import Interrupted

SETTINGS = {
    "inputs": "soft",
    "labels": "shared",
    "inner_betas": [0.5, 0.999],
    "num_sequences": 4,
    "sequence_length": 8,
    "latent_dim": 4,
    "inner_steps": 4,
    "inner_steps_min": 2,
    "window": 3,
    "synthetic_batch_size": 2,
    "inner_learning_rate": 0.05,
    "inner_epsilon": 1e-3,
    "learning_rate": 0.05,
    "max_steps": 4,
    "per_device_train_batch_size": 40,
    "eval_students": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "seed": 3,
    "concentration": 8.0,
}


def tiny_data() -> tuple[DatasetDict, PreTrainedTokenizerFast]:
    """What the fixtures `sequences` and `tokenizer` are: 160 / 20 / 20 sentences, V = 54."""
    text = load_sample_text(200)
    tokenizer = word_tokenizer(text["train"]["text"], vocab_size=50)
    return tokenize(text, tokenizer), tokenizer


def tiny_learner(vocab_size: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocab_size,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=2,
        eos_token_id=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def tiny_trainer(
    output_dir: str | os.PathLike,
    sequences: DatasetDict,
    tokenizer: PreTrainedTokenizerFast,
    trainer: dict[str, Any] | None = None,
    **settings: Any,
) -> FarziTrainer:
    """A trainer with `SETTINGS`, `settings` over them, and `trainer` over FarziTrainer's own
    arguments.
    """
    arguments = {
        "learner_init": tiny_learner(len(tokenizer)),
        "args": FarziConfig(str(output_dir), **{**SETTINGS, **settings}),
        "train_dataset": sequences["train"],
        "eval_dataset": sequences["validation"],
        "processing_class": tokenizer,
        **(trainer or {}),
    }
    return FarziTrainer(**arguments)


def tensors(trainer: FarziTrainer) -> list[Tensor]:
    """Latents, decoder, and what the optimizer remembers of each."""
    summary = [p.detach().clone() for p in trainer.model.parameters()]
    states = trainer.optimizer.state_dict()["state"] if trainer.optimizer else {}
    return summary + [
        x.clone() for _, state in sorted(states.items()) for _, x in sorted(state.items())
    ]


def logged(trainer: FarziTrainer, name: str) -> list[float]:
    """The values of a figure in the log."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


class PoisonedGradient:
    """An objective whose gradient is NaN in the given calls (counted from 0), or in all if there
    are none.
    """

    def __init__(self, objective: Any, calls: tuple[int, ...] = ()):
        self.objective, self.calls, self.count = objective, calls, -1

    def __call__(self, learner: Any, summary: dict[str, Tensor], batch: Any, seed: int) -> Tensor:
        loss = self.objective(learner, summary, batch, seed)
        self.count += 1
        if self.calls and self.count not in self.calls:
            return loss
        return (
            loss + (0 * summary["latents"].sum()).sqrt()
        )  # adds 0, whose derivative here is 0 · ∞


class SignalAt(TrainerCallback):
    """`name` in the middle of the step after `step`; `times` over."""

    def __init__(self, name: str, step: int, times: int = 1):
        self.number, self.step, self.times = getattr(signal, name), step, times

    def on_step_begin(self, args, state, control, **kwargs):
        for _ in range(self.times if state.global_step == self.step else 0):
            signal.raise_signal(self.number)


def die_while_saving(trainer: FarziTrainer, step: int) -> None:
    """SIGKILL in the middle of the checkpoint of that step: the summary is written, the optimizer
    is not.
    """

    def save(output_dir: str) -> None:
        if trainer.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        original(output_dir)

    original, trainer._save_optimizer_and_scheduler = trainer._save_optimizer_and_scheduler, save


def run(
    settings: dict[str, Any], environment: dict[str, str], log: Path, dying: int | None
) -> None:
    """All that a process does, see trainer_runs.py. It leaves what it ended with in
    `output_dir/process-RANK.pt`.

    `environment` is what torchrun would set, `log` gets what the process says, `dying` is the step
    that it does not survive.
    """
    begin_process(environment, log)
    trainer = tiny_trainer(settings.pop("output_dir"), *tiny_data(), **settings)
    if dying is not None:
        die_while_saving(trainer, dying)
    trainer.train()
    rank = trainer.args.process_index
    result = {
        "tensors": tensors(trainer),
        "losses": logged(trainer, "loss"),
        "evaluation": trainer.evaluate(),
    }
    if trainer.args.world_size > 1:
        result |= {"world_size": trainer.args.world_size, "poisoned": poisoned(trainer, rank)}
        result["interrupted"] = interrupted(trainer, rank)
    torch.save(result, f"{trainer.args.output_dir}/process-{rank}.pt")


def begin_process(environment: dict[str, str], log: Path) -> None:
    """What each process does first."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    say_into(log)
    warnings.simplefilter("error")


def say_into(log: Path) -> None:
    """What this process writes to stderr goes to a file, what it writes to stdout nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115


def poisoned(trainer: FarziTrainer, rank: int) -> dict[str, Any]:
    """What training does where one process alone finds a NaN, in its second step."""
    if rank == 1:
        trainer.objective = PoisonedGradient(trainer.objective, calls=(1,))
    trainer.train()
    return {
        "tensors": tensors(trainer),
        "skipped": [x["non_finite_steps"] for x in trainer.state.log_history if "loss" in x],
    }


def interrupted(trainer: FarziTrainer, rank: int) -> tuple[int, int]:
    """The exit code and the last step where one process alone gets a SIGTERM, in the middle of its
    first step.
    """
    if rank == 1:
        trainer.add_callback(SignalAt("SIGTERM", step=0))
    try:
        trainer.train()
    except Interrupted as ended:
        return ended.code, trainer.state.global_step
    return 0, trainer.state.global_step
