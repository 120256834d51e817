"""Meta-matching with differential privacy: per-example clipped gradients with Gaussian noise,
accounted by Opacus.

The outer loss depends on the real data only through θ = θ_T, the learner after its training on the
summary. So noise is needed in one place:

    G = Σ_i clip(∇ℓ_i(θ), C) + N(0, σ²C²),   i in a Poisson sample of the training rows, clip(g, C) = g · min(1, C / ‖g‖).

The meta-gradient is Jᵀ G / b, with J the derivative of θ in the summary and b the expected size of
the sample: one ordinary backward pass.

Why this is differentially private:

1. One row changes the sum of clipped gradients by at most C, and it is in the sample with
   probability q = b / N, independent of others. So G, for a fixed θ, is one step of the
   Poisson-subsampled Gaussian mechanism, under adding or removing one row. Accountants are made for
   it.
2. θ and J are functions of the summary, of its earlier states (in a pool) and of seeds. They do not
   look at the real data.
3. The next summary is a function of the present one, of the optimizer's state and of G. So, if the
   start does not depend on the data, each summary is post-processing of the earlier releases G, and
   the releases are an adaptive composition. Each micro-batch and process makes one of its own.

Sample and noise come from a secret key and not from `seed`, which the recipe publishes. The system
draws the key, and only checkpoints hold it: do not publish them. Two runs may go on from one
checkpoint with different settings, or with a row replaced. So the sample is a keyed hash of θ, the
settings and the rows too, and the noise one of the sample and the sum: with the same noise in both,
the difference of two releases would have none.

What ε does not cover:

- the start. Frequencies, spectral vectors, windows, ids of the data and labels of teachers that saw
  the data are refused. A `farzi_data` or a `teacher` that a caller gives is as private as the
  caller made it.
- figures on the data: the training log, evaluations on held-out people, early stopping, and the
  search for settings. The vocabulary and N are public.
- more than one row. A person with several rows, such as a long history that is cut into windows,
  has less protection.
- attacks on floating-point noise, as with Opacus without its secure mode.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farzi_hf.data.streams import RowStream, described
from farzi_hf.distillation import OBJECTIVES, Learner, MetaMatching
from farzi_hf.distillation.learner import Parameters, leaves
from farzi_hf.distillation.objectives import Batch, ConfigurableObjective, Parts
from farzi_hf.distillation.rows import RealData
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.store.tensor_file import fingerprint

_KEY = "privacy.key"
_RELEASES = "privacy.releases"


@dataclass
class PrivateMatching(ConfigurableObjective):
    """`MetaMatching` with a private gradient. It draws its own real rows, and does not use the
    batch that it is given.

    Args:
        matching: gives θ.
        real: the rows to protect, one example each. The loss of an example is the mean over its
            tokens.
        batch_size: b, the expected size of a sample.
        noise_multiplier: σ; 0 adds no noise, and then ε is infinite.
        delta: δ, less than 1 / N.
        max_grad_norm: C, of an example's gradient in θ.
        processes: the number of processes, each of which makes releases.
        key: secret, of samples and noise.
        releases: so many were made.
    """

    matching: MetaMatching
    real: RealData
    batch_size: int
    noise_multiplier: float = 1.0
    delta: float = 1e-5
    max_grad_norm: float = 1.0
    processes: int = 1
    key: int = field(default_factory=lambda: secrets.randbits(63))
    releases: int = 0

    Settings = MetaMatching.Settings

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises ValueError if a `FarziConfig` has a setting that would break privacy."""
        MetaMatching.check(config)
        for name, needed, reason in (
            ("inputs", "soft", "ids would be drawn by their frequency in the data"),
            ("labels", "shared", "a teacher would be trained on the data"),
            ("initialization", "random", "other starts are computed from the data"),
            ("trajectories", None, "they were trained on the data"),
        ):
            if getattr(config, name) != needed:
                raise ValueError(
                    f"{config.objective} with {name}={getattr(config, name)!r}: {reason}; set"
                    f" {needed!r}"
                )

    @classmethod
    def from_config(cls, config: Any, parts: Parts) -> PrivateMatching:
        """The objective of a `FarziConfig`. ValueError if rows are a stream, or δ or b does not fit
        their number; ImportError without Opacus.
        """
        real = parts.real
        size = config.per_device_train_batch_size
        if isinstance(real.dataset, RowStream):
            raise ValueError(
                f"{config.objective} needs all rows at hand for a sample: give a Dataset, no stream"
            )
        number = 0 if real.dataset is None else len(real.dataset)
        if number < size:
            raise ValueError(
                f"per_device_train_batch_size={size} is more than the {number} rows of"
                " train_dataset"
            )
        objective = cls(
            MetaMatching.from_config(config, parts), real, size, processes=config.world_size
        )
        if objective.delta >= 1 / number:
            raise ValueError(
                f"delta={objective.delta} is not less than 1 / {number}, of rows: set a smaller one"
            )
        _accountant()
        return objective

    @property
    def sampling_rate(self) -> float:
        """q, the probability of each row to be in a sample."""
        return self.batch_size / len(self.real.dataset)

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The mean loss of the sample, whose gradient in the summary is private. The value itself
        is not.
        """
        theta = self.matching.trained(learner, summary, seed)
        secret = self.secret(theta, seed)
        rows = [self.real.batch([row]) for row in self.real.rows(self.sample(secret).tolist())]
        total, loss = clipped_sum(learner, theta, rows, self.max_grad_norm)
        released = self._noisy(total, secret)
        self.releases += self.processes
        linear = sum((theta[name] * (g / self.batch_size)).sum() for name, g in released.items())
        mean = loss / len(rows) if rows else torch.full_like(loss, math.nan)  # of no row: unknown
        return mean + (linear - linear.detach())

    def secret(self, theta: Parameters, seed: int) -> int:
        """The seed of the sample of one release. Another θ, setting, step or data set has another
        one.
        """
        settings = self.noise_multiplier, self.max_grad_norm, self.sampling_rate
        return self._hash(seed, *settings, self._data, fingerprint(theta))

    def _hash(self, *parts: Any) -> int:
        digest = hashlib.blake2b(
            repr(parts).encode(), digest_size=8, key=self.key.to_bytes(8, "big")
        )
        return int.from_bytes(digest.digest(), "big")

    @cached_property
    def _data(self) -> dict[str, Any]:
        return described(self.real.dataset)

    def sample(self, secret: int) -> np.ndarray:
        """The numbers of the rows of a step: each with probability q, independent of the others."""
        draws = np.random.default_rng(secret).random(len(self.real.dataset))
        return np.flatnonzero(draws < self.sampling_rate)

    def _noisy(self, total: Parameters, secret: int) -> Parameters:
        """The release G. Sums that differ, for whatever reason, have noises that know nothing of
        each other.
        """
        seed = self._hash(secret, fingerprint(total))
        scale = self.noise_multiplier * self.max_grad_norm
        noise = np.random.default_rng(seed)
        return {
            name: x + torch.from_numpy(noise.normal(0, scale, x.shape)).to(x)
            for name, x in total.items()
        }

    @property
    def epsilon(self) -> float:
        """ε of all releases so far at δ, by Opacus' RDP accountant."""
        if not self.releases:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        accountant = _accountant()
        accountant.history = [(self.noise_multiplier, self.sampling_rate, self.releases)]
        return float(accountant.get_epsilon(self.delta))

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """The key, the releases so far, and what the matching has."""
        return {
            **self.matching.state_dict(),
            _KEY: torch.tensor(self.key),
            _RELEASES: torch.tensor(self.releases),
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner, device: Any) -> None:
        """Goes on with the samples, the noise and the account of `state_dict`."""
        self.key = int(tensors[_KEY])
        self.releases = int(tensors[_RELEASES])
        self.matching.load_state_dict(tensors, learner, device)


def register(noise_multiplier: float, **defaults: float) -> str:
    """Adds private matching with this σ, and other fields by name, to the objectives that a
    `FarziConfig` can name. Returns its name.
    """
    name = f"private_{noise_multiplier:g}"
    defaults = {"noise_multiplier": noise_multiplier, **defaults}
    own = [(key, float, field(default=value)) for key, value in defaults.items()]
    OBJECTIVES[name] = make_dataclass("PrivateMatching", own, bases=(PrivateMatching,))
    return name


def clipped_sum(
    learner: Learner, theta: Parameters, rows: Iterable[Batch], norm: float
) -> tuple[Parameters, Tensor]:
    """Σ_i clip(∇ℓ_i(θ), C), and Σ_i ℓ_i. One row after the other: any model can do it, with the
    memory of one gradient. Only parameters that train have a gradient.

    A row whose gradient is not finite adds nothing: it would give itself away.

    Args:
        rows: batches of one row.
        norm: C.
    """
    theta = leaves(theta)
    trained = {name: x for name, x in theta.items() if x.requires_grad}
    total = {name: torch.zeros_like(x) for name, x in trained.items()}
    losses = torch.zeros((), device=next(iter(theta.values())).device)
    for row in rows:
        with torch.enable_grad():
            loss = learner.hard_loss(theta, row)
            gradient = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        length = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g.double()) for g in gradient])
        )
        losses += loss.detach().nan_to_num(0.0, 0.0, 0.0)
        if torch.isfinite(length):
            for x, g in zip(total.values(), gradient, strict=True):
                x.add_(g * (norm / length).clamp(max=1.0).to(g.dtype))
    return total, losses


def _accountant() -> Any:
    try:
        from opacus.accountants import RDPAccountant  # seconds to import, and optional
    except ImportError as error:
        raise ImportError("private matching needs Opacus; pip install opacus") from error
    return RDPAccountant()
