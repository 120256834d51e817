"""The automatic choice: trials on the validation part, kept on the disk, within bytes."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from tiny_recipes import search_shortly, small_interactions, small_text

from farzi_hf import FarziConfig, FarziTrainer, LanguageModeling, Recommendation, suggest
from farzi_hf.common.files import exclusive
from farzi_hf.data import tokenize, word_tokenizer
from farzi_hf.distillation import teacher
from farzi_hf.distillation.training_progress import Pace
from farzi_hf.report import search_students, search_trials, suggestion
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.search_students import SearchStudents
from farzi_hf.report.search_trials import PACKINGS, SearchTrials
from farzi_hf.report.suggestion import Search
from farzi_hf.report.trials import Suggestion, Trial, leaderboard
from farzi_hf.report.verdict import first_rows

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 1,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


@pytest.fixture(scope="module", autouse=True)
def a_folder_to_work_in(tmp_path_factory):
    """Runs of these tests are called "run", and keep what they have begun there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("work"))
        yield


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        search_shortly(patch)
        # A busy machine would cut trainings; tests/cli/test_minutes.py has the clock.
        patch.setattr(Pace, "end", lambda pace, progress: progress.end)
        patch.setattr(Search, "too_late", lambda search: None)
        yield


@pytest.fixture(scope="module")
def text():
    """Sentences and their task."""
    sentences = small_text()
    tokenizer = word_tokenizer(sentences["train"]["text"], 60)
    return tokenize(sentences, tokenizer), LanguageModeling(tokenizer)


FIXED = {"use_cpu": True, "disable_tqdm": True}


def search(text, folder, lines=None, **settings):
    return Search(
        *text,
        folder,
        "run",
        minutes=1.0,
        fixed=FIXED,
        show=(lines if lines is not None else []).append,
        **settings,
    )


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """The folder of a search with nothing left to do, and what it has chosen."""
    folder = tmp_path_factory.mktemp("finished") / "trials"
    return folder, search(text, folder, learner=GPT2).run()


@pytest.fixture
def trials(finished, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(finished[0], tmp_path / "trials")


def test_a_config_a_learner_and_a_leaderboard_come_of_two_splits(text, tmp_path):
    splits, task = text
    two, lines = DatasetDict(train=splits["train"], validation=splits["validation"]), []
    config = suggest(
        two, task, minutes=0.5, learner=GPT2, output_dir=str(tmp_path / "out"), show=lines.append
    )
    assert isinstance(config, FarziConfig)
    assert (config.labels, config.inputs, config.max_steps, config.learner) == (
        "teacher",
        "drawn",
        0,
        GPT2,
    )
    assert (config.teacher_optimizer, config.inner_optimizer) == ("soap", "soap")
    names = [trial.name.split(",")[0] for trial in config.leaderboard if trial.error is not None]
    assert names[:2] == ["teacher", "first answer: a student after 2 steps"]
    last = ["packed teacher", "student"]
    assert names[-2:] == last or names[-3:] == [*last, "student"]
    assert len({trial.name for trial in config.leaderboard}) == len(config.leaderboard)
    of_trials = [line for line in lines if "left]" in line]
    assert len(of_trials) == len(config.leaderboard)
    said = ("no time is left for", "no way to pack this teacher is small enough")
    assert all(line.startswith(said) for line in set(lines) - set(of_trials))


def test_text_and_a_single_split_are_enough(text, tmp_path):
    rows = small_text()["train"].select(range(60))
    config = suggest(
        rows,
        text[1],
        minutes=0.5,
        learner=GPT2,
        output_dir=str(tmp_path / "out"),
        show=lambda line: None,
    )
    assert config.learner == GPT2


def trainer_of(found, text, **given):
    """A trainer of what a search has chosen."""
    splits, task = text
    return FarziTrainer(
        task.learner_config(found.learner, found.config.sequence_length),
        found.config,
        splits["train"],
        splits["validation"],
        task=task,
        **given,
    )


def test_the_choice_distilled_again_is_the_summary_of_the_trials(text, finished):
    """The config that is written needs no trials, and leads to the same numbers."""
    found = finished[1]
    trainer = trainer_of(found, text)
    trainer.train()
    assert trainer.model.fingerprint() == found.summary.fingerprint()
    assert trainer.model.config.inner == found.summary.config.inner


def test_the_comparison_takes_the_student_of_the_trial(text, finished, monkeypatch):
    """It trained the same student once more, for forty seconds of ten minutes."""
    found = finished[1]
    trainer = trainer_of(found, text, farzi_data=found.summary)
    c = Comparison.of_trainer(trainer, text[0], num_students=1)
    after_a_second_start = replace(found, student=None)
    again, _ = after_a_second_start.first_row("ours").measured(c)
    monkeypatch.setattr(Comparison, "on_summary_each", None)
    first = first_rows(c, found.first_row("ours"), found.long_row(c))[0]
    assert (first.nbytes, first.steps) == (again.nbytes, again.steps)
    assert np.array_equal(first.students[0], again.students[0])
    assert first.seconds == found.student.seconds


def test_a_second_start_repeats_no_trial(text, finished, trials, monkeypatch):
    first = finished[1]
    monkeypatch.setattr(SearchTrials, "trainer", None)
    second = search(text, trials, learner=GPT2).run()
    assert second.trials == first.trials
    assert second.summary.fingerprint() == first.summary.fingerprint()
    assert leaderboard(first.trials).count("\n") == len(first.trials) + 1


def test_a_search_that_dies_in_a_training_goes_on_in_it(text, finished, tmp_path, monkeypatch):
    """Of teachers and packings there is a state at each evaluation."""
    whole = finished[1]
    deaths, kept, keep = [], [], teacher.write_training

    def dies(path, *given):
        keep(path, *given)
        kept.append(path.stem)
        if kept.count(kept[-1]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(teacher, "write_training", dies)
    monkeypatch.setattr(teacher, "_KEEPING", math.inf)
    for _ in range(20):
        try:
            found = search(text, tmp_path / "dies", learner=GPT2).run()
            break
        except KeyboardInterrupt:
            deaths.append(kept[-1])
    assert any("coded" in name for name in deaths)
    assert any("coded" not in name for name in deaths)
    assert found.summary.fingerprint() == whole.summary.fingerprint()
    assert [trial.error for trial in found.trials if trial.error] == [
        trial.error for trial in whole.trials if trial.error
    ]
    assert all(
        trial.seconds >= trial.found["seconds"] > 0
        for trial in found.trials
        if trial.name.startswith("teacher")
    )
    assert [trial.found.get("slope") for trial in found.trials] == [
        trial.found.get("slope") for trial in whole.trials
    ]
    assert not [*(tmp_path / "dies").glob("*.safetensors")]


def damaged(folder, name):
    """The only file of that name in the folders of trials, with a flipped bit."""
    path = next(path for path in sorted(folder.rglob(name)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("farzi.safetensors", True),
        ("model.safetensors", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("model.safetensors", True),
                ("config.json", True),
                ("config.json", False),
                ("farzi.safetensors", False),
            )
        ),
    ],
)
def test_a_model_that_is_gone_or_damaged_is_made_again(text, finished, trials, name, gone):
    """A flipped bit in a teacher made another summary, without a word; a folder that was gone ended
    in a traceback.
    """
    first = finished[1]
    folder = damaged(trials, name).parent
    if gone:
        shutil.rmtree(folder)
    lines = []
    second = search(text, trials, lines, learner=GPT2).run()
    said = "is gone" if gone else rf"is damaged \({name} has changed\)"
    assert [line for line in lines if re.search(rf"{folder.name} {said}: this trial", line)]
    assert second.summary.fingerprint() == first.summary.fingerprint()
    assert [trial.error for trial in second.trials] == [trial.error for trial in first.trials]
    third = []
    search(text, trials, third, learner=GPT2).run()
    assert not [line for line in third if "again" in line]


def test_files_of_others_in_the_folder_of_a_trial_are_not_removed(text, trials):
    """One could be an adapter, which transformers would load."""
    folder = damaged(trials, "model.safetensors").parent
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"has changed since this search wrote it \(.*, adapter_config.json was added",
    ):
        search(text, trials, learner=GPT2).run()
    assert (folder / "adapter_config.json").exists()


def test_damaged_results_of_trials_are_one_line(text, trials):
    """A digit of an error chose another teacher."""
    path = trials / "trials.json"
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace('"error": ', '"error": 1', 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"trials.json' cannot be used \(its content has another"):
        search(text, trials, learner=GPT2).run()


def test_trials_of_an_older_version_are_used_with_a_warning(
    text, finished, trials, monkeypatch, caplog
):
    first = finished[1]
    path = trials / "trials.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    del kept["sha256"]
    for trial in kept["trials"].values():
        del trial["files"]
    path.write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(SearchTrials, "trainer", None)
    second = search(text, trials, learner=GPT2).run()
    assert second.summary.fingerprint() == first.summary.fingerprint()
    assert [message for message in caplog.messages if "has no checksum" in message] == [
        f"{path} has no checksum, because an older version wrote it: it is used unchecked."
    ]


@pytest.mark.slow
def test_a_training_of_other_settings_is_not_gone_on_with(text, tmp_path, monkeypatch):
    """Its state had the same name."""
    folders, keep = (tmp_path / "one", tmp_path / "two"), teacher.write_training

    def dies(path, *state):
        keep(path, *state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(teacher, "write_training", dies)
        with pytest.raises(KeyboardInterrupt):
            search(text, folders[0], learner=GPT2).run()
    one, two = (search(text, folder, learner=GPT2, seed=1).run() for folder in folders)
    assert one.summary.fingerprint() == two.summary.fingerprint()


@pytest.mark.parametrize(
    ("epochs", "seconds", "steps"),
    [(0, 2.0, 8), (0, 0.06, 7), (10, 2.0, 250), (10, 5.0, 260), (1, 5.0, 26)],
)
def test_a_teacher_is_planned_for_its_time_and_a_quarter_more_but_not_beyond_what_rows_are_worth(
    epochs, seconds, steps, text, tmp_path, monkeypatch
):
    monkeypatch.setattr(search_trials, "_EPOCHS", epochs)
    made = Search(
        *text, tmp_path, "run", minutes=1.0, learner=GPT2, fixed=FIXED, show=lambda line: None
    )
    monkeypatch.setattr(SearchTrials, "_rows_a_step", len(text[0]["train"]) // 26)
    each = 0.01 / (1 + search_trials._VALIDATION)  # evaluating it takes the rest
    timed = Trial("timed", found={"seconds": each})
    monkeypatch.setattr(SearchTrials, "trial", lambda *args: timed)
    assert made.trials.steps_in(GPT2, seconds) == pytest.approx(steps, rel=0.05)


def test_other_settings_or_data_are_other_trials(text, trials, monkeypatch):
    monkeypatch.setattr(SearchTrials, "trainer", None)
    with pytest.raises(TypeError):
        search(text, trials, learner=GPT2, seed=1).run()


@pytest.mark.slow
def test_a_learner_that_is_too_large_is_left_out_and_packing_tries_fewer_bits(text, tmp_path):
    lines = []
    wide = {**GPT2, "n_embd": 64}
    made = search(text, tmp_path / "trials", lines, most=1500)
    made.learners = [GPT2, wide]
    found = made.run()
    assert found.learner == GPT2
    assert any("is not tried" in line and "width 64" in line for line in lines)
    assert found.config.storage == "coded2"
    assert found.summary.nbytes == next(
        t.nbytes for t in reversed(found.trials) if "packing_penalty" in t.found
    )


@pytest.mark.parametrize(
    ("errors", "steps", "tried", "chosen"),
    [
        (
            [1.0, 1.05, 1.2, 0.5],
            [9, 10, 10, 10],
            3,
            1,
        ),  # the third one is far behind; the second still learns
        ([1.0, 0.9, 0.905, 0.91], [3, 3, 3, 3], 4, 1),  # all have learnt what there is
        ([1.0, 0.9, 0.7, 0.6], [10, 10, 10, 10], 4, 3),
    ],
)
def test_the_widest_learner_that_keeps_up_is_chosen(errors, steps, tried, chosen, text, tmp_path):
    found = search(text, tmp_path, most=10**6)
    found.learners = [{**GPT2, "n_embd": 8 * (i + 1)} for i in range(4)]
    found.trials.first_answer = lambda *args: None

    def teacher(learner, seconds):
        i = len(found.trials.made)
        facts = {"learner": learner, "numbers": 100 * i, "stopped": steps[i] < 9, "number": i}
        found.trials.made.append(Trial("teacher", errors[i], found=facts))
        return found.trials.made[-1]

    found.trials.teacher = teacher
    best = found.learner_stage()
    assert (len(found.trials.made), best.found["number"]) == (tried, chosen)


@pytest.mark.parametrize(
    ("step_seconds", "dropouts", "chosen"),
    [
        (0.01, [0.0, 0.3, 0.3], 2),  # each row is read often
        (10.0, [0.0, 0.3, 0.3], 0),  # there is time for few steps
        (0.01, [0.0, 0.0, 0.0], 0),
    ],
)
def test_what_would_learn_rows_by_heart_is_no_long_teacher(
    step_seconds, dropouts, chosen, text, tmp_path, monkeypatch
):
    """On Yelp, a SASRec without dropout was ahead after 18 seconds. After 1,938 steps it was better
    no more, and worse than what dropout gives.
    """
    found = search(text, tmp_path, most=10**6)
    found.learners = [{**GPT2, "dropout": dropout} for dropout in dropouts]
    found.trials.first_answer = lambda *args: None
    monkeypatch.setattr(SearchStudents, "are_short", lambda students, learner: False)

    def teacher(learner, seconds):
        i = len(found.trials.made)
        facts = {"learner": learner, "numbers": 0, "stopped": False, "step_seconds": step_seconds}
        found.trials.made.append(Trial("teacher", [1.0, 1.3, 1.35][i], found=facts))
        return found.trials.made[-1]

    found.trials.teacher = teacher
    found._left_out = lambda learner, tried: None
    assert found.trials.made.index(found.learner_stage()) == chosen


@pytest.mark.parametrize(
    ("errors", "tried"),
    [
        ([1.0, 0.9, 0.8, 0.7], "a b b b"),  # of the kind that is behind, no wider one is tried
        ([0.9, 1.3, 0.8, 0.7], "a b a a"),
        ([1.0, 1.005, 1.0, 1.0, 1.0, 1.0], "a b a b a b"),  # of two that are as good, all are
    ],
)
def test_wider_learners_are_of_the_better_kind(errors, tried, text, tmp_path, monkeypatch):
    found = search(text, tmp_path, most=10**6)
    found.learners = [
        {**GPT2, "n_embd": 8 * i, "model_type": kind} for i in (1, 2, 3) for kind in ("a", "b")
    ]
    monkeypatch.setattr(suggestion, "numbers_of", lambda task, learner, length: learner["n_embd"])
    found.trials.first_answer = lambda *args: None
    monkeypatch.setattr(SearchStudents, "are_short", lambda students, learner: False)

    def teacher(learner, seconds):
        facts = {"learner": learner, "numbers": 0, "stopped": False}
        found.trials.made.append(Trial("teacher", errors[len(found.trials.made)], found=facts))
        return found.trials.made[-1]

    found.trials.teacher = teacher
    found.learner_stage()
    assert " ".join(trial.found["learner"]["model_type"] for trial in found.trials.made) == tried


@pytest.mark.parametrize(("error", "chosen"), [(0.7, 1), (0.899, 0), (0.95, 0)])
def test_a_longer_teacher_has_to_be_better(error, chosen, text, tmp_path):
    found = search(text, tmp_path)
    facts = {"learner": GPT2, "stopped": False, "number": 0, "seconds": 2.0}
    first = Trial("teacher", 0.9, found=facts)
    found.trials.made.append(first)
    longer = Trial("teacher", error, found={"learner": GPT2, "stopped": True, "number": 1})
    found.trials.teacher = lambda learner, seconds: found.trials.made.append(longer)
    assert found.teacher_stage(first).found["number"] == chosen


@pytest.mark.parametrize(
    ("most", "errors", "sizes", "tried", "chosen"),
    [
        (500, [1.0, 1.1], [400, 350], 2, 0),  # fewer bits lose something
        (
            500,
            [1.0, 1.0],
            [400, 350],
            2,
            1,
        ),  # they lose nothing, and there is no time for a third one
        (
            500,
            [1.0, 1.1, 1.2],
            [600, 550, 350],
            3,
            2,
        ),  # the first that fits, though it takes longer
        (330, [1.0, 1.1], [280, 200], 2, 0),  # the first four would be too large
        (10, [1.0], [200], 1, 0),  # nothing fits
    ],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_teacher_has_the_fewest_bits_that_fit_and_lose_nothing(
    most, errors, sizes, tried, chosen, is_cut, text, tmp_path
):
    """Where the clock cuts a packing that fits, it is taken, and no other is tried."""
    if is_cut:
        chosen = next((i for i, size in enumerate(sizes) if size <= most), chosen)
        tried = chosen + 1
    found, ways = search(text, tmp_path, most=most), []
    found.trials.steps_in = lambda learner, seconds: 10

    def packed(teacher, settings, seconds):
        i = len(ways)
        ways.append(settings)
        found.trials.made.append(
            Trial(
                "packed",
                errors[i],
                nbytes=sizes[i],
                seconds=5.0,
                found={**settings, "number": i, "is_cut": is_cut},
            )
        )
        return found.trials.made[-1]

    found.trials.packed = packed
    facts = {"learner": GPT2, "teacher_steps": 10, "numbers": 1000, "folder": "teacher"}
    best = found.packing_stage(Trial("teacher", 0.9, found=facts))
    assert (len(ways), best.found["number"]) == (tried, chosen)
    expected = [
        (way, penalty) for way, penalty, bits in PACKINGS if bits * 1000 / 8 <= 1.05 * most
    ] or [("coded2", 0.6)]
    assert [(way["storage"], way["packing_penalty"]) for way in ways] == expected[:tried]


@pytest.mark.parametrize(
    "fixed",
    [
        pytest.param({"storage": "coded4"}, marks=pytest.mark.slow),
        {"storage": "int8", "inner_steps": 3},
        {"packing_penalty": 0.01, "teacher_steps": 5},
    ],
    ids=str,
)
def test_what_is_given_is_what_trials_try(fixed, text, tmp_path, monkeypatch):
    timed = []
    train = FarziConfig.make_teacher_training
    monkeypatch.setattr(
        FarziConfig,
        "make_teacher_training",
        lambda args: timed.append(args.teacher_steps) or train(args),
    )
    made = Search(
        *text,
        tmp_path,
        "run",
        minutes=1.0,
        learner=GPT2,
        fixed={**FIXED, **fixed},
        show=lambda line: None,
    )
    chosen = made.run()
    assert fixed.items() <= chosen.config.to_recipe().items()
    assert all(
        value == getattr(chosen.config, name)
        for name, value in chosen.packed.found.items()
        if name not in ("folder", "is_cut")
    )
    assert any(
        f"storage: {chosen.config.storage}, packing_penalty {chosen.config.packing_penalty}" in line
        for line in chosen.reasons()
    )
    assert search_trials._TIMED in timed or "teacher_steps" in fixed
    first = next(trial for trial in chosen.trials if trial.name.startswith("first answer"))
    assert first.name == f"first answer: a student after {search_trials._FIRST} steps"
    [steps] = {f"student, {chosen.config.inner_steps} steps"} & {
        t.name.partition(" of ")[0] for t in chosen.trials
    }
    if "inner_steps" in fixed:
        assert all(t.name.startswith(steps) for t in chosen.trials if t.name.startswith("student"))


@pytest.mark.parametrize(
    ("given", "optimizer"),
    [({}, "soap"), ({"max_steps": 3}, "adam"), ({"inner_optimizer": "adamw"}, "adamw")],
)
def test_trials_have_the_optimizer_that_the_settings_choose(given, optimizer, text, tmp_path):
    made = Search(
        *text,
        tmp_path,
        "run",
        minutes=1.0,
        learner=GPT2,
        fixed={**FIXED, **given},
        show=lambda line: None,
    )
    assert made.trials.config(GPT2, str(tmp_path)).inner_optimizer == optimizer


@pytest.mark.parametrize(
    ("given", "optimizer", "rate"),
    [({}, "soap", 0.021), ({"teacher_optimizer": "adam"}, "adam", 0.014)],
)
def test_a_teachers_rate_is_that_of_its_optimizer(given, optimizer, rate, text, tmp_path):
    made = Search(
        *text,
        tmp_path,
        "run",
        minutes=1.0,
        learner=GPT2,
        fixed={**FIXED, **given},
        show=lambda line: None,
    )
    config = made.trials.config(GPT2, str(tmp_path))
    assert (config.teacher_optimizer, config.teacher_learning_rate) == (optimizer, rate)


def test_a_longer_student_is_not_tried_where_given_steps_leave_no_time(text, tmp_path, monkeypatch):
    """All trials have the steps that are given: what one took, another takes, and not in the
    proportion of the table's steps.
    """
    monkeypatch.setattr(
        search_students,
        "STUDENTS",
        ((4, 4, 0.02, "drawn"), (4, 4, 0.03, "drawn"), (400, 4, 0.04, "drawn")),
    )
    made = Search(
        *text,
        tmp_path,
        "run",
        minutes=1.0,
        fixed={**FIXED, "inner_steps": 400},
        show=lambda line: None,
    )
    teacher, packed = (
        Trial("teacher", found={"learner": GPT2}),
        Trial("packed", 1.0, found={"storage": "coded6", "folder": "packed"}),
    )
    seconds = 12.0  # after two of them, 36 s are left: not enough for 1 + 2 more, and files

    def student(learner, packed, settings):
        made.trials.made.append(
            Trial("student", 2.0, seconds=seconds, training_seconds=seconds, found=settings)
        )
        return made.trials.made[-1]

    made.trials.student = student
    made.students.choose(teacher, packed)
    assert [trial.found["inner_learning_rate"] for trial in made.trials.made] == [0.028, 0.042]


def test_items_have_learners_of_their_own(tmp_path):
    interactions = small_interactions()
    found = suggest(
        interactions.strong_generalization_split(0),
        Recommendation(interactions.vocabulary),
        minutes=0.5,
        output_dir=str(tmp_path / "out"),
        show=lambda line: None,
    )
    assert found.learner in Recommendation.learners
    assert (found.teacher_optimizer, found.inner_optimizer) == ("adam", "soap")


@pytest.mark.slow
def test_histories_of_one_item_are_no_obstacle(tmp_path):
    """They stand in the training part where each user's last items are held out."""
    given = small_interactions()
    histories = [
        history[:3] if i % 4 == 0 else history for i, history in enumerate(given.sequences)
    ]
    interactions = replace(given, sequences=histories)
    splits, task = interactions.leave_one_out_split(), Recommendation(interactions.vocabulary)
    assert min(map(len, splits["train"]["input_ids"])) == 1
    learner = {**Recommendation.learner, "hidden_size": 8}
    suggest(
        splits,
        task,
        minutes=0.5,
        learner=learner,
        output_dir=str(tmp_path / "out"),
        show=lambda line: None,
    )
    counted = task.counted(
        splits["train"], splits["validation"], splits["test"], len(interactions.vocabulary)
    )
    assert set(counted) == {"popularity", "item bigram", "rules of sequences, counted"}


def test_two_searches_do_not_write_to_one_folder(text, tmp_path, monkeypatch):
    second = search(text, tmp_path / "trials", learner=GPT2)
    with (
        ThreadPoolExecutor(1) as threads,
        exclusive(tmp_path / "trials"),
        pytest.raises(ValueError, match="is in use"),
    ):
        threads.submit(second.run).result()


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_are_named(rows, text):
    with pytest.raises(ValueError, match=f"dataset has {rows} rows"):
        suggest(text[0]["train"].select(range(rows)), text[1])
    with pytest.raises(ValueError, match="validation is missing, or has no row"):
        suggest(
            DatasetDict(train=text[0]["train"], validation=text[0]["train"].select([])), text[1]
        )


def test_labels_that_trials_do_not_choose_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="labels='own': trials choose"):
        Search(*text, tmp_path, "run", fixed={"labels": "own"})


def test_trials_pack_one_teacher(text, tmp_path):
    with pytest.raises(ValueError, match=r"num_teachers=3: trials pack one .* recipe\.yaml"):
        Search(*text, tmp_path, "run", fixed={"num_teachers": 3})


@pytest.mark.parametrize(("name", "value"), [("bytes", 0), ("minutes", -1.0)])
def test_no_room_is_refused(text, name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        suggest(*text, **{name: value})


@pytest.mark.parametrize(
    ("errors", "seconds", "given", "tried"),
    [
        (
            [3.0, 2.0, 1.2],
            [1, 1, 2],
            None,
            ["drawn", "drawn", "written", "written"],
        ),  # a fifth of what is left, in twice the time
        ([3.0, 2.0, 1.6], [1, 1, 8], None, ["drawn", "drawn", "written", "drawn"]),
        ([3.0, 2.0], [1, 1], "written", ["written", "written", "written"]),
    ],
)
def test_longer_students_read_what_teaches_more_in_a_second(
    errors, seconds, given, tried, text, tmp_path, monkeypatch
):
    table = (
        (200, 10, 0.02, "drawn"),
        (300, 40, 0.03, "drawn"),
        (300, 40, 0.03, "written"),
    )
    monkeypatch.setattr(search_students, "STUDENTS", table)
    monkeypatch.setattr(search_students, "_MOST", 10)
    fixed = {} if given is None else {"inputs": given}
    found = Search(*text, tmp_path, "run", minutes=1.0, fixed=fixed, show=lambda line: None)
    read = []

    def student(learner, packed, settings):
        i = len(read)
        read.append(settings["inputs"])
        return Trial(
            "student", [*errors, 1.0][i], training_seconds=[*seconds, 1][i], found=settings
        )

    found.trials.student = student
    found.trials.seconds_of_row = lambda packed, inputs: 0.0
    found.students.choose(
        Trial("teacher", 1.0, found={"learner": GPT2}),
        Trial("packed", 1.0, found={"storage": "coded5", "folder": "packed"}),
    )
    assert read == tried


def chosen_student(found, figures):
    """The student that a search takes, where `figures(settings)` are the error of each and its
    seconds.
    """

    def student(learner, packed, settings):
        error, seconds = figures(settings)
        made = Trial("student", error, seconds=seconds, training_seconds=seconds, found=settings)
        found.trials.made.append(made)
        return made

    found.trials.student = student
    found.trials.seconds_of_row = lambda packed, inputs: 0.0
    return found.students.choose(
        Trial("teacher", 1.0, found={"learner": GPT2}),
        Trial("packed", 1.0, found={"storage": "coded5", "folder": "packed"}),
    )


@pytest.mark.parametrize(
    ("before", "fixed", "steps", "rate"),
    [
        (10.0, {}, [100, 300, 860], 0.03),  # which will bring it close to its teacher
        (60.0, {}, [100, 300, 710], 0.032),  # 43 s are left without files, for three trainings
        (80.0, {}, [100, 300], 0.042),  # hardly more would fit in
        (10.0, {"inner_steps": 300}, [300], 0.042),
        (10.0, {"inner_steps": 3000}, [3000], 0.02),
    ],
)
def test_a_longer_student_has_as_many_steps_as_it_needs_or_as_there_is_time_for(
    before, fixed, steps, rate, text, tmp_path, monkeypatch
):
    """In ten minutes on 2 MB of a dictionary, 1,000 steps would have taken a minute too many: a
    student of 300 was taken, which was no better than counting, though 600 had fitted in.
    """
    monkeypatch.setattr(search_students, "_MOST", 10)
    table = ((100, 10, 0.03, "drawn"), (300, 10, 0.03, "drawn"))
    monkeypatch.setattr(search_students, "STUDENTS", table)
    monkeypatch.setattr(SearchTrials, "seconds_of_files", 9.0)
    found = Search(*text, tmp_path, "run", minutes=2.0, fixed=fixed, show=lambda line: None)
    found.trials.made.append(Trial("teacher", seconds=before))

    def figures(settings):
        return 1.0 + 20.0 / settings["inner_steps"], 0.02 * settings["inner_steps"]

    chosen_student(found, figures)
    _, *tried = [trial.found for trial in found.trials.made]
    assert [settings["inner_steps"] for settings in tried] == pytest.approx(steps, abs=10)
    assert tried[-1]["inner_learning_rate"] == rate


def test_a_longer_student_that_would_be_no_better_is_not_tried(text, tmp_path, monkeypatch):
    """480 steps of drawn ids were tried where 300 of written ones had left as little, and there was
    no time for more of these.
    """
    monkeypatch.setattr(search_students, "_MOST", 10)
    table = ((100, 10, 0.03, "drawn"), (300, 10, 0.03, "written"), (300, 10, 0.03, "drawn"))
    monkeypatch.setattr(search_students, "STUDENTS", table)
    monkeypatch.setattr(SearchTrials, "seconds_of_files", 9.0)
    lines = []
    found = Search(*text, tmp_path, "run", minutes=2.0, fixed={}, show=lines.append)
    found.trials.made.append(Trial("teacher", seconds=8.0))

    def figures(settings):
        left, each = {"drawn": (0.2, 1 / 30), "written": (0.127, 4 / 30)}[settings["inputs"]]
        return 1.0 + left * 300 / settings["inner_steps"], each * settings["inner_steps"]

    taken = chosen_student(found, figures)
    tried = [trial.found["inner_steps"] for trial in found.trials.made[1:]]
    assert tried == [100, 300, 300]
    assert taken.found["inputs"] == "written"
    assert lines[-1] == "in the time that is left, a longer student would be no better"


@pytest.mark.parametrize(
    ("is_fitted", "fixed", "tried"),
    [
        (True, {}, [(25, "written"), (4, "drawn"), (6, "drawn")]),
        (False, {}, [(4, "drawn"), (6, "drawn")]),
        (True, {"inner_steps": 50}, [(50, "drawn")]),  # the second would be the same again
        (True, {"student_start": "random"}, [(4, "drawn"), (6, "drawn")]),
    ],
)
def test_a_student_that_is_fitted_to_its_teacher_is_tried_with_few_steps_first(
    is_fitted, fixed, tried, text, tmp_path, monkeypatch
):
    """They were tried with 100 and 300 steps, where 25 had done."""
    students = ((4, 4, 0.02, "drawn"), (6, 4, 0.02, "drawn"))
    monkeypatch.setattr(search_students, "STUDENTS", students)
    monkeypatch.setattr(search_students, "is_cheap_to_fit", lambda model: is_fitted)
    found = Search(*text, tmp_path, "run", minutes=2.0, fixed=fixed, show=lambda line: None)
    chosen_student(found, lambda settings: (1.5, 0.1))
    settings = [trial.found for trial in found.trials.made]
    assert [(each["inner_steps"], each["inputs"]) for each in settings] == tried
    assert found.students.first_settings(GPT2, "coded6") == settings[0] | {"storage": "coded6"}


@pytest.mark.parametrize("last", [1.5, 1e9])
def test_longer_students_end_where_they_are_no_better(last, text, tmp_path, monkeypatch):
    """Those of a width that cannot learn more, and those that diverge, would take all the time."""
    monkeypatch.setattr(search_students, "_MOST", 10)
    table = ((100, 10, 0.03, "drawn"), (300, 10, 0.03, "drawn"))
    monkeypatch.setattr(search_students, "STUDENTS", table)
    lines = []
    found = Search(*text, tmp_path, "run", minutes=60.0, fixed=FIXED, show=lines.append)

    def figures(settings):
        return 1.5 if settings["inner_steps"] <= 300 else last, 0.1

    taken = chosen_student(found, figures)
    assert [trial.found["inner_steps"] for trial in found.trials.made] == [100, 300, 3000]
    assert taken.found["inner_steps"] == 100
    assert lines[-1] == "a longer student is no better"


@pytest.mark.slow
def test_longer_students_are_tried_until_one_is_close_to_its_teacher(text, tmp_path, monkeypatch):
    monkeypatch.setattr(
        search_students,
        "STUDENTS",
        ((1, 4, 0.02, "drawn"), (2, 4, 0.02, "drawn"), (3, 4, 0.02, "drawn")),
    )
    monkeypatch.setattr(search_students, "_CLOSE", 10.0)
    found = search(text, tmp_path / "near", learner=GPT2).run()
    assert found.config.inner_steps == 1
    monkeypatch.setattr(search_students, "_CLOSE", -10.0)
    far = search(text, tmp_path / "far", learner=GPT2).run()
    students = [trial for trial in far.trials if "inner_steps" in trial.found]
    assert len(students) == 3
    assert (
        far.config.inner_steps == min(students, key=lambda trial: trial.error).found["inner_steps"]
    )


def test_teachers_of_few_steps_or_many_reads_learn_what_n_grams_predict(text, tmp_path):
    trials = search(text, tmp_path).trials
    rows = len(trials.splits["train"])
    few = search_trials._FEW_STEPS
    of_many_reads = search_trials._MANY_READS * rows / trials._rows_a_step
    assert of_many_reads < few  # a small text
    assert trials.counted_share(10) == trials.counted_share(20 * few) == 0.5
    large = replace(trials, splits={**trials.splits, "train": range(10**5)})
    assert large.counted_share(few) == 0.5
    assert large.counted_share(few + 1) == 0
    assert replace(large, wider=8).counted_share(few) == 0
    assert replace(large, mean=100.0).counted_share(few) == 0  # 10 million entries
    items = replace(trials, task=Recommendation(["a", "b"]))
    assert items.counted_share(10) == 0


def test_a_share_of_counts_that_is_given_is_that_of_all_teachers(text, tmp_path):
    fixed = {**FIXED, "teacher_counted_share": 0.25}
    found = replace(search(text, tmp_path, learner=GPT2), fixed=fixed).run()
    assert found.config.teacher_counted_share == 0.25
    assert found.teacher[1].found["teacher_counted_share"] == 0.25


@pytest.mark.parametrize(("width", "narrower"), [(16, []), (17, [16]), (64, [16, 32])])
def test_an_architecture_has_the_nested_widths_that_are_narrower(text, tmp_path, width, narrower):
    made = search(text, tmp_path)
    trials = replace(made, fixed={**FIXED, "teacher_nested_widths": [16, 32]}).trials
    config = trials.config({**GPT2, "n_embd": width}, str(tmp_path))
    assert config.teacher_nested_widths == narrower
    assert made.trials.config(GPT2, str(tmp_path)).teacher_nested_widths == []


def test_a_choice_has_the_share_of_counts_of_its_teacher(finished):
    _, found = finished
    assert found.config.teacher_counted_share == 0.5
    assert "n-grams beside the next token" in found.teacher[1].why
    assert any("n-grams beside the next token" in line for line in found.reasons())


def test_steps_take_more_rows_on_a_gpu(text, tmp_path, monkeypatch):
    """As many as take a GPU no longer: see `Portions`. The rate grows with them."""
    monkeypatch.setattr(suggestion, "times_the_rows", lambda fixed: 4)
    found = search(text, tmp_path, learner=GPT2)
    assert found.trials._rows_a_step == max(
        8, len(text[0]["train"]) // 30
    )  # few rows: never more than a thirtieth
    students = [trial.found for trial in found.run().trials if trial.name.startswith("student")]
    assert [(each["inner_steps"], each["synthetic_batch_size"]) for each in students] == [
        (4, 16),
        (6, 32),
    ][: len(students)]
    assert students[0]["inner_learning_rate"] == float(
        f"{0.02 * 2**0.5 * 2**0.5:.2g}"
    )  # of a width of 8, and of four times the rows


@pytest.mark.parametrize(
    ("lengths", "enough"),
    [([5] * 99 + [61], 60), ([5] * 99 + [64], 64), ([50] * 999 + [128], 50), ([5] * 20, 10)],
    ids=str,
)
def test_students_of_text_read_nearly_all_positions_that_are_tested(
    lengths, enough, text, tmp_path
):
    """Positions after the end of their rows kept random embeddings, and were tested."""
    rows = Dataset.from_dict({"input_ids": [[4] * length for length in lengths]})
    found = search((DatasetDict(train=rows, validation=text[0]["validation"]), text[1]), tmp_path)
    beyond = np.maximum(np.array(lengths) - found.length, 0).sum() / sum(lengths)
    assert found.length == enough
    assert beyond <= 0.002


@pytest.mark.parametrize(("spent", "chosen"), [(0.0, "written"), (30.0, "drawn"), (58.0, "drawn")])
def test_a_student_is_taken_for_whose_comparison_time_is_left(spent, chosen, text, tmp_path):
    """The better one takes ten seconds, and so do all data in as many; files take nine."""
    found = search(text, tmp_path)

    def student(learner, packed, settings):
        is_written = settings["inputs"] == "written"
        error, seconds = (1.8, 10.0) if is_written else (2.0, 2.0)
        found.trials.made.append(
            Trial("student", error, seconds=seconds, training_seconds=seconds, found=settings)
        )
        if is_written:
            found.trials.made.append(Trial("late", seconds=spent))
        return found.trials.made[-1 - is_written]

    found.trials.student = student
    found.trials.seconds_of_row = lambda packed, inputs: 0.0
    with pytest.MonkeyPatch.context() as patch:
        table = ((4, 10, 0.02, "drawn"), (4, 10, 0.02, "written"))
        patch.setattr(search_students, "STUDENTS", table)
        taken = found.students.choose(
            Trial("teacher", 1.0, found={"learner": GPT2}),
            Trial("packed", 1.0, found={"storage": "coded5", "folder": "packed"}),
        )
    assert taken.found["inputs"] == chosen


def test_rows_that_take_long_to_write_are_not_tried(text, tmp_path):
    """A recommender that wrote its rows took twenty minutes of ten: trials did not count that."""
    table = ((4, 10, 0.02, "drawn"), (4, 10, 0.02, "written"))
    for each, tried in ((0.01, ["drawn", "written"]), (1.0, ["drawn"])):
        found = search(text, tmp_path / str(each))
        read = []

        def student(learner, packed, settings, read=read):
            read.append(settings["inputs"])
            return Trial("student", 2.0, training_seconds=1.0, found=settings)

        found.trials.student = student
        found.trials.seconds_of_row = lambda packed, inputs, each=each: each
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_students, "STUDENTS", table)
            found.students.choose(
                Trial("teacher", 1.0, found={"learner": GPT2}),
                Trial("packed", 1.0, found={"storage": "coded5", "folder": "packed"}),
            )
        assert read == tried


def test_a_stage_has_its_share_and_less_where_the_search_is_late(text, tmp_path):
    found = search(text, tmp_path)
    shares = found.shares
    assert found.seconds_of_stage("teacher") == pytest.approx(60 * shares["teacher"], abs=1)
    found.trials.made.append(Trial("late", seconds=30.0))
    left = 30 - 60 * suggestion._AT_LEAST * (1 - shares["learners"] - shares["teacher"])
    assert found.seconds_of_stage("teacher") == pytest.approx(left, abs=1)
    assert left < 60 * shares["teacher"]
    assert found.trials.left == pytest.approx(30, abs=1)


@pytest.mark.parametrize("learner", [None, GPT2])
def test_the_time_that_short_students_leave_is_the_teachers(learner, text, tmp_path, monkeypatch):
    before = search(text, tmp_path, learner=learner).shares
    monkeypatch.setattr(search_students, "is_cheap_to_fit", lambda model: True)
    after = search(text, tmp_path, learner=learner).shares
    assert list(after) == list(before)
    assert after["teacher"] > 1.4 * before["teacher"]
    assert sum(after.values()) < 0.9  # the comparison has the rest
    given = {**FIXED, "inner_steps": 50}  # students take as long as they are told to
    found = Search(*text, tmp_path, "run", minutes=1.0, learner=learner, fixed=given)
    assert found.shares == before


@pytest.mark.parametrize(
    ("behind", "slope", "stopped", "left", "wins"),
    [
        (-0.1, -0.1, False, 0.0, False),  # it is ahead already
        (0.5, -0.1, False, 0.0, True),  # no time is enough
        (0.3, -0.2, False, 0.0, True),  # longer than its share
        (0.1, -0.2, False, 0.0, False),  # its share of the time is enough
        (0.1, -0.2, False, 0.2, True),  # its students will be behind
        (0.1, -0.2, True, 0.0, True),  # it learns no more
        (0.5, None, False, 0.0, False),  # too short a curve tells nothing
    ],
)
def test_a_search_stops_where_counting_will_win(behind, slope, stopped, left, wins, text, tmp_path):
    found = search(text, tmp_path)
    counted = text[1].nats(found.counted.statistics)
    facts = {"learner": GPT2, "stopped": stopped, "slope": slope, "seconds": 6.0}
    teacher = Trial("teacher", counted + behind, figure="perplexity 9", found=facts)
    first = Trial("first answer", counted + behind + left, found={"first_steps": 100})
    found.trials.made.extend([teacher, first])
    said = found.counting_wins(teacher)
    assert (said is not None) == wins
    if not wins:
        return
    assert "Counting wins: Kneser-Ney" in str(said)
    assert found.counted_figure in str(said)
    assert "perplexity 9" in str(said)
    assert "farzi count DATA" in str(said)
    times = 60 * 0.44 / 6  # of the seconds, for this teacher
    to_learn = 0.0 if stopped else -slope / 0.25
    assert said.behind == pytest.approx(behind + left - to_learn * (1 - times**-0.25))
    is_enough = to_learn > behind + left + 0.02
    assert (said.minutes is None) == (not is_enough)
    if is_enough:
        share = 1 - (behind + left + 0.02) / to_learn
        assert said.minutes == pytest.approx(6 * share**-4 / 0.44 / 60)
        assert "--minutes 5" in str(said)
    else:
        assert "More minutes would not help" in str(said)


def test_a_search_that_counting_wins_leaves_no_choice(text, tmp_path, monkeypatch):
    made = search(text, tmp_path / "trials", learner=GPT2)
    monkeypatch.setattr(Search, "counting_wins", lambda search, teacher: "counting wins")
    assert made.run() == "counting wins"
    assert not any(trial.name.startswith("packed") for trial in made.trials.made)
    again = search(text, tmp_path / "trials", learner=GPT2, goes_on=True).run()
    assert again.config.labels == "teacher"


@pytest.mark.parametrize(
    ("minutes", "most", "widths"),
    [
        (2.0, 10**7, [32]),
        (10.0, 10**7, [64]),
        (30.0, 10**7, [64, 128]),
        (30.0, 30_000, [16, 32]),  # wider ones do not fit
        (10.0, 10, [16]),  # none does
    ],
)
def test_text_has_few_long_trials(minutes, most, widths, text, tmp_path):
    """The widest that fits and has time to learn."""
    found = Search(*text, tmp_path, "run", minutes=minutes, most=most, fixed=FIXED)
    assert [learner["n_embd"] for learner in found.learners] == widths


def test_text_ties_embeddings_where_the_bytes_would_press_a_model() -> None:
    """The numbers of a vocabulary of 5,000: an untied width of 64 has 746,000, a tied 80 564,000."""
    numbers = {16: 165_000, 32: 335_000, 64: 746_000, 80: 564_000, 128: 1_680_000}

    def widths(nbytes: int, minutes: float = 10.0, tied: int = numbers[80]) -> list[int]:
        def fits(learner, bits=2.8):
            return bits * {**numbers, 80: tied}[learner["n_embd"]] / 8 <= nbytes

        return [learner["n_embd"] for learner in LanguageModeling.tried_in(minutes, fits)]

    assert widths(290_404) == [80]
    assert widths(290_404, 30.0) == [32, 80]
    assert widths(375_000) == [64]
    assert widths(700_000, 30.0) == [64, 128]
    assert widths(270_000) == [64]  # the tied one would be pressed as well
    assert widths(250_000) == [32]
    assert widths(290_404, tied=800_000) == [64]  # of a small vocabulary, layers are more
    assert LanguageModeling.tied["tie_word_embeddings"]


def test_small_summaries_reserve_less_time_for_files() -> None:
    """At a quarter of a processor: 4 × 18 seconds in two minutes, unless the first answer tells
    that there is little to go through.
    """
    began = time.perf_counter() - 400, time.process_time() - 100

    def reserved(measuring: float) -> float:
        trials = SimpleNamespace(_began=began, minutes=2.0, pace=(0.1, measuring))
        return SearchTrials.seconds_of_files.fget(trials)

    assert reserved(0.0) == pytest.approx(72, rel=0.05)
    assert reserved(0.4) == pytest.approx(4 * 5 + 18 * 0.4, rel=0.05)
    assert reserved(10.0) == pytest.approx(72, rel=0.05)


def test_a_teacher_whom_more_steps_gained_nothing_is_not_still_learning() -> None:
    def trial(steps: int, has_stopped: bool) -> Trial:
        found = {"learner": GPT2, "teacher_steps": 500, "steps": steps, "seconds": 1.0}
        return Trial("teacher", found={**found, "stopped": has_stopped})

    rows = SimpleNamespace(
        device="cpu",
        splits={"train": [], "test": []},
        statistics=lambda prediction, rows: np.zeros(1),
        nbytes=lambda rows: 1,
    )

    def still_learning(taken: Trial, *others: Trial) -> bool:
        teacher = (torch.nn.Identity(), taken)
        trials = [taken, *others]
        chosen = Suggestion(None, GPT2, trials, None, teacher, packed=taken, due=0.0)
        return chosen.long_row(rows).still_learning

    assert still_learning(trial(100, False))
    assert not still_learning(trial(100, True))
    assert not still_learning(trial(100, False), trial(300, True))
    assert still_learning(trial(300, False), trial(100, False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": "10kB"}, r"^bytes='10kB' is not usable: give a positive number, or leave it"),
        ({"minutes": "a"}, r"^minutes='a' is not usable: give a positive number"),
        ({"minutes": math.inf}, r"^minutes=inf is not usable: give a positive number"),
        ({"minutes": -1.0}, r"^minutes=-1.0 is not usable: give a positive number"),
        (
            {"learner": {"model_type": "gru4rec", "hidden_size": -1}},
            r"^learner=\{'model_type': 'gru4rec', 'hidden_size': -1\} makes no model \(.*\): give",
        ),
        ({"task": "text"}, r"^task='text' is none; give LanguageModeling\(tokenizer\) or"),
        ({"dataset": [[1, 2]]}, r"^dataset is a list; give a datasets\.Dataset, or a DatasetDict"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(changes, message):
    rows = Dataset.from_dict({"input_ids": [[1, 2, 3]] * 8})
    given = {"dataset": rows, "task": Recommendation(["<pad>", "a", "b", "c"]), **changes}
    with pytest.raises(ValueError, match=message):
        suggest(**given)
