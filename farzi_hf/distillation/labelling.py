"""A start for labels of their own: what teachers, trained on the real data, would predict after
each input.

The last hidden states of a teacher (μ, ξ, h) times its head (h, V) are label latents times a label
decoder: a summary has room for a teacher's labels exactly where `label_dim` is at least h, or h + 1
where the head has a bias. The mean of the logits of K teachers has the same form, with K h numbers;
where `label_dim` is less, the closest labels of that rank are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.kept_start import KeptStart
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.mean_prediction import check_mean, linear_head
from farzi_hf.distillation.processes import broadcast, shared, world
from farzi_hf.distillation.rows import RealData
from farzi_hf.distillation.teacher import Teacher, TeacherTraining, Trained
from farzi_hf.summary import FarziData

_CHUNK = 64  # sequences that a teacher reads at once

GivenTeachers = PreTrainedModel | Sequence[PreTrainedModel]
"""Trained models over the summary's vocabulary."""
UntrainedTeachers = PreTrainedConfig | Sequence[PreTrainedConfig]
"""Configs of models that are trained for it, one kind or several."""


@dataclass(frozen=True)
class Labelling:
    """Where the labels of a summary come from.

    Args:
        kinds: the models that are to be trained for it.
        given: trained teachers; None if they are to be trained.
    """

    kinds: tuple[Learner, ...]
    given: tuple[PreTrainedModel, ...] | None = None

    @classmethod
    def by(cls, teacher: GivenTeachers | UntrainedTeachers | None, learner: Learner) -> Labelling:
        """By trained teachers, by models of other configs that are to be trained, or (None) by
        learners. Raises ValueError if the teachers are none, or some of them are models and others
        configs.
        """
        if teacher is None:
            return cls((learner,))
        is_one = isinstance(teacher, PreTrainedModel | PreTrainedConfig)
        teachers = (teacher,) if is_one else tuple(teacher)
        are_configs = {isinstance(each, PreTrainedConfig) for each in teachers}
        if len(are_configs) != 1:
            names = ", ".join(type(each).__name__ for each in teachers) or "empty"
            raise ValueError(f"teacher is {names}; give trained models only, or configs only")
        if are_configs == {True}:
            return cls(tuple(map(Learner, teachers)))
        return cls((learner,), teachers)

    @property
    def model(self) -> PreTrainedModel:
        """A model of the kind of the first teacher."""
        return self.kinds[0].model if self.given is None else self.given[0]

    def check_several(self, settings: Any) -> None:
        """Raises ValueError if a summary of these settings carries one of several teachers, and
        cannot learn what all of them predict. Nothing has been trained then.

        Args:
            settings: a `FarziConfig`, of a summary that carries a teacher.
        """
        count = len(self.kinds) * settings.num_teachers if self.given is None else len(self.given)
        if count == 1:
            return
        if not settings.make_packing().learns_in(settings.storage):
            raise ValueError(
                "teacher: of several, the one that a summary carries learns in its packing what all"
                f" predict, and storage={settings.storage!r} with packing_steps="
                f"{settings.packing_steps} has none: choose another, or give one teacher"
            )
        check_mean(self.kinds if self.given is None else list(map(Learner, self.given)))

    def teachers(
        self, data: RealData, training: TeacherTraining, seed: int, kept: KeptStart | None = None
    ) -> list[Teacher]:
        """The teachers that were given; or of each kind as many as `training` says, each with a
        seed of its own. Processes share the work.

        Args:
            kept: the state of their trainings, from which they go on.
        """
        device = data.device
        if self.given is not None:
            teachers = []
            for model in self.given:
                params = {name: x.detach().to(device) for name, x in model.named_parameters()}
                teachers.append(Teacher(Learner(model).to(device), params))
            return teachers
        teachers = []
        all_teachers = len(self.kinds) * training.count
        for number, kind in enumerate(self.kinds):
            first = derive(seed, Purpose.TEACHER_KIND, number) if number else seed
            seeds = [derive(first, Purpose.TEACHER_NUMBER, i) for i in range(training.count)]
            trainings = [
                _kept(training, kept, f"teacher-{number}-{i}") for i in range(training.count)
            ]
            names = [
                f"Teacher {len(teachers) + i + 1} of {all_teachers}"
                if all_teachers > 1
                else "Teacher"
                for i in range(training.count)
            ]
            teachers += _trained(kind.to(device), data, trainings, seeds, names)
        return teachers

    def __call__(
        self, farzi: FarziData, data: RealData, settings: Any, kept: KeptStart | None = None
    ) -> dict[str, float]:
        """Sets the labels of a summary. Groups of tokens are those that the first teacher sees
        alike.

        Args:
            farzi: with labels of its own, or with room for one teacher; changed in place.
            data: on which teachers train.
            settings: a `FarziConfig`.
            kept: the state of their trainings, from which they go on.

        Returns:
            The steps and the validation loss of the first teacher, and of its training in few bits,
            where this process has trained it.
        """
        training = settings.make_teacher_training()
        if farzi.carried is not None:
            trained, packed = self.pack(farzi, data, settings, training, kept)
            facts = {} if trained is None else trained.facts("teacher")
            return facts if packed is None else {**facts, **packed.facts("packing")}
        teachers = self.teachers(data, training, settings.seed, kept)
        facts = {} if teachers[0].trained is None else teachers[0].trained.facts("teacher")
        start = settings.make_start()
        if start.by_teacher:
            embeddings = teachers[0].learner.embeddings(teachers[0].params)
            start(farzi, data.dataset, settings.seed, embeddings)
        label(farzi, teachers)
        # Processors that differ would make labels that differ in the last bits.
        broadcast(farzi.tensors)
        return facts

    def pack(
        self,
        farzi: FarziData,
        data: RealData,
        settings: Any,
        training: TeacherTraining,
        kept: KeptStart | None = None,
    ) -> tuple[Trained | None, Trained | None]:
        """Writes the first teacher into a summary that carries it, packed into few bits.

        Args:
            farzi, data, settings, kept: as of a call; the summary is changed in place.
            training: of the teachers, and of the packing in all but the steps.

        Returns:
            How the first teacher was trained, and how it was packed; None where that was not done,
            or by another process.
        """
        teachers = self.teachers(data, training, settings.seed, kept)
        packing = settings.make_packing()
        training = _kept(training, kept, f"packing-{world()[0]}")  # all processes pack
        packed = packing(farzi, teachers, data, training, settings.storage, settings.seed)
        broadcast(farzi.tensors)
        return teachers[0].trained, packed


def _kept(training: TeacherTraining, kept: KeptStart | None, name: str) -> TeacherTraining:
    """The training with its state in the file of that name, where one is kept."""
    return training if kept is None else replace(training, kept=kept.file(name))


def _trained(
    kind: Learner,
    data: RealData,
    trainings: Sequence[TeacherTraining],
    seeds: Sequence[int],
    names: Sequence[str],
) -> list[Teacher]:
    """A teacher of one kind for each training, its seed and the name of its progress bar. Processes
    share the work, and then all have all of them. Only the process that has trained one knows how.
    """
    by_this_process: dict[int, Trained] = {}

    def train(number: int) -> Parameters:
        trained = trainings[number].train(kind, data, seeds[number], names[number])
        by_this_process[number] = trained
        return trained.params

    like = partial(kind.initial_parameters, seeds[0], data.device)
    of_all_processes = shared(len(seeds), train, like)
    return [
        Teacher(kind, params, by_this_process.get(number))
        for number, params in enumerate(of_all_processes)
    ]


@torch.no_grad()
def label(farzi: FarziData, teachers: Sequence[Teacher]) -> None:
    """Sets the labels of a summary to what teachers predict after each of its inputs: the softmax
    of the mean of their logits. Raises ValueError if the logits of a teacher are not a linear
    function of its last hidden states, or it has another vocabulary.

    Args:
        farzi: with labels of its own; changed in place.
        teachers: over the vocabulary of the summary.
    """
    factors = [_factors(farzi, teacher) for teacher in teachers]
    states = torch.cat([states / len(teachers) for states, _ in factors], dim=1)
    weight = torch.cat([weight for _, weight in factors])
    farzi.forms.labels.begin_at(farzi.tensors, states, weight)


def _factors(farzi: FarziData, teacher: Teacher) -> tuple[Tensor, Tensor]:
    """(μ·ξ, k) and (k, V), whose product is the teacher's logits."""
    learner = teacher.learner
    params = teacher.params
    if learner.vocab_size != farzi.config.vocab_size:
        raise ValueError(
            f"teacher: it has a vocabulary of {learner.vocab_size} entries, the summary one of"
            f" {farzi.config.vocab_size}; give one with the same"
        )
    head = linear_head(learner)
    states = []
    for first in range(0, farzi.config.num_sequences, _CHUNK):
        inputs = farzi.forms.inputs.batch(farzi.tensors, slice(first, first + _CHUNK))
        states.append(learner.states(params, learner.arguments(params, inputs)).flatten(0, 1))
    return head.factors(torch.cat(states), params)
