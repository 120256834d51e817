"""What test_kills.py kills: a distillation, a recording of Ω, a save and a push. Each goes on where
it was ended.

A job tells through its connection when a phase begins and when it has ended; what it prints goes to
a file beside its folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from tiny_trainer import say_into, tiny_data, tiny_trainer

from farzi_hf import FarziData, record_trajectories
from farzi_hf.common.files import replace_file
from farzi_hf.distillation.run import last_checkpoint

SEQUENCES, TOKENIZER = tiny_data()
"""Made once: the processes of the jobs are forked from one that has imported this module."""
STEPS = 6


def run(job: str, folder: Path, connection: Connection) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    say_into(folder.with_suffix(".log"))
    JOBS[job](folder, connection)


@contextmanager
def phase(connection: Connection, name: str) -> Iterator[None]:
    connection.send((name, "begins"))
    yield
    connection.send((name, "has ended"))


def distil(folder: Path, connection: Connection) -> None:
    """With a checkpoint every two steps. Leaves summary, optimizer and losses in
    `end.safetensors`.
    """
    trainer = tiny_trainer(
        folder,
        SEQUENCES,
        TOKENIZER,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=2,
    )
    save = trainer._save_checkpoint

    def save_checkpoint(*args):
        with phase(connection, f"save {trainer.state.global_step}"):
            save(*args)

    trainer._save_checkpoint = save_checkpoint
    with phase(connection, "distil"):
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    optimizer = torch.load(folder / f"checkpoint-{STEPS}" / "optimizer.pt")["state"]
    ended = {**trainer.model.state_dict(), "losses": torch.tensor(losses)}
    ended |= {f"{name} {i}": x for i, state in optimizer.items() for name, x in state.items()}
    replace_file(folder / "end.safetensors", lambda new: save_file(ended, new))


def record(folder: Path, connection: Connection) -> None:
    """Four trajectories."""
    trainer = tiny_trainer(folder / "unused", SEQUENCES, TOKENIZER)
    with phase(connection, "record"):
        record_trajectories(
            trainer.learner,
            trainer.args.make_inner_optimizer(),
            SEQUENCES["train"],
            trainer.data_collator,
            folder,
            num=4,
            steps=40,
            save_every=5,
            batch_size=20,
            seed=1,
        )


def publish(folder: Path, connection: Connection) -> None:
    """A summary in place of another one, in the folder and then on the Hub."""
    for number in (1, 2):
        farzi = FarziData.from_pretrained(folder) if number == 2 else made_summary(1)
        if number == 2:
            farzi.load_state_dict(made_summary(2).state_dict())
        with phase(connection, f"save summary {number}"):
            farzi.save_pretrained(folder, processing_class=TOKENIZER)
        with phase(connection, f"push summary {number}"):
            farzi.push_to_hub(folder.name)


def made_summary(number: int) -> FarziData:
    """Of which every number is `number`."""
    with TemporaryDirectory() as unused:
        farzi = tiny_trainer(unused, SEQUENCES, TOKENIZER, {"train_dataset": None}).model
    for parameter in farzi.parameters():
        parameter.data.fill_(number)
    return farzi


JOBS = {function.__name__: function for function in (distil, record, publish)}
