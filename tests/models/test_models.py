"""The project's own language models."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM

from farzi_hf.models import RNNConfig, RNNForCausalLM

V = 11


def tiny(**changes) -> RNNForCausalLM:
    torch.manual_seed(0)
    return RNNForCausalLM(RNNConfig(**{"vocab_size": V, "hidden_size": 6, **changes}))


def test_auto_classes_build_it():
    config = AutoConfig.for_model("farzi_rnn", vocab_size=V, hidden_size=6)
    assert isinstance(AutoModelForCausalLM.from_config(config), RNNForCausalLM)


@pytest.mark.parametrize("tied", [False, True])
def test_save_and_load(tmp_path, tied):
    model = tiny(num_hidden_layers=2, tie_word_embeddings=tied).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(V, (2, 5))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (loaded.output.weight is loaded.embedding.weight) == tied


@pytest.mark.parametrize("tied", [False, True])
def test_words_can_be_added(tied):
    model, ids = tiny(tie_word_embeddings=tied).eval(), torch.randint(V, (2, 5))
    before = model(ids).logits
    model.resize_token_embeddings(V + 3, mean_resizing=False)
    torch.testing.assert_close(model(ids).logits[..., :V], before)
    assert (model.output.weight is model.embedding.weight) == tied


def test_embeddings_in_place_of_ids_and_causality():
    model = tiny().eval()
    ids = torch.randint(V, (2, 5))
    logits = model(ids).logits
    assert logits.shape == (2, 5, V)
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, logits)
    torch.testing.assert_close(model(ids[:, :3]).logits, logits[:, :3])


def test_labels_give_the_shifted_loss_and_ignore_padding():
    model = tiny().eval()
    ids = torch.randint(V, (2, 5))
    labels = ids.clone()
    labels[0, 3:] = -100
    logits = model(ids).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)


def test_initial_weights_depend_on_the_seed_alone():
    first, second = tiny(), tiny()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.gru.weight_hh_l0.abs().max() <= 6**-0.5


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")])],
)
def test_second_derivatives_through_functional_call(device):
    model = tiny(hidden_size=3, vocab_size=5).double().to(device)
    names, values = zip(*model.named_parameters(), strict=True)
    embeds = torch.randn(1, 3, 3, dtype=torch.float64, device=device, requires_grad=True)

    def loss(embeds, *parameters):
        logits = functional_call(
            model, dict(zip(names, parameters, strict=True)), kwargs={"inputs_embeds": embeds}
        ).logits
        return logits.logsumexp(-1).sum() + logits[..., 0].square().sum()

    inputs = (embeds, *(p.detach().requires_grad_() for p in values))
    unused = [names.index("embedding.weight") + 1]
    assert all(
        (gradient is None) == (i in unused)
        for i, gradient in enumerate(torch.autograd.grad(loss(*inputs), inputs, allow_unused=True))
    )
    used = tuple(x for i, x in enumerate(inputs) if i not in unused)

    def loss_of_used(embeds, *rest):
        return loss(embeds, values[0].detach(), *rest)

    assert torch.autograd.gradcheck(loss_of_used, used)
    assert torch.autograd.gradgradcheck(loss_of_used, used)


@pytest.mark.parametrize("changes", [{"vocab_size": 0}, {"hidden_size": 0}, {"num_hidden_layers": 0}, {"dropout": 1.0}])
def test_bad_sizes_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        RNNConfig(**changes)


def test_ids_or_embeddings_but_not_both():
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny()()
