"""Settings of one class, from a mapping that somebody else wrote."""

from __future__ import annotations

import pytest

from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerSoap


def test_the_training_of_a_recipe_is_the_one_that_it_names():
    training = TeacherTraining.of(
        {
            "teacher_optimizer": "soap",
            "teacher_steps": 700,
            "teacher_batch_size": 12,
            "teacher_learning_rate": "0.02",
            "dataset": "sample",
        }
    )
    assert isinstance(training.optimizer, InnerSoap)
    assert training.optimizer.lr == 0.02
    assert (training.steps, training.batch_size) == (700, 12)
    defaults = TeacherTraining.of({})
    assert (defaults.steps, defaults.batch_size) == (2000, 16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_steps": 0}, "teacher_steps=0 is not usable; give an integer of at least 1"),
        ({"teacher_optimizer": "x"}, "teacher_optimizer='x' is unknown; choose one of adam, soap"),
        ({"teacher_batch_size": "many"}, "teacher_batch_size='many' is a str; give a value of"),
    ],
)
def test_a_setting_of_a_recipe_that_cannot_be_used_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TeacherTraining.of(settings)
