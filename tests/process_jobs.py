"""What processes do that share work, in tests of several rooms. Each leaves what it found in
`output_dir/process-RANK.pt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_models import arguments, tiny_model
from tiny_trainer import begin_process, logged, tensors, tiny_data, tiny_trainer
from transformers import Trainer

from farzi_hf import FarziTrainer, record_trajectories
from farzi_hf.attribution import attribute, weigh
from farzi_hf.cli import main
from farzi_hf.data import SequenceCollator
from farzi_hf.distillation.inner_training import Students
from farzi_hf.distillation.processes import agreed
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerAdam


def leave(trainer: FarziTrainer, **found: Any) -> None:
    rank = trainer.args.process_index
    found |= {"rank": rank, "world_size": trainer.args.world_size}
    torch.save(found, Path(trainer.args.output_dir, f"process-{rank}.pt"))


def resumed_pool(
    settings: dict[str, Any], environment: dict[str, str], log: Path, dying: None
) -> None:
    """A distillation with a pool, from its beginning or from a checkpoint."""
    begin_process(environment, log)
    trainer = tiny_trainer(settings.pop("output_dir"), *tiny_data(), **settings)
    pool, turns = trainer.objective.pool, []
    advance = pool.training.advance
    object.__setattr__(
        pool.training,
        "advance",
        lambda *args, **kwargs: turns.append(1) or advance(*args, **kwargs),
    )
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    losses = [*logged(trainer, "loss"), *logged(trainer, "train_loss")]
    leave(
        trainer, tensors=tensors(trainer), pool=pool.state_dict(), losses=losses, turns=len(turns)
    )


OMEGA = {"num": 5, "steps": 4, "save_every": 2, "batch_size": 20, "seed": 1}


def shared_work(
    settings: dict[str, Any], environment: dict[str, str], log: Path, dying: None
) -> None:
    """Teachers, students and a recording; and an error in one process alone."""
    begin_process(environment, log)
    found = all_work(tiny_trainer(settings.pop("output_dir"), *tiny_data(), **settings))
    trainer = found.pop("trainer")

    def work() -> None:
        if trainer.args.process_index == 1:
            raise FloatingPointError("this one diverged")

    try:
        agreed(work)
    except (FloatingPointError, RuntimeError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    leave(trainer, **found)


def all_work(trainer: FarziTrainer) -> dict[str, Any]:
    """What processes share, and how much of it this one did."""
    taught, studied = [], []
    train_teacher, train_student = TeacherTraining.train, Students.on_summary
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TeacherTraining, "train", lambda *args: taught.append(1) or train_teacher(*args)
        )
        patch.setattr(
            Students, "on_summary", lambda self, i: studied.append(i) or train_student(self, i)
        )
        trainer.tune_initialization()
        before = torch.get_rng_state()
        metrics = trainer.evaluate()
    folder = Path(trainer.args.output_dir, "omega")
    bank = record_trajectories(
        trainer.learner,
        InnerAdam(0.01),
        trainer.train_dataset,
        trainer.data_collator,
        folder,
        **OMEGA,
    )
    return {
        "trainer": trainer,
        "summary": dict(trainer.model.tensors),
        "metrics": metrics,
        "taught": len(taught),
        "studied": studied,
        "omega": [bank.checkpoint(i, step) for i in range(len(bank)) for step in (0, 2, 4)],
        "random": torch.equal(before, torch.get_rng_state()),
    }


def attributed(
    settings: dict[str, Any], environment: dict[str, str], log: Path, dying: None
) -> None:
    """`attribute`, and its command if there is one."""
    begin_process(environment, log)
    folder, rows, queries, command = (
        settings.pop(name) for name in ("output_dir", "rows", "queries", "command")
    )
    args, data = (
        arguments(folder, **settings),
        [Dataset.from_dict({"input_ids": ids}) for ids in (rows, queries)],
    )
    trainer = Trainer(tiny_model("gpt2"), args, SequenceCollator(0), data[0])
    found = attribute(trainer, data[1], resume_dir=Path(folder, "parts"), per_token=True)
    trainer.train()
    leave(trainer, scores=found.token_scores, losses=found.losses, far=found.check(trainer.model))
    main(command)


def weighed(settings: dict[str, Any], environment: dict[str, str], log: Path, dying: None) -> None:
    """`weigh`."""
    begin_process(environment, log)
    folder, rows, target = (settings.pop(name) for name in ("output_dir", "rows", "target"))
    data, target = (Dataset.from_dict({"input_ids": ids}) for ids in (rows, target))
    trainer = Trainer(tiny_model("gpt2"), arguments(folder, **settings), SequenceCollator(0), data)
    how = {"outer_steps": 2, "keep": 6, "resume_dir": Path(folder, "parts")}
    leave(trainer, weights=weigh(trainer, target, **how).weights)
