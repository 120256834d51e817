"""The summary that a training begins with: the one that is given, or a new one at its start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from datasets import Dataset

from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.labelling import Labelling, linear_head
from farzi_hf.distillation.learner import Learner
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import LABELS
from farzi_hf.summary.teacher import check_made_again, plain_config
from farzi_hf.tasks import Task


@dataclass(frozen=True, eq=False)
class FirstSummary:
    """Makes or checks the summary that a `FarziTrainer` begins with."""

    args: FarziConfig
    """Its settings."""
    task: Task
    """Of the data."""
    learner: Learner
    """Which trains on the summary."""
    labelling: Labelling
    """What makes the labels of a new summary."""
    given: FarziData | None
    """A summary to go on with; None makes a new one."""

    def check_models(self) -> None:
        """Raises ValueError if the learner cannot read a whole row, or several teachers cannot be
        carried as one.
        """
        if self.given is None and LABELS[self.args.labels].carries_teacher:
            self.labelling.check_several(self.args)
        length = self.args.sequence_length
        limit = self.learner.readable(length)
        if limit < length:
            raise ValueError(
                f"sequence_length={length}, the learner reads {limit} positions: lower it"
            )

    @property
    def is_completed_by_teachers(self) -> bool:
        """Whether teachers have to label the inputs of the summary before the first step."""
        return self.given is None and LABELS[self.args.labels].by_teachers

    def summary(self, rows: Dataset | RowStream | None) -> FarziData:
        """The summary to train.

        Args:
            rows: of the data, from which a new summary starts; None leaves it as it is made.

        Raises:
            ValueError: the given summary is not of these settings or of another vocabulary, or the
                teacher cannot be made again from its config.
        """
        if self.given is None:
            summary = FarziData(self._config())
            if LABELS[self.args.labels].carries_teacher:
                self._check_teacher(summary)
        else:
            self.given.config.check_equal(self._config())
            summary = self.given
        if self.task.processing_class is not None:  # an error should come before the training
            summary.adopt_processing_class(self.task.processing_class, "processing_class")
        if self.given is None and rows is not None:
            start = self.args.make_start()
            start(summary, rows, self.args.seed)
        return summary

    def _config(self) -> FarziDataConfig:
        """The config of the summary that the settings ask for."""
        label_dim = None
        if "label_dim" in LABELS[self.args.labels].fields:  # by default as wide as a teacher's head
            models = self.labelling.given
            teacher = self.labelling.kinds[0] if models is None else Learner(models[0])
            label_dim = linear_head(teacher).width
        if self.given is None:
            teacher_config = plain_config(self.labelling.model.config)
        else:
            teacher_config = self.given.config.teacher
        return self.args.summary_config(self.learner.vocab_size, label_dim, teacher_config)

    def _check_teacher(self, summary: FarziData) -> None:
        """Raises ValueError unless the teacher can be made again from the config in the summary."""
        config = summary.config
        ids = torch.arange(config.sequence_length)[None] % config.vocab_size
        remedy = "give a plain one, or labels='own'"
        check_made_again(self.labelling.model, summary.teacher, ids, "teacher", remedy)
