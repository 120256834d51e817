"""Ω: trainings of the learner on the real data. They are recorded once and serve as starts and as
targets of a distillation.

A folder of trajectories holds `manifest.json`, with the settings of the recording, and one file
`trajectory-NNNNN.safetensors` per trajectory. Such a file holds every parameter, but no constants
that all learners share, with an axis of checkpoints in front; the first checkpoint is the random
initialisation. A recording that was interrupted can go on. A reader loads only the checkpoint that
it needs. Manifest and files have checksums.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from safetensors import safe_open
from torch import Tensor

from farzi_hf.common.checks import check_share
from farzi_hf.common.files import load_record, save_record
from farzi_hf.common.settings import setting
from farzi_hf.common.tensors import check_tensors, save_tensors
from farzi_hf.common.text import as_written
from farzi_hf.data.seeds import Purpose, check_seed, derive, stream
from farzi_hf.data.streams import RowStream, described
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.processes import agreed, world
from farzi_hf.distillation.rows import RealData, check_rows, real_batches, train_on
from farzi_hf.engine import InnerOptimizer

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def _shard(folder: Path, trajectory: int) -> Path:
    return folder / f"trajectory-{trajectory:05d}.safetensors"


def record_trajectories(
    learner: Learner,
    optimizer: InnerOptimizer,
    train_dataset: Dataset | IterableDataset,
    data_collator: Callable[[list[dict[str, Any]]], Mapping[str, Tensor]],
    folder: str | Path,
    *,
    num: int,
    steps: int,
    save_every: int,
    batch_size: int,
    seed: int,
    device: torch.device | str | None = None,
) -> TrajectoryBank:
    """Trains `num` learners on real data, each from its own initialisation, and stores checkpoints
    of all of them.

    The result depends on the arguments alone. Several processes (of `accelerate launch`) share the
    work; they need a disk that all of them see, and all must call this function. A recording that
    was interrupted can go on: only the missing trajectories are trained. A later call with a larger
    `num` adds new trajectories to the old ones.

    Args:
        optimizer: as in the inner loop, without an `lr_schedule`; its accumulators start at zero
            and are not stored.
        train_dataset: real sequences in the column `input_ids`, or a stream of them, which is
            shuffled: see `RowStream.shuffled`.
        data_collator: turns rows into a batch of `input_ids`, `labels` and, if there is padding,
            `attention_mask`.
        folder: is created if it does not exist. It needs 4 · num · (steps / save_every + 1) · P
            bytes for P float32 parameters.
        num: |Ω|, the number of trajectories.
        steps: training steps of each trajectory.
        save_every: steps between two checkpoints; `steps` must be a multiple of this number.
        batch_size: real sequences per step.
        seed: determines initialisations and minibatches.
        device: the device to train on; the learner's buffers must be there.

    Returns:
        The first `num` trajectories in the folder.

    Raises:
        ValueError: an argument is out of range, or the folder holds trajectories that were recorded
            with other settings.
        FloatingPointError: a training diverged.
    """
    folder = Path(folder)
    if min(num, save_every) < 1 or steps < 1 or steps % save_every:
        raise ValueError(
            f"num={num}, steps={steps} and save_every={save_every}: give 1 or more, steps a"
            " multiple of save_every"
        )
    check_seed(seed)
    if isinstance(train_dataset, IterableDataset):
        train_dataset = RowStream(
            train_dataset, lambda some: check_rows(some, learner, data_collator) or some
        )
    else:
        check_rows(train_dataset, learner, data_collator)
    manifest = {
        "version": 1,
        "steps": steps,
        "save_every": save_every,
        "batch_size": batch_size,
        "seed": seed,
        "optimizer": {"class": type(optimizer).__name__, **asdict(optimizer)},
        "data": described(train_dataset)["fingerprint"],
        **_model_facts(learner),
        # the version of the rule that turns seeds into random numbers; recordings with another rule
        # cannot go on
        "streams": 2,
    }
    data = RealData(train_dataset, data_collator, device)
    rank, processes = world()

    def record(i: int) -> None:
        of_batches = derive(seed, Purpose.RECORDED_MINIBATCHES, i)
        batches = real_batches(data, batch_size, steps, of_batches)
        start = learner.initial_parameters(derive(seed, Purpose.RECORDED_START, i), device)

        def loss(params: Parameters, step: int) -> Tensor:
            return learner.hard_loss(params, batches(step))

        trained = train_on(loss, optimizer, start, steps=steps, every=save_every)
        thetas = chain([start], (state.params for state in trained))
        checkpoints = [learner.without_shared(theta) for theta in thetas]
        shard = {name: torch.stack([x[name].cpu() for x in checkpoints]) for name in checkpoints[0]}
        save_tensors(_shard(folder, i), shard)
        logger.info("%s: trajectory %d of %d.", folder, i, num)

    def record_missing() -> None:
        for i in range(rank, num, processes):
            if not _shard(folder, i).exists():
                record(i)

    # The first process writes the manifest, and then all read it.
    agreed(lambda: None if rank else _adopt_manifest(folder, manifest))
    agreed(lambda: _adopt_manifest(folder, manifest))
    agreed(record_missing)
    return TrajectoryBank(folder, num)


def _adopt_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest into a new folder. An old folder must have the same manifest already."""
    if not (folder / MANIFEST).exists():
        save_record(folder / MANIFEST, manifest)
    before = _read_manifest(folder)
    for name, value in as_written(manifest).items():
        if before.get(name) != value:
            is_long = name in ("parameters", "model", "data")
            details = "" if is_long else f" ({before.get(name)}, now {value})"
            raise ValueError(
                f"folder={str(folder)!r} has trajectories of other {name}{details}: choose another"
                " folder"
            )


# -- reading ---------------------------------------------------------------------------------------


def _model_facts(learner: Learner) -> dict[str, Any]:
    """Shape and dtype of each parameter, and the model's config: two different models may have the
    same shapes.
    """
    named = learner.model.named_parameters()
    parameters = {
        name: [*x.shape, str(x.dtype), *["constant"] * (not x.requires_grad)] for name, x in named
    }
    config = json.loads(learner.model.config.to_json_string())
    return {
        "parameters": parameters,
        "model": {k: v for k, v in config.items() if k != "transformers_version"},
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        return load_record(folder / MANIFEST)
    except ValueError as error:
        raise ValueError(
            f"folder={str(folder)!r} has no readable {MANIFEST} ({error}); record them anew"
        ) from None


class TrajectoryBank:
    """Ω: the trajectories in a folder.

    Args:
        folder: a folder that `record_trajectories` has filled.
        num: use only the first `num` trajectories; None uses all.

    Raises:
        ValueError: the folder holds no trajectories, or not all of the first `num`.
    """

    @dataclass(frozen=True)
    class Settings:
        num_trajectories: int | None = setting(
            None, "|Ω|, the first ones of the folder; by default all", least=1
        )

    def __init__(self, folder: str | Path, num: int | None = None):
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        recorded = sorted(self.folder.glob("trajectory-*.safetensors"))
        self._shards = recorded
        if num is not None:
            self._shards = [_shard(self.folder, trajectory) for trajectory in range(num)]
        if not recorded or set(self._shards) - set(recorded):
            raise ValueError(
                f"folder={str(folder)!r} has {len(recorded)} of the first {num or 1} trajectories;"
                " record them"
            )
        self.steps = self.manifest["steps"]
        self.save_every = self.manifest["save_every"]
        self._checked: set[int] = set()  # trajectories that are whole

    def __len__(self) -> int:
        """|Ω|."""
        return len(self._shards)

    @property
    def fingerprint(self) -> str:
        """A hash of what the recording depends on. It is the same in another folder."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()[:16]

    def check(self, learner: Learner) -> None:
        """Raises ValueError unless the trajectories belong to this learner. The message names the
        difference.
        """
        ours = as_written(_model_facts(learner))
        for kind, what in (("parameters", "parameter"), ("model", "config's")):
            recorded = self.manifest[kind]
            for name in {**recorded, **ours[kind]}:
                if recorded.get(name) != ours[kind].get(name):
                    raise ValueError(
                        f"folder={str(self.folder)!r} holds trajectories of another model: {what}"
                        f" {name} is {recorded.get(name, 'missing')} there,"
                        f" {ours[kind].get(name, 'missing')} in the learner; record its own"
                    )

    def checkpoint(
        self, trajectory: int, step: int, device: torch.device | str | None = None
    ) -> Parameters:
        """θ of one trajectory after `step` steps. Only this part of the file is read, but the first
        time all of it, one parameter after the other: a ValueError if it is damaged.
        """
        if trajectory not in self._checked:
            self._check(self._shards[trajectory])
            self._checked.add(trajectory)
        with safe_open(self._shards[trajectory], framework="pt") as file:
            return {
                name: file.get_slice(name)[step // self.save_every].to(device)
                for name in file.keys()  # noqa: SIM118
            }

    @staticmethod
    def _check(shard: Path) -> None:
        try:
            check_tensors(shard)
        except ValueError as error:
            raise ValueError(
                f"{str(shard)!r} is damaged ({error}); remove it, and record the missing one"
            ) from None

    def sample(
        self, seed: int, last_step: int | None = None, device: torch.device | str | None = None
    ) -> Parameters:
        """θ ~ Ω, a function of `seed`. A trajectory is drawn uniformly, then one of its checkpoints
        up to `last_step`.

        The initialisation is one of the checkpoints. `last_step=None` allows all checkpoints.
        """
        return self.checkpoint(*self._draw(seed, self.steps, last_step), device)

    def segment(
        self,
        seed: int,
        steps: int,
        last_step: int | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Parameters, Parameters]:
        """Two checkpoints of one trajectory: a start as in `sample`, and the checkpoint `steps`
        steps later. Raises ValueError if `steps` is no multiple of `save_every`, or longer than the
        trajectories.
        """
        if steps % self.save_every or not 1 <= steps <= self.steps:
            raise ValueError(
                f"steps={steps}: folder={str(self.folder)!r} has checkpoints every"
                f" {self.save_every} steps up to {self.steps}; give one of these"
            )
        trajectory, first_step = self._draw(seed, self.steps - steps, last_step)
        start = self.checkpoint(trajectory, first_step, device)
        end = self.checkpoint(trajectory, first_step + steps, device)
        return start, end

    def _draw(self, seed: int, latest: int, last_step: int | None) -> tuple[int, int]:
        """A trajectory and one of its steps, drawn from `seed`."""
        generator = stream(seed, Purpose.TRAJECTORY)
        if last_step is not None:
            latest = min(latest, last_step)
        trajectory = int(generator.integers(len(self)))
        checkpoint = int(generator.integers(latest // self.save_every + 1))
        return trajectory, checkpoint * self.save_every


# -- starts of inner loops -------------------------------------------------------------------------


def last_start() -> Any:
    """A setting that several variants have."""
    return setting(
        None,
        "latest step of Ω from which an inner loop starts; by default all",
        name="last_start",
        least=0,
    )


Starts = Callable[[Learner, int, torch.device], Parameters]
"""`starts(learner, seed, device)`: θ_0, a function of the seed. `PretrainedStarts` is one."""


def random_starts(learner: Learner, seed: int, device: torch.device) -> Parameters:
    """θ_0 as the learner initialises it."""
    return learner.initial_parameters(seed, device)


@dataclass(frozen=True)
class PretrainedStarts:
    """The starts of equation (3), θ_0 ~ Ω, mixed with fresh initialisations.

    If all starts came from checkpoints of real training, the summary would only learn to finish a
    training. A student that starts from scratch would learn nothing from it. Ω also holds only a
    few initialisations, and the summary would overfit to them. Fresh initialisations prevent both.

    Args:
        bank: Ω.
        fresh: share of the starts that are fresh initialisations.
        last_step: no start is later than this step of real training; None takes all steps.
    """

    bank: TrajectoryBank
    fresh: float = setting(
        0.5, "share of the inner loops that start fresh and not from Ω", name="fresh_start_fraction"
    )
    last_step: int | None = last_start()

    def __post_init__(self) -> None:
        check_share("fresh_start_fraction", self.fresh)

    def __call__(
        self, learner: Learner, seed: int, device: torch.device | str | None = None
    ) -> Parameters:
        """θ_0, a function of `seed`."""
        if stream(seed, Purpose.FRESH_START).random() < self.fresh:
            return learner.initial_parameters(seed, device)
        return learner.with_shared(self.bank.sample(seed, self.last_step, device))
