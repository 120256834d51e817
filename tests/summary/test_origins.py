"""Where rows come from, and what of them is printed: on cards, on the page, and in figures."""

from __future__ import annotations

import shutil
from typing import ClassVar

import pytest
from tiny_artefacts import WORDS, tiny, word_tokenizer
from tiny_models import tiny_model

from farzi_hf.data import flatten_sequences
from farzi_hf.summary import INITIALIZATIONS, FarziData, FarziDataConfig
from farzi_hf.summary.forms import INPUTS
from farzi_hf.summary.initialization import INPUT_SEQUENCES, Start
from farzi_hf.summary.origins import (
    CHOSEN,
    DRAWN,
    LEARNT,
    MADE_UP,
    ORIGINS,
    REAL,
    SOFTENED,
    UNKNOWN,
    WRITTEN,
    Origin,
    may_be_passed_on,
    shows_rows,
)

RUN = 6
"""Entries of a run that no row has by chance, if as many are different."""

DIFFERENT = 5

STARTS = {name: kind() for name, kind in INITIALIZATIONS.items()}


def runs_of(rows) -> set[tuple[int, ...]]:
    found = {tuple(row[i : i + RUN]) for row in rows for i in range(len(row) - RUN + 1)}
    return {run for run in found if len(set(run)) >= DIFFERENT}


def started(start: Start, sequences, **changes) -> FarziData:
    rows = sequences["train"]
    size = 1 + int(flatten_sequences(rows)[0].max())
    sizes = {"num_sequences": 30, "sequence_length": 20, "latent_dim": 16, "vocab_size": size}
    farzi = FarziData(FarziDataConfig(**sizes, **changes))
    start(farzi, rows, seed=0)
    return farzi


# -- what is said of rows is true ------------------------------------------------------------------


@pytest.mark.parametrize("origin", [*ORIGINS.values(), UNKNOWN], ids=lambda x: x.name)
def test_an_origin_says_everything_that_a_card_needs(origin):
    assert origin.nature.endswith(".")
    assert origin.protects_with("The labels were made.").endswith(".")
    assert bool(origin.hidden) != origin.is_made_up


@pytest.mark.parametrize("name", INPUT_SEQUENCES)
def test_ids_that_are_called_made_up_repeat_no_run_of_the_data(name, sequences):
    farzi = started(INPUT_SEQUENCES[name], sequences, inputs="tokens", labels="own")
    ids = farzi.as_hard_dataset()["input_ids"][:].tolist()
    shared = runs_of(ids) & runs_of(sequences["train"]["input_ids"])
    assert farzi.origin.is_made_up == (not shared)


@pytest.mark.parametrize("name", STARTS)
def test_soft_inputs_that_are_called_learnt_repeat_no_run_of_the_data(name, sequences):
    farzi = started(STARTS[name], sequences, labels="own")
    ids = farzi.as_hard_dataset()["input_ids"][:].tolist()
    shared = runs_of(ids) & runs_of(sequences["train"]["input_ids"])
    assert farzi.origin.is_made_up == (not shared)


def test_a_start_says_where_its_rows_come_from(sequences, tmp_path):
    farzi = started(INPUT_SEQUENCES["real_windows"], sequences, inputs="tokens", labels="own")
    assert farzi.config.origin == "real"
    farzi.save_pretrained(tmp_path)
    assert FarziData.from_pretrained(tmp_path).origin is REAL


def test_a_start_without_an_origin_is_an_error(sequences):
    class Zero(Start):
        def fill(self, farzi, dataset, seed, vectors=None):
            farzi.latents.data.zero_()

    with pytest.raises(AttributeError, match="origin"):
        started(Zero(), sequences)

    class Named(Zero):
        origin: ClassVar = LEARNT

    assert started(Named(), sequences).origin is LEARNT


@pytest.mark.parametrize(
    ("inputs", "labels", "origin", "expected"),
    [
        ("soft", "shared", None, UNKNOWN),
        ("soft", "shared", "softened", SOFTENED),
        ("tokens", "own", None, UNKNOWN),
        ("tokens", "own", "of another version", UNKNOWN),
        ("tokens", "own", "made_up", MADE_UP),
    ],
)
def test_rows_of_which_nothing_is_known_are_not_called_made_up(inputs, labels, origin, expected):
    farzi = tiny(inputs=inputs, labels=labels, origin=origin)
    assert farzi.origin is expected


@pytest.mark.parametrize(
    ("inputs", "expected", "of_fixed"),
    [("drawn", DRAWN, MADE_UP), ("written", WRITTEN, WRITTEN), ("tokens", MADE_UP, MADE_UP)],
)
def test_a_carried_teachers_rows(inputs, expected, of_fixed):
    teacher = tiny_model("gpt2")
    farzi = FarziData.from_teacher(teacher, inputs=inputs, sequence_length=6, num_sequences=4)
    assert farzi.origin is expected
    assert farzi.materialize(3).origin is of_fixed


def test_every_form_of_inputs_says_where_its_rows_come_from():
    config = FarziDataConfig()
    origins = {name: form(config).origin for name, form in INPUTS.items()}
    assert all(isinstance(origin, Origin) for origin in origins.values())
    expected = {"soft": UNKNOWN, "tokens": UNKNOWN, "drawn": DRAWN, "written": WRITTEN}
    expected["rows"] = CHOSEN
    assert origins.items() >= expected.items()


# -- what is printed -------------------------------------------------------------------------------


def saved(farzi: FarziData, folder, **artefact) -> tuple[str, str | None]:
    """The card and the page."""
    farzi.save_pretrained(folder, WORDS, **artefact)
    page = folder / "viewer.html"
    card = (folder / "README.md").read_text(encoding="utf-8")
    return card, page.read_text(encoding="utf-8") if page.exists() else None


@pytest.mark.parametrize("origin", ["real", "softened", None])
def test_rows_that_may_be_the_datas_are_printed_nowhere(tmp_path, origin):
    inputs, labels = ("soft", "shared") if origin == "softened" else ("tokens", "own")
    farzi = tiny(inputs=inputs, labels=labels, origin=origin)
    card, page = saved(farzi, tmp_path)
    assert page is None
    assert "viewer.html" not in card
    assert f"This card prints no rows, because {farzi.origin.hidden}." in card
    text = " | ".join(position["tokens"][0] for position in farzi.decode(1)[0])
    assert text not in card
    assert "| position |" not in card


def test_rows_are_shown_where_the_licence_allows_it(tmp_path):
    farzi = tiny(inputs="tokens", labels="own", origin="real")
    card, page = saved(farzi, tmp_path, metrics={"licence": "cc-by-4.0"}, show_rows=True)
    assert "This card prints no rows" not in card
    assert "| position |" in card
    assert page is not None
    assert saved(farzi, tmp_path)[1] is None  # nobody asks for them


@pytest.mark.parametrize("licence", [None, "other", "unknown", "proprietary", "", "mit-like"])
def test_rows_are_not_shown_without_a_licence_that_allows_it(tmp_path, licence):
    farzi = tiny(inputs="tokens", labels="own", origin="real")
    with pytest.raises(
        ValueError, match=r"show_rows=True with licence=.*they are sequences of the"
    ):
        saved(farzi, tmp_path / "new", metrics={"licence": licence}, show_rows=True)
    assert not (tmp_path / "new").exists()


def test_the_figure_of_a_row_goes_where_rows_go(tmp_path, plot):
    figure = shutil.copy(plot, tmp_path / "tokens.png")
    farzi = tiny(inputs="tokens", labels="own", origin="real")
    metrics = {"licence": "mit"}
    given = {"plots": [plot, figure], "metrics": metrics}
    card, _ = saved(farzi, tmp_path / "shown", **given, show_rows=True)
    assert "tokens.png" in card
    card, _ = saved(farzi, tmp_path / "new")
    assert "curve.png" in card
    assert "tokens.png" not in card
    assert [path.name for path in (tmp_path / "new" / "plots").iterdir()] == ["curve.png"]


def test_rows_that_are_made_up_need_no_licence(tmp_path):
    farzi = tiny(inputs="tokens", labels="own", origin="made_up")
    card, page = saved(farzi, tmp_path)
    assert "What it says" in card
    assert "| position |" in card
    assert page is not None
    assert shows_rows(MADE_UP, {"licence": "other"}, show_rows=True)


def test_a_push_shows_no_rows_either(monkeypatch):
    pushed = {}

    def keep(folder, *args):
        pushed.update({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    monkeypatch.setattr(
        "farzi_hf.summary.farzi_data.upload_artefact", lambda folder, *args: keep(folder)
    )
    farzi = tiny(inputs="tokens", labels="own", origin="real")
    farzi.push_to_hub("user/farzi", processing_class=word_tokenizer())
    assert b"This card prints no rows" in pushed["README.md"]
    assert "viewer.html" not in pushed
    farzi.push_to_hub("user/farzi", metrics={"licence": "mit"}, show_rows=True)
    assert "viewer.html" in pushed


@pytest.mark.parametrize("licence", ["mit", "Apache-2.0", "cc-by-nc-sa-4.0", "gpl-3.0"])
def test_licences_under_which_rows_may_be_passed_on(licence):
    assert may_be_passed_on(licence)


def test_an_origin_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match=r"origin must be a text or None, got \['real'\]"):
        tiny(origin=["real"])
