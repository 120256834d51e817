"""Rows of the user's data with weights: kept, shown, loaded, and trained on as they are."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset, load_dataset
from safetensors.torch import load_file
from tiny_artefacts import WORDS, word_tokenizer
from tiny_models import arguments, tiny_model
from transformers import Trainer

from farzi_hf import FarziConfig, FarziData, FarziDataConfig
from farzi_hf.cli import main
from farzi_hf.data.shares import rows_by_shares
from farzi_hf.summary import soft_cross_entropy
from farzi_hf.summary.soft_training import attach_soft_inputs
from farzi_hf.summary.store.tensor_file import write_tensors

CHATS = [
    [{"role": "user", "content": f"question {i} | <i>"}, {"role": "assistant", "content": "é"}]
    for i in range(5)
]
DATA = [{"messages": chat, "number": i} for i, chat in enumerate(CHATS)]


def summary() -> FarziData:
    return FarziData.from_rows(DATA, [2.0, 0, 1, 0, 3], word_tokenizer(), len(WORDS), 6)


def test_weights_are_in_the_order_of_the_data_and_one_on_average():
    farzi = summary()
    assert farzi.weights.tolist() == [1.0, 0.0, 0.5, 0.0, 1.5]
    assert (farzi.config.num_sequences, farzi.config.num_rows) == (3, 5)
    kept = farzi.as_dataset()
    assert kept["messages"] == [CHATS[i] for i in (0, 2, 4)]
    assert kept["weight"] == [1.0, 0.5, 1.5]


def test_it_is_saved_and_loaded_and_datasets_reads_it_without_us(tmp_path):
    farzi = summary()
    metrics = {"dataset": "mine at abc123", "licence": "mit"}
    farzi.save_pretrained(tmp_path / "summary", metrics=metrics)
    loaded = FarziData.from_pretrained(tmp_path / "summary")
    assert loaded.fingerprint() == farzi.fingerprint()
    assert loaded.decode() == farzi.decode()
    assert loaded.as_dataset()[:] == farzi.as_dataset()[:]
    rows = load_dataset(str(tmp_path / "summary"), cache_dir=str(tmp_path / "cache"))["train"]
    assert rows.column_names == ["messages", "number", "weight"]
    assert rows[:] == farzi.as_dataset()[:]


def test_the_card_names_the_data_and_prints_no_row(tmp_path):
    metrics = {"dataset": "mine at abc123", "licence": "mit"}
    summary().save_pretrained(tmp_path, metrics=metrics)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "# 3 rows, with weights, of mine at abc123" in card
    assert "The licence of the source is mit" in card
    assert "whoever publishes this summary publishes them" in card
    assert "question" not in card
    assert not (tmp_path / "viewer.html").exists()
    summary().save_pretrained(tmp_path, metrics=metrics, show_rows=True)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "question 0" in card
    assert "<i>" not in card.replace("```text", "").split("What it says")[1].split("```")[2]


def test_farzi_show_prints_rows_and_weights(tmp_path, capsys):
    summary().save_pretrained(tmp_path / "summary")
    main(["show", str(tmp_path / "summary"), "--sequences", "2"])
    printed = capsys.readouterr().out
    assert "3 of 5 rows of the data" in printed
    assert "question 2" in printed
    assert "question 4" not in printed
    assert "0.500" in printed


def test_rows_are_drawn_as_often_as_their_weights_say():
    drawn = summary().as_dataset(num_rows=60, seed=1)
    counts = np.bincount(drawn["number"], minlength=5)
    assert counts.sum() == 60
    np.testing.assert_allclose(counts, [20, 0, 10, 0, 30], atol=3)
    assert set(drawn["weight"]) == {1.0}
    assert drawn["number"] != summary().as_dataset(num_rows=60, seed=2)["number"]


def test_small_shares_of_many_rows_do_not_disturb_how_the_others_are_read():
    shares = np.concatenate([np.full(20, 0.99 / 20), np.full(980, 0.01 / 980)])
    counts = []
    for seed in range(20):
        rows = np.array(rows_by_shares(shares, 400, np.random.default_rng(seed)))
        assert len(rows) == 400
        counts.append(np.bincount(rows, minlength=1000))
        for half in (rows[:200], rows[200:]):
            of_large = np.bincount(half, minlength=1000)[:20]
            assert of_large.min() >= 8  # 9.9 reads should be in each half
            assert of_large.max() <= 12
    of_small = np.sum(counts, axis=0)[20:].sum()
    assert of_small == pytest.approx(20 * 4, abs=27)  # three standard deviations


def test_equal_shares_are_ordinary_epochs():
    rows = rows_by_shares([2.0, 0, 2, 2], 9, np.random.default_rng(0))
    assert [sorted(rows[i : i + 3]) for i in (0, 3, 6)] == [[0, 2, 3]] * 3
    with pytest.raises(ValueError, match="weights has a negative number"):
        rows_by_shares([1, -1], 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="or zeros alone"):
        rows_by_shares([0, 0], 2, np.random.default_rng(0))


IDS = [
    {"input_ids": [1, 2, 3, 4], "weight": 2.0},
    {"input_ids": [5, 6, 1], "labels": [-100, 6, -100], "weight": 0.5},
]


def test_the_collator_multiplies_the_loss_of_a_row_by_its_weight(tmp_path):
    farzi = summary()
    batch = farzi.collator()(IDS)
    model = tiny_model("gpt2", len(WORDS)).eval()
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    predicted = [(0, j, IDS[0]["input_ids"][j + 1], 2.0) for j in range(3)] + [(1, 0, 6, 0.5)]
    expected = sum(
        weight * F.cross_entropy(logits[i, j], torch.tensor(y)) for i, j, y, weight in predicted
    )
    assert int((batch["shift_labels"] != -100).sum()) == len(predicted)
    loss = soft_cross_entropy({"logits": logits}, batch["labels"], len(predicted))
    torch.testing.assert_close(loss, expected / len(predicted))
    args = arguments(tmp_path, remove_unused_columns=False, max_steps=1)
    Trainer(
        model=attach_soft_inputs(model),
        args=args,
        train_dataset=Dataset.from_list([IDS[0], {**IDS[0], "weight": 1.0}]),
        data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy,
    ).train()


def test_farzi_train_says_that_rows_are_text(tmp_path):
    """It said that a learning rate was missing."""
    farzi = summary()
    farzi.save_pretrained(tmp_path / "summary")
    said = "text and not yet ids: tokenize as_dataset.*its card shows how"
    with pytest.raises(SystemExit, match=f"farzi train: .*{said}"):
        main(["train", str(tmp_path / "summary"), "--output_dir", str(tmp_path / "student")])
    with pytest.raises(ValueError, match=said):
        farzi.trainer(tiny_model("gpt2", len(WORDS)))
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize(
    ("rows", "weights", "message"),
    [
        (DATA, [1, 2], r"weights has the shape \(2,\), but there are 5 rows"),
        (DATA, [1, 1, 1, 1, -1], "weights has negative numbers"),
        (DATA, [0] * 5, "or zeros alone; give positive numbers"),
        (DATA, [1, 1, 1, 1, math.nan], "or some that are not finite"),
        ([{"weight": 1}], [1], "dataset has a column 'weight' already.*; rename it"),
        ([{"text": b"x"}], [1], "row 0 holds what JSON cannot .*; leave out columns"),
    ],
)
def test_bad_rows_are_refused(rows, weights, message):
    with pytest.raises(ValueError, match=message):
        FarziData.from_rows(rows, weights)


def test_no_distillation_makes_them(tmp_path):
    with pytest.raises(ValueError, match=r"which farzi_hf\.weigh chooses"):
        FarziConfig(str(tmp_path), use_cpu=True, report_to="none", inputs="rows")
    with pytest.raises(ValueError, match=r"num_rows=3 with inputs='soft' .*leave it out"):
        FarziDataConfig(num_rows=3)
    farzi = summary()
    with pytest.raises(ValueError, match="tokenize as_dataset"):
        farzi(torch.tensor([0]))
    with pytest.raises(ValueError, match="seed=3 without num_rows"):
        farzi.as_dataset(seed=3)


# -- a folder of somebody else ---------------------------------------------------------------------


def hostile(folder, content: bytes, count: int, weights: list[float]) -> None:
    """A folder whose rows are these bytes."""
    farzi = FarziData.from_rows(DATA[:count], [1.0] * count, word_tokenizer(), len(WORDS), 6)
    farzi.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    filled = content + b"\n" * (-len(content) % 4)
    rows = torch.from_numpy(np.frombuffer(filled, dtype="<i4").astype(np.int32))
    config |= {"row_words": len(rows), "num_rows": len(weights)}
    (folder / "config.json").write_text(json.dumps(config))
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    tensors = {"rows": rows, "weights": torch.tensor(weights)}
    assert set(load_file(folder / "farzi.safetensors")) == set(tensors)
    write_tensors(folder / "farzi.safetensors", tensors, names)


@pytest.mark.parametrize(
    ("content", "weights", "message"),
    [
        (b'{"a": 1}\n', [1.0, 1.0], "rows has 1 lines in place of num_sequences=2"),
        (b"\n" * 400, [1.0, 1.0], "lines in place of num_sequences=2"),
        (b'{"a": 1}\n{"a": 2}\n', [1.0, -1.0], "weights has negative numbers"),
        (b'{"a": 1}\n{"a": 2}\n', [1.0, 0.0], "1 positive ones in place of num_sequences=2"),
        (b'{"a": 1}\n{"a": 2}\n', [1.0, math.inf], "weights holds NaN or infinity"),
    ],
)
def test_a_load_refuses_what_cannot_be_rows(tmp_path, content, weights, message):
    hostile(tmp_path, content, 2, weights)
    with pytest.raises(ValueError, match=message):
        FarziData.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "line 0 cannot be read .*nested too deep"),
        (b"\xff\xfe", "line 0 cannot be read"),
        (b"[1]", "line 0 is not a row of columns"),
        (b'{"weight": 5}', "line 0 is not a row of columns"),
    ],
)
def test_bad_lines_are_one_error_when_they_are_read(tmp_path, line, message):
    hostile(tmp_path, line + b'\n{"a": 2}\n', 2, [1.0, 1.0])
    loaded = FarziData.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        loaded.as_dataset()
