"""The recipe of continual training on tiny data: nothing held out is trained on, a run goes on, and the card says what was found."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
import continual
import continual_problem
from continual_blocks import NEW, OLD, Blocks, groups
from continual_memory import MEMORIES, Moment
from continual_problem import ContinualArguments, ContinualProblem, parse
from quick_scale import CONFIGS
from tiny_recipes import SASREC

from farzi_hf import FarziTrainer
from farzi_hf.data import Interactions
from farzi_hf.distillation import Learner

pytestmark = pytest.mark.usefixtures("small_data")
TINY = (
    "--learner", SASREC, "--blocks", "3", "--seeds", "0", "1", "--teacher_steps", "3", "--teacher_batch_size", "4", "--num_sequences", "4",
    "--sequence_length", "6", "--label_dim", "2", "--synthetic_batch_size", "2", "--max_steps", "1", "--inner_steps", "2", "--window", "0",
    "--per_device_train_batch_size", "4", "--use_cpu", "true", "--disable_tqdm", "true",
)  # fmt: skip


def places(folder: Path) -> list[str]:
    return ["--output_dir", str(folder / "runs"), "--card_dir", str(folder / "card")]


def problem(folder: Path, *more: str) -> ContinualProblem:
    return parse([*TINY, *places(folder), *more])[1]


@pytest.fixture
def items_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 users, no item twice, so that an id tells where it comes from. Users come one after another and overlap; user 0 comes back at the end."""
    ids = np.arange(1, 12 * 8 + 1).reshape(12, 8)
    times = 6 * np.arange(12)[:, None] + np.arange(8)
    times[0, 4:] += 60
    interactions = Interactions(list(ids), ids.size, times=list(times))
    monkeypatch.setattr(continual_problem, "timed_interactions", lambda data: interactions)
    monkeypatch.setattr("farzi_hf.report.task_data.load_sample_interactions", lambda: interactions)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("continual_*.yaml")), ids=lambda path: path.stem)
def test_every_config_can_be_read(path: Path) -> None:
    name, p, _ = parse(["--dataset", path.stem.removeprefix("continual_").removesuffix("_quick")])
    assert p.data.settings.dataset == name
    assert p.args.output_dir == f"outputs/{path.stem}"


def test_blocks_are_cut_by_time_and_each_pair_of_neighbours_is_trained_on_once(tmp_path) -> None:
    histories = [np.array([1, 2, 3, 4, 5]), np.array([6, 7, 8]), np.array([9, 10, 11, 12])]
    times = [np.array([0, 1, 2, 8, 9]), np.array([3, 4, 5]), np.array([6, 7, 10, 11])]
    blocks = Blocks.of(Interactions(histories, 12, times=times), 2)
    assert blocks.counts.tolist() == [[3, 5], [3, 3], [0, 4]]
    assert blocks.training_rows(0)["input_ids"] == [[1, 2], [6, 7]]
    assert blocks.training_rows(1)["input_ids"] == [[2, 3, 4], [9, 10, 11]]
    assert blocks.tests(0, NEW)["input_ids"] == [[1, 2, 3], [6, 7, 8]]
    assert blocks.tests(1, OLD)["input_ids"] == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert blocks.tests(1, NEW)["input_ids"] == [[9, 10, 11, 12]]

    p = problem(tmp_path)
    pairs = [pair for b in range(3) for row in p.blocks.training_rows(b)["input_ids"] for pair in pairwise(row)]
    known = [row[:end].tolist() for row, end in zip(p.blocks.histories, p.blocks.known(2), strict=True)]
    assert sorted(pairs) == sorted(pair for row in known for pair in pairwise(row))


def test_a_block_without_new_users_is_refused() -> None:
    histories = [np.array([1, 2, 3, 4])]
    with pytest.raises(ValueError, match="blocks=2 leaves block 2 without a new user"):
        Blocks.of(Interactions(histories, 4, times=[np.arange(4)]), 2)


@pytest.mark.parametrize("name", MEMORIES)
def test_what_is_held_out_is_in_no_training_and_no_memory_up_to_then(
    name, tmp_path, monkeypatch, items_of_their_own
) -> None:
    p, read = problem(tmp_path, "--teacher_steps", "12"), set()
    hard, soft = Learner.hard_loss, Learner.soft_loss

    def hard_loss(self, params, batch, *more):
        read.update(batch["input_ids"].flatten().tolist())
        return hard(self, params, batch, *more)

    def soft_loss(self, params, inputs, *more):
        read.update(inputs.flatten().tolist())
        return soft(self, params, inputs, *more)

    monkeypatch.setattr(Learner, "hard_loss", hard_loss)
    monkeypatch.setattr(Learner, "soft_loss", soft_loss)
    came_back = 0
    for block in range(3):
        p.result(0, name, block)
        _, memory = p._state(0, name, block)
        kept = {x for key in ("ids", "input_ids") if key in memory for x in memory[key].flatten().tolist()}
        held_out = {row[-1] for group in groups(block) for row in p.blocks.tests(block, group)["input_ids"]}
        ends = p.blocks.counts[:, block]
        later = {x for row, end in zip(p.blocks.histories, ends, strict=True) for x in row[end:].tolist()}
        assert not (held_out | later) & (read | kept)
        came_back += len(held_out & {x for row in p.blocks.tests(2, OLD)["input_ids"] for x in row[:-1]})
        assert len(read) > 10  # the spies have seen something
    assert came_back  # some items were held out first and trained on later


def test_memories_have_as_many_bytes_and_the_reservoir_only_forgets(tmp_path) -> None:
    p, seed = problem(tmp_path), 0
    params = p._start(seed)
    memories = {name: {} for name in MEMORIES}
    before: set[float] = set()
    for block in range(3):
        moment = Moment(seed, block, p.windows(block), params)
        memories = {name: MEMORIES[name].renewed(p, tensors, moment) for name, tensors in memories.items()}
        sizes = {name: MEMORIES[name].nbytes(p, tensors) for name, tensors in memories.items()}
        everything = sum(len(row) for b in range(block + 1) for row in p.windows(b)["input_ids"]) * p.token_bytes
        assert sizes["all_data"] == everything
        assert sizes["none"] == 0
        assert sizes["summary"] == p.summary_bytes == sum(x.nbytes for x in memories["summary"].values())
        assert min(everything, p.summary_bytes - 6 * p.token_bytes) <= sizes["reservoir"] <= p.summary_bytes
        numbers = set(memories["reservoir"]["numbers"].tolist())
        assert numbers <= before | set(memories["all_data"]["numbers"].tolist())
        before = numbers
    assert torch.equal(memories["summary"]["input_ids"], memories["distilled_summary"]["input_ids"])
    assert not torch.equal(memories["summary"]["label_latents"], memories["distilled_summary"]["label_latents"])


def test_a_run_writes_its_card_and_a_second_one_trains_nothing(tmp_path, monkeypatch, capsys) -> None:
    argv = [*TINY, "--seeds", "0", *places(tmp_path)]
    continual.main(argv)
    assert "The summary is" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "card").iterdir()} == set(continual.FILES)
    content = json.loads((tmp_path / "card" / "table.json").read_text(encoding="utf-8"))
    assert len(content["rows"]) == len(MEMORIES) * 5  # three blocks, the first without old users
    first = [row["hr@100"] for row in content["rows"] if row["block"] == 1]
    assert len(set(first)) == 1  # no memory exists yet

    monkeypatch.setattr(continual_problem, "train", None)
    continual.main(argv)
    p = problem(tmp_path)
    assert p.is_kept(0, "none", 2)
    assert not problem(tmp_path, "--teacher_steps", "4").is_kept(0, "none", 2)


def test_a_run_that_was_stopped_equals_one_that_was_not(tmp_path) -> None:
    whole, parts = problem(tmp_path / "whole"), tmp_path / "parts"
    for name in ("summary", "reservoir"):
        for block in range(3):
            problem(parts).result(0, name, block)
        ends = [p._state(0, name, 2) for p in (whole, problem(parts))]
        for mine, other in zip(*ends, strict=True):
            assert all(torch.equal(mine[key], other[key]) for key in mine)


def test_the_verdict_is_what_the_intervals_decide() -> None:
    def found(old: int, new: int) -> list[dict]:
        return [
            {"summary": "summary", "other": "reservoir", "users": u, "decided": x} for u, x in ((OLD, old), (NEW, new))
        ]

    assert "is worth it here" in continual.verdict(found(1, 0))
    assert "are better for users of the new block" in continual.verdict(found(1, -1))
    assert "no difference" in continual.verdict(found(0, 0))
    assert continual.difference("summary", "none", OLD, np.ones(9), np.zeros(9))["decided"] == 1
    assert continual.difference("summary", "none", OLD, np.zeros(9), np.ones(9))["decided"] == -1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 1}, "blocks=1 leaves nothing to forget"),
        ({"seeds": []}, r"seeds=\[\] is not usable: give a list of different numbers"),
        ({"memories": ["summary", "reservoir", "summary"]}, "give a list of different values"),
        ({"memories": ["dreams"]}, "memories: 'dreams' is unknown"),
        ({"memories": ["summary", "none"]}, "compare nothing"),
    ],
)
def test_unusable_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContinualArguments(**changes)


def test_results_of_other_times_are_not_taken_for_ours(tmp_path, monkeypatch) -> None:
    """The histories are the same, and other blocks begin and end in them."""
    histories, found = list(np.arange(1, 13).reshape(3, 4)), []
    for first in ([[0, 1, 2, 3], [4, 5, 8, 9]], [[0, 1, 2, 8], [3, 4, 5, 9]]):
        times = [np.array(own) for own in (*first, [6, 7, 10, 11])]
        interactions = Interactions(histories, 12, times=times)
        monkeypatch.setattr(continual_problem, "timed_interactions", lambda data, known=interactions: known)
        found.append(problem(tmp_path, "--blocks", "2")._settings)
    assert found[0] != found[1]


def test_a_block_that_was_interrupted_is_made_anew(tmp_path, monkeypatch) -> None:
    """Also where the user has asked for checkpoints."""
    argv, train = ("--memories", "distilled_summary", "summary", "reservoir", "--seeds", "0"), FarziTrainer.train

    def interrupted(trainer: FarziTrainer) -> None:
        assert not trainer.saves_on_signal  # nobody goes on from there
        trainer.args.save_strategy = "steps"
        trainer.args.save_steps = 1
        train(trainer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FarziTrainer, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            problem(tmp_path, *argv).result(0, "distilled_summary", 1)
    assert list((tmp_path / "runs" / "seed-0" / "distillation-1").glob("checkpoint-*"))
    assert problem(tmp_path, *argv).result(0, "distilled_summary", 2)["bytes"] > 0
