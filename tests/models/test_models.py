"""The project's own models: causal, blind to padding, twice differentiable, saved and loaded, and
what recommenders recommend.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

from farzi_hf.data import (
    SequenceCollator,
    evaluation_windows,
    load_sample_interactions,
    training_windows,
)
from farzi_hf.metrics import recommendation_metrics, target_ranks
from farzi_hf.models import (
    FMLPForNextItem,
    GRU4RecForNextItem,
    RNNForCausalLM,
    SASRecConfig,
    SASRecForNextItem,
)
from farzi_hf.models.base import check_fields
from farzi_hf.models.fmlp import _CausalFilter

NUM_ITEMS = 11
LENGTH = 6
V = NUM_ITEMS + 1
RECOMMENDERS = {"sasrec": SASRecForNextItem, "gru4rec": GRU4RecForNextItem, "fmlp": FMLPForNextItem}
MODELS = {**RECOMMENDERS, "farzi_rnn": RNNForCausalLM}
of_each_model = pytest.mark.parametrize("kind", MODELS)
of_each_recommender = pytest.mark.parametrize("kind", RECOMMENDERS)
tied_or_not = pytest.mark.parametrize("tied", [True, False])


def tiny(kind: str, num_items: int = NUM_ITEMS, max_length: int = LENGTH, **changes):
    torch.manual_seed(0)
    own = (
        {"num_items": num_items, "max_length": max_length}
        if kind in RECOMMENDERS
        else {"vocab_size": num_items + 1}
    )
    sizes = {"hidden_size": 8, "initializer_range": 0.5, **own, **changes}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()


def items(rows: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(1, V, (rows, length), generator=torch.Generator().manual_seed(0))


@tied_or_not
@of_each_model
def test_auto_classes_build_it_and_it_survives_a_folder_and_further_entries(kind, tied, tmp_path):
    model = tiny(kind, num_hidden_layers=2, dropout=0.1, tie_word_embeddings=tied)
    assert type(model) is MODELS[kind]
    model.save_pretrained(tmp_path)
    for auto in (AutoModel, AutoModelForCausalLM)[kind == "farzi_rnn" :]:
        loaded = auto.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(items()).logits, model(items()).logits)
        assert (loaded.config.vocab_size, loaded.config.hidden_size, loaded.config.dropout) == (
            V,
            8,
            0.1,
        )
        assert (loaded.output.weight is loaded.embedding.weight) == tied
    if kind in RECOMMENDERS:
        assert (loaded.config.num_items, loaded.config.max_length) == (NUM_ITEMS, LENGTH)
    loaded.resize_token_embeddings(V + 3, mean_resizing=False)
    torch.testing.assert_close(loaded(items()).logits[..., :V], model(items()).logits)
    loaded.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(items()).logits, loaded(items()).logits)
    assert (again.output.weight is again.embedding.weight) == tied
    if kind in RECOMMENDERS:
        assert again.config.num_items == NUM_ITEMS + 3
        assert again.recommend([[NUM_ITEMS + 3]], k=3).shape == (1, 3)


@of_each_model
def test_initial_weights_depend_on_the_seed_alone(kind):
    first = tiny(kind)
    second = tiny(kind)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    for module in first.modules():
        if isinstance(module, torch.nn.GRU):
            assert 0 < module.weight_hh_l0.abs().max() <= 8**-0.5


@of_each_model
def test_no_position_sees_the_future(kind):
    model = tiny(kind, num_hidden_layers=2)
    ids = items()
    logits = model(ids).logits
    assert logits.shape == (3, LENGTH, V)
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, logits)
    for position in range(LENGTH - 1):
        changed = ids.clone()
        changed[:, position + 1 :] = changed[:, position + 1 :] % NUM_ITEMS + 1
        assert torch.equal(model(changed).logits[:, : position + 1], logits[:, : position + 1])
        assert not torch.equal(model(changed).logits[:, position + 1], logits[:, position + 1])
        torch.testing.assert_close(model(ids[:, : position + 1]).logits, logits[:, : position + 1])


@of_each_model
def test_the_logits_of_the_last_positions_alone(kind):
    model = tiny(kind)
    ids = items()
    last = model(ids, logits_to_keep=2).logits
    assert last.shape == (3, 2, V)
    torch.testing.assert_close(last, model(ids).logits[:, -2:])


@of_each_model
def test_padding_has_no_influence(kind):
    """Not on other positions, whatever stands there; not on the loss; not on a gradient."""
    model = tiny(kind)
    ids = items()
    batch = SequenceCollator(0)(
        [{"input_ids": ids[0, :4].tolist()}, {"input_ids": ids[1].tolist()}]
    )
    padded = model(**batch)
    torch.testing.assert_close(padded.logits[0, :4], model(ids[:1, :4]).logits[0])
    filled = {**batch, "input_ids": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 7)}
    assert torch.equal(model(**filled).loss, padded.loss)
    parts = [
        model(ids[i : i + 1, :n], labels=ids[i : i + 1, :n]).loss * (n - 1)
        for i, n in ((0, 4), (1, LENGTH))
    ]
    torch.testing.assert_close(padded.loss, sum(parts) / (3 + LENGTH - 1))
    embeds = model.embedding(batch["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=embeds, labels=batch["labels"]).loss.backward()
    assert embeds.grad[0, 4:].abs().max() == 0 < embeds.grad[0, 2].abs().max()


@of_each_model
def test_the_loss_is_that_of_the_next_entry_and_soft_labels_cost_what_their_ids_cost(kind):
    model = tiny(kind)
    ids = items()
    hard = model(ids, labels=ids)
    torch.testing.assert_close(
        hard.loss, F.cross_entropy(hard.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    )
    if kind in RECOMMENDERS:
        one_hot = F.one_hot(ids, V).float()
        soft = model(inputs_embeds=one_hot @ model.embedding.weight, labels=one_hot)
        torch.testing.assert_close(soft.loss, hard.loss)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")]
        ),
    ],
)
@of_each_model
def test_second_derivatives_through_functional_call(kind, device):
    """In the parameters that are used, and in soft inputs, which are also the labels."""
    model = tiny(kind, hidden_size=2, num_items=3, max_length=3).double().to(device)
    names, values = zip(*model.named_parameters(), strict=True)
    soft = torch.softmax(torch.randn(1, 3, 4, dtype=torch.float64), -1).to(device).requires_grad_()

    def loss(soft: Tensor, *parameters: Tensor) -> Tensor:
        params = dict(zip(names, parameters, strict=True))
        logits = functional_call(
            model, params, kwargs={"inputs_embeds": soft @ params["embedding.weight"]}
        ).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), soft[:, 1:].flatten(0, 1))

    inputs = (soft, *(value.detach().requires_grad_() for value in values))
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_the_filter_is_the_product_of_spectra_over_twice_the_length():
    torch.manual_seed(0)
    layer = _CausalFilter(SASRecConfig(num_items=NUM_ITEMS, hidden_size=4, max_length=8))
    torch.nn.init.normal_(layer.taps)
    x = torch.randn(2, LENGTH, 4)
    spectrum = torch.fft.rfft(x, 2 * LENGTH, dim=1) * torch.fft.rfft(
        layer.taps[:LENGTH], 2 * LENGTH, dim=0
    )
    torch.testing.assert_close(layer(x), torch.fft.irfft(spectrum, 2 * LENGTH, dim=1)[:, :LENGTH])


# -- recommendations -------------------------------------------------------------------------------


@of_each_recommender
def test_recommendations_are_the_best_scores_after_the_history(kind):
    model = tiny(kind)
    histories = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 1]]
    model.train()
    everything = model.recommend(histories, NUM_ITEMS, exclude_seen=False)
    assert model.training
    model.eval()
    for row, history in zip(everything, histories, strict=True):
        scores = model(torch.tensor([history[-(LENGTH - 1) :]])).logits[0, -1]
        assert row.tolist() == (scores[1:].argsort(descending=True, stable=True) + 1).tolist()
    unseen = model.recommend(histories, 3)
    assert not model.training  # as before
    for row, ranked, history in zip(unseen, everything, histories, strict=True):
        assert row.tolist() == [item for item in ranked.tolist() if item not in history][:3]
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    for history in ([2, 1, 2], torch.tensor([2, 1, 2]), np.array([2, 1, 2])):
        assert model.recommend([history], 3).tolist() == [[3, 4, 5]]  # equal scores go by id
        assert model.recommend([history], NUM_ITEMS - 2).shape == (1, NUM_ITEMS - 2)


@pytest.mark.parametrize(
    ("histories", "k", "message"),
    [
        ([[1], []], 1, r"histories\[1\] is \[\]: give one or more"),
        ([[0]], 1, r"histories\[0\] is \[0\]"),
        ([[1, 12]], 1, r"histories\[0\] is \[1, 12\]: give one or more of the items 1 … 11"),
        ([[1, 2]], 10, "k=10 .* from 1 to 9"),
        ([[1, 2]], 0, "k=0"),
        ([], 1, "histories is empty: give a list of items for each user"),
        ([["x"]], 1, r"histories\[0\] is \['x'\]: give one or more of the items"),
        (["12"], 1, r"histories\[0\] is '12': give one or more of the items"),
        ([[1.5]], 1, r"histories\[0\] is \[1\.5\]: give one or more of the items"),
        ([3], 1, r"histories\[0\] is 3: give one or more of the items"),
        (
            [[1], [*range(1, 12)]],
            1,
            r"histories\[1\] has all 11 items, so none is left: leave it out, or pass exclude",
        ),
    ],
)
def test_histories_that_cannot_be_served(histories, k, message):
    with pytest.raises(ValueError, match=message):
        tiny("gru4rec").recommend(histories, k)


# -- bad input, training ---------------------------------------------------------------------------


@of_each_model
def test_inputs_that_cannot_be_read(kind):
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny(kind)()
    if kind in RECOMMENDERS:
        with pytest.raises(ValueError, match="7 positions, max_length=6: keep the last 6"):
            tiny(kind)(torch.ones(1, LENGTH + 1, dtype=torch.long))
        with pytest.raises(
            ValueError, match="attention_mask starts with 0: pad sequences on the right"
        ):
            tiny(kind)(torch.tensor([[0, 1]]), attention_mask=torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model_type": "sasrec", "hidden_sizee": 8},
            "sasrec has no field 'hidden_sizee': did you mean hidden_size?",
        ),
        ({"model_type": "gpt2", "n_embdd": 8}, "gpt2 has no field 'n_embdd': did you mean n_embd?"),
        ({"model_type": "gpt-2"}, "model_type='gpt-2' is unknown: did you mean gpt2?"),
        (
            {"model_type": "gpt2", "vocab_size": 7},
            "vocab_size=7, but the data have 5; leave vocab_size out",
        ),
    ],
)
def test_a_misspelt_or_wrong_field_of_a_learner_is_named(settings, message):
    """transformers takes any name, and builds a model of the default size."""
    with pytest.raises(ValueError, match=f"^learner: {re.escape(message)}$"):
        check_fields(settings, "learner", vocab_size=5)


def test_fields_by_their_other_names_and_sizes_that_agree_are_taken():
    check_fields(
        {"model_type": "gpt2", "hidden_size": 8, "vocab_size": 5, "attn_pdrop": 0.0},
        "learner",
        vocab_size=5,
    )
    check_fields({"model_type": "llama", "rope_theta": 100.0, "dtype": "float32"}, "learner")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_items", 0),
        ("hidden_size", 0),
        ("max_length", 2.5),
        ("num_hidden_layers", 0),
        ("dropout", 1.0),
    ],
)
@of_each_model
def test_bad_sizes_are_refused(kind, name, value):
    name, value = (
        ("vocab_size", 0)
        if kind == "farzi_rnn" and name in ("num_items", "max_length")
        else (name, value)
    )
    with pytest.raises(ValueError, match=name):
        AutoConfig.for_model(kind, **{name: value})
    if kind == "sasrec":
        with pytest.raises(ValueError, match="num_attention_heads=3 does not divide hidden_size=8"):
            tiny(kind, num_attention_heads=3)


@of_each_recommender
def test_the_stock_trainer_learns_and_ranks(kind, tmp_path):
    interactions = load_sample_interactions(60)
    rows = interactions.strong_generalization_split(0)["train"]
    model = tiny(
        kind, num_items=interactions.num_items, max_length=10, hidden_size=16, initializer_range=0.1
    )
    args = TrainingArguments(
        str(tmp_path),
        max_steps=60,
        per_device_train_batch_size=16,
        learning_rate=0.02,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        label_names=["labels", "seen"],
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model,
        args,
        SequenceCollator(0),
        training_windows(rows, 10),
        evaluation_windows(rows, 10),
        preprocess_logits_for_metrics=target_ranks,
        compute_metrics=recommendation_metrics,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.9 * before["eval_loss"]
    assert after["eval_auc"] > before["eval_auc"] + 0.1
    assert not math.isnan(after["eval_hr@10"])
