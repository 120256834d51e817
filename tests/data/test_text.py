"""Text: readers, the sample corpus, docstrings as a corpus, tokenizers."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from farzi_hf.data import (
    bpe_tokenizer,
    flatten_sequences,
    load_docstrings,
    load_ptb,
    load_sample_interactions,
    load_sample_text,
    tokenize,
    word_tokenizer,
)
from farzi_hf.data import text as data

# --- readers


@pytest.fixture
def ptb_folder(tmp_path: Path) -> Path:
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text(
            f" {split} <unk> N \n no it was n't \n", encoding="utf-8"
        )
    return tmp_path


def test_ptb_from_a_folder(ptb_folder):
    dataset = load_ptb(ptb_folder)
    assert {split: [line.split() for line in dataset[split]["text"]] for split in dataset} == {
        split: [[name, "<unk>", "N"], ["no", "it", "was", "n't"]]
        for split, name in (("train", "train"), ("validation", "valid"), ("test", "test"))
    }


def test_ptb_from_the_hub_snapshot(ptb_folder, monkeypatch):
    # What the Hub's Parquet export looks like once it is on disk.
    for split in data.SPLITS:
        (ptb_folder / "penn_treebank" / split).mkdir(parents=True)
        Dataset.from_dict({"sentence": [split]}).to_parquet(
            ptb_folder / "penn_treebank" / split / "0000.parquet"
        )
    monkeypatch.setattr(data, "snapshot_download", lambda *args, **kwargs: str(ptb_folder))
    dataset = load_ptb()
    assert {split: list(dataset[split]["text"]) for split in dataset} == {
        split: [split] for split in data.SPLITS
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a caf\xe9 b\n".encode("latin-1"),
            (
                r"ptb\.valid\.txt cannot be read as UTF-8 or UTF-16 text \(.*position 5: .*\):"
                r" data_dir has to hold"
            ),
        ),
        ("a b\n".encode("utf-16")[:-1], r"ptb\.valid\.txt cannot be read"),
        (None, r"ptb\.valid\.txt cannot be read .*No such file"),
    ],
    ids=["Latin-1", "UTF-16", "missing"],
)
def test_ptb_names_a_file_that_holds_no_text(ptb_folder, content, message):
    (ptb_folder / "ptb.valid.txt").unlink()
    if content is not None:
        (ptb_folder / "ptb.valid.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_ptb(ptb_folder)


def test_ptb_lines_end_where_a_line_ends(ptb_folder):
    content = "\ufeffa\u2028b \x85 c\r\nd\x0b\x0ce\rf\n\n\x01 g"
    for encoding in ("utf-8", "utf-16"):
        (ptb_folder / "ptb.valid.txt").write_bytes(
            content.removeprefix("\ufeff" * (encoding == "utf-16")).encode(encoding)
        )
        assert load_ptb(ptb_folder)["validation"]["text"][:] == [
            "a\u2028b \x85 c",
            "d\x0b\x0ce",
            "f",
            "",
            "\x01 g",
        ]


def test_ptb_unreachable_is_one_line_that_names_the_remedies(monkeypatch):
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(data, "snapshot_download", unreachable)
    with pytest.raises(data.DataUnavailableError) as caught:
        load_ptb()
    message = str(caught.value)
    assert "\n" not in message
    assert "--data_dir" in message
    assert "--dataset sample" in message


@pytest.mark.skipif(
    "FARZI_PTB_DIR" not in os.environ, reason="FARZI_PTB_DIR names no folder with Penn Treebank"
)
def test_real_ptb():
    dataset = load_ptb(os.environ["FARZI_PTB_DIR"])
    assert {split: len(dataset[split]) for split in dataset} == {
        "train": 42_068,
        "validation": 3_370,
        "test": 3_761,
    }
    tokenizer = word_tokenizer(dataset["train"]["text"])
    assert len(tokenizer) == 2004
    tokens = flatten_sequences(tokenize(dataset, tokenizer)["test"])[0]
    assert len(tokens) == 78_669 + 2 * 3_761


# --- the sample corpus


def test_sample_text_is_seeded_and_disjoint():
    first, again, other = (load_sample_text(500, seed=seed) for seed in (0, 0, 1))
    texts = [text for split in first.values() for text in split["text"]]
    assert {split: len(first[split]) for split in first} == {
        "train": 400,
        "validation": 50,
        "test": 50,
    }
    assert len(set(texts)) == 500
    assert texts == [text for split in again.values() for text in split["text"]]
    assert list(first["train"]["text"]) != list(other["train"]["text"])
    # Another sentence would change every figure of the demo.
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "7e7e7a729e6ec552"


# --- the tokenizer


def test_word_tokenizer_ids():
    tokenizer = word_tokenizer(["b a a <unk>", "c b a", "<unk> d <unk> <unk>"], vocab_size=3)
    assert tokenizer.get_vocab() == {
        "<pad>": 0,
        "<unk>": 1,
        "<s>": 2,
        "</s>": 3,
        "a": 4,
        "b": 5,
        "c": 6,
    }
    assert tokenizer("a d <unk> c").input_ids == [2, 4, 1, 1, 6, 3]
    assert [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "bos", "eos")] == [
        0,
        1,
        2,
        3,
    ]
    ids = word_tokenizer(["it was n't ?"])("was n't it ?").input_ids
    assert word_tokenizer(["it was n't ?"]).decode(ids) == "<s> was n't it ? </s>"


@pytest.mark.parametrize(
    ("make", "sentences", "vocab_size", "message"),
    [
        (word_tokenizer, ["a"], 0, "vocab_size must be an integer of at least 1, got 0"),
        (word_tokenizer, ["a"], "3", "vocab_size must be an integer of at least 1, got '3'"),
        (word_tokenizer, "the cat", 5, "sentences is one text"),
        (bpe_tokenizer, "the cat", 300, "sentences is one text"),
        (bpe_tokenizer, ["text"], 255, "vocab_size must be an integer of at least 256, got 255"),
    ],
)
def test_what_makes_no_tokenizer_is_refused(make, sentences, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        make(sentences, vocab_size)


# --- docstrings


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Forty files with three docstrings of four paragraphs each; two paragraphs are the same in all
    of them.
    """
    for i in range(40):
        code = (
            f'"""Module number {i}.\n\n    With a second line."""\nclass A:\n    "Same"\n    def'
            f' f(self):\n        "Returns {i}."\n'
        )
        (tmp_path / f"m{i}.py").write_text(code)
    (tmp_path / "broken.py").write_text("def (")
    return tmp_path


def test_every_docstring_is_in_one_split_and_read_once(modules):
    found = load_docstrings(modules)
    texts = [text for split in found.values() for text in split["text"]]
    assert len(texts) == len(set(texts)) == 40 + 40 + 2
    assert {"Module number 7.", "With a second line."} <= set(texts)
    for split in found.values():  # the docstrings of a file stay together
        numbers = {
            text.split()[2].rstrip(".") for text in split["text"] if text.startswith("Module")
        }
        assert numbers == {
            text.split()[1].rstrip(".") for text in split["text"] if text.startswith("Returns")
        }
    assert len(found["train"]) > len(found["test"]) > 0


def test_a_bpe_tokenizer_loses_nothing(modules):
    tokenizer = bpe_tokenizer(load_docstrings(modules)["train"]["text"], 300)
    assert 256 + 4 < len(tokenizer) <= 304
    text = "Something else: naïve  code()\n"
    ids = tokenizer(text)["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in ids


# --- tokenize


def test_tokenize_leaves_out_blank_lines_only():
    tokenizer = word_tokenizer(["a b"])
    encoded = tokenize(
        DatasetDict(
            train=Dataset.from_dict({"text": ["a", "", "b a", "  ", None], "source": list("vwxyz")})
        ),
        tokenizer,
    )
    assert encoded["train"].column_names == ["input_ids"]
    assert list(encoded["train"]["input_ids"]) == [[2, 4, 3], [2, 5, 4, 3]]


def test_tokenize_takes_splits_of_datasets(tokenizer, text):
    for dataset in (text["train"], {"train": text["train"].to_iterable_dataset()}):
        with pytest.raises(
            TypeError, match=r"dataset is a .*: pass a DatasetDict, such as .*; of a stream, map"
        ):
            tokenize(dataset, tokenizer)


def test_tokenize_cuts():
    texts = DatasetDict(train=Dataset.from_dict({"text": ["a b a", "a"]}))
    encoded = tokenize(texts, word_tokenizer(["a b"]), max_length=3)
    assert list(encoded["train"]["input_ids"]) == [[2, 4, 5], [2, 4, 3]]


@pytest.mark.parametrize(
    ("columns", "max_length", "message"),
    [
        ({"sentence": ["a"]}, None, r"has columns {'sentence'.*, but no text in 'text'"),
        ({"text": ["", " "]}, None, r"dataset\['train'\] has 2 rows and no sentence"),
        ({"text": ["a"]}, 1, "max_length=1"),
        ({"text": [1, 2]}, None, r"has columns {'text': Value\('int64'\)}, but no text"),
    ],
)
def test_tokenize_bad_input(columns, max_length, message):
    with pytest.raises(ValueError, match=message):
        tokenize(DatasetDict(train=Dataset.from_dict(columns)), word_tokenizer(["a"]), max_length)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load_sample_text(9), "num_sentences must be an integer of at least 10, got 9"),
        (lambda: load_sample_text("10"), "num_sentences must be an integer of at least 10, got '1"),
        (lambda: load_sample_interactions(0), "num_users must be an integer of at least 1, got 0"),
    ],
)
def test_samples_have_a_size(make, message):
    with pytest.raises(ValueError, match=message):
        make()
