"""Students of a summary and of real data: measured as the trainer does, on subsets of the right
size, pooled over seeds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import concatenate_datasets
from tiny_recipes import GRU4REC, TINY, use_small_data

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import comparison_of, trainer_of
from farzi_hf.data import flatten_sequences
from farzi_hf.metrics import rank_metrics
from farzi_hf.report import BASELINES, Measured, RunSettings, comparison, pooled_row
from farzi_hf.report.rows import stopped_early
from farzi_hf.summary.inner_settings import STUDENTS_OF_A_TEACHER
from farzi_hf.tasks import Recommendation

ITEMS = ("--dataset", "sample_interactions", "--learner", GRU4REC)
TEXT = ("--dataset", "sample", "--vocab_size", "50", "--window", "0")
CARRIED = (
    *TEXT,
    "--inputs",
    "drawn",
    "--labels",
    "teacher",
    "--storage",
    "coded5",
    "--teacher_steps",
    "6",
)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A trainer with its comparison, on a small part of the embedded data."""
    use_small_data(monkeypatch)

    def start(*argv: str):
        config = tmp_path / "empty.yaml"
        config.write_text("")
        argv = [*TINY, *argv, "--output_dir", str(tmp_path / "out"), "--eval_students", "1"]
        settings, args = parse_arguments((RunSettings, FarziConfig), config, argv)
        data = settings.load()
        trainer = trainer_of(data, args, 0)
        return trainer, comparison_of(trainer, data, 0)

    return start


def test_text_students_are_measured_as_the_trainer_does_and_subsets_have_their_size(started):
    trainer, c = started(*TEXT, "--inner_learning_rate", "0.05")
    measured = c.task.metrics(c.statistics(c.summary_student(0), c.splits["validation"]))
    expected = trainer.evaluate()
    assert measured == pytest.approx(
        {name: expected[f"eval_{name}"] for name in measured}, rel=1e-4
    )
    assert c.tokens_per_step == 16
    assert len(c.draw_sequences(0)) == 4
    lengths = flatten_sequences(c.draw_tokens(100, seed=0))[1]
    assert lengths.sum() - lengths[-1] < 100 <= lengths.sum()
    # Students on real data learn, and another seed is another student.
    students = [
        c.real_student(c.splits["train"], steps, seed) for steps, seed in ((1, 0), (60, 0), (60, 1))
    ]
    before, after, another = (
        c.task.error(c.statistics(student, c.splits["test"])) for student in students
    )
    assert after < 0.8 * before
    assert after != another


def test_a_training_that_stops_early_has_the_steps_with_the_least_validation_error():
    validated = []

    def error_of(steps):
        validated.append(steps)
        return abs(steps - 9)

    c = SimpleNamespace(
        steps=32,
        seeds=[7],
        real_student=lambda subset, steps, seed: steps,
        validation_error=error_of,
        trained_on_real=lambda method, draw, steps: (method, draw(1), steps),
    )
    measured = stopped_early(c, "early", lambda seed: f"rows of {seed}")
    assert measured == ("early", "rows of 1", 8)
    assert validated == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("storage", ["exact", "int5"])
def test_real_data_have_the_bytes_of_their_ids_however_the_summary_is_stored(started, storage):
    """54 entries need six bits each, and half of that where their entropy is coded."""
    _, c = started(*TEXT)
    c.farzi.store_as(storage)
    rows = c.splits["train"]
    tokens = len(flatten_sequences(rows)[0])
    stored = c.stored_bytes(rows)
    assert stored.flat == c.token_bytes(tokens) == math.ceil(tokens * 6 / 8)
    assert c.nbytes(rows) == stored.coded < 0.6 * stored.flat
    assert stored.coded < stored.xz < stored.flat
    twice = concatenate_datasets([rows, rows])
    assert c.nbytes(twice) < 1.1 * c.stored_bytes(rows).xz  # repetitions are for xz


@pytest.mark.parametrize("nbytes", [100, 300, 10**6])
def test_random_data_of_the_bytes_of_a_summary_are_coded_too(started, nbytes):
    _, c = started(*TEXT)
    c = replace(c, farzi=SimpleNamespace(nbytes=nbytes))
    drawn = c.draw_bytes(0)
    if nbytes == 10**6:  # there are no more
        assert len(drawn) == len(c.splits["train"])
    else:
        row = 12  # bytes of one more row
        assert 0.98 * nbytes - row < c.nbytes(drawn) < 1.02 * nbytes + row
        assert c.stored_bytes(drawn).flat > 1.1 * nbytes


@pytest.mark.parametrize(
    "data", [TEXT, pytest.param(ITEMS, marks=pytest.mark.slow)], ids=["text", "items"]
)
def test_students_of_a_packed_teacher_are_the_humble_row(started, data):
    """They take T steps with the settings of that form. The teacher itself takes none, and both
    weigh what one must keep.
    """
    trainer, c = started(*data, "--teacher_steps", "150", "--inner_steps", "7")
    students, itself = (BASELINES[name](c, None) for name in ("packed_teacher", "teacher"))
    assert students.method == "packed teacher, made-up inputs, warm start"
    assert itself.method == "teacher"
    assert (students.steps, len(students.students)) == (7, 2)
    assert (itself.steps, len(itself.students)) == (None, 1)
    farzi = c.carrier()
    assert students.nbytes == itself.nbytes == farzi.nbytes
    assert farzi.config.inner == {**STUDENTS_OF_A_TEACHER, "steps": 7}
    assert (farzi.config.inputs, farzi.config.labels, c.farzi.config.labels) == (
        "drawn",
        "teacher",
        "shared",
    )
    untrained = c.task.error(
        c.statistics(
            partial(trainer.learner.logits, trainer.learner.initial_parameters(0)), c.splits["test"]
        )
    )
    assert c.task.error(itself.students[0]) < untrained  # it has been trained
    assert all(
        BASELINES[name](replace(c, carrier=None), None) is None
        for name in ("packed_teacher", "teacher")
    )


def test_rows_of_a_summary_whose_rows_do_not_run_out(started):
    """A step reads b rows, however few are shown; and rows with as many sequences as are shown mean
    nothing.
    """
    trainer, c = started(*CARRIED, "--synthetic_batch_size", "10")
    trainer.tune_initialization()
    assert (c.farzi.config.num_sequences, c.tokens_per_step) == (4, 80)
    for name in ("packed_teacher", "random", "random_early_stop", "head"):
        assert BASELINES[name](c, None) is None
    assert BASELINES["teacher"](c, None).nbytes == c.farzi.nbytes
    stored = started(*CARRIED, "--inputs", "tokens", "--synthetic_batch_size", "10")[1]
    assert stored.tokens_per_step == 32
    assert BASELINES["random"](stored, None).method == "random, same sequences"


def test_real_rows_with_the_teachers_labels_are_a_row(started):
    """Their bytes are those of the rows, as data are stored, and of the teacher."""
    trainer, c = started(*CARRIED, "--synthetic_batch_size", "10")
    trainer.tune_initialization()
    tenth, whole = (BASELINES[name](c, None) for name in ("soft_10", "soft_100"))
    assert tenth.method == "10 % of the rows, teacher's labels"
    assert c.farzi.nbytes < tenth.nbytes < whole.nbytes
    of_rows = c.nbytes(c.splits["train"])  # in another order
    assert whole.nbytes - c.farzi.nbytes == pytest.approx(of_rows, rel=0.02)
    assert tenth.steps == c.steps
    hard = BASELINES["hard_10"](c, None)
    assert hard.method == "10 % of the rows, stopped early"
    assert hard.nbytes < c.nbytes(c.splits["train"])
    own = started(*TEXT)[1]
    assert BASELINES["soft_10"](own, None) is None


def test_recommenders_are_measured_as_the_trainer_does_and_learn_from_whole_histories(started):
    trainer, c = started(*ITEMS)
    student = c.summary_student(0)
    measured = rank_metrics(c.statistics(student, c.splits["validation"]))
    expected = trainer.evaluate()
    assert measured == pytest.approx({name: expected[f"eval_{name}"] for name in measured})
    assert c.validation_error(student) == -measured["hr@10"]  # there are few items
    train = c.splits["train"]
    assert (
        flatten_sequences(c.draw_sequences(0))[1].max() > c.length
    )  # so they are cut into windows
    before, after = (
        rank_metrics(c.statistics(c.real_student(train, n, 0), train))["auc"] for n in (1, 60)
    )
    assert after > before + 0.05


# -- rows ------------------------------------------------------------------------------------------


def ranks(users: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack(
        [generator.integers(1, 200, (2, users)), generator.random((2, users))], axis=-1
    ).astype(float)


def test_splits_are_put_together_by_their_users():
    a, b = ranks(30, 0), ranks(50, 1)
    measured = [
        Measured("x", list(values), n, steps=n, seconds=n / 2) for values, n in ((a, 10), (b, 20))
    ]
    row = pooled_row(Recommendation(None), measured)
    together = [rank_metrics(np.concatenate([a[i], b[i]]))["hr@100"] for i in range(2)]
    means = [rank_metrics(values)["hr@100"] for split in (a, b) for values in split]
    assert row["hr@100"] == pytest.approx(np.mean(means))
    assert row["hr@100_std"] == pytest.approx(np.std(means, ddof=1))
    assert row["hr@100_interval"][0] < np.mean(together) < row["hr@100_interval"][1]
    assert (row["bytes"], row["steps"], row["students"], row["seconds"]) == (15, 15, 2, 7.5)


def test_full_data_for_long_may_be_longer_than_a_teacher_and_is_so_by_its_settings_alone(started):
    teacher = ("--teacher_steps", "3", "--teacher_batch_size", "5")
    c = started(*TEXT, *teacher)[1]
    assert (c.long_training.steps, c.long_training.batch_size) == (3, 5)
    longer = started(*TEXT, *teacher, "--long_steps", "40", "--long_batch_size", "8")
    training = longer[1].long_training
    assert (training.steps, training.batch_size) == (40, 8)
    assert longer[0].args.make_teacher_training().steps == 3


def test_a_large_vocabulary_is_evaluated_in_small_batches(started, monkeypatch):
    """All logits of 128 rows of GPT-2's vocabulary took nine GiB."""
    _, c = started(*TEXT)
    student, sizes, rows = c.summary_student(0), [], c.splits["test"]
    expected = c.statistics(student, rows)
    longest = max(map(len, rows["input_ids"]))
    monkeypatch.setattr(comparison, "_LOGITS", 3 * longest * c.learner.vocab_size)
    found = c.statistics(
        lambda batch: sizes.append(len(batch["input_ids"])) or student(batch), rows
    )
    assert max(sizes) == 3
    assert c.task.metrics(found) == pytest.approx(c.task.metrics(expected))
