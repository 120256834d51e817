"""What a carried teacher gives away: a teacher that was made to learn rows by heart is found, one
that never saw them is not.
"""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
import torch
from canaries import exposure
from datasets import Dataset, DatasetDict
from tiny_models import FAMILIES, tiny_model
from tiny_models import V as SMALL
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import GPT2LMHeadModel

from farzi_hf.data import SequenceCollator
from farzi_hf.distillation.memory import IdRows, membership, memory_of, row_losses, written_rows
from farzi_hf.summary import FarziData
from farzi_hf.summary.endless import WrittenRows

FEW = 12
"""Sentences that a teacher can learn by heart."""


def trained(rows: list[list[int]], vocab_size: int, steps: int) -> GPT2LMHeadModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(tiny_learner(vocab_size))
    optimizer, batch = (
        torch.optim.Adam(model.parameters(), 0.02),
        SequenceCollator()([{"input_ids": r} for r in rows]),
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def canaries() -> np.ndarray:
    """The first is planted, the others are of its kind."""
    return np.random.default_rng(0).integers(4, 54, (256, 8))


@pytest.fixture(scope="module")
def knowing(sequences, tokenizer, canaries) -> GPT2LMHeadModel:
    """A teacher that has read few sentences, and one canary, again and again."""
    return trained(
        [*sequences["train"]["input_ids"][:FEW], canaries[0].tolist()], len(tokenizer), 150
    )


@pytest.fixture(scope="module")
def ignorant(sequences, tokenizer) -> GPT2LMHeadModel:
    """A teacher that has read other sentences."""
    return trained(sequences["train"]["input_ids"][80:], len(tokenizer), 30)


def carried(model: GPT2LMHeadModel, **changes) -> FarziData:
    return FarziData.from_teacher(model, sequence_length=16, storage="int6", **changes)


def test_a_canary_that_was_learnt_by_heart_is_found_also_after_packing(knowing, ignorant, canaries):
    bits = {}
    for name, model in (
        ("knowing", knowing),
        ("packed", carried(knowing).teacher),
        ("ignorant", ignorant),
    ):
        losses = row_losses(model, list(canaries))
        bits[name] = exposure(losses[:1], losses[1:]).item()
    assert bits["knowing"] == bits["packed"] == 8.0  # log2(255 + 1): no other is likelier
    assert bits["ignorant"] < 5


def test_rows_that_were_learnt_by_heart_are_warned_of(sequences, knowing, ignorant):
    train, held_out = (
        sequences["train"].select(range(FEW)),
        sequences["train"].select(range(FEW, 80)),
    )
    found = memory_of(carried(knowing), train, held_out)
    assert found["memory_auc"] > 0.99
    assert found["memory_copied"] > found["memory_copied_held_out"] + 0.2
    reasons = "it writes parts of them and its loss tells them from other rows"
    assert (
        found["memory_warning"]
        == f"The teacher has memorised rows of its training data: {reasons}."
    )
    assert f"{100 * found['memory_copied']:.1f} % of the " in found["memory"]
    other = memory_of(
        carried(ignorant), *(sequences["train"].select(range(i, i + 40)) for i in (0, 40))
    )
    assert 0.4 < other["memory_auc"] < 0.6
    assert "memory_warning" not in other
    assert memory_of(carried(knowing), train, held_out) == found
    assert memory_of(carried(knowing), train, held_out, seed=1) != found


def test_one_of_the_two_figures_is_enough_for_a_warning(sequences, knowing, monkeypatch):
    rows = sequences["train"].select(range(FEW)), sequences["validation"]
    for high, reason in (
        ({"HIGH_AUC": 2.0}, "it writes parts of them"),
        ({"HIGH_COPIED": 2.0}, "its loss tells them from other rows"),
    ):
        with monkeypatch.context() as patch:
            for name, value in high.items():
                patch.setattr(f"farzi_hf.distillation.memory.{name}", value)
            assert memory_of(carried(knowing), *rows)["memory_warning"].endswith(f"data: {reason}.")
    monkeypatch.setattr("farzi_hf.distillation.memory.HIGH_AUC", 2.0)
    monkeypatch.setattr("farzi_hf.distillation.memory.HIGH_COPIED", 2.0)
    assert "memory_warning" not in memory_of(carried(knowing), *rows)


def test_what_is_written_is_cut_at_the_end_of_a_text(ignorant):
    rows = written_rows(carried(ignorant), seed=0, size=10**6)
    assert rows.ids.size == rows.lengths.sum() == 1024 * 16
    assert all((row[:-1] != 3).all() for row in rows.each(slice(None)))  # EOS
    assert rows.lengths.min() < 16


def test_no_more_is_written_than_is_looked_at(ignorant, monkeypatch):
    """Four times as many rows as the held-out part had were written and cut away."""
    whole = written_rows(carried(ignorant), seed=0, size=10**6)
    blocks = []
    block = WrittenRows.block
    monkeypatch.setattr(
        WrittenRows, "block", lambda rows, number: blocks.append(number) or block(rows, number)
    )
    some = written_rows(carried(ignorant), seed=0, size=1000)
    assert blocks == [0]
    assert 1000 <= some.ids.size < 1016
    assert (some.first(1000).ids == whole.first(1000).ids).all()
    assert some.first(1000).lengths.sum() == 1000
    assert written_rows(carried(ignorant), seed=0, size=0).ids.size == 16


def test_ngrams_and_runs_equal_a_search_by_hand():
    generator = np.random.default_rng(1)

    def some(count: int) -> IdRows:
        lengths = generator.integers(1, 9, count)
        return IdRows(generator.integers(0, 3, lengths.sum()), lengths)

    def grams(rows: IdRows, n: int) -> list[tuple[int, ...]]:
        return [
            tuple(row[i : i + n]) for row in rows.each(slice(None)) for i in range(len(row) - n + 1)
        ]

    ours, known = some(30), some(12)
    for n in range(1, 10):
        hits = [gram in set(grams(known, n)) for gram in grams(ours, n)]
        assert ours.copied(known, n) == (np.mean(hits) if hits else 0)
    longest = max(n for n in range(1, 9) if set(grams(ours, n)) & set(grams(known, n)))
    assert 0 < ours.longest_copied(known) == longest < 8
    cut = ours.first(20)
    assert (cut.ids == ours.ids[:20]).all()
    assert list(chain(*cut.each(slice(None)))) == cut.ids.tolist()


def test_membership_equals_a_count_of_pairs():
    training, held_out = np.array([1.0, 2.0, 5.0]), np.array([2.0, 3.0, 0.5, 9.0])
    wins = [(ours < theirs) + (ours == theirs) / 2 for ours, theirs in product(training, held_out)]
    assert membership(training, held_out) == pytest.approx(np.mean(wins))


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_loss_of_a_row_is_that_of_the_row_alone(kind, monkeypatch):
    """In a batch with longer rows, and in several batches."""
    monkeypatch.setattr("farzi_hf.distillation.memory._NUMBERS", 4 * SMALL)
    model = tiny_model(kind).eval()
    rows = [np.array([1, 2]), np.array([3, 1, 4, 2]), np.array([2, 4, 1])]
    ids = [torch.tensor(row)[None] for row in rows]
    alone = [
        torch.nn.functional.cross_entropy(
            model(input_ids=x, attention_mask=torch.ones_like(x)).logits[0, :-1], x[0, 1:]
        )
        for x in ids
    ]
    np.testing.assert_allclose(row_losses(model, rows), [x.item() for x in alone], rtol=1e-5)


def test_the_card_says_it_and_only_of_a_carried_teacher(sequences, tokenizer, tmp_path):
    settings = {
        "inputs": "drawn",
        "labels": "teacher",
        "storage": "coded5",
        "max_steps": 0,
        "packing_steps": 0,
    }
    few = DatasetDict({**sequences, "train": sequences["train"].select(range(FEW))})
    trainer = tiny_trainer(
        tmp_path, few, tokenizer, **settings, teacher_steps=60, teacher_batch_size=FEW
    )
    trainer.train()
    trainer.save_model()
    found = trainer.memory()
    metrics = FarziData.from_pretrained(tmp_path).results.metrics
    assert (
        {name: metrics[name] for name in found}
        == found
        == memory_of(trainer.model, *map(few.get, ("train", "validation")), 3)
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.count(f"\n- {found['memory_warning']} {found['memory']}\n") == 1
    trainer.eval_dataset = None
    assert trainer.memory() == {}
    several = {"eval_dataset": {"a": few["validation"], "b": few["test"]}}
    trainer = tiny_trainer(tmp_path / "several", few, tokenizer, several, **settings)
    assert "memory_warning" not in trainer.memory()  # its teacher is not trained yet
    assert tiny_trainer(tmp_path / "soft", few, tokenizer).memory() == {}


def test_rows_of_users_are_short(tmp_path):
    """Of 8-grams there are none, so shorter ones are counted."""
    farzi = FarziData.from_teacher(
        tiny_model("sasrec"), sequence_length=5, frequencies=torch.arange(SMALL)
    )
    rows = Dataset.from_dict(
        {"input_ids": [[1 + (i + j) % (SMALL - 1) for j in range(4)] for i in range(60)]}
    )
    assert memory_of(farzi, rows, rows)["memory"].partition(" % of the ")[2].startswith("3-grams")
