"""How many kernels an inner step starts, and how often the CPU waits for the device: never, or once
for all steps.

    PYTHONPATH=.:tests python tests/device/fake_cuda.py tests/device/test_launches.py        # the table of docs/scale.md

Only the fake device counts.
"""  # noqa: E501

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from on_device import counted, launches, needs_device, reads, sent, waits
from tiny_trainer import tiny_data, tiny_trainer
from torch import Tensor
from transformers import GPT2Config

from farzi_hf import FarziTrainer
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.engine import ADJOINTS, Adjoint, InnerAdam, Reversible, Tape, unroll
from farzi_hf.models import SASRecConfig
from farzi_hf.summary import FarziDataConfig
from farzi_hf.summary.forms import forms_of

pytestmark = needs_device

V, ROWS, LENGTH, WIDTH = 54, 6, 10, 8
KINDS = {
    "GPT-2": GPT2Config(
        vocab_size=V,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=2,
        eos_token_id=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "SASRec": SASRecConfig(num_items=V - 1, hidden_size=16, max_length=12),
}
FORMS = {
    "soft": FarziDataConfig(ROWS, LENGTH, WIDTH, V),
    "ids": FarziDataConfig(ROWS, LENGTH, WIDTH, V, inputs="tokens", labels="own"),
}
CARRIED = {
    "inputs": "drawn",
    "labels": "teacher",
    "storage": "coded5",
    "teacher_steps": 4,
    "teacher_batch_size": 8,
    "packing_steps": 2,
    "inner_betas": [0.7, 0.95],
    "window": None,
    "inner_steps_min": None,
}
CHOSEN = ("gradient_graphs", "tape", "checkpoint", "reversible")
some = pytest.mark.parametrize(
    ("kind", "form", "adjoint"),
    [
        pytest.param(
            kind, form, adjoint, marks=() if (kind, form) == ("GPT-2", "ids") else pytest.mark.slow
        )
        for kind in KINDS
        for form in FORMS
        for adjoint in CHOSEN
    ],
)


def summary(form: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    latents, decoder = (
        torch.randn(*shape, generator=generator) for shape in ((ROWS, LENGTH, WIDTH), (WIDTH, V))
    )
    tensors = {"latents": latents, "decoder": decoder}
    if form == "ids":
        ids = torch.randint(1, V, (ROWS, LENGTH), generator=generator)
        tensors = {"input_ids": ids, "label_latents": latents, "label_decoder": decoder}
    return {name: x.to("cuda").requires_grad_(x.is_floating_point()) for name, x in tensors.items()}


def both_ways(
    kind: str, form: str, adjoint: str, steps: int
) -> tuple[dict[str, int], dict[str, int]]:
    """The counts of a training of so many steps, and of the way back."""
    learner, tensors = Learner(KINDS[kind]).to("cuda"), summary(form)
    forms = forms_of(FORMS[form])
    training = SyntheticTraining(InnerAdam(0.02, eps=1e-4), forms, 2, adjoint=ADJOINTS[adjoint]())
    start, theta = learner.initial_parameters(0, "cuda"), {}
    forward = counted(
        lambda: theta.update(training(learner, tensors, start=start, steps=steps, seed=1))
    )
    loss = sum(x.square().sum() for x in theta.values())
    return forward, counted(
        lambda: torch.autograd.grad(loss, [x for x in tensors.values() if x.requires_grad])
    )


def per_step(kind: str, form: str, adjoint: str) -> list[tuple[float, float, int]]:
    """Forward and in reverse: launches of a step, reads of a step, and reads of all the rest."""
    few, many = (both_ways(kind, form, adjoint, steps) for steps in (4, 12))
    found = []
    for a, b in zip(few, many, strict=True):
        each = (sum(reads(b).values()) - sum(reads(a).values())) / 8
        found.append(
            ((launches(b) - launches(a)) / 8, each, sum(reads(a).values()) - round(4 * each))
        )
    return found


@some
def test_no_step_waits_for_the_device(kind, form, adjoint):
    (_, forward, before), (_, reverse, after) = per_step(kind, form, adjoint)
    assert forward == reverse == 0
    minibatches = 1 if form == "soft" else 2  # the rows that are seen, and the ids in them
    assert (before - minibatches, after) == ((1, 1) if adjoint == "reversible" else (0, 0))


def trainer_of(form: str, folder: Path) -> FarziTrainer:
    settings = {"soft": {"window": None}, "drawn": CARRIED}[form]
    trainer = tiny_trainer(
        folder, *tiny_data(), **settings, max_steps=0, use_cpu=False, per_device_train_batch_size=8
    )
    trainer.train()
    return trainer


def of_a_step(run: Callable[[int], object]) -> list[float]:
    """Launches, what the CPU waits for, and copies to the device."""
    few, many = (counted(partial(run, steps)) for steps in (4, 20))
    return [(of(many) - of(few)) / 16 for of in (launches, waits, sent)]


def students(count: int, trainer: FarziTrainer) -> list[float]:
    def run(steps: int) -> list:
        return list(replace(trainer.students, steps=steps).on_summary_each(count))

    run(2)
    return of_a_step(run)


def teacher(trainer: FarziTrainer) -> list[float]:
    data, training = replace(trainer.real_data, held_out=None), trainer.args.make_teacher_training()
    return of_a_step(lambda steps: replace(training, steps=steps).train(trainer.learner, data, 0))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["soft", "drawn"])
def test_four_students_take_the_launches_of_one(form, tmp_path):
    trainer = trainer_of(form, tmp_path)
    (one, *_), (four, waiting, moved) = (students(count, trainer) for count in (1, 4))
    assert four <= 1.35 * one
    assert waiting == 0
    assert moved == (form == "drawn")  # the ids that all four read


@pytest.mark.slow
def test_a_teachers_step_waits_once(tmp_path):
    """To see that it has not diverged. Ids, labels and mask of a minibatch are sent."""
    assert teacher(trainer_of("drawn", tmp_path))[1:] == [1, 3]


def update(adjoint: Adjoint) -> float:
    """Launches of a step forward of 4,200,000 parameters, with a gradient that takes a few."""
    w, x = torch.zeros(4_200_000, device="cuda"), torch.ones((), device="cuda", requires_grad=True)

    def run(steps: int) -> int:
        how = {"optimizer": InnerAdam(0.01), "steps": steps, "adjoint": adjoint}
        return launches(
            counted(lambda: unroll(lambda p, i, _: p["w"].sum() * i[0], {"w": w}, (x,), **how))
        )

    return (run(4) - run(2)) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("adjoint", "most"), [(Tape(), 14), (Reversible(), 70)], ids=repr)
def test_an_update_is_a_few_launches_whatever_the_size(adjoint, most):
    assert update(adjoint) <= most


def table() -> str:
    lines = [
        (
            "| | launches a step, forward | in reverse | reads a step, forward | in reverse | reads"
            " beside them |"
        ),
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        for form in FORMS:
            for adjoint in CHOSEN:
                (f, a, before), (r, b, after) = per_step(kind, form, adjoint)
                lines.append(
                    f"| {kind}, {form}, {ADJOINTS[adjoint].__name__} | {f:.0f} | {r:.0f} | {a:g} |"
                    f" {b:g} | {before + after} |"
                )
    sizes = [
        f"| 4.2 million numbers, {type(a).__name__}, gradient of a sum | {update(a):.0f} | | | | |"
        for a in (Tape(), Reversible())
    ]
    lines += [
        *sizes,
        "",
        "| a step of | launches | waits | copies to the device |",
        "|---|---:|---:|---:|",
    ]
    for form in ("soft", "drawn"):
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(form, Path(folder))
            found = {
                "a student": students(1, trainer),
                "four students": students(4, trainer),
                "a teacher": teacher(trainer),
            }
        lines += [
            f"| {what}, {form} | " + " | ".join(f"{x:g}" for x in counts) + " |"
            for what, counts in found.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
