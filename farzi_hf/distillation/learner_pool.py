"""A pool of learners that go on from outer step to outer step, in place of a fresh learner for each.

A fresh learner takes T − w steps before the window of w steps in which the outer loss is differentiated. A learner of the pool has taken
them already. The idea is FRePo's (Zhou et al., 2022); there, as here, a learner is replaced by a fresh one when it is old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.distillation.trajectories import Starts, start_of
from farzi_hf.engine import TrainingState
from farzi_hf.engine.inner_loop import Layout
from farzi_hf.summary.forms import Tensors, device_of


@dataclass
class _Member:
    """A place of the pool.

    Attributes:
        generation: how many learners have had the place before.
        state: the learner in it; None before the first.
    """

    generation: int = 0
    state: TrainingState | None = None

    def retire(self) -> None:
        """Make way for a fresh learner."""
        self.generation, self.state = self.generation + 1, None


class LearnerPool:
    """Learners of different ages. Each call takes the next one, and differentiates its next `window` steps.

    The age of a learner is the number of steps that it has taken, with those of the window: from `youngest` to `oldest`. The first
    learners have ages spread over this range. The steps of a window are taken again at the learner's next turn, on the summary as it is
    then. Its earlier steps were on earlier states of the summary. A learner that diverges makes way for a fresh one.

    Args:
        training: the inner loop, with a window.
        size: the number of learners.
        youngest, oldest: ages at which the outer loss is measured.
        starts: draws θ0.
        seed: of all that is drawn. Each process has a seed of its own, and so a pool of its own.
    """

    def __init__(
        self, training: SyntheticTraining, size: int, youngest: int, oldest: int, starts: Starts, seed: int
    ) -> None:
        self.training, self.youngest, self.oldest = training, youngest, oldest
        self.starts, self.seed = starts, seed
        self._members = [_Member() for _ in range(size)]
        self._turn = 0

    @property
    def window(self) -> int:
        """w, the steps of a turn."""
        return min(self.training.window or self.youngest, self.youngest)

    def __call__(self, learner: Learner | LearnerBatch, summary: Tensors) -> Parameters:
        """θ of the next learner after its next steps, differentiable in the tensors of the summary."""
        place, member = self._turn, self._members[self._turn]
        self._turn = (place + 1) % len(self._members)
        if member.state is not None and member.state.step + 2 * self.window > self.oldest:
            member.retire()
        seed = derive(self.seed, Purpose.POOL_LEARNER, place, member.generation)
        if member.state is None:
            steps = self._first_age(place, member.generation) - self.window
            start = start_of(self.starts, learner, seed, device_of(summary))
        else:
            steps, start = self.window, member.state
        training = {"seed": seed, "of_steps": self.oldest}
        member.state = self.training.advance(learner, summary, start=start, steps=steps, **training)
        try:
            theta = self.training(learner, summary, start=member.state, steps=self.window, **training)
        except OverflowError:  # it has diverged, and is too large for the adjoint
            member.retire()
            raise
        if not torch.stack([x.isfinite().all() for x in theta.values()]).all():
            member.retire()
        return theta

    def _first_age(self, place: int, generation: int) -> int:
        if generation:
            return self.youngest
        return self.youngest + (self.oldest - self.youngest) * place // len(self._members)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run needs to go on as if it had not been interrupted."""
        counts = [[member.generation, -1 if member.state is None else member.state.step] for member in self._members]
        tensors = {"turn": torch.tensor(self._turn), "members": torch.tensor(counts)}
        for place, member in enumerate(self._members):
            for group, buffers in enumerate(member.state.states if member.state else ()):
                tensors |= {f"{place}.{group}.{i}": x.clone() for i, x in enumerate(buffers)}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner | LearnerBatch, device: Any) -> None:
        """The inverse of `state_dict`, in a pool with the same settings."""
        self._turn = int(tensors["turn"])
        for place, (generation, step) in enumerate(tensors["members"].tolist()):
            self._members[place] = _Member(generation)
            if step >= 0:
                seed = derive(self.seed, Purpose.POOL_LEARNER, place, generation)
                layout = Layout.of(start_of(self.starts, learner, seed, device))  # with the constants of this learner
                states = tuple(
                    tuple(tensors[f"{place}.{group}.{i}"].to(device) for i in range(self.training.optimizer.fields))
                    for group in range(len(layout.groups))
                )
                self._members[place].state = TrainingState(layout, states, step)
