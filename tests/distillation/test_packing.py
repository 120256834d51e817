"""Packing: sentences end to end, cut to the length of a synthetic sequence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset
from tiny_trainer import tiny_trainer

from farzi_hf.data.sequences import packed_windows
from farzi_hf.tasks import LanguageModeling


def test_windows_are_full_and_hold_every_pair_of_neighbours_once():
    rows = [[2, 10, 3], [2, 11, 12, 3], [2, 13, 3], [2, 3]]
    windows = packed_windows(Dataset.from_dict({"input_ids": rows}), 5)["input_ids"][:]
    assert windows == [[2, 10, 3, 2], [2, 11, 12, 3, 2], [2, 13, 3, 2, 3]]
    stream = np.concatenate(rows).tolist()
    assert [pair for row in windows for pair in pairwise(row)] == list(pairwise(stream))


@pytest.mark.parametrize("streaming", [False, True])
def test_training_rows_are_packed_and_evaluation_rows_are_not(tmp_path, sequences, tokenizer, streaming):
    train = sequences["train"].to_iterable_dataset() if streaming else sequences["train"]
    trainer = tiny_trainer(
        tmp_path / "out", sequences, tokenizer,
        {"task": LanguageModeling(tokenizer, pack=True), "processing_class": None, "train_dataset": train}, max_steps=1,
    )  # fmt: skip
    rows = (trainer.train_dataset.head() if streaming else trainer.train_dataset)["input_ids"][:]
    assert {len(row) for row in rows[1:]} == {8}
    ids = [rows[0][0], *(i for row in rows for i in row[1:])]
    assert ids == np.concatenate(sequences["train"]["input_ids"][:]).tolist()
    assert trainer.eval_dataset["input_ids"][:] == sequences["validation"]["input_ids"][:]
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0


def test_columns_that_cannot_be_packed_are_refused(tmp_path, sequences, tokenizer):
    rows = sequences["train"].map(lambda row: {"labels": row["input_ids"]})
    with pytest.raises(ValueError, match=r"^train_dataset: dataset has the columns labels, which windows would lose"):
        tiny_trainer(
            tmp_path / "out", sequences, tokenizer,
            {"task": LanguageModeling(tokenizer, pack=True), "processing_class": None, "train_dataset": rows},
        )  # fmt: skip
