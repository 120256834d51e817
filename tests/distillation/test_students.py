"""Students: what an evaluation measures, on one set or several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from tiny_trainer import logged, tensors
from transformers import DataCollatorForLanguageModeling
from transformers.trainer_callback import TrainerCallback

from farzi_hf.engine import devices
from farzi_hf.metrics import token_metrics, token_statistics
from farzi_hf.summary import FarziData

V = 54


# -- evaluation ------------------------------------------------------------------------------------


def test_evaluation_is_mean_and_deviation_over_students(make, sequences, tokenizer):
    trainer = make(eval_students=3)
    metrics = trainer.evaluate()
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(list(sequences["validation"]))
    students = []
    for i in range(3):
        with torch.no_grad():
            logits = trainer.learner.logits(trainer.students.on_summary(i), batch)
        students.append(token_metrics(token_statistics(logits, batch["labels"]).numpy()))
    for name in ("perplexity", "sentence_perplexity", "accuracy"):
        values = [student[name] for student in students]
        assert metrics[f"eval_{name}"] == pytest.approx(np.mean(values), rel=1e-5)
        assert metrics[f"eval_{name}_std"] == pytest.approx(np.std(values, ddof=1), rel=1e-3)
    assert metrics["eval_perplexity_std"] > 0
    assert metrics["eval_students"] == 3
    assert metrics["eval_loss"] == pytest.approx(np.log(metrics["eval_perplexity"]), rel=0.05)


def test_a_diverged_student_gives_infinity_not_a_warning(make):
    perplexities = iter([5.0, float("inf")])
    metrics = make({"compute_metrics": lambda _: {"perplexity": next(perplexities)}}).evaluate()
    assert metrics["eval_perplexity"] == float("inf")
    assert np.isnan(metrics["eval_perplexity_std"])


def test_without_metrics_the_loss_is_left_and_one_student_has_no_deviation(make):
    trainer = make({"compute_metrics": None}, eval_students=1)
    metrics = trainer.evaluate()
    assert metrics.keys() == {"eval_loss", "eval_loss_std", "eval_students", "epoch"}
    assert metrics["eval_loss_std"] == 0


def test_evaluations_of_one_summary_are_saved_together(make, sequences, tmp_path):
    trainer = make()
    first = trainer.evaluate()
    second = trainer.evaluate(sequences["test"], metric_key_prefix="test")
    trainer.save_model(str(tmp_path / "saved"))
    metrics = json.loads((tmp_path / "saved" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics == {**metrics, "eval_loss": first["eval_loss"], "test_loss": second["test_loss"]}


def test_evaluation_does_not_change_the_distillation(make):
    """Over more than one epoch, so that data are shuffled after an evaluation."""
    quiet = make(max_steps=6)
    quiet.train()
    evaluating = make(max_steps=6, eval_strategy="steps", eval_steps=1, eval_on_start=True)
    evaluating.evaluate()
    evaluating.train()
    assert len(logged(evaluating, "eval_perplexity")) == 7
    assert all(map(torch.equal, tensors(evaluating), tensors(quiet)))
    assert logged(evaluating, "loss") == logged(quiet, "loss")


@pytest.mark.parametrize("several", [False, True])
def test_the_best_summary_is_the_one_with_the_lowest_perplexity(make, sequences, several):
    perplexities = iter(
        [9.0, 5.0, 1.0, 3.0, 2.0, 9.0] if several else [5.0, 3.0, 9.0]
    )  # near and far by turns
    sets = (
        {"near": sequences["validation"], "far": sequences["test"]}
        if several
        else sequences["validation"]
    )
    name = "far_perplexity" if several else "perplexity"
    trainer = make(
        {"eval_dataset": sets, "compute_metrics": lambda _: {"perplexity": next(perplexities)}},
        max_steps=3,
        eval_students=1,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model=name,
    )
    kept = []

    class Keep(TrainerCallback):
        def on_step_end(self, *args, model, **kwargs):
            kept.append([p.detach().clone() for p in model.parameters()])

    trainer.add_callback(Keep)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert all(map(torch.equal, trainer.model.parameters(), kept[1]))
    trainer.save_model(folder := f"{trainer.args.output_dir}/best")
    assert FarziData.from_pretrained(folder).latents.equal(kept[1][0])
    saved = yaml.safe_load(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    assert (saved[f"eval_{name}"], saved["step"]) == (3.0, 2)


# -- several sets ----------------------------------------------------------------------------------


def test_each_set_has_the_metrics_that_it_has_alone(make, sequences):
    sets = {"near": sequences["validation"], "far": sequences["test"]}
    trainer = make({"eval_dataset": sets})
    together = trainer.evaluate()
    for name, rows in sets.items():
        alone = trainer.evaluate(rows, metric_key_prefix=f"eval_{name}")
        alone.pop(f"eval_{name}_students")
        assert f"eval_{name}_perplexity" in alone
        assert {key: together[key] for key in alone} == alone
    assert together["eval_near_perplexity"] != together["eval_far_perplexity"]
    assert together["eval_students"] == 2
    assert "eval_perplexity" not in together
    others = trainer.evaluate({"far": sets["far"]}, metric_key_prefix="test")
    assert not any(name.startswith("eval") for name in others)
    assert others["test_far_perplexity"] == together["eval_far_perplexity"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            {"fine": [[2, 3]], "wide": [[2, V]]},
            rf"^eval_dataset\['wide'\]: dataset\['input_ids'\]\[0\] holds id {V}",
        ),
        ({}, r"^eval_dataset is a dict without data sets: give at least one, or None"),
    ],
    ids=["wide", "empty"],
)
def test_the_unusable_set_is_named(make, sets, message):
    sets = {name: Dataset.from_dict({"input_ids": rows}) for name, rows in sets.items()}
    with pytest.raises(ValueError, match=message):
        make({"eval_dataset": sets})


def test_workers_that_stay_evaluate_the_given_set(make, sequences):
    """Trainer would evaluate the first set again."""
    settings = {
        "dataloader_num_workers": 1,
        "dataloader_persistent_workers": True,
        "eval_students": 1,
    }
    trainer, plain = make(**settings), make(eval_students=1)
    assert trainer.evaluate() == plain.evaluate()
    assert trainer.evaluate(sequences["test"]) == plain.evaluate(sequences["test"])


# -- several students as one -----------------------------------------------------------------------

FORMS = {
    "minibatches": {},
    "all rows": {"synthetic_batch_size": None},
    "ids": {"labels": "own", "inputs": "tokens", "label_dim": 4},
    "a carried teacher": {
        "labels": "teacher",
        "inputs": "drawn",
        "max_steps": 0,
        "storage": "exact",
        "inner_optimizer": "soap",
    },
}


@pytest.fixture
def together(monkeypatch):
    """What a GPU does: up to eight students train as one."""
    monkeypatch.setitem(devices.PORTIONS, "cpu", devices.PORTIONS["cpu"]._replace(learners=8))


def in_float64(trainer):
    students = trainer.students
    students.farzi.double()
    initial = students.learner.initial_parameters
    students.learner.initial_parameters = lambda *args: {
        name: x.double() for name, x in initial(*args).items()
    }
    return students


@pytest.mark.parametrize("form", FORMS)
def test_students_that_train_as_one_are_those_that_train_alone(make, form, together):
    students = in_float64(make(**FORMS[form], concentration=None))
    several = list(students.on_summary_each(3))
    for index, student in enumerate(several):
        for name, x in students.on_summary(index).items():
            assert x.dtype == torch.float64
            torch.testing.assert_close(student[name], x, rtol=1e-10, atol=1e-12)


def test_on_a_cpu_students_train_alone(make, monkeypatch):
    students = make().students
    monkeypatch.setattr(type(students), "_together", None)
    for index, student in enumerate(students.on_summary_each(2)):
        assert all(torch.equal(x, student[name]) for name, x in students.on_summary(index).items())


def test_students_that_no_vmap_can_run_train_alone_and_a_line_says_so(make, together, caplog):
    students = make(checkpoint_layers=True).students  # has a function of its own
    for index, student in enumerate(students.on_summary_each(2)):
        assert all(torch.equal(x, student[name]) for name, x in students.on_summary(index).items())
    (record,) = [record for record in caplog.records if record.name.endswith("inner_training")]
    assert record.getMessage().startswith("Students train one after the other, not together: ")


def test_a_norm_of_each_student_is_clipped_alone(make, together):
    students = make(inner_optimizer="adamw", inner_max_grad_norm=0.1).students
    for index, student in enumerate(students.on_summary_each(2)):
        assert all(torch.equal(x, student[name]) for name, x in students.on_summary(index).items())
