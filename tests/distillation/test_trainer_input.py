"""What FarziTrainer refuses, in one clear error and before the work."""

from __future__ import annotations

from functools import partial

import pytest
from datasets import Dataset
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import AutoModelForCausalLM, TrainingArguments

from farzi_hf.data import vocabulary_of, word_tokenizer
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.tasks import Recommendation

V = 54


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


def rows(*sequences: list[int]) -> Dataset:
    return Dataset.from_dict({"input_ids": list(sequences)})


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.from_dict({"text": ["a"]}), "has columns .*, but no 'input_ids': run farzi_hf.data.tokenize"),
        (rows([2, 3]).select([]), "is empty: pass at least one sequence"),
        (rows([2, 3], [2]), r"\[1\] has 1 ids .*: next-token prediction needs at least 2"),
        (rows([2, V, 3]), f"holds id {V}, outside 0 … {V - 1}"),
        (rows([2, -1, 3]), "holds id -1, outside"),
        ([[2, 3]], r"is a list: pass a datasets\.Dataset"),
    ],
    ids=["no column", "empty", "short", "large id", "negative id", "list"],
)
def test_unusable_data_are_refused_by_name(make, name, dataset, message):
    with pytest.raises(ValueError, match=f"^{name}: dataset.*({message})"):
        make({name: dataset})


def test_training_takes_one_split(make):
    with pytest.raises(ValueError, match=r"^train_dataset: dataset is a dict: pass a datasets\.Dataset \(one split\)"):
        make({"train_dataset": {"a": rows([2, 3])}})


def test_unusable_data_are_refused_by_evaluate(make):
    trainer = make()
    with pytest.raises(ValueError, match=r"^eval_dataset: dataset\['input_ids'\]\[0\] has 1 ids"):
        trainer.evaluate(rows([2]))
    trainer.eval_dataset = None
    trainer.train_student = lambda index: pytest.fail("students trained for nothing")
    with pytest.raises(ValueError, match=r"eval_dataset is None; give one to evaluate\(\) or to FarziTrainer"):
        trainer.evaluate()


def test_evaluating_while_training_needs_a_dataset(make):
    with pytest.raises(ValueError, match="eval_dataset"):
        make({"eval_dataset": None}, eval_strategy="steps", eval_steps=1)


def test_training_needs_a_dataset(make):
    with pytest.raises(ValueError, match="train_dataset"):
        make({"train_dataset": None}).train()


@pytest.mark.parametrize("args", [None, TrainingArguments("out", use_cpu=True), {"output_dir": "out"}], ids=type)
def test_args_of_another_type_are_refused(make, args):
    with pytest.raises(TypeError, match=f"args is {type(args).__name__}; give a FarziConfig"):
        make({"args": args})


def test_no_tokenizer_needs_a_collator(make):
    with pytest.raises(ValueError, match="processing_class, data_collator and task are all None; give the tokenizer"):
        make({"processing_class": None})


def test_a_tokenizer_larger_than_the_learner_is_refused(make, text):
    larger = word_tokenizer(text["train"]["text"], vocab_size=60)
    with pytest.raises(ValueError, match=f"processing_class brings a vocabulary of {len(larger)} entries, .* {V}"):
        make({"processing_class": larger})


@pytest.mark.parametrize(
    ("name", "value", "source"),
    [
        ("vocab_size", V + 1, "the learner's"),
        ("num_sequences", 5, "args.num_sequences"),
        ("sequence_length", 5, "args.sequence_length"),
        ("latent_dim", 5, "args.latent_dim"),
        ("tau", 0.5, "args.tau"),
    ],
)
def test_a_summary_that_args_do_not_describe_is_refused(make, name, value, source):
    shape = {"num_sequences": 4, "sequence_length": 8, "latent_dim": 4, "vocab_size": V}
    farzi = FarziData(FarziDataConfig(**{**shape, name: value}))
    with pytest.raises(ValueError, match=f"farzi_data has {name}={value}, but {source} is .*; make the two equal"):
        make({"farzi_data": farzi})


def test_a_summary_of_another_vocabulary_is_refused(make, text):
    other = word_tokenizer(sorted(text["train"]["text"])[:60], vocab_size=50)
    farzi = FarziData(FarziDataConfig(4, 8, 4, V, vocabulary_hash=vocabulary_of(other).hash()))
    with pytest.raises(ValueError, match=r"processing_class brings a vocabulary with hash .*; use that tokenizer"):
        make({"farzi_data": farzi})


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_a_folder_with_something_else_is_refused_before_the_work(make, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(ValueError, match=f"^output_dir: folder=.* has a {name} but no farzi.safetensors"):
        make()


def test_an_earlier_summary_in_the_folder_is_fine(make):
    make().save_model()
    make().save_model()


def test_a_learner_that_starts_with_nan_is_refused(make):
    def broken():
        model = AutoModelForCausalLM.from_config(tiny_learner(V))
        model.transformer.wpe.weight.data[0, 0] = float("nan")
        return model

    with pytest.raises(ValueError, match=r"learner_init returned a model whose transformer\.wpe\.weight holds NaN"):
        make({"learner_init": broken})


def test_a_summary_makes_no_predictions_of_its_own(make, sequences):
    with pytest.raises(RuntimeError, match=r"call evaluate\(\), which trains students"):
        make().predict(sequences["test"])


def test_errors_name_the_rows_of_the_user_and_not_those_cut_of_them(make):
    histories = {"task": Recommendation([f"item {i}" for i in range(V)]), "processing_class": None}
    long = list(range(2, 40))
    with pytest.raises(ValueError, match=r"^train_dataset: dataset\['input_ids'\]\[2\] holds id -1"):
        make({**histories, "train_dataset": rows(long, long, [2, -1, 3]), "eval_dataset": rows([2, 3])})
    with pytest.raises(ValueError, match=r"^train_dataset: none of its 3 rows has 2 ids"):
        make({**histories, "train_dataset": rows([2], [3], [4]), "eval_dataset": rows([2, 3])})


@pytest.mark.parametrize("kind", ["numpy", "pandas", "arrow", "torch"])
def test_rows_may_have_any_format(make, sequences, kind):
    own = {"inputs": "tokens", "labels": "own", "teacher_steps": 2, "concentration": None, "max_steps": 1}
    make({"train_dataset": sequences["train"].with_format(kind)}, **own).train()


@pytest.mark.parametrize(
    ("name", "value"),
    [("inner_learning_rate", 0.3), ("inner_steps", 9), ("privacy_noise_multiplier", 4.0), ("seed", 8)],
)
def test_settings_that_are_built_in_cannot_change_afterwards(make, name, value):
    """The recipe had them, and the distillation was another one."""
    trainer = make()
    setattr(trainer.args, name, value)
    with pytest.raises(
        ValueError, match=rf"^args have changed since FarziTrainer was made, .*{name} .* → {value}; make another"
    ):
        trainer.train()
    trainer = make()
    trainer.args.max_steps, trainer.args.eval_students = 1, 1
    assert trainer.train().global_step == 1


def test_dropping_the_last_batch_leaves_evaluations_whole(make, sequences):
    """20 validation rows are less than a batch of 128."""
    settings = {"per_device_eval_batch_size": 128, "eval_students": 1}
    found, expected = (make(**settings, dataloader_drop_last=drop).evaluate() for drop in (True, False))
    assert found["eval_perplexity"] == expected["eval_perplexity"]
    with pytest.raises(
        ValueError, match=r"dataloader_drop_last=True drops all 3 rows of train_dataset: a batch has 40"
    ):
        make({"train_dataset": sequences["train"].select(range(3))}, dataloader_drop_last=True)
