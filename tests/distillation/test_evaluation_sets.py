"""Several evaluation sets by name, as the stock Trainer takes them."""

from __future__ import annotations

from functools import partial

import pytest
from datasets import Dataset, DatasetDict
from tiny_trainer import tiny_trainer

V = 54


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


@pytest.mark.parametrize("kind", [dict, DatasetDict])
def test_each_set_has_the_metrics_that_it_has_alone(make, sequences, kind):
    sets = kind({"near": sequences["validation"], "far": sequences["test"]})
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


def test_all_sets_see_the_same_students(make, sequences, monkeypatch):
    trainer = make({"eval_dataset": {"near": sequences["validation"], "far": sequences["test"]}})
    trained, train = [], trainer.train_student
    monkeypatch.setattr(trainer, "train_student", lambda index: trained.append(index) or train(index))
    trainer.evaluate()
    assert trained == [0, 1]


def test_a_set_is_evaluated_by_hand(make, sequences):
    trainer = make({"eval_dataset": {"near": sequences["validation"], "far": sequences["test"]}})
    by_name = trainer.evaluate("far")
    assert by_name == trainer.evaluate(sequences["test"])
    others = trainer.evaluate({"far": sequences["test"]}, metric_key_prefix="test")
    assert others["test_far_perplexity"] == by_name["eval_perplexity"]
    with pytest.raises(
        ValueError, match=r"eval_dataset='wide' is not one of FarziTrainer's sets: it has several, near, far"
    ):
        trainer.evaluate("wide")
    with pytest.raises(ValueError, match=r"eval_dataset='near' is not one of .*: it has none with a name"):
        make().evaluate("near")


def test_a_run_logs_the_sets_and_keeps_the_best_by_one_of_them(make, sequences):
    perplexities = iter([1.0, 5.0, 2.0, 3.0, 3.0, 9.0])  # near and far by turns: the second step is best on far
    trainer = make(
        {"eval_dataset": {"near": sequences["validation"], "far": sequences["test"]},
         "compute_metrics": lambda _: {"perplexity": next(perplexities)}},
        max_steps=3, eval_students=1, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="far_perplexity",
    )  # fmt: skip
    trainer.train()
    logged = [entry["eval_far_perplexity"] for entry in trainer.state.log_history if "eval_far_perplexity" in entry]
    assert logged == [5.0, 3.0, 9.0]
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"short": [[2, 3], [2]]}, r"^eval_dataset\['short'\]: dataset\['input_ids'\]\[1\] has 1 ids"),
        ({"fine": [[2, 3]], "wide": [[2, V]]}, rf"^eval_dataset\['wide'\]: dataset\['input_ids'\]\[0\] holds id {V}"),
        ({}, r"^eval_dataset is a dict without data sets: give at least one, or None"),
    ],
    ids=["short", "wide", "empty"],
)
def test_the_unusable_set_is_named(make, sets, message, by_hand):
    sets = {name: Dataset.from_dict({"input_ids": rows}) for name, rows in sets.items()}
    with pytest.raises(ValueError, match=message):
        make().evaluate(sets) if by_hand else make({"eval_dataset": sets})


def test_workers_that_stay_evaluate_the_given_set(make, sequences):
    """Trainer would evaluate the first set again."""
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "eval_students": 1}
    trainer, plain = make(**settings), make(eval_students=1)
    assert trainer.evaluate() == plain.evaluate()
    assert trainer.evaluate(sequences["test"]) == plain.evaluate(sequences["test"])
