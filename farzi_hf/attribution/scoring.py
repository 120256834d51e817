"""The scores of many queries: in parts that fit into memory, each by one training forward and
back, and kept in a folder for a later call.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import accelerate
import psutil
import torch
from torch import Tensor
from tqdm.auto import tqdm

from farzi_hf.attribution.queries import Queries
from farzi_hf.attribution.replay import Replay
from farzi_hf.attribution.weighted_training import influence
from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import is_constant
from farzi_hf.engine import Adjoint
from farzi_hf.summary.store.tensor_file import fingerprint

# The share of the memory for the derivatives of queries that are scored together.
_SHARE = 1 / 8
# Queries that are scored together where scores are kept in a folder: a training forward and its
# graphs back are a sixth of the work then.
_KEPT_TOGETHER = 8


class QueryScores(NamedTuple):
    """The scores of some of the queries, which are scored together."""

    scores: Tensor
    """(queries, n) or (queries, n, L), on the CPU."""
    losses: Tensor
    """(queries,), on the CPU."""


class Scorer:
    """Scores queries.

    Args:
        replay: the training.
        queries: the m losses that the scores explain.
        weights: where the derivatives are taken: (n,) of the rows, or (n, L) of their tokens.
        adjoint: how to differentiate; None chooses.

    Attributes:
        params: θ_T by name, of what trained; empty before a part is scored.
    """

    def __init__(
        self, replay: Replay, queries: Queries, weights: Tensor, adjoint: Adjoint | None
    ) -> None:
        self.replay = replay
        self.queries = queries
        self.weights = weights
        self.adjoint = adjoint
        self.params: Parameters = {}

    def score(self, kept: KeptScores | None = None) -> list[QueryScores]:
        """The scores of all queries, in their order.

        Args:
            kept: those that an earlier call has made, which are not made again. The others are
                added to them.
        """
        trainer = self.replay.trainer
        at_once = self._room()
        if kept is not None:
            at_once = min(at_once, _KEPT_TOGETHER)
        count = len(self.queries)
        parts = [range(first, min(first + at_once, count)) for first in range(0, count, at_once)]
        missing = [part for part in parts if kept is None or not kept.has(part)]
        scored = []
        with tqdm(
            desc="Attribution",
            unit="gradient",
            total=sum(map(self.cost, missing)),
            disable=trainer.args.disable_tqdm or not trainer.is_world_process_zero(),
        ) as progress:
            for part in parts:
                if kept is not None and kept.has(part):
                    scored.append(kept.read(part))
                    continue
                scores = self.of_part(part, progress)
                if kept is not None:
                    kept.write(part, scores)
                scored.append(scores)
        return scored

    def _room(self) -> int:
        """How many queries can be scored together: their derivatives in the optimizer's state, in
        the parameters and in the weights are in memory at once.
        """
        device = self.replay.trainer.args.device
        if device.type == "cuda":
            _, memory = torch.cuda.mem_get_info(device)
        else:
            memory = psutil.virtual_memory().total
        trained = sum(x.nbytes for x in self.replay.start.values() if not is_constant(x))
        of_weights = self.weights.numel() * self.weights.element_size()
        of_query = (self.replay.optimizer.fields + 1) * trained + of_weights
        return max(1, int(_SHARE * memory // of_query))

    def cost(self, part: range) -> int:
        """What it costs to score some queries, in gradients of a step.

        Args:
            part: their numbers.
        """
        return self._forward + self.replay.steps * self._back(part)

    @property
    def _forward(self) -> int:
        """A gradient a step; one more if the adjoint is chosen, which takes a gradient."""
        return self.replay.steps + (self.adjoint is None)

    def _back(self, part: range) -> int:
        """Of a step: two for a gradient with its graph, and two products for each query."""
        return 2 * (1 + len(part))

    def of_part(self, part: range, progress: tqdm) -> QueryScores:
        """The scores of some queries, by one training forward and back.

        Args:
            part: their numbers.
            progress: a bar that counts gradients.
        """
        replay = self.replay
        losses = []

        def losses_of_queries(theta: Parameters) -> Iterator[Tensor]:
            self.params = {name: x.detach() for name, x in theta.items() if not is_constant(x)}
            for query in part:
                loss = self.queries.loss(theta, query)
                losses.append(loss.detach())
                yield loss

        # On the way back, a loss in micro-batches is evaluated twice.
        has_micro_batches = replay.trainer.args.gradient_accumulation_steps > 1
        evaluations = 2 if has_micro_batches else 1
        costs = itertools.chain(
            itertools.repeat(1, self._forward),
            itertools.repeat(self._back(part) // evaluations),
        )
        before = progress.n
        shown = replace(replay, on_gradient=lambda: progress.update(next(costs)))
        with replay.trainer.accelerator.autocast():
            scores = influence(shown, losses_of_queries, weights=self.weights, adjoint=self.adjoint)
        # Graphs that were kept on the way forward need no gradient on the way back.
        progress.update(before + self.cost(part) - progress.n)
        scores = accelerate.utils.reduce(scores, "sum")  # each process knows what its rows did
        return QueryScores(scores.cpu().contiguous(), torch.stack(losses).cpu())


class KeptScores:
    """The scores of queries in a folder, for a later call that goes on.

    Args:
        folder: of the files, one for each part.
        identity: of the training and the queries. Files of others are refused.
        writes: whether this one of several processes writes them.
    """

    def __init__(self, folder: Path, identity: str, writes: bool) -> None:
        self.folder = folder
        self.identity = identity
        self.writes = writes

    @classmethod
    def of(cls, scorer: Scorer, folder: Path) -> KeptScores:
        """Those of a scorer's training and queries."""
        writes = scorer.replay.trainer.is_world_process_zero()
        return cls(folder, identity_of(scorer), writes)

    def has(self, part: range) -> bool:
        """Whether there are scores of these queries."""
        return self._file(part).exists()

    def read(self, part: range) -> QueryScores:
        """The scores of these queries.

        Raises:
            ValueError: the file is damaged, or of another training or other queries.
        """
        file = self._file(part)
        tensors, _ = read_kept(
            file,
            self.identity,
            name=f"resume_dir: {str(file)!r}",
            again="these scores are made again",
            others="another training or other queries",
        )
        return QueryScores(**tensors)

    def write(self, part: range, scores: QueryScores) -> None:
        """Keeps the scores of these queries."""
        if self.writes:
            save_tensors(self._file(part), scores._asdict(), identity=self.identity)

    def _file(self, part: range) -> Path:
        return self.folder / f"queries-{part.start}-{part.stop}.safetensors"


def read_kept(
    file: Path, identity: str, *, name: str, again: str, others: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the facts of a file that an earlier call has kept.

    Args:
        identity: of what they have to be of.
        name: of the file, in errors.
        again: what happens once the file is removed, in words.
        others: what files of another identity are of, in words.

    Raises:
        ValueError: the file is damaged, or of another identity.
    """
    try:
        tensors, facts = load_tensors(file)
    except ValueError as error:
        raise ValueError(f"{name} is damaged ({error}); remove it, and {again}") from None
    if facts.get("identity") != identity:
        raise ValueError(f"{name} is of {others}; give a new folder")
    return tensors, facts


def identity_of(scorer: Scorer) -> str:
    """A hash of all that the scores depend on: θ_0, the rows and their order, the optimizer, the
    queries, and the shape of the weights.
    """
    replay = scorer.replay
    rates = [replay.optimizer.rate(step) for step in range(1, replay.steps + 1)]
    optimizer = replace(replay.optimizer, lr_schedule=None)  # a function, which `rates` stand for
    model = (
        [is_constant(x) for x in replay.start.values()],
        replay.learner.model.config.to_json_string(),
        replay.trainer.args.bf16,
    )
    settings = (*scorer.weights.shape, replay.order, rates, optimizer, model)
    digest = hashlib.sha256(repr(settings).encode())
    for row in range(replay.num_rows):
        digest.update(fingerprint(replay.batch(replay.loader, [row])).encode())
    if scorer.queries.names is not None:
        digest.update(repr(scorer.queries.names).encode())
    for batch in scorer.queries.batches():
        digest.update(fingerprint(batch).encode())
    digest.update(fingerprint(replay.start).encode())
    return digest.hexdigest()
