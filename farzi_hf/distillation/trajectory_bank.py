"""Recorded trajectories, read from their folder."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import safe_open

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.streams import RowStream, described
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.summary.store.escaping import as_written

logger = logging.getLogger(__name__)

MANIFEST, VERSION = "manifest.json", 1


def _model_facts(learner: Learner) -> dict[str, Any]:
    """Shape and dtype of each parameter, and the model's config: two different models may have the same shapes."""
    named = learner.model.named_parameters()
    parameters = {name: [*x.shape, str(x.dtype), *["constant"] * (not x.requires_grad)] for name, x in named}
    config = json.loads(learner.model.config.to_json_string())
    return {"parameters": parameters, "model": {k: v for k, v in config.items() if k != "transformers_version"}}


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = as_written(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder={str(folder)!r} has no readable {MANIFEST} ({error}); give a folder that record_trajectories has filled"
        ) from None
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"folder={str(folder)!r} has trajectories of format {manifest.get('version')}, but this version reads {VERSION}; "
            "record them again"
        )
    return manifest


def _shard(folder: Path, trajectory: int) -> Path:
    return folder / f"trajectory-{trajectory:05d}.safetensors"


class TrajectoryBank:
    """Ω: the trajectories in a folder.

    Args:
        folder: a folder that `record_trajectories` has filled.
        num: use only the first `num` trajectories; None uses all.

    Raises:
        ValueError: the folder holds no trajectories, or not all of the first `num`.
    """

    def __init__(self, folder: str | Path, num: int | None = None):
        self.folder, self.manifest = Path(folder), _read_manifest(Path(folder))
        found = sorted(self.folder.glob("trajectory-*.safetensors"))
        self._shards = found if num is None else [_shard(self.folder, trajectory) for trajectory in range(num)]
        if not found or set(self._shards) - set(found):
            raise ValueError(
                f"folder={str(folder)!r} holds {len(found)} trajectories, and not all of the first {num or 1}; record them with "
                "recipes/paper/trajectories.py"
            )
        self.steps, self.save_every = self.manifest["steps"], self.manifest["save_every"]

    def __len__(self) -> int:
        """|Ω|."""
        return len(self._shards)

    @property
    def fingerprint(self) -> str:
        """A hash of what the recording depends on. It is the same in another folder."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()[:16]

    def check(self, learner: Learner, rows: Dataset | RowStream | None = None) -> None:
        """Raises ValueError unless the trajectories belong to this learner. The message names the difference.

        If they were recorded on other rows than these, it warns: they may be the same data, cut in another way, or hold a test set.
        """
        ours = as_written(_model_facts(learner))
        for kind, what in (("parameters", "parameter"), ("model", "config's")):
            recorded = self.manifest[kind]
            for name in {**recorded, **ours[kind]}:
                if recorded.get(name) != ours[kind].get(name):
                    raise ValueError(
                        f"folder={str(self.folder)!r} holds trajectories of another model: {what} {name} is "
                        f"{recorded.get(name, 'missing')} there, {ours[kind].get(name, 'missing')} in the learner; record "
                        "trajectories of this learner with recipes/paper/trajectories.py"
                    )

        if rows is not None and (found := described(rows)["fingerprint"]) != self.manifest["data"]:
            logger.warning(
                "%s: the trajectories were recorded on other rows (%s) than train_dataset has (%s). Make sure that no test set was "
                "among them.", self.folder, self.manifest["data"], found,
            )  # fmt: skip

    def checkpoint(self, trajectory: int, step: int, device: torch.device | str | None = None) -> Parameters:
        """θ of one trajectory after `step` steps. Only this part of the file is read."""
        with safe_open(self._shards[trajectory], framework="pt") as file:
            return {name: file.get_slice(name)[step // self.save_every].to(device) for name in file.keys()}  # noqa: SIM118

    def sample(self, seed: int, last_step: int | None = None, device: torch.device | str | None = None) -> Parameters:
        """θ ~ Ω, a function of `seed`. A trajectory is drawn uniformly, then one of its checkpoints up to `last_step`.

        The initialisation is one of the checkpoints. `last_step=None` allows all checkpoints.
        """
        return self.checkpoint(*self._draw(seed, self.steps, last_step), device)

    def segment(
        self, seed: int, steps: int, last_step: int | None = None, device: torch.device | str | None = None
    ) -> tuple[Parameters, Parameters]:
        """Two checkpoints of one trajectory: a start as in `sample`, and the checkpoint `steps` steps later.

        Raises:
            ValueError: `steps` is no multiple of `save_every`, or longer than the trajectories.
        """
        if steps % self.save_every or not 1 <= steps <= self.steps:
            raise ValueError(
                f"steps={steps}: folder={str(self.folder)!r} has checkpoints every {self.save_every} steps up to {self.steps}; "
                f"give a multiple of {self.save_every} that is at most {self.steps}"
            )
        trajectory, start = self._draw(seed, self.steps - steps, last_step)
        return self.checkpoint(trajectory, start, device), self.checkpoint(trajectory, start + steps, device)

    def _draw(self, seed: int, latest: int, last_step: int | None) -> tuple[int, int]:
        """A trajectory and one of its steps, drawn from `seed`."""
        generator = stream(seed, Purpose.TRAJECTORY)
        latest = latest if last_step is None else min(latest, last_step)
        trajectory = int(generator.integers(len(self)))
        return trajectory, int(generator.integers(latest // self.save_every + 1)) * self.save_every
