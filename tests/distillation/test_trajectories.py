"""Ω: what is recorded, how it is kept, and what is drawn from it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf.common import tensors as checked
from farzi_hf.distillation import Learner, PretrainedStarts, TrajectoryBank, record_trajectories
from farzi_hf.distillation.trajectories import MANIFEST
from farzi_hf.engine import InnerAdam, InnerSGD

V, LENGTH = 11, 5
ADAM, SGD = InnerAdam(lr=0.03, eps=1e-3), InnerSGD(lr=0.1, momentum=0.5)
SETTINGS = {"num": 3, "steps": 6, "save_every": 2, "batch_size": 4, "seed": 7}


def gpt2(**settings) -> GPT2LMHeadModel:
    config = {
        "vocab_size": V,
        "n_positions": 8,
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return GPT2LMHeadModel(GPT2Config(**{**config, **settings})).double()


def collate(rows: list[dict]) -> dict[str, Tensor]:
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


def sequences(seed: int = 0) -> Dataset:
    ids = torch.randint(V, (12, LENGTH), generator=torch.Generator().manual_seed(seed))
    return Dataset.from_dict({"input_ids": ids.tolist(), "text": ["not for the collator"] * 12})


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(gpt2)


@pytest.fixture
def record(learner, tmp_path):
    """Into `tmp_path / "omega"`, with any argument replaced."""

    def call(
        *, learner=learner, optimizer=ADAM, data=None, folder=tmp_path / "omega", **settings
    ) -> TrajectoryBank:
        return record_trajectories(
            learner, optimizer, data or sequences(), collate, folder, **{**SETTINGS, **settings}
        )

    return call


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([params[name].flatten() for name in sorted(params)])


def all_checkpoints(bank: TrajectoryBank) -> list[Tensor]:
    return [
        flat(bank.checkpoint(trajectory, step))
        for trajectory in range(len(bank))
        for step in range(0, bank.steps + 1, bank.save_every)
    ]


# -- recording -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])
def test_a_trajectory_is_training_on_real_data(record, optimizer):
    """On all rows in every step, against torch's own optimizer and loss."""
    bank = record(optimizer=optimizer, batch_size=12, num=2)
    batch = collate(list(sequences()))
    for trajectory in range(2):
        model = gpt2().eval()
        model.load_state_dict(bank.checkpoint(trajectory, 0), strict=False)
        if optimizer is ADAM:
            theirs = torch.optim.Adam(model.parameters(), lr=0.03, eps=1e-3)
        else:
            theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        for step in range(1, 7):
            theirs.zero_grad()
            logits = model(batch["input_ids"]).logits[:, :-1]
            F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten()).backward()
            theirs.step()
            if step % 2 == 0:
                recorded = bank.checkpoint(trajectory, step)
                for name, parameter in model.named_parameters():
                    torch.testing.assert_close(
                        recorded[name], parameter.detach(), rtol=1e-9, atol=1e-11
                    )


def test_trajectories_start_and_go_on_differently(record, tmp_path):
    checkpoints, again = (
        torch.stack(all_checkpoints(record(folder=tmp_path / name))) for name in ("one", "again")
    )
    assert len(checkpoints) == len(checkpoints.unique(dim=0)) == 3 * 4
    assert torch.equal(checkpoints, again)
    other = torch.stack(all_checkpoints(record(folder=tmp_path / "other", seed=8)))
    assert not torch.isclose(other, checkpoints).all(dim=1).any()


def test_recording_goes_on_where_it_was_killed(record, tmp_path, monkeypatch):
    whole = record(folder=tmp_path / "whole")
    saved, save_file = [], checked.save_file

    def dying(tensors, path, metadata):
        if len(saved) == 2:
            path.write_bytes(b"half a shard")
            raise KeyboardInterrupt
        saved.append(path)
        save_file(tensors, path, metadata)

    monkeypatch.setattr(checked, "save_file", dying)
    with pytest.raises(KeyboardInterrupt):
        record()
    folder = tmp_path / "omega"
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST,
        "trajectory-00000.safetensors",
        "trajectory-00001.safetensors",
    ]
    monkeypatch.setattr(checked, "save_file", save_file)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    bank = record()
    assert {path: path.stat().st_mtime_ns for path in times} == times  # what is done stays done
    assert all(map(torch.equal, all_checkpoints(bank), all_checkpoints(whole)))
    assert len(record(num=5)) == 5  # more may follow
    assert all(map(torch.equal, all_checkpoints(record()), all_checkpoints(whole)))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 8}, r"seed \(7, now 8\)"),
        ({"optimizer": InnerAdam(lr=0.04, eps=1e-3)}, "optimizer"),
        ({"data": sequences(1)}, "data"),
        ({"learner": Learner(partial(gpt2, n_head=1))}, "model"),
    ],
    ids=["seed", "optimizer", "data", "model"],
)
def test_a_folder_recorded_otherwise_is_refused_and_left_alone(record, tmp_path, change, name):
    record(num=1)
    before = {path: path.read_bytes() for path in (tmp_path / "omega").iterdir()}
    with pytest.raises(ValueError, match=f"trajectories of other {name}.*: choose another"):
        record(**change)
    assert {path: path.read_bytes() for path in (tmp_path / "omega").iterdir()} == before


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num": 0}, ValueError, "num=0, .*give 1 or more"),
        ({"save_every": 4}, ValueError, "steps=6 and save_every=4: .*steps a multiple"),
        (
            {"data": Dataset.from_dict({"input_ids": [[1, 2, V]]})},
            ValueError,
            f"holds id {V}, outside 0",
        ),
        (
            {"optimizer": InnerSGD(lr=1e300)},
            FloatingPointError,
            "diverged within 2 steps; lower the rate",
        ),
    ],
    ids=["num", "save_every", "data", "divergence"],
)
def test_what_cannot_be_recorded_leaves_no_trajectory(record, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        record(**change)
    assert not list(tmp_path.rglob("*.safetensors"))


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            partial(gpt2, n_inner=48),
            r"parameter transformer\.h\.0\.mlp\.c_fc\.weight is .*32.* there, .*48",
        ),
        (partial(gpt2, n_layer=2), r"parameter transformer\.h\.1\.ln_1\.weight is missing there"),
        (
            lambda: gpt2().float(),
            r"parameter transformer\.wte\.weight is .*float64.* there, .*float32",
        ),
        (partial(gpt2, n_head=1), "config's n_head is 2 there, 1 in the learner"),
    ],
)
def test_another_model_is_refused_by_what_differs(record, learner, other, message):
    bank = record(num=1)
    bank.check(learner)
    with pytest.raises(ValueError, match=f"another model: {message}"):
        bank.check(Learner(other))


def test_a_folder_without_trajectories_is_refused(record, tmp_path):
    with pytest.raises(ValueError, match=r"has no readable manifest\.json .*; record them anew"):
        TrajectoryBank(tmp_path)
    record(num=2)
    assert len(TrajectoryBank(tmp_path / "omega", 1)) == 1
    with pytest.raises(ValueError, match="has 2 of the first 3 trajectories"):
        TrajectoryBank(tmp_path / "omega", 3)
    (
        tmp_path / "omega" / "trajectory-00000.safetensors"
    ).unlink()  # as an interrupted recording by several processes
    with pytest.raises(ValueError, match="has 1 of the first 1"):
        TrajectoryBank(tmp_path / "omega", 1)


def test_a_damaged_trajectory_is_refused_and_recorded_again(record, tmp_path):
    """A flipped bit was another start, without a word."""
    expected = all_checkpoints(record())
    path = tmp_path / "omega" / "trajectory-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)
    bank = TrajectoryBank(tmp_path / "omega")
    bank.checkpoint(0, 2)
    with pytest.raises(ValueError, match=r"trajectory-00001.safetensors' is damaged .*; remove it"):
        bank.checkpoint(1, 2)
    path.unlink()
    assert all(map(torch.equal, all_checkpoints(record()), expected))


def test_a_manifest_that_has_changed_is_refused(record, tmp_path):
    record(num=1)
    path = tmp_path / "omega" / MANIFEST
    path.write_text(path.read_text().replace('"steps": 6', '"steps": 4'))
    with pytest.raises(ValueError, match=r"no readable manifest.json .*another checksum"):
        TrajectoryBank(tmp_path / "omega")


# -- sampling --------------------------------------------------------------------------------------


@pytest.fixture
def drawn(record, monkeypatch):
    """A bank that says what it would read: (trajectory, step)."""
    bank = record()
    monkeypatch.setattr(bank, "checkpoint", lambda trajectory, step, device: (trajectory, step))
    return bank


@pytest.mark.parametrize(
    ("last_step", "steps"), [(None, (0, 2, 4, 6)), (3, (0, 2)), (99, (0, 2, 4, 6))]
)
def test_trajectories_and_early_checkpoints_are_drawn_uniformly(drawn, last_step, steps):
    seeds = np.random.SeedSequence(0).generate_state(3000).tolist()
    counts = Counter(drawn.sample(seed, last_step) for seed in seeds)
    assert set(counts) == {(trajectory, step) for trajectory in range(3) for step in steps}
    expected = 3000 / len(counts)
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < len(counts) + 4 * (2 * len(counts)) ** 0.5
    assert counts == Counter(drawn.sample(seed, last_step) for seed in seeds)


def test_segments_are_of_one_training_and_of_all_starts_that_leave_room(drawn):
    segments = [drawn.segment(seed, 4) for seed in range(200)]
    assert {(start, end) for (_, start), (_, end) in segments} == {(0, 4), (2, 6)}
    assert all(first == second for (first, _), (second, _) in segments)
    assert {
        start for (_, start), _ in (drawn.segment(seed, 4, last_step=1) for seed in range(50))
    } == {0}
    for steps in (3, 0, 8):
        with pytest.raises(
            ValueError, match=f"steps={steps}: .* has checkpoints every 2 steps up to 6"
        ):
            drawn.segment(0, steps)


def test_a_share_of_the_starts_is_fresh(record, learner):
    bank = record()
    recorded = all_checkpoints(bank)
    for fresh, least, most in ((0.0, 0, 0), (0.3, 0.15, 0.45), (1.0, 1, 1)):
        starts = PretrainedStarts(bank, fresh, last_step=2)
        drawn = [flat(starts(learner, seed)) for seed in range(100)]
        assert (
            least
            <= sum(not any(torch.equal(x, known) for known in recorded) for x in drawn) / 100
            <= most
        )
    assert torch.equal(drawn[5], flat(learner.initial_parameters(5)))
