"""What several teachers predict on average, as targets of a model that is to stand for all of them.

Teachers from different starts err in different places, so the mean of their logits is better than
each of them. A model of the same size comes close to it, if it learns what they predict in the
place of what came next (Hinton, Vinyals & Dean, 2015, arXiv 1503.02531; models as large as their
teachers: Furlanello et al., 2018, arXiv 1805.04770).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from farzi_hf.data import IGNORED
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.teacher import Teacher
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.teacher import LinearHead


class MeanPrediction:
    """softmax of the mean of teachers' logits. Logits are states times a head, and so is their
    mean: all states beside each other times all heads below each other. No logits are kept.

    Args:
        teachers: over one vocabulary.

    Raises:
        ValueError: the vocabularies differ, or the logits of a teacher are no linear function of
            its last hidden states.
    """

    def __init__(self, teachers: Sequence[Teacher]) -> None:
        check_mean([teacher.learner for teacher in teachers])
        self._teachers = teachers
        self._heads = [linear_head(teacher.learner) for teacher in teachers]
        with torch.no_grad():
            decoders = [
                head.decoder(teacher.params)
                for head, teacher in zip(self._heads, teachers, strict=True)
            ]
            self._decoder = torch.cat(decoders) / len(teachers)

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Tensor]) -> SoftTokens:
        """The n distributions over the V entries, of the n entries of a real batch that are
        predicted.
        """
        is_predicted = batch["labels"][:, 1:] != IGNORED
        latents = []
        for head, teacher in zip(self._heads, self._teachers, strict=True):
            states = teacher.learner.states_of(teacher.params, batch)[:, :-1]
            latents.append(head.latents(states[is_predicted]))
        return SoftTokens(torch.cat(latents, dim=1), self._decoder)


def check_mean(learners: Sequence[Learner]) -> None:
    """Raises ValueError if what models of these kinds predict has no mean that can be learnt: the
    vocabularies differ, or the logits of one are no linear function of its last hidden states.
    """
    entries = [learner.vocab_size for learner in learners]
    if len(set(entries)) > 1:
        raise ValueError(
            f"teacher: vocabularies of {', '.join(map(str, entries))} entries have no mean; give"
            " teachers over the same"
        )
    for learner in learners:
        linear_head(learner)


def linear_head(learner: Learner) -> LinearHead:
    """The head of a model that is to label. Its `width` is the `label_dim` with which labels hold
    all that the model predicts. Raises ValueError if the model has no linear head.
    """
    if learner.head is None:
        raise ValueError(
            f"teacher: a {type(learner.model).__name__} has no linear head; give another"
        )
    return learner.head
