"""Counting first: a table of what counting has, and the best model in a folder that can be trusted."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest
from datasets import DatasetDict
from safetensors.numpy import load_file, save_file
from tiny_artefacts import listing, tiny

from farzi_hf import FarziData, LanguageModeling, Recommendation
from farzi_hf import count as exported
from farzi_hf.data import load_sample_interactions, stored_bytes, word_tokenizer
from farzi_hf.report import CountedItems, CountedText, count
from farzi_hf.report.counted import Counts
from farzi_hf.summary.store.hub import upload_artefact
from farzi_hf.tasks import KneserNey, SequenceRules
from farzi_hf.tasks.counted import coded


@pytest.fixture(scope="module")
def of_text(sequences, tokenizer) -> CountedText:
    return count(sequences, LanguageModeling(tokenizer))


@pytest.fixture(scope="module")
def of_items() -> CountedItems:
    interactions = load_sample_interactions(200)
    splits = interactions.strong_generalization_split(seed=0)
    return count(splits, Recommendation(interactions.vocabulary))


def test_the_table_has_every_model_and_the_best_one_is_kept(of_text, sequences, tokenizer):
    assert exported is count
    table = of_text.metrics["table"]
    assert [row["choice"] for row in table] == [f"order {n}" for n in range(1, 6)]
    best = min(table, key=lambda row: row["validation perplexity"])
    assert of_text.metrics["chosen"] == best["choice"] == of_text.model.choice
    assert of_text.metrics_on(sequences["test"])["perplexity"] == best["test perplexity"]
    assert best["test"] == f"perplexity {best['test perplexity']:.2f}"  # two digits below ten
    assert best["bytes"] == of_text.model.nbytes
    stored = stored_bytes(sequences["train"], len(tokenizer))
    assert of_text.metrics["data_bytes"] == stored.least
    assert of_text.metrics["data_bytes_flat"] == stored.flat


def test_text_needs_no_ids_and_no_test_part(text, tokenizer):
    lines = []
    splits = DatasetDict({name: text[name] for name in ("train", "validation")})
    counted = count(splits, LanguageModeling(tokenizer), show=lines.append, orders=[2])
    assert counted.model.order == 2
    assert "test" not in counted.metrics["table"][0]
    assert lines[0].startswith("order 2: validation perplexity ")


def test_text_is_scored_and_written(of_text, text, sequences):
    texts = text["test"]["text"][:5]
    logs = of_text.log_probabilities(texts)
    expected = of_text.model.log_probabilities(sequences["test"]["input_ids"][:5])
    for found, its in zip(logs, expected, strict=True):
        np.testing.assert_array_equal(found, its)
    assert of_text.perplexity(texts) == np.exp(-np.concatenate(expected).mean())
    begun = of_text.generate(4, prompt="the", seed=1)
    assert all(row.startswith("the ") for row in begun)
    assert begun == of_text.generate(4, prompt="the", seed=1)
    assert len(of_text.generate(3)) == 3
    with pytest.raises(ValueError, match="has no tokenizer: set processing_class, or use"):
        CountedText(of_text.model).perplexity(texts)


@pytest.mark.parametrize(
    "texts",
    ["a text", [], (), ["a text", None], [3], 3],
    ids=["one", "none", "empty", "null", "number", "no list"],
)
def test_what_is_no_list_of_texts_is_not_scored(of_text, texts):
    """One text would be taken for a list of its letters."""
    with pytest.raises(ValueError, match=r"^texts=.*: give a list of one text or more$"):
        of_text.perplexity(texts)


def test_no_text_is_written_where_none_is_wanted(of_text):
    assert of_text.generate(0) == []
    with pytest.raises(ValueError, match=r"^prompt=3: give a text$"):
        of_text.generate(1, prompt=3)


@pytest.mark.parametrize("histories", [["a", "b"], "a", 5, [None]], ids=str)
def test_a_history_is_a_list_of_items(of_items, histories):
    with pytest.raises(
        ValueError, match=r"^histories=.*: give a list of items for each user, such"
    ):
        of_items.recommend(histories)
    with pytest.raises(ValueError, match=r"^histories have the item \[1\], which was not counted"):
        of_items.recommend([[[1]]])


def test_what_cannot_be_counted_is_named(text):
    task = LanguageModeling(None)
    with pytest.raises(ValueError, match=r"^task='text' is none; give LanguageModeling\("):
        count(text, "text")
    with pytest.raises(ValueError, match=r"^dataset is a DatasetDict without validation; give a"):
        count(DatasetDict(train=text["train"]), task)
    with pytest.raises(ValueError, match=r"^dataset is a str without train and validation; give"):
        count("mine.txt", task)


def test_the_rows_of_a_file_are_found_as_where_they_were_counted(of_text, text, tmp_path):
    """The column with the text, and paragraphs where lines are wrapped."""
    texts = text["test"]["text"][:8]
    rows = "".join(json.dumps({"id": 3, "review": row}) + "\n" for row in texts)
    (tmp_path / "more.jsonl").write_text(rows)
    ids = of_text.sequences_of(tmp_path / "more.jsonl")["input_ids"][:]
    assert ids == of_text.tokenizer(texts)["input_ids"]
    wrapped = [textwrap.fill(" ".join(texts * 4), 60) for _ in range(3)]
    (tmp_path / "more.txt").write_text("\n\n".join(wrapped))
    assert len(of_text.sequences_of(tmp_path / "more.txt")) == 3
    assert len(of_text.sequences_of(tmp_path / "more.txt", rows="line")) > 3
    (tmp_path / "more.csv").write_text("id,review\n1,a b\n")
    with pytest.raises(ValueError, match="has columns id, review, and no 'body'"):
        of_text.sequences_of(tmp_path / "more.csv", text_column="body")
    with pytest.raises(ValueError, match=r"^rows='word' is unknown: give line or paragraph"):
        of_text.sequences_of(tmp_path / "more.txt", rows="word")
    with pytest.raises(TypeError, match="column"):  # it was left out of account
        of_text.sequences_of(tmp_path / "more.txt", column="body")


def test_items_are_recommended_by_their_names(of_items):
    names = of_items.names
    found = of_items.recommend([[names[3], names[9]], [names[5]]], top_k=4)
    ids = of_items.model.recommend([[3, 9], [5]], top_k=4)
    assert found == [[names[item] for item in row] for row in ids]
    assert not {names[3], names[9]} & set(found[0])
    with pytest.raises(ValueError, match="histories have the item 'no such thing'"):
        of_items.recommend([["no such thing"]])
    with pytest.raises(ValueError, match="has no names of items"):
        CountedItems(of_items.model).recommend([["a"]])


def test_items_of_other_files_are_found_by_their_names(of_items, tmp_path):
    names = of_items.names
    rows = [("a", names[4], 2), ("a", names[2], 1), ("a", "unknown", 3), ("b", "other", 1)]
    lines = [f'{user},"{item}",{time}' for user, item, time in rows]
    text = "\n".join(["user,item,timestamp", *lines])
    (tmp_path / "more.csv").write_text(text, encoding="utf-8")
    rows = of_items.sequences_of(tmp_path / "more.csv")
    assert rows["input_ids"][:] == [[2, 4]]
    (tmp_path / "none.csv").write_text("user,item,timestamp\na,other,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no item that was counted"):
        of_items.sequences_of(tmp_path / "none.csv")


# -- the folder ------------------------------------------------------------------------------------


def test_a_saved_model_is_the_same(of_text, of_items, tmp_path, text):
    of_text.save_pretrained(tmp_path / "text")
    of_items.save_pretrained(tmp_path / "items")
    loaded = Counts.from_pretrained(tmp_path / "text")
    assert isinstance(loaded, CountedText)
    assert loaded.generate(5, seed=2) == of_text.generate(5, seed=2)
    assert loaded.perplexity(text["test"]["text"]) == of_text.perplexity(text["test"]["text"])
    assert loaded.metrics == of_text.metrics
    again = Counts.from_pretrained(tmp_path / "items")
    assert isinstance(again, CountedItems)
    histories = [of_items.names[3:9]]
    assert again.recommend(histories) == of_items.recommend(histories)
    assert {path.suffix for path in tmp_path.glob("*/*")} == {".json", ".md", ".safetensors"}
    before = listing(tmp_path)
    Counts.from_pretrained(tmp_path / "text")
    assert listing(tmp_path) == before
    of_text.save_pretrained(tmp_path / "text")  # over its own files
    of_items.save_pretrained(tmp_path / "text")  # and over those of another one
    assert isinstance(Counts.from_pretrained(tmp_path / "text"), CountedItems)
    assert not (tmp_path / "text" / "tokenizer.json").exists()


def test_a_folder_of_somebody_else_is_not_overwritten(of_text, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"has a config\.json but no farzi\.safetensors"):
        of_text.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "gpt2"}'


def test_a_summary_is_no_counted_model_and_the_other_way_round(of_text, tmp_path):
    tiny().save_pretrained(tmp_path / "summary")
    of_text.save_pretrained(tmp_path / "counted")
    with pytest.raises(ValueError, match="the config of a 'farzi_data', not of a counted model"):
        Counts.from_pretrained(tmp_path / "summary")
    with pytest.raises(ValueError, match=r"not of a summary: name one \(a counted model"):
        FarziData.from_pretrained(tmp_path / "counted")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no farzi\.safetensors"):
        Counts.from_pretrained(tmp_path / "empty")


def changed_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["settings"] |= changes.pop("settings", {})
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "bigram"}, "has kind='bigram': choose a file with one of kneser_ney"),
        ({"kind": ["kneser_ney"]}, r"has kind=\['kneser_ney'\]"),
        ({"kind": "sequence_rules"}, "pairs must be an integer"),
        ({"settings": {"vocab_size": 1 << 30}}, "bytes cannot hold"),
        ({"settings": {"vocab_size": 53}}, "does not hold the 53 counts"),
        ({"settings": {"ngrams": [10**9]}}, "fetch both again|cannot hold"),
        ({"vocabulary": "0" * 64}, "has another vocabulary than was counted"),
    ],
)
def test_a_changed_config_is_refused(of_text, tmp_path, changes, message):
    of_text.save_pretrained(tmp_path / "out")
    changed_config(tmp_path / "out", **changes)
    with pytest.raises(ValueError, match=message):
        Counts.from_pretrained(tmp_path / "out")


def rewritten(folder: Path, **tensors: np.ndarray) -> None:
    """The tensors anew, without checksums, as a stranger can write them."""
    path = folder / "farzi.safetensors"
    known = load_file(path)
    files = json.dumps({"files": sorted(os.listdir(folder))})
    save_file({**known, **tensors}, path, metadata={"farzi": files})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a list of counts"),
        (b"\x03abc", "is not a list of counts"),
        (b"\x01abc", "cannot be decoded"),
        (coded(np.arange(54))[:-9], "cannot be decoded|does not hold"),
        (coded(np.arange(54)) + b"x", "does not hold the 54 counts"),
        (coded(np.zeros(10**7, np.int64)), "does not hold the 54 counts"),
        (coded(np.full(54, 2**63, np.uint64)), "holds counts that are not counts"),
        (coded(np.zeros(54, np.int64)), "counts_1 holds numbers that are not counts"),
    ],
)
def test_strange_counts_are_refused(of_text, tmp_path, content, message):
    of_text.save_pretrained(tmp_path / "out")
    rewritten(tmp_path / "out", counts_1=np.frombuffer(content, np.uint8).copy())
    with pytest.raises(ValueError, match=message):
        Counts.from_pretrained(tmp_path / "out")


def test_other_tensors_and_damaged_ones_are_refused(of_text, tmp_path):
    of_text.save_pretrained(tmp_path / "out")
    rewritten(tmp_path / "out", more=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="'more' U8"):
        Counts.from_pretrained(tmp_path / "out")
    of_text.save_pretrained(tmp_path / "out")
    path = tmp_path / "out" / "farzi.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="another checksum"):
        Counts.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "farzi.safetensors", "tokenizer.json"])
def test_no_link_is_followed(of_text, tmp_path, name):
    of_text.save_pretrained(tmp_path / "out")
    (tmp_path / "out" / name).rename(tmp_path / name)
    (tmp_path / "out" / name).symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        Counts.from_pretrained(tmp_path / "out")


def test_a_vocabulary_of_another_model_is_refused(of_text, tmp_path, text):
    of_text.save_pretrained(tmp_path / "out")
    word_tokenizer(text["train"]["text"], 20).save_pretrained(tmp_path / "out")
    with pytest.raises(ValueError, match="has another vocabulary than was counted"):
        Counts.from_pretrained(tmp_path / "out")


def test_entries_may_have_no_names(of_text, tmp_path):
    CountedText(of_text.model).save_pretrained(tmp_path / "out")
    loaded = Counts.from_pretrained(tmp_path / "out")
    assert loaded.processing_class is None
    assert loaded.model.generate(2) == of_text.model.generate(2)


def test_a_counted_model_goes_through_the_hub(of_text, tmp_path, hub):
    of_text.save_pretrained(tmp_path / "out")
    upload_artefact(tmp_path / "out", "user/counted")
    loaded = Counts.from_pretrained("user/counted", cache_dir=tmp_path / "cache")
    assert loaded.generate(2) == of_text.generate(2)


def test_the_card_says_what_it_is_and_hides_nothing(of_text):
    counted = CountedText(of_text.model, None, {**of_text.metrics, "dataset": "a <b> *c*"})
    card = counted.card()
    assert card.startswith("# Kneser-Ney ")
    assert "<b>" not in card
    assert "as private as they are" in card
    assert "| order 3 | perplexity " in card
    assert "|" not in CountedText(of_text.model).card()  # nothing was measured


def test_kinds_of_models_are_those_of_the_tasks(of_text, of_items):
    assert (LanguageModeling.counts, Recommendation.counts) == (KneserNey, SequenceRules)
    assert isinstance(of_text.task, LanguageModeling)
    assert isinstance(of_items.task, Recommendation)
    assert repr(of_text).startswith("CountedText(Kneser-Ney ")
