"""FarziTrainer: training, evaluation, and the artefact it leaves."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from datasets import load_dataset
from tiny_trainer import tensors, tiny_learner, tiny_trainer
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorForLanguageModeling, LlamaConfig
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziTrainer
from farzi_hf.distillation import callbacks
from farzi_hf.metrics import token_metrics, token_statistics
from farzi_hf.report import RunSettings
from farzi_hf.summary import FarziData
from farzi_hf.summary.initialization import CANDIDATES

V = 54


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


def logged(trainer: FarziTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


# -- training --------------------------------------------------------------------------------------------------------


def test_training_makes_students_better(make):
    """From soft tokens near uniform to a summary that beats them on data that distillation has not seen."""
    trainer = make(
        initialization="random", max_steps=15, learning_rate=0.2, inner_steps=8, inner_steps_min=None,
        window=None, inner_learning_rate=0.1, inner_epsilon=1e-2,
    )  # fmt: skip
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_perplexity"] < 0.6 * before["eval_perplexity"]
    losses = logged(trainer, "loss")
    assert np.mean(losses[-3:]) < losses[0] - 0.5


@pytest.mark.parametrize("adjoint", ["direct", "checkpoint", "reversible"])
def test_every_adjoint_distils_the_same(make, adjoint):
    expected, trainer = make(adjoint="tape", max_steps=2), make(adjoint=adjoint, max_steps=2)
    for each in (expected, trainer):
        each.train()
    for ours, theirs in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_learners_per_step_average_the_outer_loss(make):
    """Of the first step: the loss of three learners at once lies among those of single learners, and is none of them."""
    three = make(learners_per_step=3, max_steps=1)
    three.train()
    starts = three.learner.batch(3).initial_parameters(three._learner_seed())
    assert all(len(x) == 3 for x in starts.values())
    one = make(max_steps=1)
    one.train()
    assert logged(three, "loss") != logged(one, "loss")
    assert logged(three, "loss")[0] == pytest.approx(logged(one, "loss")[0], rel=0.1)


def test_logs(make):
    trainer = make(max_steps=4, logging_steps=2)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    for entry in entries:
        assert np.log(V) * 0.5 < entry["loss"] < np.log(V) * 1.5
        assert entry["grad_norm"] > 0
        assert entry["non_finite_steps"] == 0
        assert 0 < entry["seconds_per_step"] < 10
        assert 0.05 < entry["peak_memory_gib"] < 50


def test_a_start_is_chosen_by_what_students_learn_from_it(make):
    """Of the candidates the one with the least loss; once, and only where it is open."""
    chosen, losses = make(max_steps=1, concentration=None, inner_steps=20), {}
    for concentration in CANDIDATES:
        fixed = make(concentration=concentration, inner_steps=20)
        losses[concentration] = fixed.evaluate(fixed.train_dataset)["eval_loss"]  # other learners, the same answer
        before = fixed.model.fingerprint()
        fixed.tune_initialization()
        assert fixed.model.fingerprint() == before  # κ was given
    chosen.tune_initialization()
    best = min(losses, key=losses.get)
    assert sorted(losses.values())[1] > losses[best] + 0.02  # no matter of luck
    assert_equal(tensors(chosen)[:2], tensors(make(concentration=best))[:2])
    start = chosen.model.fingerprint()
    chosen.tune_initialization()
    assert chosen.model.fingerprint() == start
    chosen.train()
    assert logged(chosen, "concentration") == [best]

    alone = make(max_steps=1, concentration=None, inner_steps=20)
    alone.train()  # chooses by itself
    assert logged(alone, "concentration") == [best]
    assert_equal(tensors(alone), tensors(chosen))


def test_a_summary_that_someone_has_changed_is_left_as_it_is(make):
    trainer = make(concentration=None)
    with torch.no_grad():
        trainer.model.latents += 1
    before = trainer.model.fingerprint()
    trainer.tune_initialization()
    assert trainer.model.fingerprint() == before
    given = make({"farzi_data": trainer.model}, concentration=None)
    given.tune_initialization()
    assert given.model.fingerprint() == before


def test_a_chaotic_training_is_said_once_with_the_remedy(make, caplog):
    """Clipping hides it: the norm alone tells."""
    trainer = make(max_steps=3, max_grad_norm=0.1)
    objective = trainer.objective
    trainer.objective = lambda *args: 1e5 * objective(*args)
    trainer.train()
    (warning,) = [record for record in caplog.records if "chaotic" in record.getMessage()]
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("Step 1: the norm of the meta-gradient is ")
    assert "Set a window" in warning.getMessage()


def test_seconds_per_step_are_those_of_outer_steps_alone(make, monkeypatch):
    """By a clock that the callbacks move, and the outer loss."""
    seconds = 0.0

    class Wait(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            spend(100.0)

        def on_step_end(self, *args, **kwargs):
            spend(100.0)

    def spend(more: float) -> None:
        nonlocal seconds
        seconds += more

    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: seconds))
    trainer = make({"callbacks": [Wait()]}, max_steps=2)
    objective = trainer.objective
    trainer.objective = lambda *args: spend(3.0) or objective(*args)
    trainer.train()
    assert logged(trainer, "seconds_per_step") == [3.0, 3.0]


def test_every_micro_batch_has_a_learner_of_its_own(make):
    trainer = make(max_steps=3, gradient_accumulation_steps=2, per_device_train_batch_size=20)
    objective, seeds = trainer.objective, []

    def recorder(learner, summary, batch, seed):
        seeds.append(seed)
        return objective(learner, summary, batch, seed)

    trainer.objective = recorder
    trainer.train()
    assert len(set(seeds)) == len(seeds) == 6
    trainer.train()
    assert seeds[6:] == seeds[:6]


def test_the_loss_is_that_of_the_objective_on_the_batch(make):
    trainer = make(max_steps=1)
    calls, objective = [], trainer.objective
    trainer.objective = lambda *args: calls.append(args) or objective(*args)
    start = tensors(trainer)
    trainer.train()
    (learner, _, batch, seed), (latents, decoder) = calls[0], start
    assert batch["input_ids"].shape[0] == 40
    with torch.no_grad():
        assert logged(trainer, "loss")[0] == pytest.approx(
            objective(learner, {"latents": latents, "decoder": decoder}, batch, seed).item()
        )


def test_training_twice_starts_anew_from_the_summary_reached(make):
    """With a learning rate of 0 the summary stays, so the second run has to repeat the first."""
    trainer = make(max_steps=1, learning_rate=0.0)
    trainer.train()
    first = logged(trainer, "loss")
    trainer.train()
    assert logged(trainer, "loss") == first


@pytest.mark.parametrize("kind", ["factory", "config", "model"])
def test_learners_of_every_kind(make, kind):
    config = LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, attn_implementation="sdpa", bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    learner_init = {
        "factory": lambda: AutoModelForCausalLM.from_config(config),
        "config": config,
        "model": AutoModelForCausalLM.from_config(config),
    }[kind]
    trainer = make({"learner_init": learner_init}, max_steps=1)
    before = tensors(trainer)
    trainer.train()
    assert logged(trainer, "grad_norm")[0] > 0
    assert not torch.equal(tensors(trainer)[0], before[0])


def test_columns_that_the_learner_does_not_read_are_dropped(make, text, sequences):
    train = sequences["train"].add_column("text", text["train"]["text"])
    trainer = make({"train_dataset": train}, max_steps=1)
    trainer.train()
    assert logged(trainer, "grad_norm")[0] > 0


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_is_mean_and_deviation_over_students(make, sequences, tokenizer):
    trainer = make(eval_students=3)
    metrics = trainer.evaluate()
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(list(sequences["validation"]))
    students = []
    for i in range(3):
        with torch.no_grad():
            logits = trainer.learner.logits(trainer.train_student(i), batch)
        students.append(token_metrics(token_statistics(logits, batch["labels"]).numpy()))
    for name in ("perplexity", "sentence_perplexity", "accuracy"):
        values = [student[name] for student in students]
        assert metrics[f"eval_{name}"] == pytest.approx(np.mean(values), rel=1e-5)
        assert metrics[f"eval_{name}_std"] == pytest.approx(np.std(values, ddof=1), rel=1e-3)
    assert metrics["eval_perplexity_std"] > 0
    assert metrics["eval_students"] == 3
    assert metrics["eval_loss"] == pytest.approx(np.log(metrics["eval_perplexity"]), rel=0.05)


def test_one_student_has_no_deviation(make):
    assert make(eval_students=1).evaluate()["eval_perplexity_std"] == 0


def test_a_diverged_student_gives_infinity_not_a_warning(make):
    perplexities = iter([5.0, float("inf")])
    trainer = make({"compute_metrics": lambda _: {"perplexity": next(perplexities)}})
    metrics = trainer.evaluate()
    assert metrics["eval_perplexity"] == float("inf")
    assert np.isnan(metrics["eval_perplexity_std"])


def test_evaluation_takes_another_dataset_and_prefix(make, sequences):
    metrics = make(eval_students=1).evaluate(sequences["test"], metric_key_prefix="test")
    assert {"test_loss", "test_perplexity"} <= metrics.keys()
    assert not any(name.startswith("eval") for name in metrics)


def test_without_metrics_the_loss_is_left(make):
    trainer = make({"compute_metrics": None})
    assert trainer.evaluate().keys() == {"eval_loss", "eval_loss_std", "eval_students", "epoch"}


def test_evaluations_of_one_summary_are_saved_together(make, sequences, tmp_path):
    trainer = make()
    first = trainer.evaluate()
    second = trainer.evaluate(sequences["test"], metric_key_prefix="test")
    trainer.save_model(str(tmp_path / "saved"))
    metrics = json.loads((tmp_path / "saved" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics == {**metrics, "eval_loss": first["eval_loss"], "test_loss": second["test_loss"]}


def test_evaluation_leaves_random_states_alone(make):
    trainer = make()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002


def test_evaluation_does_not_change_the_distillation(make):
    """Over more than one epoch, so that data are shuffled after an evaluation."""
    quiet = make(max_steps=6)
    quiet.train()
    evaluating = make(max_steps=6, eval_strategy="steps", eval_steps=1, eval_on_start=True)
    evaluating.evaluate()
    evaluating.train()
    assert len(logged(evaluating, "eval_perplexity")) == 7
    assert_equal(tensors(evaluating), tensors(quiet))
    assert logged(evaluating, "loss") == logged(quiet, "loss")


def test_the_best_summary_is_the_one_with_the_lowest_perplexity(make):
    perplexities = iter([5.0, 3.0, 9.0])
    trainer = make(
        {"compute_metrics": lambda _: {"perplexity": next(perplexities)}},
        max_steps=3, eval_students=1, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="perplexity",
    )  # fmt: skip
    kept = []

    class Keep(TrainerCallback):
        def on_step_end(self, *args, model, **kwargs):
            kept.append([p.detach().clone() for p in model.parameters()])

    trainer.add_callback(Keep)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert_equal(list(trainer.model.parameters()), kept[1])
    trainer.save_model(folder := f"{trainer.args.output_dir}/best")
    assert FarziData.from_pretrained(folder).latents.equal(kept[1][0])
    saved = yaml.safe_load(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    assert (saved["eval_perplexity"], saved["step"]) == (3.0, 2)


# -- artefact --------------------------------------------------------------------------------------------------------


def test_the_artefact_loads_everywhere(make, tmp_path, tokenizer):
    trainer = make(max_steps=1)
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    folder = trainer.args.output_dir
    loaded = FarziData.from_pretrained(folder)
    assert_equal(list(loaded.parameters()), list(trainer.model.parameters()))
    assert loaded.config.inner == trainer.args.summary_config(V).inner
    assert loaded.processing_class.get_vocab() == tokenizer.get_vocab()
    rows = load_dataset(folder, split="train", cache_dir=str(tmp_path / "cache"))
    assert np.array(rows["latents"]).shape == (4, 8, 4)
    assert all(rows["text"])
    recipe = yaml.safe_load(Path(folder, "recipe.yaml").read_text(encoding="utf-8"))
    learner = AutoConfig.for_model(**{**recipe.pop("learner"), "use_cache": True})  # which the inner loop turns off
    assert learner.to_dict() == tiny_learner(V).to_dict()
    assert recipe.pop("dataset") is None  # the rows were given in Python
    with pytest.raises(ValueError, match="dataset=None: this recipe is of a summary that FarziTrainer distilled"):
        RunSettings(dataset=None)
    assert recipe == trainer.args.to_recipe()
    saved = yaml.safe_load(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    assert saved["eval_perplexity"] == metrics["eval_perplexity"]


def test_the_artefact_claims_no_metrics_of_other_tensors(make):
    trainer = make(max_steps=1)
    trainer.evaluate()
    trainer.train()
    trainer.save_model()
    assert not Path(trainer.args.output_dir, "metrics.json").exists()


def test_the_artefact_claims_no_metrics_of_numbers_that_its_file_rounds(make, tmp_path):
    trainer = make(storage="int4", max_steps=1)
    trainer.evaluate()
    trainer.save_model(tmp_path / "before")
    assert "eval_perplexity" not in FarziData.from_pretrained(tmp_path / "before").results.metrics
    trainer.train()
    expected = trainer.evaluate()["eval_perplexity"]
    trainer.save_model(tmp_path / "after")
    assert FarziData.from_pretrained(tmp_path / "after").results.metrics["eval_perplexity"] == expected


def test_a_summary_without_tokenizer(make, tokenizer):
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = make(
        {"processing_class": None, "data_collator": collator}, max_steps=1, save_strategy="steps", save_steps=1
    )
    trainer.train()
    trainer.save_model()
    assert FarziData.from_pretrained(trainer.args.output_dir).processing_class is None


def test_a_summary_of_named_items(make, tokenizer):
    items, collator = [f"item {i}" for i in range(V)], DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = make(
        {"processing_class": items, "data_collator": collator}, max_steps=1, save_strategy="steps", save_steps=1
    )
    trainer.train()
    trainer.save_model()
    assert FarziData.from_pretrained(trainer.args.output_dir).processing_class == items


def test_going_on_with_a_saved_summary(make):
    first = make(max_steps=1)
    first.train()
    first.save_model()
    second = make({"farzi_data": FarziData.from_pretrained(first.args.output_dir)}, max_steps=1, inner_steps=6)
    assert_equal(list(second.model.parameters()), list(first.model.parameters()))
    second.train()
    assert second.model.config.inner["steps"] == 6
    assert not torch.equal(second.model.latents, first.model.latents)


# -- reports ---------------------------------------------------------------------------------------------------------


def test_tensorboard_gets_the_logs(make):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = make(report_to=["tensorboard"], max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer.train()
    (events,) = Path(trainer.args.output_dir).rglob("events.out.tfevents*")
    reader = accumulator.EventAccumulator(str(events.parent)).Reload()
    assert {"train/loss", "train/grad_norm", "train/non_finite_steps", "eval/perplexity"} <= set(
        reader.Tags()["scalars"]
    )
    assert [event.value for event in reader.Scalars("train/loss")] == pytest.approx(logged(trainer, "loss"))


def test_trackio_gets_the_logs(make):
    """Into a local database, below HF_HOME; only a Space would need the network."""
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    trainer = make(report_to=["trackio"], project="farzi-tests", run_name="tiny", max_steps=2)
    trainer.train()
    found = [entry["train/loss"] for entry in storage.get_logs("farzi-tests", "tiny") if "train/loss" in entry]
    assert found == pytest.approx(logged(trainer, "loss"))
