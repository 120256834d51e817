"""What a summary's entries stand for: tokens, items or nothing that has a name."""

from __future__ import annotations

import re

import pytest
from tiny_artefacts import WORDS, word_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, PreTrainedTokenizerFast

from farzi_hf.data import bpe_tokenizer, vocabulary_of
from farzi_hf.data.vocabulary import ITEMS_FILE
from farzi_hf.models import SASRecConfig

KINDS = {"tokenizer": word_tokenizer(), "list": WORDS, "none": None}


@pytest.mark.parametrize(
    ("kind", "entries", "categories", "tags", "text"),
    [
        ("tokenizer", "tokens", ("text-generation",), ("language-modeling",), "the cat"),
        ("list", "items", ("other",), ("recommendation",), "the | cat"),
        ("none", "items", (), (), None),
    ],
)
def test_a_vocabulary_knows_what_the_card_says(kind, entries, categories, tags, text):
    vocabulary = vocabulary_of(KINDS[kind])
    assert (vocabulary.entries, vocabulary.task_categories, vocabulary.tags) == (
        entries,
        categories,
        tags,
    )
    assert vocabulary.named == (text is not None)
    if text is None:
        with pytest.raises(
            ValueError, match="processing_class is None, so tokens have no names; set it"
        ):
            vocabulary.text(["[4]", "[5]"])
    else:
        assert vocabulary.text(["the", "cat"]) == text


@pytest.mark.parametrize("kind", KINDS)
def test_entries_without_a_name_are_their_ids(kind):
    vocabulary = vocabulary_of(KINDS[kind])
    known = WORDS if vocabulary.named else [f"[{i}]" for i in range(7)]
    assert vocabulary.names(9) == [*known, "[7]", "[8]"]
    assert vocabulary.names(3) == known[:3]
    assert len(vocabulary) == (7 if vocabulary.named else 0)


def test_entries_that_a_tokenizer_lacks_stand_for_themselves():
    """Models often have more entries than their tokenizer, for the sake of round numbers."""
    tokenizer = word_tokenizer()
    assert tokenizer.unk_token is not None
    assert vocabulary_of(tokenizer).text(["the", "[7]", "cat"]) == f"the {tokenizer.unk_token} cat"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    )
    assert vocabulary_of(tokenizer).text(["a", "b", "[2]", "[3]", "b"]) == "a b [2] [3] b"


@pytest.mark.parametrize("name", [5, None, b"a"])
def test_names_that_are_no_text_are_refused_at_once(name):
    with pytest.raises(
        ValueError,
        match=rf"processing_class\[2\] is {name!r}: give names that are text, such as str",
    ):
        vocabulary_of(["<pad>", "é 😀", name])


@pytest.mark.parametrize("name", ["\ud83d", "a\udc00"])
def test_half_a_surrogate_pair_is_refused_by_its_name_where_files_are_written(tmp_path, name):
    """It can be shown, escaped, but UTF-8 has no such text."""
    vocabulary_of(["<pad>", "é 😀"]).save(tmp_path)
    before = (tmp_path / ITEMS_FILE).read_bytes()
    with pytest.raises(
        ValueError,
        match=rf"processing_class has the name {re.escape(repr(name))} with half a surrogate",
    ):
        vocabulary_of(["<pad>", "é 😀", name]).save(tmp_path)
    assert (tmp_path / ITEMS_FILE).read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_small_learner_is_a_config_that_exists(kind):
    learner = dict(vocabulary_of(KINDS[kind]).small_learner)
    config = AutoConfig.for_model(**learner)
    assert isinstance(config, SASRecConfig) == (kind == "list")
    assert config.to_dict().items() >= learner.items()


def test_people_read_a_space_where_a_byte_level_tokenizer_writes_another_letter():
    tokenizer = bpe_tokenizer(["the cat café"] * 9, 300)
    vocabulary = vocabulary_of(tokenizer)
    names, shown = (x.names(len(tokenizer)) for x in (vocabulary, vocabulary.readable))
    assert "Ġcat" in names
    assert shown[names.index("Ġcat")] == " cat"
    assert shown[names.index("Ã")] == "Ã"  # the first byte of é
    assert len(shown) == len(names)
    assert [vocabulary_of(kind).readable.names(2) for kind in KINDS.values()] == [
        vocabulary_of(kind).names(2) for kind in KINDS.values()
    ]


@pytest.mark.parametrize("given", ["gpt2", b"gpt2", {"a": 1}, 3])
def test_what_is_neither_a_tokenizer_nor_a_list_is_refused(given):
    """The name of a tokenizer would be a list of its letters."""
    with pytest.raises(ValueError, match=r"^processing_class=.* is neither a tokenizer nor a list"):
        vocabulary_of(given)


@pytest.mark.parametrize("given", ["gpt2", b"gpt2", {"the": 0}, {"the"}, 3], ids=str)
def test_what_has_no_entries_in_an_order_is_no_vocabulary(given):
    with pytest.raises(ValueError, match="is neither a tokenizer nor a list of names: give a"):
        vocabulary_of(given)
