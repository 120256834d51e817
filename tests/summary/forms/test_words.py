"""What each kind of inputs and of labels says about itself, word for word."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_artefacts import WORDS, tiny, word_tokenizer
from tiny_models import tiny_model
from words_of_kinds import Example, check_words

from farzi_hf import FarziConfig
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import INPUTS, LABELS, inputs_for

TABLES_OF_LATENTS = {
    "latents": "one row per sequence: (ξ, d) floats, greedy text",
    "decoder": "per vocabulary entry: d floats",
}
TABLE_OF_DECODER = {"label_decoder": "per vocabulary entry: e floats"}
TABLE_OF_POSITIONS = {"tokens": "per position: likeliest tokens, probabilities, entropy"}
TABLE_OF_ROWS = {"tokens": "one row per shown row: ids, text, likeliest labels"}
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
HERE = "path/to/this/folder"
OF_STUDENTS = (
    f"show {HERE}",
    f"train {HERE} --output_dir student",
    f"export {HERE} rows --rows 10000",
)


def made(**settings) -> FarziData:
    """[4×5], distilled or not, without a teacher."""
    farzi = tiny(**settings)
    farzi.processing_class = word_tokenizer()
    return farzi


def carried(inputs: str) -> FarziData:
    """[4×5], which carries a teacher."""
    sizes = {"sequence_length": 5, "num_sequences": 4, "tokenizer": word_tokenizer()}
    return FarziData.from_teacher(tiny_model("gpt2", len(WORDS)), inputs=inputs, **sizes)


def of_teacher(inputs: str, said: str, facts: dict[str, str], short: str) -> Example:
    """The words of a summary that carries a teacher.

    Args:
        said: of the inputs, in the description.
        facts: those of the inputs.
        short: what `farzi show` says of the inputs.
    """
    return Example(
        inputs=inputs,
        labels="teacher",
        make=partial(carried, inputs),
        description=f"{TEACHER} Inputs are {said}. {FIRST}",
        facts={**facts, "the teacher": "gpt2"},
        comments=TABLE_OF_ROWS,
        shown={
            "teacher": "gpt2, ",
            "inputs": short,
            "labels": "what the teacher predicts after each id",
        },
        commands=(*OF_STUDENTS, f"export {HERE} teacher --teacher"),
        has_torch_code=False,
    )


OF_SEQUENCES = {"synthetic sequences (μ)": "4", "positions per sequence (ξ)": "5"}
OF_IDS = {**OF_SEQUENCES, "inputs": "ids, which were not learnt"}
OF_MADE_ROWS = {"rows shown": "4", "positions per sequence (ξ)": "5"}
OF_OWN_LABELS = {"labels": "of their own, dimension (e) 2"}

EXAMPLES = [
    Example(
        inputs="soft",
        labels="shared",
        make=partial(made, tau=0.5),
        description=(
            f"{SEQUENCES} {MADE}: 4 sequences of 5 soft tokens, from which a model trains from"
            f" scratch. {MIXED} {BROWSE}"
        ),
        facts={**OF_SEQUENCES, "latent dimension (d)": "3", "temperature (τ)": "0.5"},
        comments={**TABLES_OF_LATENTS, **TABLE_OF_POSITIONS},
        shown={"sequences × positions": "4 × 5", "numbers per position": "3"},
        commands=OF_STUDENTS,
        has_torch_code=True,
    ),
    Example(
        inputs="soft",
        labels="own",
        make=partial(made, labels="own", label_dim=2),
        description=(
            f"{SEQUENCES} {MADE}: 4 sequences of 5 soft tokens, from which a model trains from"
            f" scratch. {MIXED} {LABEL} {BROWSE}"
        ),
        facts={
            **OF_SEQUENCES,
            "latent dimension (d)": "3",
            "temperature (τ)": "1",
            **OF_OWN_LABELS,
        },
        comments={
            **TABLES_OF_LATENTS,
            "labels": "one row per sequence: (ξ, e) floats",
            **TABLE_OF_DECODER,
            **TABLE_OF_POSITIONS,
        },
        shown={"sequences × positions": "4 × 5", "numbers per position": "5"},
        commands=OF_STUDENTS,
        has_torch_code=True,
    ),
    Example(
        inputs="tokens",
        labels="own",
        make=partial(made, inputs="tokens", labels="own", label_dim=2),
        description=(
            f"{SEQUENCES} {MADE}: 4 sequences of 5 tokens, from which a model trains from scratch."
            f" Inputs are ids of a vocabulary of 7 entries. {LABEL} {BROWSE}"
        ),
        facts={**OF_IDS, **OF_OWN_LABELS},
        comments={
            "labels": "one row per sequence: (ξ, e) floats, ids",
            **TABLE_OF_DECODER,
            **TABLE_OF_POSITIONS,
        },
        shown={"sequences × positions": "4 × 5", "numbers per position": "2"},
        commands=OF_STUDENTS,
        has_torch_code=True,
    ),
    of_teacher(
        inputs="drawn",
        said=("tokens drawn by frequency, fresh in every row, as many rows as a training asks for"),
        facts={**OF_MADE_ROWS, "inputs": "ids, drawn by frequency"},
        short="drawn ids, any number of rows of 5",
    ),
    of_teacher(
        inputs="written",
        said="rows that the teacher writes, as many as a training asks for",
        facts={**OF_MADE_ROWS, "inputs": "ids, which the teacher writes"},
        short="written ids, any number of rows of 5",
    ),
    of_teacher(
        inputs="tokens",
        said="4 stored rows of ids",
        facts=OF_IDS,
        short="fixed ids, 4 rows of 5",
    ),
    Example(
        inputs="rows",
        labels="real",
        make=lambda: FarziData.from_rows(
            [{"text": "a b"}, {"text": "b c"}, {"text": "c a"}],
            [1, 0, 3],
            word_tokenizer(),
            len(WORDS),
            5,
        ),
        description=(
            "# 2 rows, with weights, of a dataset 2 of 3 rows of a data set, chosen to train on for"
            " a target. They are rows of the data, as they are, in the data's own columns. Each has"
            " a weight: how often it is to be read. There is no teacher, and there are no soft"
            " labels."
        ),
        facts={
            "rows of the data": "3",
            "rows that stay": "2",
            "which they are": "those whose number in",
            "weights": "one for each row",
        },
        comments={"rows": "a row of the data in its own columns, and its weight"},
        shown={
            "inputs": "2 of 3 rows of the data",
            "labels": "their own, with a weight for each row",
        },
        commands=(f"show {HERE}",),
        has_torch_code=False,
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda x: f"{x.inputs}-{x.labels}")
def test_all_words_are_true(example, tmp_path):
    check_words(example, tmp_path)


def test_each_kind_has_an_example():
    """Here, or in a test of its own."""
    sources = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    code = "\n".join(sources)
    for field, table in (("inputs", INPUTS), ("labels", LABELS)):
        assert set(re.findall(rf'^ +{field}="(\w+)",$', code, flags=re.M)) >= table.keys()


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
    assert args.inputs in inputs_for(labels)


def test_drawn_rows_become_written_ones():
    drawn = carried("drawn")
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
