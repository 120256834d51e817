"""Rows and lengths that a learner cannot learn from are refused before the work; padding is told by its place, not by its id."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from datasets import Dataset
from tiny_models import V, config_of
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import AutoConfig, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from farzi_hf.data import InteractionCollator, SequenceCollator
from farzi_hf.distillation import Learner, record_trajectories
from farzi_hf.distillation.row_checks import check_rows
from farzi_hf.engine import InnerAdam
from farzi_hf.tasks import LanguageModeling

POSITIONS = 64  # of tiny_learner


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


def rows(*ids: list[int], **columns: list) -> Dataset:
    return Dataset.from_dict({"input_ids": list(ids), **columns})


# -- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_a_row_of_more_ids_than_positions_is_refused(make, sequences, name):
    fits, long = [5] * POSITIONS, [5] * (POSITIONS + 1)
    message = rf"^{name}: dataset\['input_ids'\]\[1\] has 65 ids, but the learner reads 64 at most: .*max_length=64"
    with pytest.raises(ValueError, match=message):
        make({name: rows(fits, long, fits)})
    trainer = make({name: rows(*[fits] * 50)})
    if name == "eval_dataset":
        with pytest.raises(ValueError, match=message):
            trainer.evaluate(rows(fits, long))


def test_a_sequence_length_beyond_the_positions_is_refused(make):
    make(sequence_length=POSITIONS)
    with pytest.raises(ValueError, match=r"^sequence_length=65, but the learner reads 64 positions at most: lower it"):
        make(sequence_length=POSITIONS + 1)


def test_trajectories_of_too_long_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"dataset\['input_ids'\]\[0\] has 65 ids, but the learner reads 64"):
        record_trajectories(
            Learner(tiny_learner(54)), InnerAdam(lr=0.05), rows([5] * 65), SequenceCollator(), tmp_path / "omega", num=1, steps=2,
            save_every=1, batch_size=1, seed=0,
        )  # fmt: skip


ROBERTA = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "is_decoder": True,
}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (config_of("gpt2", n_positions=20), 20), (config_of("opt", max_position_embeddings=20), 20), (config_of("sasrec", max_length=20), 20),
        (AutoConfig.for_model("roberta", vocab_size=V, max_position_embeddings=20, pad_token_id=1, **ROBERTA), 18),
        (config_of("llama", max_position_embeddings=20), 50), (config_of("mamba"), 50), (config_of("bloom"), 50),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)  # fmt: skip
def test_what_a_model_reads_is_tried(config, limit):
    learner = Learner(config)
    assert [learner.readable(length) for length in (1, 17, 50, 18, 50)] == [1, 17, limit, min(18, limit), limit]
    ids = torch.full((1, limit), 5)
    learner.logits(learner.initial_parameters(0), {"input_ids": ids})


@pytest.mark.gpu
def test_a_gpu_still_works_after_a_length_was_refused():
    learner = Learner(config_of("gpt2", n_positions=20)).to("cuda")
    assert learner.readable(30) == 20
    assert (
        learner.logits(learner.initial_parameters(0, "cuda"), {"input_ids": torch.ones(1, 20, dtype=int).cuda()})
        .isfinite()
        .all()
    )


# -- something to predict --------------------------------------------------------------------------------------------

IDS = [2, 5, 6, 3]


@pytest.mark.parametrize(
    "dataset",
    [
        rows(IDS, [0, 0, 0], IDS), rows(IDS, [2, 0, 0], IDS),
        rows(IDS, IDS, IDS, labels=[IDS, [-100] * 4, IDS]), rows(IDS, IDS, IDS, labels=[IDS, [2, -100, -100, -100], IDS]),
        rows(IDS, IDS, IDS, attention_mask=[[1] * 4, [0] * 4, [1] * 4]),
        rows(IDS, IDS, IDS, labels=[IDS, [-100, -100, -100, 3], IDS], attention_mask=[[1] * 4, [1, 1, 1, 0], [1] * 4]),
    ],
    ids=["padding", "padding but for the first", "labels", "labels but for the first", "attention_mask", "both"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_a_row_without_anything_to_predict_is_refused(make, name, dataset):
    with pytest.raises(
        ValueError, match=rf"^{name}: dataset\[1\] has nothing to predict after its first id \(1 rows are like it\)"
    ):
        make({name: dataset})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"labels": [IDS, [2, 5]]}, r"dataset\['labels'\]\[1\] has 2 values beside 4 ids: make them equally long"),
        ({"attention_mask": [[1] * 5, [1] * 4]}, r"dataset\['attention_mask'\]\[0\] has 5 values beside 4 ids"),
        ({"labels": [IDS, [2, 5, 54, 3]]}, "dataset\\['labels'\\] holds 54: give -100 or ids of 0 … 53"),
        ({"labels": [IDS, [2, 5, -1, 3]]}, r"dataset\['labels'\] holds -1"),
        ({"labels": [[0.5] * 4] * 2}, r"dataset\['labels'\] holds double values: it must hold integers"),
        ({"labels": [1, 2]}, r"dataset\['labels'\] has type int64"),
    ],
)
def test_columns_that_do_not_fit_the_ids_are_refused(make, columns, message):
    with pytest.raises(ValueError, match=f"^train_dataset: {message}"):
        make({"train_dataset": rows(IDS, IDS, **columns)})


def test_items_of_padding_only_are_refused():
    learner = Learner(config_of("sasrec"))
    check_rows(rows([1, 2], [0, 3]), learner, InteractionCollator())
    with pytest.raises(ValueError, match=r"dataset\[1\] has nothing to predict"):
        check_rows(rows([1, 2], [0, 0]), learner, InteractionCollator())


# -- the default collator --------------------------------------------------------------------------------------------


def without_padding(tokenizer: PreTrainedTokenizerFast, token: str | None) -> PreTrainedTokenizerFast:
    changed = copy.deepcopy(tokenizer)
    changed.pad_token = token
    return changed


def test_padding_of_its_own_is_collated_as_by_transformers(tokenizer):
    batch = [{"input_ids": [2, 5, 1, 3]}, {"input_ids": [2, 3]}, {"input_ids": [2, 4, 3, 0, 0]}]
    expected = DataCollatorForLanguageModeling(tokenizer, mlm=False)(
        [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in batch]
    )
    found = LanguageModeling(tokenizer).collator(batch)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("token", [None, "</s>", "<s>", "<unk>"])
def test_a_token_that_also_pads_is_still_predicted(tokenizer, token):
    batch = LanguageModeling(without_padding(tokenizer, token)).collator(
        [{"input_ids": [2, 5, 1, 3]}, {"input_ids": [2, 3]}]
    )
    assert batch["labels"].tolist() == [[2, 5, 1, 3], [2, 3, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_rows_may_bring_labels_and_a_mask():
    batch = SequenceCollator(0)([
        {"input_ids": [2, 5, 3, 3], "attention_mask": [1, 1, 1, 0], "labels": [-100, 5, 3, 3], "other": "x"},
        {"input_ids": [2, 3], "attention_mask": [1, 1], "labels": [-100, 3], "other": "y"},
    ])  # fmt: skip
    assert {name: x.tolist() for name, x in batch.items()} == {
        "input_ids": [[2, 5, 3, 3], [2, 3, 0, 0]], "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
        "labels": [[-100, 5, 3, -100], [-100, 3, -100, -100]],
    }  # fmt: skip


def test_a_tokenizer_without_padding_distils_what_one_with_it_does(tmp_path, sequences, tokenizer):
    """GPT-2's own has none."""
    results = []
    for i, token in enumerate((tokenizer.pad_token, None, tokenizer.eos_token)):
        trainer = tiny_trainer(
            tmp_path / str(i),
            sequences,
            without_padding(tokenizer, token),
            max_steps=2,
            save_strategy="steps",
            save_steps=2,
        )
        trainer.train()
        trainer.save_model()
        results.append((trainer.model.latents.detach().clone(), trainer.evaluate()["eval_loss"]))
    for latents, loss in results[1:]:
        assert torch.equal(latents, results[0][0])
        assert loss == results[0][1]


@pytest.mark.parametrize("mask", [[0, 0, 1, 1], [1, 0, 1, 1]])
def test_padding_before_an_id_is_refused(make, mask):
    """A tokenizer that pads on the left gave other perplexities: the first id was predicted from padding."""
    padded = rows([5, 6, 0, 0], [0, 0, 5, 6], attention_mask=[[1, 1, 0, 0], mask])
    with pytest.raises(
        ValueError, match=r"^train_dataset: dataset\['attention_mask'\]\[1\] has 0 before 1: .*padding_side"
    ):
        make({"train_dataset": padded})
    make({"train_dataset": rows(*[[5, 6, 0, 0]] * 50, attention_mask=[[1, 1, 0, 0]] * 50)})
