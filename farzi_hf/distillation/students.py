"""Students: models that train from scratch, on a summary or on real data in the same way. A summary is as good as its students."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from tqdm.auto import tqdm

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.processes import shared
from farzi_hf.distillation.rows import RealBatches, RealData
from farzi_hf.engine import train
from farzi_hf.summary import FarziData
from farzi_hf.tasks.base import mean_and_spread


@dataclass(frozen=True)
class Students:
    """Trains students. `FarziTrainer.evaluate` and the rows of a report both use it.

    Args:
        learner: the students' model, as pure functions.
        farzi: the summary.
        training: the inner loop. Its optimizer also trains the students on real data.
        steps: T.
        seed: of the distillation; a student's fresh weights and minibatches depend on it, and on the student's number.
        device: of all tensors.
        quiet: whether progress bars are hidden.
    """

    learner: Learner
    farzi: FarziData
    training: SyntheticTraining
    steps: int
    seed: int
    device: torch.device | str = "cpu"
    quiet: bool = False

    def on_summary(self, index: int = 0, purpose: int = Purpose.EVALUATION_STUDENT) -> Parameters:
        """θ_T of student `index` of the summary as it is now."""
        seed = derive(self.seed, purpose, index)
        return self.training.from_scratch(self.learner, self.farzi, steps=self.steps, seed=seed, device=self.device)

    def on_real(self, data: RealData, batch_size: int, steps: int, seed: int) -> Parameters:
        """θ after `steps` steps of the inner optimizer on real data, `batch_size` sequences each."""
        learner, batches = self.learner, RealBatches.of(data, batch_size, steps, seed)

        def loss(params: Parameters, inputs: tuple, step: int) -> Tensor:
            return learner.hard_loss(params, batches(step))

        start = learner.initial_parameters(seed, self.device)
        return train(loss, start, (), optimizer=self.training.optimizer_for(steps), steps=steps).params

    def evaluated(self, count: int, measure: Callable[[int, Parameters], dict[str, float]]) -> dict[str, float]:
        """Mean and standard deviation (`…_std`) of the metrics `measure(i, θ_T)` of students 0 … `count` − 1.

        Several processes share the training, and each measures all students.
        """
        students = shared(count, self.on_summary, partial(self.learner.initial_parameters, 0, self.device))
        shown = tqdm(students, "Students", count, disable=self.quiet, leave=False, dynamic_ncols=True)
        return mean_and_spread([measure(i, theta) for i, theta in enumerate(shown)])
