"""The collator of a summary on rows of ids: one collator trains on soft rows and evaluates on hard
ones.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from datasets import Dataset
from tiny_models import (
    CONFIGS,
    LENGTH,
    NEXT_ITEM,
    V,
    arguments,
    soft_trainer,
    tiny_model,
    tiny_summary,
)

from farzi_hf.data import evaluation_windows, training_windows
from farzi_hf.metrics import recommendation_metrics, target_ranks
from farzi_hf.summary import attach_soft_inputs, soft_cross_entropy

IDS = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]]


def collator():
    return pickle.loads(pickle.dumps(tiny_summary().collator()))


def test_rows_of_ids_are_padded_on_the_right():
    batch = collator()([{"input_ids": ids} for ids in IDS])
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 7], [8, 9, 0, 0, 0], [10, 11, 12, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [
        [3, 4, 5, 6, 7],
        [8, 9, -100, -100, -100],
        [10, 11, 12, -100, -100],
    ]
    assert batch["shift_labels"].tolist() == [
        [4, 5, 6, 7, -100],
        [9, *[-100] * 4],
        [11, 12, -100, -100, -100],
    ]


@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["lists", "tensors"])
def test_columns_of_the_rows_are_kept(kind):
    rows = [
        {
            "input_ids": kind([3, 4, 5, 0]),
            "attention_mask": kind([1, 1, 1, 0]),
            "seen": kind([3]),
            "text": "left out",
        },
        {
            "input_ids": kind([6, 7]),
            "attention_mask": kind([1, 1]),
            "seen": kind([6, 8, 9]),
            "text": "left out",
        },
    ]
    batch = collator()(rows)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[3, 4, 5, -100], [6, 7, -100, -100]]
    assert batch["seen"].tolist() == [[3, 0, 0], [6, 8, 9]]
    assert "text" not in batch
    labelled = collator()(
        [{**row, "labels": kind([-100, -100, 5, 0][: len(row["input_ids"])])} for row in rows]
    )
    assert labelled["labels"].tolist() == [[-100, -100, 5, -100], [-100] * 4]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"input_ids": IDS[0]}, {"input_ids": torch.zeros(LENGTH, 4)}],
            r"rows mix soft sequences and ids",
        ),
        (
            [{"input_ids": [3, 4]}, {"input_ids": [3, V]}],
            rf"rows\[1\]\['input_ids'\] holds id {V}, outside 0 … {V - 1}",
        ),
        ([{"input_ids": [3, -1]}], r"rows\[0\]\['input_ids'\] holds id -1, outside"),
        (
            [{"input_ids": [[3, 4]]}],
            r"rows\[0\]\['input_ids'\] is torch.int64 of shape \(1, 2\); give ids \(L,\)",
        ),
        (
            [{"input_ids": [0.5, 0.5]}],
            r"rows\[0\]\['input_ids'\] is torch.float32 of shape \(2,\); give ids",
        ),
        ([{"input_ids": torch.zeros(LENGTH, 5)}], r"latents \(ξ, 4\)"),
        ([{"text": "a"}], r"rows\[0\] has columns \['text'\], but no 'input_ids'"),
    ],
)
def test_rows_that_are_neither_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        collator()(rows)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_the_loss_of_ids_is_exactly_the_models_own(kind):
    model, batch = (
        attach_soft_inputs(tiny_model(kind)).eval(),
        collator()([{"input_ids": ids} for ids in IDS]),
    )
    outputs = model(**batch)
    assert torch.equal(soft_cross_entropy(outputs, batch["labels"]), outputs.loss)
    accumulated = model(
        **batch, num_items_in_batch=torch.tensor(9)
    )  # as Trainer counts them over several batches
    if not torch.equal(
        accumulated.loss, outputs.loss
    ):  # in older releases some models do not take this number
        assert torch.equal(
            soft_cross_entropy(accumulated, batch["labels"], torch.tensor(9)), accumulated.loss
        )
    alone = sum(
        soft_cross_entropy(model(input_ids=torch.tensor([ids])), torch.tensor([ids]))
        * (len(ids) - 1)
        for ids in IDS
    )
    torch.testing.assert_close(outputs.loss, alone / 7)  # the padding counts for nothing


@pytest.mark.parametrize("kind", NEXT_ITEM)
def test_a_recommender_is_ranked_by_the_trainer_that_trained_it(kind, tmp_path):
    histories = Dataset.from_dict({"input_ids": [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]]})
    trainer = soft_trainer(
        tiny_model(kind),
        tiny_summary(),
        arguments(tmp_path, label_names=["labels", "seen"]),
        compute_metrics=recommendation_metrics,
        preprocess_logits_for_metrics=target_ranks,
    )
    trainer.train()
    metrics = trainer.evaluate(evaluation_windows(histories, 4))
    assert {"eval_loss", "eval_hr@10", "eval_auc"} <= metrics.keys()
    assert (
        trainer.evaluate(training_windows(histories, 4).add_column("seen", [[0]] * 4))["eval_loss"]
        > 0
    )
