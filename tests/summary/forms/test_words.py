"""What each kind of inputs and of labels says about itself, word for word."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_artefacts import WORDS, tiny, word_tokenizer
from tiny_models import tiny_model

from farzi_hf import FarziConfig
from farzi_hf.data import Vocabulary
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import INPUTS, LABELS

OWN = {"labels": "own", "label_dim": 2}
KINDS = {
    "paper": {"tau": 0.5},
    "own": OWN,
    "tokens": {**OWN, "inputs": "tokens"},
    "drawn": {"inputs": "drawn"},
    "written": {"inputs": "written"},
    "fixed": {"inputs": "tokens"},
    "rows": {},
}


def summary(kind: str) -> FarziData:
    """[4×5]; the last three carry a teacher."""
    settings = KINDS[kind]
    if kind == "rows":
        data = [{"text": "a b"}, {"text": "b c"}, {"text": "c a"}]
        return FarziData.from_rows(data, [1, 0, 3], word_tokenizer(), len(WORDS), 5)
    if kind in ("drawn", "written", "fixed"):
        model = tiny_model("gpt2", len(WORDS))
        sizes = {"sequence_length": 5, "num_sequences": 4, "tokenizer": word_tokenizer()}
        return FarziData.from_teacher(model, **settings, **sizes)
    farzi = tiny(**settings)
    farzi.processing_class = word_tokenizer()
    return farzi


SEQUENCES = "# 4 synthetic sequences that stand in for a dataset"
MADE = "A summary made by *autoregressive data distillation*"
MIXED = "Each position is a distribution over 7 entries, `softmax(latents @ decoder / tau)`."
LABEL = (
    "Each position has a label of its own, `softmax(labels @ label_decoder)`: what a student should"
    " predict after it."
)
BROWSE = "To browse them, download `viewer.html` and open it."
TEACHER = (
    "# A teacher of {nbytes} bytes that stands in for a dataset"
    f" {MADE}. It carries its teacher, a model of {{numbers}} numbers, which predicts what a"
    " student should predict after each of its inputs."
)
FIRST = "`viewer.html` shows the first 4 rows."
DESCRIPTIONS = {
    "paper": (
        f"{SEQUENCES} {MADE}: 4 sequences of 5 soft tokens, from which a model trains from"
        f" scratch. {MIXED} {BROWSE}"
    ),
    "own": (
        f"{SEQUENCES} {MADE}: 4 sequences of 5 soft tokens, from which a model trains from"
        f" scratch. {MIXED} {LABEL} {BROWSE}"
    ),
    "tokens": (
        f"{SEQUENCES} {MADE}: 4 sequences of 5 tokens, from which a model trains from scratch."
        f" Inputs are ids of a vocabulary of 7 entries. {LABEL} {BROWSE}"
    ),
    "drawn": (
        f"{TEACHER} Inputs are tokens drawn by frequency, fresh in every row, as many rows as a"
        f" training asks for. {FIRST}"
    ),
    "written": (
        f"{TEACHER} Inputs are rows that the teacher writes, as many as a training asks for."
        f" {FIRST}"
    ),
    "fixed": f"{TEACHER} Inputs are 4 stored rows of ids. {FIRST}",
    "rows": (
        "# 2 rows, with weights, of a dataset 2 of 3 rows of a data set, chosen to train on for a"
        " target. They are rows of the data, as they are, in the data's own columns. Each has a"
        " weight: how often it is to be read. There is no teacher, and there are no soft labels."
    ),
}

FACTS = {
    "paper": {
        "synthetic sequences (μ)": "4",
        "latent dimension (d)": "3",
        "temperature (τ)": "0.5",
    },
    "own": {
        "synthetic sequences (μ)": "4",
        "latent dimension (d)": "3",
        "temperature (τ)": "1",
        "labels": "of their own, dimension (e) 2",
    },
    "tokens": {
        "synthetic sequences (μ)": "4",
        "inputs": "ids, which were not learnt",
        "labels": "of their own, dimension (e) 2",
    },
    "drawn": {"rows shown": "4", "inputs": "ids, drawn by frequency", "the teacher": "gpt2"},
    "written": {"rows shown": "4", "inputs": "ids, which the teacher writes"},
    "fixed": {"synthetic sequences (μ)": "4", "inputs": "ids, which were not learnt"},
    "rows": {"rows of the data": "3", "rows that stay": "2", "weights": "one for each row"},
}
LATENTS = {
    "latents": "one row per sequence: (ξ, d) floats, greedy text",
    "decoder": "per vocabulary entry: d floats",
}
DECODER = {"label_decoder": "per vocabulary entry: e floats"}
POSITIONS = {"tokens": "per position: likeliest tokens, probabilities, entropy"}
ROWS = {"tokens": "one row per shown row: ids, text, likeliest labels"}
COMMENTS = {
    "paper": {**LATENTS, **POSITIONS},
    "own": {**LATENTS, "labels": "one row per sequence: (ξ, e) floats", **DECODER, **POSITIONS},
    "tokens": {"labels": "one row per sequence: (ξ, e) floats, ids", **DECODER, **POSITIONS},
    "drawn": ROWS,
    "written": ROWS,
    "fixed": ROWS,
    "rows": {"rows": "a row of the data in its own columns, and its weight"},
}
SHOWN = {
    "paper": {"sequences × positions": "4 × 5", "numbers per position": "3"},
    "own": {"sequences × positions": "4 × 5", "numbers per position": "5"},
    "tokens": {"sequences × positions": "4 × 5", "numbers per position": "2"},
    "drawn": {"inputs": "drawn ids, any number of rows of 5"},
    "written": {"inputs": "written ids, any number of rows of 5"},
    "fixed": {"inputs": "fixed ids, 4 rows of 5"},
    "rows": {"inputs": "2 of 3 rows of the data"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_says_what_the_summary_is(kind, tmp_path):
    farzi = summary(kind)
    metrics = {"licence": "mit"}  # so that rows may be shown
    farzi.save_pretrained(tmp_path, metrics=metrics, show_rows=True)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    numbers = sum(x.numel() for name, x in farzi.tensors.items() if name.startswith("teacher."))
    described = DESCRIPTIONS[kind].format(nbytes=f"{farzi.nbytes:,}", numbers=f"{numbers:,}")
    first = card.split("\n---\n")[1].split("## How to use it")[0]
    assert " ".join(first.split()) == described
    rows = dict(re.findall(r"^\| ([^|]*?) \| ([^|]*?) \|$", card, flags=re.M))
    assert {name: rows.get(name, "")[: len(x)] for name, x in FACTS[kind].items()} == FACTS[kind]
    others = {name for facts in FACTS.values() for name in facts} - FACTS[kind].keys()
    assert not (others - {"the teacher"}) & rows.keys()
    loaded = re.findall(r"^(\w+) = load_dataset\(.*\)  # (.*)$", card, flags=re.M)
    assert dict(loaded) == COMMENTS[kind]
    assert ("PyTorch alone" in card) == (kind in ("paper", "own", "tokens"))
    assert ("export path/to/this/folder teacher --teacher" in card) == (
        "numbers" in DESCRIPTIONS[kind]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_farzi_show_says_what_the_summary_is(kind):
    farzi = summary(kind)
    inputs = farzi.forms.inputs.words(farzi.vocabulary)
    words = farzi.forms.labels.words(inputs, farzi.vocabulary, farzi.nbytes)
    assert {name: words.short[name] for name in SHOWN[kind]} == SHOWN[kind]
    carried = {"teacher", "inputs", "labels"}
    assert (words.short.keys() == carried) == (kind in ("drawn", "written", "fixed"))


@pytest.mark.parametrize("name", INPUTS)
def test_an_item_is_called_an_item(name):
    farzi = summary({"soft": "paper"}.get(name, name))
    words = farzi.forms.inputs.words(Vocabulary())
    assert not re.search("token", words.rows + words.positions)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"inputs": "soft", "labels": "shared"},
            {"inputs": "soft, d = 16", "start of the summary": "spectral", "κ": 8.0},
        ),
        (
            {"inputs": "soft", "initialization": "random"},
            {"inputs": "soft, d = 16", "start of the summary": "random"},
        ),
        ({"inputs": "tokens"}, {"inputs": "ids, made up"}),
        ({}, {"inputs": "ids, drawn by frequency"}),
        ({"inputs": "written"}, {"inputs": "ids, which the teacher writes"}),
    ],
)
def test_a_table_of_experiments_names_the_settings_of_the_inputs(settings, expected, tmp_path):
    args = FarziConfig(str(tmp_path), use_cpu=True, report_to="none", **settings)
    assert INPUTS[args.inputs].words_of_settings(args) == expected


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [(None, "teacher"), ("soft", "own"), ("tokens", "own"), ("drawn", "teacher")],
)
def test_inputs_have_labels_by_default(inputs, labels, tmp_path):
    args = FarziConfig(str(tmp_path), use_cpu=True, report_to="none", inputs=inputs)
    assert args.labels == labels
    assert args.inputs in LABELS[labels].goes_with


def test_drawn_rows_become_written_ones():
    drawn = summary("drawn")
    written = drawn.with_inputs("written")
    assert (written.config.inputs, drawn.config.inputs) == ("written", "drawn")
    assert written.fingerprint() == drawn.fingerprint()
    expected = FarziData.from_teacher(
        tiny_model("gpt2", len(WORDS)), inputs="written", sequence_length=5, num_sequences=4
    )
    assert torch.equal(written.endless().rows(0, 3), expected.endless().rows(0, 3))
    assert not torch.equal(written.endless().rows(0, 3), drawn.endless().rows(0, 3))
    with pytest.raises(ValueError, match="inputs='tokens' have other tensors than inputs='drawn'"):
        drawn.with_inputs("tokens")
    with pytest.raises(ValueError, match=r"labels='teacher' need inputs of .*, got inputs='soft'"):
        drawn.with_inputs("soft")
