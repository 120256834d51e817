"""Settings and data with which a recipe takes seconds."""

from __future__ import annotations

import contextlib
import inspect
import io
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from datasets import DatasetDict

from farzi_hf.data import TEXTS, Interactions, load_sample_interactions, load_sample_text
from farzi_hf.metrics import bootstrap_interval
from farzi_hf.report import full_data, search_students, search_trials
from farzi_hf.tasks import items

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
CONFIGS = RECIPES / "configs"
USERS = 100
SHORT_TRIALS = {"_FEWEST": 4, "_MOST": 8, "_EPOCHS": 0, "_TIMED": 1, "_FIRST": 2}
"""Values of `report.search_trials` with which a search takes a second."""
SHORT_STUDENTS = ((4, 4, 0.02, "drawn"), (6, 8, 0.03, "drawn"))
"""The students of such a search."""
TINY = (
    "--inputs",
    "soft",
    "--labels",
    "shared",
    "--inner_learning_rate",
    "0.01",
    "--inner_betas",
    "0.5",
    "0.999",
    "--inner_epsilon",
    "1e-4",
    "--learning_rate",
    "0.03",
    "--num_sequences",
    "4",
    "--sequence_length",
    "8",
    "--latent_dim",
    "4",
    "--inner_steps",
    "4",
    "--synthetic_batch_size",
    "2",
    "--max_steps",
    "2",
    "--num_students",
    "2",
    "--use_cpu",
    "true",
    "--disable_tqdm",
    "true",
    "--report_to",
    "none",
)
COMPARED = (*TINY, "--teacher_steps", "3", "--seeds", "0", "1", "--window", "0")
"""Of a table whose rows are distillations of two seeds each."""
START = ("--concentration", "4")
"""A start that is not tried out: trials take as long as such a distillation."""
LOGGED = (
    "--logging_first_step",
    "true",
    "--eval_on_start",
    "true",
    "--eval_strategy",
    "steps",
    "--eval_steps",
    "2",
    "--logging_steps",
    "1",
)
GPT2 = '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}'
GRU4REC = '{"model_type": "gru4rec", "hidden_size": 8}'
SASREC = (
    '{"model_type": "sasrec", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}'
)
DEMO = (
    *TINY,
    "--config",
    str(CONFIGS / "demo.yaml"),
    "--vocab_size",
    "60",
    "--window",
    "2",
    "--inner_steps_min",
    "3",
    *LOGGED,
    "--learner_pool",
    "4",
    "--per_device_train_batch_size",
    "128",
    "--eval_students",
    "1",
    "--teacher_steps",
    "6",
    "--show_rows",
    "true",
    "--long_steps",
    "6",
    "--baselines",
    "packed_teacher",
    "teacher",
    "full",
    "full_same_seconds",
    "full_long",
    "random",
    "random_early_stop",
    "hard_10",
    "random_bytes",
    "random_bytes_early_stop",
    "head",
)
"""Of `ptb.py`."""
DEMO_RECSYS = (
    *TINY,
    "--config",
    str(CONFIGS / "demo_recsys.yaml"),
    *LOGGED,
    "--eval_students",
    "1",
    "--window",
    "25",
    "--per_device_train_batch_size",
    "64",
    "--input_sequences",
    "made_up_by_root",
    "--teacher_steps",
    "6",
    "--learner",
    GRU4REC,
    *START,
    "--long_steps",
    "6",
    "--baselines",
    "packed_teacher",
    "teacher",
    "full",
    "full_long",
    "random",
    "random_bytes",
    "head",
)
"""Of `recsys.py`."""


def places(folder: Path) -> list[str]:
    """Where the cells and the card of a table go."""
    return ["--output_dir", str(folder / "runs"), "--card_dir", str(folder / "card")]


def leave_out_figures(patch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn: that takes as long as the rest of a tiny run. For runs whose
    figures another test draws.
    """
    patch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda figure, file, **options: Path(file).write_bytes(b"\x89PNG\r\n\x1a\n"),
    )


def search_shortly(patch: pytest.MonkeyPatch, students: tuple = SHORT_STUDENTS) -> None:
    """Trials of few steps."""
    for name, value in SHORT_TRIALS.items():
        patch.setattr(search_trials, name, value)
    patch.setattr(search_students, "STUDENTS", students)
    patch.setattr(search_students, "_MOST", 1)  # and no longer ones


def use_small_data(patch: pytest.MonkeyPatch) -> None:
    """Fewer of the embedded sentences and users, which `sample` and `sample_interactions` then are,
    fewer resamples of them, and one way to train on all of them, for a short time.
    """
    resample_less(patch)
    patch.setitem(TEXTS, "sample", lambda data_dir: small_text())
    patch.setattr(items, "load_sample_interactions", small_interactions)
    shorten_full_data(patch)


def resample_less(patch: pytest.MonkeyPatch) -> None:
    """Intervals of a tenth of the resamples."""
    given = {
        p.name: p.default
        for p in inspect.signature(bootstrap_interval).parameters.values()
        if p.default is not p.empty
    }
    assert given["resamples"] == 1000
    patch.setattr(bootstrap_interval, "__defaults__", tuple({**given, "resamples": 100}.values()))


def shorten_full_data(patch: pytest.MonkeyPatch) -> None:
    """One way to train on all data, for a short time. tests/report/test_full_data.py has the choice
    of a way, and long trainings.
    """
    patch.setattr(full_data.FullData.__init__, "__defaults__", (full_data.WAYS[:1],))
    patch.setattr(full_data, "_TIMED", 2)
    patch.setattr(full_data, "_LONGER", 2)


@cache
def small_text() -> DatasetDict:
    return load_sample_text(200)


@cache
def small_interactions() -> Interactions:
    return load_sample_interactions(USERS)


class Finished(NamedTuple):
    """A run that is over: its folder, and what it printed to stdout and to stderr."""

    output: Path
    printed: str
    shown: str


def finished(main, argv: list[str], output: Path) -> Finished:
    """Runs a recipe on small data."""
    printed, shown = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(shown),
    ):
        use_small_data(patch)
        main([*argv, "--output_dir", str(output)])
    return Finished(output, printed.getvalue(), shown.getvalue())
