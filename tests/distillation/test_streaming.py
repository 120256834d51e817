"""Training on a stream, and the workers of data loaders."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from datasets import Dataset, IterableDataset
from tiny_trainer import tensors, tiny_learner, tiny_trainer

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import InteractionCollator, load_sample_interactions
from farzi_hf.distillation import Learner, record_trajectories
from farzi_hf.engine import InnerSGD
from farzi_hf.models import SASRecConfig
from farzi_hf.tasks import Recommendation

V = 54
OWN = {"inputs": "tokens", "labels": "own", "teacher_steps": 3}
RUN = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "save_total_limit": None}  # an epoch has 4 steps


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


def same(one: FarziTrainer, other: FarziTrainer) -> bool:
    losses = [[x["loss"] for x in trainer.state.log_history if "loss" in x] for trainer in (one, other)]
    return losses[0] == losses[1] and all(map(torch.equal, tensors(one), tensors(other)))


def rows_only_as_a_stream(sequences) -> IterableDataset:
    """As from a file that is read: without a length, two shards, shuffled."""
    return sequences["train"].to_iterable_dataset(num_shards=2).shuffle(seed=0, buffer_size=50)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, sequences, tokenizer):
    stream = rows_only_as_a_stream(sequences)
    trainer = tiny_trainer(tmp_path_factory.mktemp("stream"), sequences, tokenizer, {"train_dataset": stream}, **RUN)
    trainer.train()
    return trainer


@pytest.mark.parametrize("step", [2, 5])
def test_a_run_resumes_bit_identically_in_the_middle_of_an_epoch(make, sequences, uninterrupted, step):
    trainer = make({"train_dataset": rows_only_as_a_stream(sequences)}, **RUN)
    trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-{step}")
    assert same(trainer, uninterrupted)


def test_a_run_does_not_resume_on_another_stream(make, sequences, uninterrupted):
    trainer = make({"train_dataset": rows_only_as_a_stream(sequences).skip(3)}, **RUN)
    with pytest.raises(ValueError, match="train_dataset"):
        trainer.check_run(f"{uninterrupted.args.output_dir}/checkpoint-2")


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # with one core
@pytest.mark.parametrize("streaming", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_run(tmp_path, sequences, tokenizer, streaming, workers):
    def run(number: int) -> FarziTrainer:
        data = {"train_dataset": rows_only_as_a_stream(sequences)} if streaming else {}
        settings = {"max_steps": 5, "dataloader_num_workers": number, "inner_steps": 2, "inner_steps_min": None}
        trainer = tiny_trainer(tmp_path / str(number), sequences, tokenizer, data, **settings)
        trainer.train()
        return trainer

    assert same(run(workers), run(0))


@pytest.mark.parametrize("settings", [OWN, {"concentration": None}], ids=["teacher", "choice of κ"])
def test_the_start_needs_no_more_than_a_stream(make, sequences, settings):
    def run() -> FarziTrainer:
        trainer = make({"train_dataset": rows_only_as_a_stream(sequences)}, **settings)
        trainer.tune_initialization()
        return trainer

    one, other = run(), run()
    for ours, theirs in zip(one.model.tensors.values(), other.model.tensors.values(), strict=True):
        assert torch.equal(ours, theirs)
    assert one._open_start is None


def test_the_start_is_that_of_the_same_rows_in_memory(make, sequences):
    streaming = make({"train_dataset": sequences["train"].to_iterable_dataset()})
    assert all(map(torch.equal, tensors(streaming), tensors(make())))


def test_histories_are_cut_while_they_come(tmp_path):
    data = load_sample_interactions(60)
    histories = data.strong_generalization_split(seed=0)
    args = FarziConfig(
        str(tmp_path), num_sequences=4, sequence_length=5, inner_steps=2, max_steps=1, teacher_steps=2, eval_students=1,
        per_device_train_batch_size=8, save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none",
    )  # fmt: skip
    trainer = FarziTrainer(
        SASRecConfig(data.num_items, hidden_size=8, max_length=5), args, histories["train"].to_iterable_dataset(),
        histories["validation"], task=Recommendation(data.vocabulary),
    )  # fmt: skip
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0
    assert max(map(len, trainer.train_dataset.head()["input_ids"])) == 5


def test_trajectories_are_recorded_on_a_stream(tmp_path, sequences):
    learner = Learner(tiny_learner(V))
    settings = {"num": 2, "steps": 2, "save_every": 1, "batch_size": 8}
    stream = sequences["train"].to_iterable_dataset()
    banks = {
        name: record_trajectories(
            learner, InnerSGD(lr=0.1), stream, InteractionCollator(), tmp_path / name, seed=seed, **settings
        )
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    }
    ends = {name: torch.cat([x.flatten() for x in bank.checkpoint(1, 2).values()]) for name, bank in banks.items()}
    assert torch.equal(ends["one"], ends["same"])
    assert not torch.equal(ends["one"], ends["other"])
    short = Dataset.from_dict({"input_ids": [[2, 3], [2]]}).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"rows 0 … 1 of the stream.* has 1 ids"):
        record_trajectories(learner, InnerSGD(lr=0.1), short, InteractionCollator(), tmp_path / "x", seed=0, **settings)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ({}, {"max_steps": -1, "num_train_epochs": 1}, "train_dataset is a stream, .*num_train_epochs=1.*: give max_steps"),
        ({"eval_dataset": Dataset.from_dict({"input_ids": [[2, 3]]}).to_iterable_dataset()}, {},
         r"eval_dataset is a stream, .*: give a Dataset"),
        ({"train_dataset": Dataset.from_dict({"input_ids": [[2, 3], [2, V]]}).to_iterable_dataset()}, {},
         rf"^train_dataset: rows 0 … 1 of the stream, .*\[1\] holds id {V}"),
        ({"train_dataset": Dataset.from_dict({"text": ["a"]}).to_iterable_dataset()}, {}, "^train_dataset: .*no 'input_ids'"),
    ],
    ids=["epochs", "evaluation", "a large id", "no column"],
)  # fmt: skip
def test_what_cannot_work_with_a_stream_is_refused(make, sequences, arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        make({"train_dataset": sequences["train"].to_iterable_dataset(), **arguments}, **settings)


def test_a_later_row_that_cannot_be_used_ends_the_training(make, sequences):
    rows = [*sequences["train"]["input_ids"], *[[2, 3]] * 200, [2]]
    trainer = make({"train_dataset": Dataset.from_dict({"input_ids": rows}).to_iterable_dataset()}, concentration=8.0,
                   initialization="random", max_steps=20, inner_steps=1, inner_steps_min=None)  # fmt: skip
    with pytest.raises(ValueError, match=r"rows 256 … 360 of the stream, .*has 1 ids"):
        trainer.train()
