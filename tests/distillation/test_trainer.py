"""FarziTrainer: training, evaluation, and the artefact it leaves."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from datasets import load_dataset
from safetensors.torch import load_file
from tiny_trainer import PoisonedGradient, logged, tensors, tiny_learner
from transformers import AutoConfig, DataCollatorForLanguageModeling
from transformers.trainer_callback import TrainerCallback

from farzi_hf.distillation import trainer as trainer_module
from farzi_hf.distillation.run import last_checkpoint
from farzi_hf.engine import ReplayError, Reversible
from farzi_hf.report import RunSettings
from farzi_hf.summary import FarziData

V = 54


# -- arguments -------------------------------------------------------------------------------------


def test_the_learner_has_the_name_that_users_of_trainer_look_for(make):
    trainer = make({"learner_init": None, "model_init": tiny_learner(V)})
    assert trainer.learner.vocab_size == V
    with pytest.raises(TypeError, match=r"^both of model_init and learner_init are given: one of"):
        make({"model_init": tiny_learner(V)})
    with pytest.raises(
        TypeError, match=r"^neither of model_init and learner_init is given: one of"
    ):
        make({"learner_init": None})


# -- training --------------------------------------------------------------------------------------


def test_processes_that_accumulate_have_the_learners_of_one_process(make, monkeypatch):
    """Two processes with two micro-batches each take the seeds of one with four, in its order."""
    trainer = make()
    arguments = type(trainer.args)

    def seeds(world_size, process, count):
        monkeypatch.setattr(arguments, "world_size", world_size)
        monkeypatch.setattr(arguments, "process_index", process)
        trainer._begin_steps()
        return [trainer._learner_seed() for _ in range(count)]

    alone = seeds(1, 0, 4)
    assert len(set(alone)) == 4
    by_batch = zip(seeds(2, 0, 2), seeds(2, 1, 2), strict=True)
    assert [seed for batch in by_batch for seed in batch] == alone


def test_training_makes_students_better(make):
    """From soft tokens near uniform to a summary that beats them on data that distillation has not
    seen.
    """
    trainer = make(
        initialization="random",
        max_steps=15,
        learning_rate=0.2,
        inner_steps=8,
        inner_steps_min=None,
        window=None,
        inner_learning_rate=0.1,
        inner_epsilon=1e-2,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_perplexity"] < 0.6 * before["eval_perplexity"]
    losses = logged(trainer, "loss")
    assert np.mean(losses[-3:]) < losses[0] - 0.5


def test_a_tokenizer_as_the_task_is_named(make, tokenizer):
    with pytest.raises(
        TypeError,
        match=r"^task is TokenizersBackend; give a task, such as LanguageModeling\(tokenizer\)",
    ):
        make({"task": tokenizer, "processing_class": None})


@pytest.mark.parametrize("larger", [False, True])
def test_a_summary_that_is_larger_than_its_data_is_said(make, sequences, caplog, larger):
    rows = sequences["train"].select(range(10 if larger else 160))
    settings = {
        "inputs": "tokens",
        "labels": "own",
        "teacher_steps": 2,
        "max_steps": 0,
        "storage": "int4",
        "label_dim": 2,
    }
    make({"train_dataset": rows}, **settings).train()
    said = [
        record.getMessage() for record in caplog.records if "more than the" in record.getMessage()
    ]
    assert len(said) == larger
    assert all("of the ids in train_dataset" in line for line in said)


def test_logs(make):
    trainer = make(max_steps=4, logging_steps=2)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [(entry["step"], entry["non_finite_steps"]) for entry in entries] == [(2, 0), (4, 0)]
    for entry in entries:
        assert np.log(V) * 0.5 < entry["loss"] < np.log(V) * 1.5
        assert entry["grad_norm"] > 0
        assert 0.05 < entry["peak_memory_gib"] < 50


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
    """By a clock that a callback moves, and the outer loss."""
    seconds = 0.0

    class Wait(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            spend(100.0)

    def spend(more: float) -> None:
        nonlocal seconds
        seconds += more

    trainer = make({"callbacks": [Wait()]}, max_steps=2, gradient_accumulation_steps=2)
    objective = trainer.objective
    trainer.objective = lambda *args: spend(3.0) or objective(*args)
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=lambda: seconds))
    trainer.train()
    assert logged(trainer, "seconds_per_step") == [6.0, 6.0]


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


def test_columns_that_the_learner_does_not_read_are_dropped(make, text, sequences):
    train = sequences["train"].add_column("text", text["train"]["text"])
    trainer = make({"train_dataset": train}, max_steps=1)
    trainer.train()
    assert logged(trainer, "grad_norm")[0] > 0


# -- gradients that are not finite -----------------------------------------------------------------


class Record(TrainerCallback):
    """Latents and decoder after each step."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model, **kwargs):
        self.steps.append([p.detach().clone() for p in model.parameters()])


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make):
    """In the third step, when the optimizer's moments would still move the summary; and where one
    of two micro-batches has it.
    """
    record = Record()
    trainer = make(
        {"callbacks": [record]},
        max_steps=4,
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=20,
    )
    trainer.objective = PoisonedGradient(trainer.objective, calls=(4,))
    trainer.train()
    assert all(map(torch.equal, record.steps[1], record.steps[2]))
    for earlier, later in ((0, 1), (2, 3)):
        assert not torch.equal(record.steps[earlier][0], record.steps[later][0])
    assert logged(trainer, "non_finite_steps") == [0, 0, 1, 1]
    assert all(np.isfinite(logged(trainer, "loss")))
    assert all(torch.isfinite(x).all() for x in tensors(trainer))


def test_a_gradient_of_infinite_norm_is_skipped_and_counted(make):
    """Each of its entries is finite; clipping would make zeros of them, and the run would end well,
    having done nothing.
    """
    trainer = make(max_steps=4, tau=1e-30, max_non_finite=2, save_strategy="steps", save_steps=1)
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    message = (
        "3 meta-gradients were not finite, more than max_non_finite=2; begin a new run .*smaller"
        " inner_learning_rate, learning_rate"
    )
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    assert logged(trainer, "non_finite_steps") == [1, 2]
    saved = load_file(Path(last_checkpoint(trainer.args.output_dir), "model.safetensors"))
    assert all(torch.equal(saved[name], before) for name, before in start.items())


@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_is_not_finite_shows_in_the_log(make, every):
    """Alone as NaN; else Trainer's mean is finite."""
    trainer = make(max_steps=4, logging_steps=every)
    objective, factors = trainer.objective, iter([1, 1, np.nan, 1])
    trainer.objective = lambda *args: objective(*args) * next(factors)
    output = trainer.train()
    assert (
        np.isnan(logged(trainer, "loss")).tolist()
        == [False, False, every == 1, False][-4 // every :]
    )
    assert np.isfinite(output.training_loss)
    assert logged(trainer, "non_finite_steps")[-1] == 1


def test_a_step_that_cannot_be_run_backwards_is_skipped_and_counted(make, caplog, monkeypatch):
    """In the second of its two micro-batches; the next step is taken."""
    calls, retrace = itertools.count(), Reversible.retrace

    def failing(*arguments):
        if next(calls) == 1:
            raise ReplayError("other bits")
        retrace(*arguments)

    monkeypatch.setattr(Reversible, "retrace", failing)
    trainer = make(
        max_steps=2,
        adjoint="reversible",
        gradient_accumulation_steps=2,
        per_device_train_batch_size=20,
    )
    trainer.train()
    assert logged(trainer, "non_finite_steps") == [1, 1]
    assert "Step 0: other bits." in caplog.text
    assert all(torch.isfinite(x).all() for x in tensors(trainer))


def test_a_learner_without_room_in_the_adjoint_is_a_skipped_step(make, caplog):
    trainer = make(max_steps=2, inner_learning_rate=1e9, adjoint="reversible")
    start = [x.clone() for x in tensors(trainer)]
    trainer.train()
    assert logged(trainer, "non_finite_steps") == [1, 2]
    assert all(map(torch.equal, tensors(trainer), start))
    assert (
        "the learner diverged: adjoint=Reversible() holds its states in integers with room for"
        in caplog.text
    )


# -- artefact --------------------------------------------------------------------------------------


def test_the_artefact_loads_everywhere(make, tmp_path, tokenizer):
    trainer = make(max_steps=1)
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    folder = trainer.args.output_dir
    loaded = FarziData.from_pretrained(folder)
    assert loaded.fingerprint() == trainer.model.fingerprint()
    assert loaded.config.inner == trainer.args.summary_config(V).inner
    assert loaded.processing_class.get_vocab() == tokenizer.get_vocab()
    rows = load_dataset(folder, split="train", cache_dir=str(tmp_path / "cache"))
    assert np.array(rows["latents"]).shape == (4, 8, 4)
    assert all(rows["text"])
    recipe = yaml.safe_load(Path(folder, "recipe.yaml").read_text(encoding="utf-8"))
    learner = AutoConfig.for_model(
        **{**recipe.pop("learner"), "use_cache": True}
    )  # which the inner loop turns off
    assert learner.to_dict() == tiny_learner(V).to_dict()
    assert recipe.pop("dataset") is None  # the rows were given in Python
    with pytest.raises(
        ValueError, match="dataset=None: the summary of this recipe was distilled in Python"
    ):
        RunSettings(dataset=None)
    assert recipe == trainer.args.to_recipe()
    saved = yaml.safe_load(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    assert saved["eval_perplexity"] == metrics["eval_perplexity"]


def test_the_artefact_claims_no_metrics_of_numbers_that_its_file_rounds(make, tmp_path):
    trainer = make(storage="int4", max_steps=1)
    trainer.evaluate()
    trainer.save_model(tmp_path / "before")
    assert "eval_perplexity" not in FarziData.from_pretrained(tmp_path / "before").results.metrics
    trainer.train()
    expected = {**trainer.evaluate(), **trainer.evaluate(metric_key_prefix="again")}
    trainer.save_model(tmp_path / "after")
    assert FarziData.from_pretrained(tmp_path / "after").results.metrics.items() >= expected.items()


@pytest.mark.parametrize("items", [None, [f"item {i}" for i in range(V)]])
def test_a_summary_without_tokenizer_or_of_named_items(make, tokenizer, items):
    given = {
        "processing_class": items,
        "data_collator": DataCollatorForLanguageModeling(tokenizer, mlm=False),
    }
    trainer = make(given, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model()
    assert FarziData.from_pretrained(trainer.args.output_dir).processing_class == items


def test_going_on_with_a_saved_summary(make):
    first = make(max_steps=1)
    first.train()
    first.save_model()
    second = make(
        {"farzi_data": FarziData.from_pretrained(first.args.output_dir)}, max_steps=1, inner_steps=6
    )
    assert second.model.fingerprint() == first.model.fingerprint()
    second.train()
    assert second.model.config.inner["steps"] == 6
    assert not torch.equal(second.model.latents, first.model.latents)
