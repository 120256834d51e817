"""SASRec, GRU4Rec and FMLP: causal, blind to padding, twice differentiable, saved and loaded, and what they recommend."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

from farzi_hf.data import InteractionCollator, evaluation_windows, load_sample_interactions, training_windows
from farzi_hf.metrics import recommendation_metrics, target_ranks
from farzi_hf.models import FMLPForNextItem, GRU4RecForNextItem, SASRecConfig, SASRecForNextItem
from farzi_hf.models.fmlp import _CausalFilter
from farzi_hf.models.next_item import NextItemModel

NUM_ITEMS, LENGTH = 11, 6
MODELS = {"sasrec": SASRecForNextItem, "gru4rec": GRU4RecForNextItem, "fmlp": FMLPForNextItem}


def tiny(kind: str, **changes) -> NextItemModel:
    torch.manual_seed(0)
    sizes = {"num_items": NUM_ITEMS, "hidden_size": 8, "max_length": LENGTH, "initializer_range": 0.5}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **changes})).eval()


@pytest.fixture(params=MODELS)
def kind(request) -> str:
    return request.param


def items(rows: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(1, NUM_ITEMS + 1, (rows, length), generator=torch.Generator().manual_seed(0))


def test_auto_classes_build_it_and_it_survives_a_folder(kind, tmp_path):
    model = tiny(kind, num_hidden_layers=2, dropout=0.1)
    assert type(model) is MODELS[kind]
    model.save_pretrained(tmp_path)
    for auto in (AutoModel, AutoModelForCausalLM):
        loaded = auto.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(items()).logits, model(items()).logits)
        assert (loaded.config.num_items, loaded.config.max_length, loaded.config.vocab_size) == (
            NUM_ITEMS,
            LENGTH,
            NUM_ITEMS + 1,
        )
        assert loaded.output.weight is loaded.embedding.weight


@pytest.mark.parametrize("tied", [True, False])
def test_items_can_be_added(kind, tied, tmp_path):
    model = tiny(kind, tie_word_embeddings=tied)
    before = model(items()).logits
    model.resize_token_embeddings(NUM_ITEMS + 4, mean_resizing=False)
    assert model.config.num_items == NUM_ITEMS + 3
    torch.testing.assert_close(model(items()).logits[..., : NUM_ITEMS + 1], before)
    assert (model.output.weight is model.embedding.weight) == tied
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(items()).logits, model(items()).logits)
    assert loaded.recommend([[NUM_ITEMS + 3]], k=3).shape == (1, 3)


def test_embeddings_may_be_untied(kind):
    model = tiny(kind, tie_word_embeddings=False)
    assert model.output.weight is not model.embedding.weight


def test_no_position_sees_the_future(kind):
    model, ids = tiny(kind, num_hidden_layers=2), items()
    logits = model(ids).logits
    assert logits.shape == (3, LENGTH, NUM_ITEMS + 1)
    for position in range(LENGTH - 1):
        changed = ids.clone()
        changed[:, position + 1 :] = changed[:, position + 1 :] % NUM_ITEMS + 1
        assert torch.equal(model(changed).logits[:, : position + 1], logits[:, : position + 1])
        assert not torch.equal(model(changed).logits[:, position + 1], logits[:, position + 1])
        torch.testing.assert_close(model(ids[:, : position + 1]).logits, logits[:, : position + 1])


def test_padding_has_no_influence(kind):
    """Not on other positions, whatever stands there; not on the loss; not on a gradient."""
    model, collator = tiny(kind), InteractionCollator()
    ids = items()
    batch = collator([{"input_ids": ids[0, :4].tolist()}, {"input_ids": ids[1].tolist()}])
    assert batch["input_ids"][0].tolist() == [*ids[0, :4].tolist(), 0, 0]
    assert batch["attention_mask"][0].tolist() == [1, 1, 1, 1, 0, 0]
    padded = model(**batch)
    torch.testing.assert_close(padded.logits[0, :4], model(ids[:1, :4]).logits[0])
    filled = {**batch, "input_ids": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 7)}
    assert torch.equal(model(**filled).loss, padded.loss)
    parts = [model(ids[i : i + 1, :n], labels=ids[i : i + 1, :n]).loss * (n - 1) for i, n in ((0, 4), (1, LENGTH))]
    torch.testing.assert_close(padded.loss, sum(parts) / (3 + LENGTH - 1))
    embeds = model.embedding(batch["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=embeds, labels=batch["labels"]).loss.backward()
    assert embeds.grad[0, 4:].abs().max() == 0 < embeds.grad[0, 2].abs().max()


def test_soft_labels_and_embeddings_cost_what_their_ids_cost(kind):
    model, ids = tiny(kind), items()
    one_hot = F.one_hot(ids, NUM_ITEMS + 1).float()
    hard = model(ids, labels=ids)
    soft = model(inputs_embeds=one_hot @ model.embedding.weight, labels=one_hot)
    torch.testing.assert_close(soft.loss, hard.loss)
    expected = F.cross_entropy(hard.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(hard.loss, expected)


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")])],
)
def test_second_derivatives_through_functional_call(kind, device):
    model = tiny(kind, hidden_size=2, num_items=3, max_length=3).double().to(device)
    names, values = zip(*model.named_parameters(), strict=True)
    soft = torch.softmax(torch.randn(1, 3, 4, dtype=torch.float64), -1).to(device).requires_grad_()

    def loss(soft: Tensor, *parameters: Tensor) -> Tensor:
        params = dict(zip(names, parameters, strict=True))
        inputs = {"inputs_embeds": soft @ params["embedding.weight"], "labels": soft}
        return functional_call(model, params, kwargs=inputs).loss

    inputs = (soft, *(value.detach().requires_grad_() for value in values))
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_the_filter_is_the_product_of_spectra_over_twice_the_length():
    torch.manual_seed(0)
    layer = _CausalFilter(SASRecConfig(NUM_ITEMS, 4, max_length=8))
    torch.nn.init.normal_(layer.taps)
    x = torch.randn(2, LENGTH, 4)
    spectrum = torch.fft.rfft(x, 2 * LENGTH, dim=1) * torch.fft.rfft(layer.taps[:LENGTH], 2 * LENGTH, dim=0)
    torch.testing.assert_close(layer(x), torch.fft.irfft(spectrum, 2 * LENGTH, dim=1)[:, :LENGTH])


# -- recommendations -------------------------------------------------------------------------------------------------


def test_recommendations_are_the_best_scores_after_the_history(kind):
    model, histories = tiny(kind), [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 1]]
    model.train()
    everything = model.recommend(histories, NUM_ITEMS, exclude_seen=False)
    assert model.training
    model.eval()
    for row, history in zip(everything, histories, strict=True):
        recent = history[-(LENGTH - 1) :]
        scores = model(torch.tensor([recent])).logits[0, -1]
        assert row.tolist() == (scores[1:].argsort(descending=True, stable=True) + 1).tolist()
    unseen = model.recommend(histories, 3)
    for row, ranked, history in zip(unseen, everything, histories, strict=True):
        assert row.tolist() == [item for item in ranked.tolist() if item not in history][:3]


def test_equal_scores_go_by_id():
    model = tiny("gru4rec")
    torch.nn.init.zeros_(model.output.weight)
    assert model.recommend([[2, 1]], 3).tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(
    ("histories", "k", "message"),
    [
        ([], 1, "histories is empty"),
        ([[1], []], 1, r"histories\[1\] is empty: .* most popular"),
        ([[1, 12]], 1, r"histories\[0\] holds item 12: the model knows items 1 … 11"),
        ([[0]], 1, r"holds item 0"),
        ([[1, 2]], 10, "k=10 .* from 1 to 9"),
        ([[1, 2]], 0, "k=0"),
    ],
)
def test_histories_that_cannot_be_served(histories, k, message):
    with pytest.raises(ValueError, match=message):
        tiny("gru4rec").recommend(histories, k)


# -- bad input, training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "exactly one of input_ids and inputs_embeds"),
        (
            {"input_ids": torch.ones(1, LENGTH + 1, dtype=torch.long)},
            "7 positions, the model max_length=6: keep the last 6",
        ),
        (
            {"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.tensor([[0, 1]])},
            "attention_mask starts with 0: pad sequences on the right",
        ),
    ],
)
def test_inputs_that_cannot_be_read(kind, inputs, message):
    with pytest.raises(ValueError, match=message):
        tiny(kind)(**inputs)


@pytest.mark.parametrize(
    "changes", [{"num_items": 0}, {"hidden_size": 0}, {"max_length": 2.5}, {"num_hidden_layers": 0}, {"dropout": 1.0}]
)
def test_bad_sizes_are_refused(kind, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        tiny(kind, **changes)


def test_heads_have_to_share_the_hidden_size():
    with pytest.raises(ValueError, match="num_attention_heads=3 does not divide hidden_size=8"):
        tiny("sasrec", num_attention_heads=3)


def test_the_stock_trainer_learns_and_ranks(kind, tmp_path):
    interactions = load_sample_interactions(60)
    splits = interactions.strong_generalization_split(0)
    model = tiny(kind, num_items=interactions.num_items, max_length=10, hidden_size=16, initializer_range=0.1)
    args = TrainingArguments(
        str(tmp_path), max_steps=60, per_device_train_batch_size=16, learning_rate=0.02, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", label_names=["labels", "seen"], dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model, args, InteractionCollator(), training_windows(splits["train"], 10), evaluation_windows(splits["train"], 10),
        preprocess_logits_for_metrics=target_ranks, compute_metrics=recommendation_metrics,
    )  # fmt: skip
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.9 * before["eval_loss"]
    assert after["eval_auc"] > before["eval_auc"] + 0.1
    assert not math.isnan(after["eval_hr@10"])
