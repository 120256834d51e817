"""How the students of a summary begin: `config.inner["student_start"]` names one of these.

A student is a new model. It trains on the summary either from the weights that it has drawn, or
with what the carried teacher knows of the vocabulary in their place (`farzi_hf.summary.start`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from logging import getLogger
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from farzi_hf.summary.narrower import Rows
from farzi_hf.summary.soft_tokens import check_student, vocabulary_size
from farzi_hf.summary.start import set_values, share_of_rate, start_values

logger = getLogger(__name__)


class StudentStart(ABC):
    """One way to begin.

    Attributes:
        word: what the rows of tables call it.
        comment: what a card says above the line of Python that makes a student's Trainer.
        needs_teacher: whether only a summary that carries a teacher has it.
    """

    word: str
    comment: str
    needs_teacher: bool

    @abstractmethod
    def values(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, rows: Rows
    ) -> dict[str, Tensor]:
        """What takes the place of weights that a new model has drawn, by the names of its
        parameters, of their types and devices.

        Args:
            teacher: that the summary carries; None where it carries none.
            model: the student, a new model.
            rows: on which the teacher's states are looked at.

        Raises:
            ValueError: there is no teacher, or it has another vocabulary, or the start cannot be
                made of the two.
        """

    @abstractmethod
    def share_of_rate(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, names: Iterable[str]
    ) -> float:
        """What of the summary's learning rate such a student takes, where nobody gives it another.

        Args:
            teacher: as for `values`.
            model: the student.
            names: of the parameters that were set.
        """

    def set_into(
        self, model: PreTrainedModel, teacher: PreTrainedModel | None, rows: Rows
    ) -> list[str]:
        """Sets these values into a student, in place; returns the names of the parameters."""
        return set_values(model, self.values(teacher, model, rows))


class RandomStart(StudentStart):
    """The weights that the student has drawn."""

    word = "random"
    comment = ""
    needs_teacher = False

    def values(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, rows: Rows
    ) -> dict[str, Tensor]:
        return {}

    def share_of_rate(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, names: Iterable[str]
    ) -> float:
        return 1.0


class TeacherStart(StudentStart):
    """What the carried teacher knows: input embedding, head, learnt positions, and its layers where
    they fit; see `farzi_hf.summary.start`.
    """

    word = "warm"
    comment = "# The model starts with the teacher's tables, and with its layers where they fit.\n"
    needs_teacher = True

    def values(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, rows: Rows
    ) -> dict[str, Tensor]:
        if teacher is None:
            raise ValueError(
                "student_start='teacher': this summary carries no teacher; take 'random'"
            )
        check_student(model, vocabulary_size(teacher))
        if is_same_model(teacher, model):
            _say_once(
                "The student has the teacher's kind, width and depth, so at best its training leads"
                " back to the teacher. If you need just that model, export it without a training:"
                " farzi export SUMMARY OUT --teacher"
            )
        try:
            return start_values(teacher, model, rows)
        except ValueError:
            raise
        except Exception as error:  # each architecture fails in its own way
            kinds = f"{teacher.config.model_type} and {model.config.model_type}"
            raise ValueError(
                f"student_start='teacher': no start could be made of {kinds}"
                f" ({type(error).__name__}: {error}); take 'random'"
            ) from error

    def share_of_rate(
        self, teacher: PreTrainedModel | None, model: PreTrainedModel, names: Iterable[str]
    ) -> float:
        return 1.0 if teacher is None else share_of_rate(teacher, model, names)


STUDENT_STARTS: dict[str, StudentStart] = {"random": RandomStart(), "teacher": TeacherStart()}
"""By the name that `FarziConfig.student_start` gives them."""


def start_named(start: StudentStart | str) -> StudentStart:
    """A start, or that of a name. Raises ValueError if there is none of this name."""
    if isinstance(start, StudentStart):
        return start
    if not isinstance(start, str) or start not in STUDENT_STARTS:
        raise ValueError(f"start={start!r:.200} is none of {', '.join(STUDENT_STARTS)}")
    return STUDENT_STARTS[start]


def start_of(inner: Mapping[str, Any] | None, carries_teacher: bool) -> StudentStart:
    """How the students of a summary begin; at random where its settings do not say it.

    Args:
        inner: `config.inner` of the summary, which may be a stranger's.
        carries_teacher: whether the summary carries a teacher.

    Raises:
        ValueError: there is no such start, or it needs a teacher and there is none.
    """
    name = (inner or {}).get("student_start", "random")
    if not isinstance(name, str) or name not in STUDENT_STARTS:
        raise ValueError(
            f"config.inner['student_start']={name!r:.200} is none of {', '.join(STUDENT_STARTS)}"
        )
    start = STUDENT_STARTS[name]
    if start.needs_teacher and not carries_teacher:
        raise ValueError(
            f"config.inner['student_start']={name!r}, but the summary carries no teacher; leave it"
            " out"
        )
    return start


def is_same_model(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Whether two models are of one kind, with the same parameters of the same shapes."""
    shapes = [{name: x.shape for name, x in each.named_parameters()} for each in (one, other)]
    return one.config.model_type == other.config.model_type and shapes[0] == shapes[1]


@cache
def _say_once(message: str) -> None:
    """Logs a line, once in a process: a table has many such students."""
    logger.warning(message)
