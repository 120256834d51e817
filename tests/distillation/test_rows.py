"""Real rows: what FarziTrainer refuses before the work, padding, streams, and the workers of data
loaders.
"""

from __future__ import annotations

import copy

import pytest
import torch
from datasets import Dataset, IterableDataset
from tiny_models import V as MODEL_V
from tiny_models import config_of
from tiny_trainer import logged, tensors, tiny_learner, tiny_trainer
from transformers import (
    AutoConfig,
    TrainingArguments,
)

from farzi_hf import FarziTrainer
from farzi_hf.data import SequenceCollator, word_tokenizer
from farzi_hf.distillation import Learner, record_trajectories
from farzi_hf.distillation.inner_training import Students
from farzi_hf.engine import InnerSGD
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.tasks import LanguageModeling, Recommendation

V = 54
POSITIONS = 64  # of tiny_learner


def rows(*ids: list[int], **columns: list) -> Dataset:
    return Dataset.from_dict({"input_ids": list(ids), **columns})


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (rows([2, 3], [2]), r"\[1\] has 1 ids .*: filter out those below 2"),
        (rows([2, V, 3]), f"holds id {V}, outside 0 … {V - 1}"),
        ([[2, 3]], r"is a list: pass a datasets\.Dataset"),
    ],
    ids=["short", "large id", "list"],
)
def test_unusable_data_are_refused_by_name(make, name, dataset, message):
    with pytest.raises(ValueError, match=f"^{name}: dataset.*({message})"):
        make({name: dataset})


def test_unusable_data_are_refused_by_evaluate(make, monkeypatch):
    trainer = make()
    with pytest.raises(ValueError, match=r"^eval_dataset: dataset\['input_ids'\]\[0\] has 1 ids"):
        trainer.evaluate(rows([2]))
    trainer.eval_dataset = None
    monkeypatch.setattr(
        Students, "on_summary", lambda *_: pytest.fail("students trained for nothing")
    )
    with pytest.raises(
        ValueError, match=r"eval_dataset is None; give one to evaluate\(\) or to FarziTrainer"
    ):
        trainer.evaluate()


def test_args_of_another_type_are_refused(make):
    with pytest.raises(TypeError, match="args is TrainingArguments; give a FarziConfig"):
        make({"args": TrainingArguments("out", use_cpu=True)})


def test_no_tokenizer_needs_a_collator(make):
    with pytest.raises(
        ValueError,
        match="processing_class, data_collator and task are all None; give the tokenizer",
    ):
        make({"processing_class": None})


def test_a_tokenizer_larger_than_the_learner_is_refused(make, text):
    larger = word_tokenizer(text["train"]["text"], vocab_size=60)
    with pytest.raises(ValueError, match=f"processing_class brings {len(larger)} entries, .* {V}"):
        make({"processing_class": larger})


@pytest.mark.parametrize(
    ("name", "value", "source"), [("vocab_size", V + 1, "the learner's"), ("tau", 0.5, "args.tau")]
)
def test_a_summary_that_args_do_not_describe_is_refused(make, name, value, source):
    shape = {"num_sequences": 4, "sequence_length": 8, "latent_dim": 4, "vocab_size": V}
    farzi = FarziData(FarziDataConfig(**{**shape, name: value}))
    with pytest.raises(
        ValueError, match=f"farzi_data has {name}={value}, but {source} is .*; make the two equal"
    ):
        make({"farzi_data": farzi})


def test_a_folder_with_something_else_is_refused_before_the_work(make, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"^output_dir: folder=.* has a config\.json but no farzi\.safetensors"
    ):
        make()


def test_a_summary_makes_no_predictions_of_its_own(make, sequences):
    with pytest.raises(RuntimeError, match=r"call evaluate\(\), which trains students"):
        make().predict(sequences["test"])


def test_errors_name_the_rows_of_the_user_and_not_those_cut_of_them(make):
    histories = {"task": Recommendation([f"item {i}" for i in range(V)]), "processing_class": None}
    long = list(range(2, 40))
    with pytest.raises(
        ValueError, match=r"^train_dataset: dataset\['input_ids'\]\[2\] holds id -1"
    ):
        make(
            {
                **histories,
                "train_dataset": rows(long, long, [2, -1, 3]),
                "eval_dataset": rows([2, 3]),
            }
        )


@pytest.mark.parametrize("kind", ["pandas", "torch"])
def test_rows_may_have_any_format(make, sequences, kind):
    own = {"inputs": "tokens", "labels": "own", "teacher_steps": 2, "max_steps": 1}
    make({"train_dataset": sequences["train"].with_format(kind)}, **own).train()


def test_dropping_the_last_batch_leaves_evaluations_whole(make, sequences):
    """20 validation rows are less than a batch of 128."""
    settings = {"per_device_eval_batch_size": 128, "eval_students": 1}
    found, expected = (
        make(**settings, dataloader_drop_last=drop).evaluate() for drop in (True, False)
    )
    assert found["eval_perplexity"] == expected["eval_perplexity"]


# -- positions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_a_row_of_more_ids_than_positions_is_refused(make, name):
    fits, long = [5] * POSITIONS, [5] * (POSITIONS + 1)
    message = (
        rf"^{name}: dataset\['input_ids'\]\[1\] has 65 ids, but the learner reads 64 at most:"
        r" .*max_length=64"
    )
    with pytest.raises(ValueError, match=message):
        make({name: rows(fits, long, fits)})
    make({name: rows(*[fits] * 50)})


def test_a_sequence_length_beyond_the_positions_is_refused(make):
    make(sequence_length=POSITIONS)
    with pytest.raises(
        ValueError, match=r"^sequence_length=65, the learner reads 64 positions: lower it"
    ):
        make(sequence_length=POSITIONS + 1)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (config_of("gpt2", n_positions=20), 20),
        (config_of("opt", max_position_embeddings=20), 20),
        (config_of("sasrec", max_length=20), 20),
        (
            AutoConfig.for_model(
                "roberta",
                vocab_size=MODEL_V,
                max_position_embeddings=20,
                pad_token_id=1,
                hidden_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                intermediate_size=8,
                is_decoder=True,
            ),
            18,
        ),
        (config_of("llama", max_position_embeddings=20), 50),
        (config_of("mamba"), 50),
        (config_of("bloom"), 50),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_what_a_model_reads_is_tried(config, limit):
    learner = Learner(config)
    assert [learner.readable(length) for length in (1, 17, 50, 18, 50)] == [
        1,
        17,
        limit,
        min(18, limit),
        limit,
    ]
    ids = torch.full((1, limit), 5)
    learner.logits(learner.initial_parameters(0), {"input_ids": ids})


# -- something to predict --------------------------------------------------------------------------

IDS = [2, 5, 6, 3]


@pytest.mark.parametrize(
    "dataset",
    [
        rows(IDS, [2, 0, 0], IDS),
        rows(IDS, IDS, IDS, labels=[IDS, [2, -100, -100, -100], IDS]),
        rows(IDS, IDS, IDS, attention_mask=[[1] * 4, [0] * 4, [1] * 4]),
        rows(
            IDS,
            IDS,
            IDS,
            labels=[IDS, [-100, -100, -100, 3], IDS],
            attention_mask=[[1] * 4, [1, 1, 1, 0], [1] * 4],
        ),
    ],
    ids=["padding", "labels", "attention_mask", "both"],
)
def test_a_row_without_anything_to_predict_is_refused(make, dataset):
    message = (
        r"^train_dataset: dataset\[1\] has nothing to predict after its first id \(1 rows are like"
        r" it\)"
    )
    with pytest.raises(ValueError, match=message):
        make({"train_dataset": dataset})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"labels": [IDS, [2, 5]]},
            r"dataset\['labels'\]\[1\] has 2 values beside 4 ids: give as many",
        ),
        (
            {"attention_mask": [[1] * 5, [1] * 4]},
            r"dataset\['attention_mask'\]\[0\] has 5 values beside 4 ids",
        ),
        (
            {"labels": [[0.5] * 4] * 2},
            r"dataset\['labels'\] has type list<.*double>: it must hold a list of integers",
        ),
    ],
)
def test_columns_that_do_not_fit_the_ids_are_refused(make, columns, message):
    with pytest.raises(ValueError, match=f"^train_dataset: {message}"):
        make({"train_dataset": rows(IDS, IDS, **columns)})


# -- the default collator --------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "</s>", "<s>", "<unk>"])
def test_a_token_that_also_pads_is_still_predicted(tokenizer, token):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = token
    batch = LanguageModeling(tokenizer).collator(
        [{"input_ids": [2, 5, 1, 3]}, {"input_ids": [2, 3]}]
    )
    assert batch["labels"].tolist() == [[2, 5, 1, 3], [2, 3, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_rows_may_bring_labels_and_a_mask():
    batch = SequenceCollator(0)(
        [
            {
                "input_ids": [2, 5, 3, 3],
                "attention_mask": [1, 1, 1, 0],
                "labels": [-100, 5, 3, 3],
                "other": "x",
            },
            {"input_ids": [2, 3], "attention_mask": [1, 1], "labels": [-100, 3], "other": "y"},
        ]
    )
    assert {name: x.tolist() for name, x in batch.items()} == {
        "input_ids": [[2, 5, 3, 3], [2, 3, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
        "labels": [[-100, 5, 3, -100], [-100, 3, -100, -100]],
    }


def test_padding_before_an_id_is_refused(make):
    """A tokenizer that pads on the left gave other perplexities: the first id was predicted from
    padding.
    """
    padded = rows([5, 6, 0, 0], [0, 0, 5, 6], attention_mask=[[1, 1, 0, 0], [0, 0, 1, 1]])
    with pytest.raises(
        ValueError,
        match=r"^train_dataset: dataset\['attention_mask'\]\[1\] has 0 before 1: .*padding_side",
    ):
        make({"train_dataset": padded})
    make({"train_dataset": rows(*[[5, 6, 0, 0]] * 50, attention_mask=[[1, 1, 0, 0]] * 50)})


def test_the_trainer_makes_ids_of_text_itself(make, sequences, text, tokenizer):
    ids = make()
    for train in (text["train"], text["train"].to_iterable_dataset()):
        trainer = make({"train_dataset": train, "eval_dataset": text["validation"]})
        assert trainer.eval_dataset["input_ids"] == sequences["validation"]["input_ids"]
        assert all(map(torch.equal, tensors(trainer), tensors(ids)))
        assert next(iter(trainer.train_dataset))["input_ids"] == sequences["train"][0]["input_ids"]
    with pytest.raises(
        ValueError, match=r"^train_dataset: dataset has columns \['text'\], but no 'input_ids'"
    ):
        make(
            {
                "train_dataset": text["train"],
                "processing_class": None,
                "data_collator": SequenceCollator(0),
            }
        )


# -- streams and workers ---------------------------------------------------------------------------

OWN = {"inputs": "tokens", "labels": "own", "teacher_steps": 3}
RUN = {
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": None,
}  # an epoch has 4 steps


def same(one: FarziTrainer, other: FarziTrainer) -> bool:
    return logged(one, "loss") == logged(other, "loss") and all(
        map(torch.equal, tensors(one), tensors(other))
    )


def rows_only_as_a_stream(sequences) -> IterableDataset:
    """As from a file that is read: without a length, two shards, shuffled."""
    return sequences["train"].to_iterable_dataset(num_shards=2).shuffle(seed=0, buffer_size=50)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, sequences, tokenizer):
    stream = rows_only_as_a_stream(sequences)
    trainer = tiny_trainer(
        tmp_path_factory.mktemp("stream"), sequences, tokenizer, {"train_dataset": stream}, **RUN
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("step", [2, 5])
def test_a_run_resumes_bit_identically_in_the_middle_of_an_epoch(
    make, sequences, uninterrupted, step
):
    trainer = make({"train_dataset": rows_only_as_a_stream(sequences)}, **RUN)
    trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-{step}")
    assert same(trainer, uninterrupted)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # with one core
@pytest.mark.parametrize("streaming", [False, True], ids=["map-style", "stream"])
def test_workers_give_the_same_run(tmp_path, sequences, tokenizer, streaming):
    def run(number: int) -> FarziTrainer:
        data = {"train_dataset": rows_only_as_a_stream(sequences)} if streaming else {}
        settings = {
            "max_steps": 5,
            "dataloader_num_workers": number,
            "inner_steps": 2,
            "inner_steps_min": None,
            "window": None,
        }
        trainer = tiny_trainer(tmp_path / str(number), sequences, tokenizer, data, **settings)
        trainer.train()
        return trainer

    assert same(run(2), run(0))


def test_a_teacher_needs_no_more_than_a_stream(make, sequences):
    runs = [make({"train_dataset": rows_only_as_a_stream(sequences)}, **OWN) for _ in range(2)]
    for trainer in runs:
        trainer.tune_initialization()
        assert trainer._open_start is None
    assert all(map(torch.equal, *(trainer.model.tensors.values() for trainer in runs)))


def test_the_start_is_that_of_the_same_rows_in_memory(make, sequences):
    streaming = make({"train_dataset": sequences["train"].to_iterable_dataset()})
    assert all(map(torch.equal, tensors(streaming), tensors(make())))


def test_histories_are_cut_while_they_come(make):
    histories = rows(*[list(range(2, 40))] * 50)
    items = {"task": Recommendation([f"item {i}" for i in range(V)]), "processing_class": None}
    trainer = make(
        {**items, "train_dataset": histories.to_iterable_dataset(), "eval_dataset": histories},
        max_steps=1,
    )
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0
    assert max(map(len, trainer.train_dataset.head()["input_ids"])) == 8


def test_trajectories_are_recorded_on_a_stream(tmp_path, sequences):
    learner, stream = Learner(tiny_learner(V)), sequences["train"].to_iterable_dataset()
    one, same, other = (
        record_trajectories(
            learner,
            InnerSGD(lr=0.1),
            stream,
            SequenceCollator(0),
            tmp_path / name,
            num=2,
            steps=2,
            save_every=1,
            batch_size=8,
            seed=seed,
        ).checkpoint(1, 2)["transformer.wte.weight"]
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (
            {},
            {"max_steps": -1, "num_train_epochs": 1},
            "train_dataset is a stream, .*num_train_epochs=1.*: give max_steps",
        ),
        (
            {"eval_dataset": rows([2, 3]).to_iterable_dataset()},
            {},
            r"eval_dataset: dataset is a IterableDataset: pass a datasets\.Dataset",
        ),
        (
            {"train_dataset": rows([2, 3], [2, V]).to_iterable_dataset()},
            {},
            rf"^train_dataset: rows 0 … 1 of the stream, .*\[1\] holds id {V}",
        ),
    ],
    ids=["epochs", "evaluation", "a large id"],
)
def test_what_cannot_work_with_a_stream_is_refused(make, sequences, arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        make({"train_dataset": sequences["train"].to_iterable_dataset(), **arguments}, **settings)
