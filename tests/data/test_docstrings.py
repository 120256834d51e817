"""Docstrings as a corpus, and their tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from farzi_hf.data import bpe_tokenizer, load_docstrings


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Forty files with three docstrings of four paragraphs each; two paragraphs are the same in all of them."""
    for i in range(40):
        code = f'"""Module number {i}.\n\n    With a second line."""\nclass A:\n    "Same"\n    def f(self):\n        "Returns {i}."\n'
        (tmp_path / f"m{i}.py").write_text(code)
    (tmp_path / "broken.py").write_text("def (")
    return tmp_path


def test_every_docstring_is_in_one_split_and_read_once(modules):
    found = load_docstrings(modules)
    texts = [text for split in found.values() for text in split["text"]]
    assert len(texts) == len(set(texts)) == 40 + 40 + 2
    assert {"Module number 7.", "With a second line."} <= set(texts)
    for split in found.values():  # the docstrings of a file stay together
        numbers = {text.split()[2].rstrip(".") for text in split["text"] if text.startswith("Module")}
        assert numbers == {text.split()[1].rstrip(".") for text in split["text"] if text.startswith("Returns")}
    assert len(found["train"]) > len(found["test"]) > 0


def test_a_folder_without_docstrings_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="has no docstrings for train, validation, test: give a folder with more files"
    ):
        load_docstrings(tmp_path)


def test_a_bpe_tokenizer_loses_nothing(modules):
    tokenizer = bpe_tokenizer(load_docstrings(modules)["train"]["text"], 300)
    assert 256 + 4 < len(tokenizer) <= 304
    text = "Something else: naïve  code()\n"
    ids = tokenizer(text)["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in ids


def test_a_bpe_tokenizer_has_room_for_all_bytes():
    with pytest.raises(ValueError, match="vocab_size=255 has no room for all bytes"):
        bpe_tokenizer(["text"], 255)
