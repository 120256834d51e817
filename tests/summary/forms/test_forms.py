"""The forms of a summary: soft inputs or ids, shared labels or their own; from config to artefact,
loss and stock Trainer.
"""

from __future__ import annotations

import ast
import re

import pytest
import torch
from datasets import get_dataset_config_names
from tiny_artefacts import WORDS, tiny, word_tokenizer

from farzi_hf import FarziData, FarziDataConfig
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.summary.store.hub import PLACEHOLDER

FORMS = {
    "paper": {},
    "own": {"labels": "own", "label_dim": 2},
    "tokens": {"inputs": "tokens", "labels": "own", "label_dim": 2},
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
INNER = {
    "optimizer": "adam",
    "lr": 0.02,
    "betas": [0.5, 0.99],
    "eps": 1e-3,
    "steps": 7,
    "synthetic_batch_size": 8,
}


# -- inputs and labels -----------------------------------------------------------------------------


def test_own_labels_are_what_a_position_predicts():
    farzi = tiny(**FORMS["own"])
    rows = torch.tensor([2, 0])
    inputs, targets = farzi.forms.batch(farzi.tensors, rows)
    torch.testing.assert_close(
        inputs.probabilities(), torch.softmax(farzi.latents[rows] @ farzi.decoder, -1)
    )
    expected = torch.softmax(farzi.label_latents[rows] @ farzi.label_decoder, -1)
    torch.testing.assert_close(targets.probabilities(), expected)


def test_shared_labels_are_the_next_inputs():
    farzi = tiny(tau=0.5)
    inputs, targets = farzi.forms.batch(farzi.tensors, slice(1, 3))
    assert torch.equal(targets.probabilities(), inputs.probabilities()[:, 1:])


def test_ids_are_read_as_they_are():
    farzi = tiny(**FORMS["tokens"])
    inputs, targets = farzi.forms.batch(farzi.tensors, torch.tensor([1]))
    assert torch.equal(inputs, farzi.input_ids[1:2].long())
    assert targets.shape == (1, 5, 7)
    assert {name for name, _ in farzi.named_parameters()} == {"label_latents", "label_decoder"}
    torch.testing.assert_close(farzi(torch.tensor([1])), targets.probabilities())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": "tokens"}, "labels='shared' need inputs of 'soft', got inputs='tokens'"),
        (
            {"inputs": "drawn", "labels": "own"},
            "labels='own' need inputs of 'soft' or 'tokens', got inputs='drawn'",
        ),
        ({"inputs": "drawn", "labels": "teacher"}, "labels='teacher' with teacher=None"),
        (
            {"teacher": {"model_type": "gpt2"}},
            "labels='shared' with teacher={'model_type': 'gpt2'}",
        ),
        ({"label_dim": 5}, "label_dim=5 with labels='shared': such labels have none"),
        (
            {"inputs": "hard"},
            f"inputs must be one of {', '.join(map(repr, INPUTS))}, got 'hard'",
        ),
        ({"labels": 3}, f"labels must be one of {', '.join(map(repr, LABELS))}, got 3"),
        ({"labels": "own", "label_dim": -1}, "label_dim must be an integer of at least 1, got -1"),
        ({"labels": "own", "label_dim": 0}, "label_dim must be an integer of at least 1, got 0"),
    ],
)
def test_a_config_refuses_what_is_no_form(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FarziDataConfig(2, 3, 4, 5, **settings)


# -- the artefact ----------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("vocabulary", [None, WORDS], ids=["no names", "items"])
def test_an_artefact_has_all_of_it(tmp_path, form, vocabulary):
    farzi = tiny(inner=INNER, **form)
    farzi.save_pretrained(tmp_path / "s", vocabulary)
    loaded = FarziData.from_pretrained(tmp_path / "s")
    assert loaded.tensors.keys() == farzi.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in farzi.tensors.items())
    assert loaded.fingerprint() == farzi.fingerprint()
    assert loaded.decode(3) == farzi.decode(3)
    expected = {
        "paper": ["latents", "decoder"],
        "own": ["latents", "decoder", "labels", "label_decoder"],
        "tokens": ["labels", "label_decoder"],
    }
    name = next(name for name, value in FORMS.items() if value == form)
    assert get_dataset_config_names(str(tmp_path / "s")) == [*expected[name], "tokens"]


@each_form
def test_the_code_of_its_card_runs(tmp_path, form):
    farzi = tiny(inner=INNER, **form)
    farzi.save_pretrained(tmp_path / "artefact", word_tokenizer())
    card = (tmp_path / "artefact" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    [train] = [block for block in blocks if "farzi.trainer(" in block]
    names: dict = {}
    for block in blocks:
        if block is train:
            continue
        block = block.replace(
            'split="train"', f"split='train', cache_dir={str(tmp_path / 'cache')!r}"
        )
        exec(block.replace(PLACEHOLDER, str(tmp_path / "artefact")), names)
    _, targets = farzi.forms.batch(farzi.tensors, slice(0, 1))
    if form:
        torch.testing.assert_close(names["targets"], targets.probabilities().detach())
    ast.parse(train)


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    farzi = tiny(**FORMS["tokens"])
    farzi.input_ids[0, 0] = 7
    with pytest.raises(ValueError, match=r"input_ids holds 7, outside 0 … 6"):
        farzi.save_pretrained(tmp_path)


def test_hard_rows_have_labels_of_their_own():
    farzi = tiny(**FORMS["tokens"])
    rows = farzi.as_hard_dataset()[:]
    assert torch.equal(rows["input_ids"], farzi.input_ids.long())
    likeliest = (farzi.label_latents @ farzi.label_decoder).argmax(-1)
    assert torch.equal(rows["labels"][:, 1:], likeliest[:, :-1])
    assert farzi.as_hard_dataset(3)[:]["input_ids"].shape == (12, 5)


def test_the_collator_takes_rows_of_ids_to_evaluate_on():
    collator = tiny(**FORMS["tokens"]).collator()
    batch = collator([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    assert batch["labels"].tolist() == [[1, 2, 3], [4, 5, -100]]
    with pytest.raises(ValueError, match="holds id 7, outside 0 … 6"):
        collator([{"input_ids": [7]}])
