"""The verdict: worth it, or not and why."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from tiny_recipes import resample_less, shorten_full_data
from tiny_trainer import tiny_trainer

from farzi_hf.report.comparison import Comparison, Measured, pooled_row
from farzi_hf.report.full_data import FULL, LONG, SAME_SECONDS
from farzi_hf.report.rows import NewRow
from farzi_hf.report.verdict import Verdict, compare, first_rows
from farzi_hf.tasks import LanguageModeling, Recommendation

TASK = LanguageModeling(None)
COMPARISON = SimpleNamespace(task=TASK, row=lambda part: pooled_row(TASK, [part]))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Comparisons train on all data in one way, for a short time, and resample little."""
    shorten_full_data(monkeypatch)
    resample_less(monkeypatch)


def measured(method, perplexity, nbytes, seconds=None, steps=100):
    """A row whose sentences all have this perplexity, but for some noise."""
    noise = np.random.default_rng(0).normal(1, 0.05, 50)
    statistics = np.stack(
        [10 * np.log(perplexity) * noise, np.full(50, 3.0), np.full(50, 10.0)], axis=1
    )[:, None]
    return Measured(method, [statistics], nbytes, None if seconds is None else steps, seconds)


def verdict(
    ours=50.0,
    nbytes=1000,
    seconds=10.0,
    long=50.0,
    bigram=90.0,
    data_bytes=100_000,
    long_seconds=100.0,
    making=300.0,
):
    rows = [
        measured("Farzi", ours, nbytes, seconds),
        measured(FULL, 70, data_bytes, seconds),
        measured(LONG, long, data_bytes, long_seconds),
        measured("interpolated bigram", bigram, data_bytes),
    ]
    return Verdict.of(COMPARISON, rows, making)


def test_a_small_summary_of_full_quality_is_worth_it():
    found = verdict()
    assert found.worth
    assert str(found).startswith(
        "Worth it for trainings that take 10 s in place of 100 s and a file of 1,000 bytes in place"
        " of 100.0 kB"
    )
    assert found.facts["break_even"] == 4  # 300 s for 90 s each
    assert found.facts["share"] == pytest.approx(1.0)


def test_nobody_knows_a_summary_to_be_worth_it_without_the_row_of_as_many_seconds():
    rows = [
        measured("Farzi", 50.0, 1000, 10.0),
        measured(LONG, 50.0, 100_000, 100.0),
    ]
    late = Verdict.of(COMPARISON, rows, 300.0, late=True)
    assert not late.worth
    assert late.summary.startswith("Not known to be worth it: no time was left to train on all")
    assert Verdict.of(COMPARISON, rows, 300.0).worth
    worse = [*rows, measured("interpolated bigram", 40.0, 100_000)]
    assert Verdict.of(COMPARISON, worse, 300.0, late=True).summary.startswith("Not worth it, bec")


def test_rows_that_are_due_already_are_cut(tmp_path, sequences, tokenizer, capsys):
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, max_steps=0)
    c = Comparison.of_trainer(trainer, sequences)
    long = measured(LONG, 50.0, 100_000, 100.0)
    found = first_rows(c, NewRow("Farzi"), long, due=0.0)
    names = [row.method for row in found]
    assert names[:2] == ["Farzi", LONG]
    assert SAME_SECONDS not in names
    assert f"no time is left for a row: {SAME_SECONDS}\n" in capsys.readouterr().out


def test_full_data_that_diverged_are_not_the_better_ones():
    found = verdict(long=float("nan"))
    assert found.worth
    assert found.facts["share"] == pytest.approx(1.4, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ours": 80.0}, "a student has 62 % of the quality of full data"),
        (
            {"ours": 52.0, "bigram": 51.0},
            "the counted model 'interpolated bigram' is 2 % better (perplexity 52.3) and needs no",
        ),
        (
            {"ours": 50.0, "bigram": 49.9},
            "the counted model 'interpolated bigram' is as good to one per cent (perplexity",
        ),
        ({"nbytes": 200_000, "seconds": 60.0}, "the summary is 2.0 times as large as the data"),
        (
            {"ours": 80.0, "nbytes": 2_000_000, "seconds": 90.0},
            "full data; and the summary is 20.0 times as large",
        ),
        (
            {"ours": 45.0, "nbytes": 90_000, "seconds": 85.0},
            "takes hardly longer and needs hardly more bytes",
        ),
        (
            {"nbytes": 90_000, "seconds": 99.0},
            "training on all data for as long as helps is as good within the interval (perplexity"
            " 51.3) and takes 100 s",
        ),
        (
            {"ours": float("nan")},
            "its quality beside full data is not known: of a student and full data, a loss on the"
            " test part is not finite",
        ),
    ],
)
def test_what_speaks_against_it_is_said(changes, reason):
    found = verdict(**changes)
    assert not found.worth
    assert str(found).startswith("Not worth it, because ")
    assert reason in found.summary
    assert "- what to do instead: " in str(found)
    assert "nan %" not in str(found)


def test_students_that_get_nothing_right_have_no_share():
    """A verdict said "nan % of the quality" where no model had a hit."""

    def row(method: str, steps: int | None) -> Measured:
        return Measured(method, [np.tile([5000.0, 0.5], (20, 1))], 10**5, steps, 10.0)

    task = Recommendation([str(i) for i in range(2000)])
    c = SimpleNamespace(
        task=task,
        row=lambda row: {"hr@10": 0.0, "hr@100": 0.0},
        farzi=SimpleNamespace(carried=None),
    )
    found = Verdict.of(c, [row("Farzi", 100), row(LONG, 100), row("popularity", None)], 300.0)
    assert not found.worth
    assert "full data, neither gets anything right on the test part" in found.summary
    assert "'popularity' cannot be compared, because neither gets anything right" in found.summary
    assert "no share of its quality by HR@100, because neither gets" in str(found)
    assert "nan" not in str(found)


def test_a_student_has_to_beat_counting_beyond_the_interval():
    """Or to be as good with clearly fewer bytes to keep."""
    sentences = np.random.default_rng(1).normal(1, 0.05, 50)

    def beside(factor: float, nbytes: int) -> Verdict:
        rows = [measured("Farzi", 50.0, 1000, 10.0), measured(LONG, 50, 10**5, 100.0)]
        noisy = rows[0].students[0].copy()
        noisy[:, 0, 0] *= factor * sentences / sentences.mean()
        counted = Measured("Kneser-Ney 3-gram, counted", [noisy], nbytes, seconds=2.0)
        return Verdict.of(COMPARISON, [*rows, counted])

    clear, unclear, worse = (beside(factor, 1100) for factor in (1.1, 1.005, 0.95))
    assert clear.worth
    assert clear.facts["counted_share_interval"][0] > 1
    assert not unclear.worth
    assert unclear.facts["counted_share"] > 1 > unclear.facts["counted_share_interval"][0]
    assert "is as good within the interval" in unclear.summary
    assert "and takes 2.0 s" in unclear.summary
    assert "what to do instead: farzi count DATA --output_dir OUT" in str(unclear)
    assert "for better quality" not in str(unclear)
    assert "what to do instead" not in str(clear)
    assert not worse.worth
    assert "% better" in worse.summary
    assert beside(1.005, 2000).worth  # half of the bytes, at no loss
    assert not beside(0.95, 2000).worth


def test_all_data_are_named_where_they_are_better_than_counting():
    rows = [
        measured("Farzi", 90.0, 1000, 10.0),
        measured(LONG, 50.0, 10**4, 100.0),
        measured("Kneser-Ney 3-gram, counted", 60.0, 10**4),
    ]
    expected = (
        "what to do instead: farzi count DATA --output_dir OUT (perplexity 61.6); for better"
        " quality, train on the data (perplexity 51.3 after 100 s)"
    )
    assert expected in str(Verdict.of(COMPARISON, rows))
    same_seconds = measured(SAME_SECONDS, 60.0, 10**4, 10.0)
    expected = (
        "what to do instead: train on the data (perplexity 61.6 after 10 s; perplexity 51.3 after"
        " 100 s)"
    )
    assert expected in str(Verdict.of(COMPARISON, [*rows[:2], same_seconds]))


def test_seconds_are_never_none():
    rows = [measured("Farzi", 90.0, 1000, 10.0), measured(LONG, 50.0, 10**4, 100.0)]
    counted = Measured("unigram", rows[1].students, 10**4, seconds=0.004)
    said = str(Verdict.of(COMPARISON, [*rows, counted]))
    assert "takes less than 0.1 s" in said
    assert "after less than 0.1 s of counting" in said
    assert " 0.0 s" not in said


@pytest.mark.parametrize("method", [FULL, SAME_SECONDS])
def test_full_data_in_the_same_seconds_have_to_be_beaten(method):
    """Or the summary has to be as good with clearly fewer bytes."""

    def beside(full: float, seconds: float, nbytes: int = 1100) -> Verdict:
        rows = [
            measured("Farzi", 50.0, 1000, 10.0),
            measured(method, full, nbytes, seconds),
            measured(LONG, 49.9, nbytes, 100.0),
            measured("interpolated bigram", 90.0, nbytes),
        ]
        return Verdict.of(COMPARISON, rows)

    assert beside(55.0, 10.0).worth
    better = beside(48.0, 10.0)
    assert not better.worth
    assert "training on all data for as many" in better.summary
    assert "4 % better" in better.summary
    assert "what to do instead: train on the data" in str(better)
    # Three times the seconds; but a row of as many seconds is a rival, however long it took.
    slow = beside(48.0, 30.0)
    assert slow.worth == (method == FULL)
    assert ("takes 30 s, though it was planned for 10 s" in str(slow)) == (method == SAME_SECONDS)
    assert "though it was planned" not in str(better)
    assert not beside(48.0, 10.0, nbytes=10_000).worth
    assert beside(50.0, 10.0, nbytes=10_000).worth  # a tenth of the bytes, at no loss


def test_full_data_that_still_learn_are_said_to():
    rows = [
        measured("Farzi", 50.0, 1000, 10.0),
        replace(measured(LONG, 50, 10**5, 100.0), still_learning=True, way="soap, rate 0.01"),
    ]
    assert "for as long as helps, still learning: perplexity" in str(Verdict.of(COMPARISON, rows))
    row = pooled_row(TASK, [rows[1]])
    assert TASK.readable(row)["trained on"] == "full data, long (still learning)"
    assert row["way"] == "soap, rate 0.01"


def test_shares_of_rows_that_get_nothing_right_are_told_in_words():
    task = Recommendation([str(i) for i in range(2000)])
    missed = np.array([[900.0, 0.5]] * 8)
    hit = np.array([[3.0, 0.9], *missed[1:]])
    rows = [
        Measured("Farzi", [hit], 1000, 100, 1.0),
        Measured(LONG, [hit], 100_000, 100, 10.0),
        Measured("popularity", [missed], 100_000, None, None),
    ]
    c = SimpleNamespace(task=task, row=lambda part: pooled_row(task, [part]))
    found = str(Verdict.of(c, rows))
    assert "Our student has no share of its quality by HR@100, because that row gets not" in found
    assert "That is 100 % by HR@100 (95 % interval 0–∞ %)" in found


def test_a_student_of_text_that_an_ngram_wrote_is_never_worth_it(tmp_path, sequences, tokenizer):
    """It is better than a bigram, which a verdict was once content with, and counting longer
    n-grams is better still.
    """
    splits = written_by_trigrams(rows=1500, length=24)
    rows = {"num_sequences": 16, "synthetic_batch_size": 16, "sequence_length": 24}
    settings = {**rows, "inner_learning_rate": 0.01, "max_steps": 0}
    trainer = tiny_trainer(tmp_path / "out", splits, tokenizer, **settings)
    c = Comparison.of_trainer(trainer, splits, num_students=1)
    student = c.statistics(c.real_student(splits["train"], 300, 0), splits["test"])
    counted = c.counted()
    share = {part.method: c.task.share([[student]], [part.students]) for part in counted}
    assert share["interpolated bigram"] > 1
    assert share["Kneser-Ney 3-gram, counted"] < 1
    rows = [
        Measured("Farzi", [student], 100, 300, 1.0),
        Measured(LONG, [student], 10_000, 5000, 10.0),
    ]
    found = Verdict.of(c, [*rows, *counted])
    assert not found.worth
    assert "the counted model 'Kneser-Ney 3-gram, counted' is" in found.summary
    assert Verdict.of(c, [*rows, *counted[:-1]]).worth  # without that row it would be


def written_by_trigrams(rows: int, length: int) -> DatasetDict:
    """Rows of eight tokens, each drawn by the two before it, which say as much as each other."""
    generator = np.random.default_rng(0)
    before, last = generator.normal(size=(2, 8, 8))
    weights = np.exp(before[:, None] + last[None])
    cumulative = (weights / weights.sum(-1, keepdims=True)).cumsum(-1)
    ids = generator.integers(0, 8, (rows, length))
    for place in range(2, length):
        shares = cumulative[ids[:, place - 2], ids[:, place - 1]]
        ids[:, place] = (shares < generator.random((rows, 1))).sum(1).clip(max=7)
    ids += 4  # after the special tokens
    part = rows // 10
    parts = {"train": ids[2 * part :], "validation": ids[:part], "test": ids[part : 2 * part]}
    return DatasetDict({name: Dataset.from_dict({"input_ids": x}) for name, x in parts.items()})


def test_a_larger_summary_may_be_worth_its_time():
    found = verdict(nbytes=200_000)
    assert found.worth
    assert "a file of" not in found.summary


def test_a_summary_that_saves_no_time_never_pays_by_time():
    found = verdict(seconds=120.0)
    assert found.worth  # by its bytes
    assert found.facts["break_even"] is None
    assert "never breaks even by the time" in str(found)


def test_only_a_summary_that_carries_a_teacher_is_said_to_carry_one():
    rows = [
        measured("Farzi", 50, 1000, 10.0),
        measured(LONG, 50, 10**5, 100.0),
        replace(measured("teacher", 45, 900), is_model=True),
    ]
    for carried in (None, object()):
        c = SimpleNamespace(**vars(COMPARISON), farzi=SimpleNamespace(carried=carried))
        assert ("the teacher that it carries" in str(Verdict.of(c, rows))) == (carried is not None)


def test_compare_answers_for_a_trainer_in_python(tmp_path, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path / "out", sequences, tokenizer, max_steps=0, teacher_steps=4)
    trainer.train()
    found = compare(trainer, sequences["test"], baselines=["random"])
    assert [row["method"] for row in found.rows] == [
        "Farzi",
        SAME_SECONDS,
        LONG,
        "unigram",
        "interpolated bigram",
        "Kneser-Ney 3-gram, counted",
        "random, same sequences",
    ]
    assert found.verdict.worth == str(found.verdict).startswith("Worth it")
    assert found.verdict.facts["bytes"] == trainer.model.nbytes


@pytest.mark.parametrize(
    ("start", "word"),
    [("teacher", "warm"), pytest.param("random", "random", marks=pytest.mark.slow)],
)
def test_a_row_names_the_start_of_its_students(tmp_path, sequences, tokenizer, start, word):
    settings = {"labels": "teacher", "inputs": "drawn", "packing_steps": 2, "student_start": start}
    trainer = tiny_trainer(
        tmp_path / "out", sequences, tokenizer, max_steps=0, teacher_steps=4, **settings
    )
    trainer.train()
    assert compare(trainer, sequences["test"]).rows[0]["method"] == f"Farzi, {word} start"


def test_compare_needs_rows_and_known_baselines(tmp_path, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path / "out", sequences, tokenizer)
    with pytest.raises(ValueError, match="baselines: 'no' is unknown"):
        compare(trainer, baselines=["no"])
    trainer.sequences = (sequences["train"], None)
    with pytest.raises(ValueError, match="no test_dataset and no eval_dataset"):
        compare(trainer)


def test_full_data_without_a_hit_are_nothing_to_compare_with():
    """A summary with one hit of few users was worth it, "with the quality of full data"."""
    task, some, none = (
        Recommendation(None),
        np.array([[3.0, 0.9], [600.0, 0.1]]),
        np.array([[600.0, 0.1], [600.0, 0.1]]),
    )
    c = SimpleNamespace(
        task=task, farzi=SimpleNamespace(carried=None), row=lambda part: pooled_row(task, [part])
    )
    rows = [Measured("Farzi", [some], 10, 5, 1.0), Measured("full data", [none], 1000, 5, 100.0)]
    found = Verdict.of(c, rows)
    assert not found.worth
    assert "full data get nothing right" in found.summary
