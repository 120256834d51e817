"""What is between the tables of a student of a large catalogue is fitted to its teacher's states."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tiny_models import config_of, tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from farzi_hf.distillation import SyntheticTraining
from farzi_hf.distillation.inner_training import Students
from farzi_hf.distillation.learner import Learner
from farzi_hf.summary import FarziData, fitted_states
from farzi_hf.summary.endless import WrittenRows
from farzi_hf.summary.fitted_states import (
    Head,
    TeacherStates,
    fitted,
    is_cheap_to_fit,
    rows_to_read,
)
from farzi_hf.summary.start import set_values, share_of_rate, start, start_values

ITEMS, LENGTH = 6_000, 8


def recommender(kind: str, width: int = 16, seed: int = 0, spread: float = 0.0, **changes):
    """A small recommender with a large catalogue."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "max_length": LENGTH, "dropout": 0.1, **changes}
    model = AutoModelForCausalLM.from_config(config_of(kind, ITEMS + 1, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return model


def teacher_of(**changes):
    return recommender("fmlp", spread=0.3, **changes)


def summary_of(teacher) -> FarziData:
    return FarziData.from_teacher(teacher, inputs="written", sequence_length=LENGTH)


def rows_of(teacher):
    farzi = summary_of(teacher)
    return farzi.forms.rows_of_start(farzi.tensors, 0)


@torch.no_grad()
def divergence(teacher, student) -> float:
    """From the teacher's predictions, in nats per position, on rows that nothing was fitted to."""
    farzi = summary_of(teacher)
    ids = farzi.endless(99).rows(0, 64)
    wanted = teacher(input_ids=ids).logits.double().log_softmax(-1)
    found = student(input_ids=ids).logits.double().log_softmax(-1)
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


def head_of(model) -> Head:
    head = model.get_output_embeddings()
    return Head(head.weight.detach(), head.bias.detach())


def never(positions: int) -> torch.Tensor:
    raise AssertionError("rows are written")


# -- the equations ---------------------------------------------------------------------------------


def test_information_is_the_curvature_of_the_divergence():
    teacher = teacher_of()
    with torch.no_grad():
        states = TeacherStates(teacher, head_of(teacher), rows_of(teacher)(4_096))
    weight = head_of(teacher).weight.double()
    with torch.no_grad():
        logits = teacher(input_ids=states.ids[:1]).logits[0].double()

    def of_one(delta: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        moved = (of + weight @ delta).log_softmax(-1)
        return (of.softmax(-1) * (of.log_softmax(-1) - moved)).sum()

    zero = torch.zeros(weight.shape[1], dtype=torch.float64)
    curvature = sum(
        torch.autograd.functional.hessian(partial(of_one, of=of), zero) for of in logits
    ) / len(logits)
    states._looked_at = states.states[0]
    found = states.information(head_of(teacher).weight)
    torch.testing.assert_close(found, curvature, rtol=1e-4, atol=1e-5)


def test_information_does_not_depend_on_the_parts_in_which_it_is_taken(monkeypatch):
    teacher = teacher_of()
    with torch.no_grad():
        states = TeacherStates(teacher, head_of(teacher), rows_of(teacher)(4_096))
        whole = states.information(states.head.weight)
        monkeypatch.setattr(fitted_states, "_NUMBERS", 2 * ITEMS + 1_000)
        parts = states.information(states.head.weight)
        shifted = states.information(states.head.weight + 5)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shifted, whole, rtol=1e-4, atol=1e-5)


def test_a_student_with_the_teachers_head_wants_the_teachers_states():
    teacher = teacher_of()
    with torch.no_grad():
        states = TeacherStates(teacher, head_of(teacher), rows_of(teacher)(4_096))
        own, root = states.wanted(head_of(teacher))
        turn, _ = torch.linalg.qr(torch.randn(16, 16))
        turned, _ = states.wanted(Head(head_of(teacher).weight @ turn, head_of(teacher).bias))
    torch.testing.assert_close(own, states.states, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(turned, states.states @ turn, rtol=1e-3, atol=1e-3)
    information = states.information(head_of(teacher).weight).float()
    torch.testing.assert_close(root @ root.T, information, rtol=1e-4, atol=1e-5)


def test_no_narrower_head_loses_less():
    teacher = teacher_of()
    with torch.no_grad():
        states = TeacherStates(teacher, head_of(teacher), rows_of(teacher)(4_096))
        b, shift = states.narrower_head(6, has_bias=True)
    information = states.information(head_of(teacher).weight)
    centred = (states.states.flatten(0, 1) - shift).double()
    squares = centred.T @ centred / len(centred)

    def lost(to_student: torch.Tensor) -> float:
        to_student = to_student.double()
        inner = to_student.T @ information @ to_student
        back = to_student @ torch.linalg.solve(inner, to_student.T @ information)
        rest = torch.eye(16, dtype=torch.float64) - back
        return float(torch.trace(information @ rest @ squares @ rest.T))

    least = lost(b)
    _, _, directions = torch.linalg.svd(head_of(teacher).weight, full_matrices=False)
    assert least < lost(directions[:6].T)
    for seed in range(20):
        noise = torch.randn(b.shape, generator=torch.Generator().manual_seed(seed))
        assert least <= lost(b + 0.1 * noise) * (1 + 1e-9)
    # The states that this head wants have the variance 1.
    inner = b.double().T @ information @ b.double()
    y = torch.linalg.solve(inner, b.double().T @ information) @ centred.T
    torch.testing.assert_close((y.square().mean(1)).float(), torch.ones(6), rtol=1e-3, atol=1e-3)


# -- students --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "width"),
    [("fmlp", 16), ("fmlp", 8), ("fmlp", 24), ("sasrec", 16), ("gru4rec", 16), ("gru4rec", 8)],
)
def test_a_student_predicts_much_of_what_its_teacher_does_before_its_first_step(kind, width):
    teacher = teacher_of()
    tables, whole = (recommender(kind, width, seed=1) for _ in range(2))
    start(teacher, tables)
    names = start(teacher, whole, rows_of(teacher))
    assert set(names) == {name for name, _ in whole.named_parameters()}
    assert divergence(teacher, whole) < 0.5 * divergence(teacher, tables)


def test_a_model_is_looked_at_and_stays_as_it_is():
    teacher = teacher_of()
    student = recommender("sasrec", seed=1).train()
    before = copy.deepcopy(student.state_dict())
    numbers = torch.get_rng_state()
    values = start_values(teacher, student, rows_of(teacher))
    assert torch.equal(torch.get_rng_state(), numbers)
    assert student.training
    assert all(torch.equal(x, before[name]) for name, x in student.state_dict().items())
    assert not any(x.requires_grad for x in values.values())
    for model in (teacher, student):
        assert "forward" not in vars(model.get_output_embeddings())
        assert not model.get_output_embeddings()._forward_pre_hooks
    again = start_values(teacher, student, rows_of(teacher))
    assert all(torch.equal(x, again[name]) for name, x in values.items())


def test_the_callers_modes_and_types_do_not_matter():
    teacher = teacher_of()
    with torch.inference_mode():
        rows = rows_of(teacher)
        inside = start_values(teacher, recommender("sasrec", seed=1).double(), rows)
    outside = start_values(teacher, recommender("sasrec", seed=1), rows_of(teacher))
    assert {x.dtype for x in inside.values()} == {torch.float64}
    for name, x in outside.items():
        torch.testing.assert_close(inside[name].float(), x, rtol=1e-3, atol=1e-3)


def test_what_does_not_train_and_what_would_take_long_stays():
    teacher = teacher_of()
    student = recommender("sasrec", seed=1)
    student.encoder.positions.weight.requires_grad_(False)
    frozen = {name: x for name, x in student.named_parameters() if "norm" in name}
    assert frozen
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    found = start_values(teacher, student, rows_of(teacher))
    assert not frozen.keys() & found.keys()
    assert any(".layers." in name for name in found)
    # A student whose layers cost as much as its head.
    tables = start_values(teacher, student)
    ids = torch.ones(64, LENGTH, dtype=torch.long)
    assert torch.equal(rows_to_read(teacher, student, tables, lambda positions: ids), ids)
    assert rows_to_read(teacher, student, tables, lambda positions: ids[:2]) is None
    deep = recommender("sasrec", num_hidden_layers=9)
    assert rows_to_read(teacher, deep, start_values(teacher, deep), never) is None
    small = tiny_model("gpt2")
    assert rows_to_read(small, small, {}, never) is None


@pytest.mark.parametrize(
    ("settings", "entries", "is_cheap"),
    [
        ({"model_type": "fmlp", "hidden_size": 32}, 12_102, True),
        ({"model_type": "fmlp", "hidden_size": 32}, 1_350, False),
        ({"model_type": "gru4rec", "hidden_size": 32}, 20_034, True),
        ({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4}, 2_004, False),
        ({"model_type": "bert"}, 20_034, False),
    ],
)
def test_layers_are_fitted_beside_large_catalogues(settings, entries, is_cheap):
    settings = dict(settings)
    config = AutoConfig.for_model(settings.pop("model_type"), vocab_size=entries, **settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert is_cheap_to_fit(model) is is_cheap


@pytest.mark.parametrize(("limit", "value"), [("_WORK_OF_TEACHER", 10**5), ("_WIDEST", 8)])
def test_a_teacher_that_would_take_long_is_not_read(monkeypatch, limit, value):
    """It may be a stranger's."""
    monkeypatch.setattr(fitted_states, limit, value)
    teacher = teacher_of()
    names = start(teacher, recommender("sasrec", seed=1), never)
    assert 0 < len(names) < len(dict(recommender("sasrec").named_parameters()))


def test_a_student_that_is_its_teacher_already_stays_that():
    teacher = teacher_of()
    with torch.no_grad():
        states = TeacherStates(teacher, head_of(teacher), rows_of(teacher)(4_096))
        tables = {
            name: x.detach()
            for name, x in teacher.named_parameters()
            if not name.startswith("encoder.layers")
        }
        assert fitted(copy.deepcopy(teacher), tables, head_of(teacher), states) == {}


def test_a_teacher_without_finite_predictions_is_named():
    teacher = teacher_of()
    farzi = summary_of(teacher)
    ids = farzi.endless(0).rows(0, 256)
    with torch.no_grad():
        teacher.encoder.layers[0].pointwise_norm.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="predicts NaN or infinity"):
        start(teacher, recommender("sasrec", seed=1), lambda positions: ids)
    with pytest.raises(ValueError, match="predicts NaN or infinity"):
        start(teacher, recommender("sasrec", seed=1), rows_of(teacher))


# -- trainings -------------------------------------------------------------------------------------


def test_the_rows_of_a_start_are_the_first_that_the_student_reads(monkeypatch, tmp_path):
    """Writing takes as long as training on what is written, so rows are written once."""
    made = []
    block = WrittenRows.block
    monkeypatch.setattr(
        WrittenRows, "block", lambda rows, number: made.append(number) or block(rows, number)
    )
    teacher = teacher_of()
    farzi = summary_of(teacher)
    farzi.config.inner = {
        "optimizer": "adam",
        "lr": 0.01,
        "steps": 4,
        "synthetic_batch_size": 8,
        "student_start": "teacher",
    }
    training = SyntheticTraining.of(farzi.config.inner, farzi.forms)
    students = Students(Learner(recommender("sasrec").config), farzi, training, 4, 0)
    students.on_summary()
    blocks = list(range(4))
    assert made == blocks
    students.on_summary(1)
    assert made == 2 * blocks
    trainer = farzi.trainer(recommender("gru4rec", seed=1), max_steps=4, output_dir=str(tmp_path))
    trainer.train()
    assert made == 3 * blocks


def test_a_student_with_fitted_layers_takes_a_smaller_rate():
    teacher = teacher_of()
    shares = {}
    for name, model in (
        ("narrower", recommender("fmlp", 8, seed=1)),
        ("another kind", recommender("sasrec", seed=1)),
    ):
        names = set_values(model, start_values(teacher, model, rows_of(teacher)))
        shares[name] = share_of_rate(teacher, model, names)
    assert shares["another kind"] < shares["narrower"] == 1
