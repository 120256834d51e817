"""Teachers whose first dimensions say most, and who learns from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import Gemma2Config, GPT2LMHeadModel

from farzi_hf.data import SequenceCollator
from farzi_hf.distillation import Learner
from farzi_hf.distillation.nested_dropout import dimensions_read, narrower_widths
from farzi_hf.distillation.rows import RealData, validation_loss
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerAdam

V = 54
WIDTH = 16  # of the tiny learner


def batch_of(sequences, rows: int = 6) -> dict[str, torch.Tensor]:
    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    return dict(data.training_batch(data.rows(range(rows))))


def with_head_cut(params, learner: Learner, width: int) -> dict[str, torch.Tensor]:
    """The parameters of a model whose head has no columns from this one on."""
    weight = params[learner.head.weight].clone()
    weight[:, width:] = 0
    return {**params, learner.head.weight: weight}


def untied_learner() -> Learner:
    config = tiny_learner(V)
    config.tie_word_embeddings = False
    return Learner(config)


def test_what_is_cut_is_read_as_by_a_head_without_these_columns(sequences):
    learner = untied_learner()
    params = learner.initial_parameters(1)
    batch = batch_of(sequences)
    rows = len(batch["input_ids"])
    for width in (1, 7, WIDTH):
        cut = learner.hard_loss(params, batch, widths=torch.full((rows,), width))
        expected = learner.hard_loss(with_head_cut(params, learner, width), batch)
        assert torch.equal(cut, expected), width
    assert torch.equal(cut, learner.hard_loss(params, batch))


def test_each_row_has_a_width_of_its_own(sequences):
    learner = untied_learner()
    params = learner.initial_parameters(1)
    batch = batch_of(sequences)
    rows = len(batch["input_ids"])
    widths = torch.arange(rows) % WIDTH + 1
    each = torch.tensor(
        [
            learner.hard_loss(
                with_head_cut(params, learner, int(width)),
                {name: x[i : i + 1] for name, x in batch.items()},
            )
            for i, width in enumerate(widths)
        ]
    )
    counts = (batch["labels"][:, 1:] != -100).sum(1)
    expected = (each * counts).sum() / counts.sum()
    torch.testing.assert_close(learner.hard_loss(params, batch, widths=widths), expected)


def test_half_of_the_rows_are_cut_and_a_step_draws_the_same_again():
    learner = Learner(tiny_learner(V))
    read = dimensions_read(learner, (2, 10), seed=3)
    drawn = torch.cat([read(step, 100) for step in range(50)])
    shares = {width: float((drawn == width).double().mean()) for width in (2, 10, WIDTH)}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[WIDTH] == pytest.approx(0.5, abs=0.03)
    assert shares[2] == pytest.approx(0.25, abs=0.03)
    assert torch.equal(read(7, 100), dimensions_read(learner, (2, 10), seed=3)(7, 100))
    assert not torch.equal(read(7, 100), read(8, 100))
    assert dimensions_read(learner, (), seed=3)(7, 100) is None


def test_a_narrower_head_loses_less_of_a_teacher_that_was_trained_for_it(sequences):
    learner = untied_learner()
    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    held_out = validation_loss(learner, replace(data, held_out=sequences["validation"]), 100)
    lost = {}
    for widths in ((), (4,)):
        training = TeacherTraining(
            InnerAdam(0.02, (0.5, 0.999), 1e-4), steps=150, batch_size=20, nested_widths=widths
        )
        params = training.train(learner, data, 1).params
        lost[widths] = held_out(with_head_cut(params, learner, 4)) - held_out(params)
    assert lost[(4,)] < 0.5 * lost[()]


def test_a_teacher_keeps_it_while_it_is_packed(sequences, tokenizer, tmp_path):
    lost = []
    for widths in ([], [4]):
        config = tiny_learner(len(tokenizer))
        config.tie_word_embeddings = False
        torch.manual_seed(0)
        settings = {
            "labels": "teacher",
            "inputs": "drawn",
            "storage": "coded6",
            "max_steps": 0,
            "packing_steps": 150,
            "teacher_learning_rate": 0.05,
            "teacher_nested_widths": widths,
        }
        given = {
            "learner_init": config,
            "teacher": GPT2LMHeadModel(config),  # has learnt nothing, so packing trains it
            "eval_dataset": sequences["validation"],
        }
        trainer = tiny_trainer(tmp_path / str(widths), sequences, tokenizer, given, **settings)
        trainer.train()
        packed = Learner(trainer.model.teacher)
        params = {name: x.detach() for name, x in trainer.model.teacher.named_parameters()}
        data = replace(trainer.real_data, held_out=sequences["validation"])
        held_out = validation_loss(packed, data, 100)
        lost.append(held_out(with_head_cut(params, packed, 4)) - held_out(params))
    assert lost[1] < 0.75 * lost[0]


@pytest.mark.parametrize("widths", [["8"], [0], [1.5], [True], None, "8"])
def test_widths_are_numbers_of_dimensions(widths):
    with pytest.raises(ValueError, match=r"teacher_nested_widths=.*narrower than the teacher"):
        TeacherTraining.of({"teacher_nested_widths": widths})


def test_a_teacher_is_wider_than_its_students_and_has_a_linear_head(sequences):
    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    training = TeacherTraining(InnerAdam(0.02), steps=2, batch_size=8, nested_widths=(4, WIDTH))
    with pytest.raises(ValueError, match=r"teacher_nested_widths=\[4, 16\].*reads 16 dimensions"):
        training.train(Learner(tiny_learner(V)), data, 1)
    capped = Gemma2Config(
        vocab_size=V,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
    )
    with pytest.raises(ValueError, match=r"teacher_nested_widths.*no linear head"):
        training.train(Learner(capped), data, 1)
    assert narrower_widths(Learner(capped), (4,)) == ()


def test_students_on_all_data_have_the_widths_that_are_narrower_than_they():
    training = TeacherTraining(InnerAdam(0.02), steps=2, batch_size=8, nested_widths=(4, WIDTH))
    assert training.whole(Learner(tiny_learner(V))).nested_widths == (4,)
