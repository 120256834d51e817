"""Groups of training rows that no column names: rows of which a model thinks alike."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.cluster.vq
import torch
from torch import Tensor
from transformers import Trainer

from farzi_hf.attribution.replay import Replay
from farzi_hf.common.checks import check_size
from farzi_hf.data.seeds import Purpose, stream


def clusters(trainer: Trainer, count: int, *, seed: int = 0) -> list[str]:
    """Groups of a Trainer's training rows, by its own model, for `groups=` of `attribute` and
    `weigh`. Give a model that is trained already: one of random weights knows little but which ids
    a row has.

    A row is the mean of its positions' last hidden states, without those of padding. Each dimension
    is divided by its standard deviation over the rows, and k-means makes the clusters.

    Args:
        trainer: a configured Trainer that has not trained yet, as for `attribute`.
        count: of clusters. Fewer come back where some stay empty.
        seed: of the first centres.

    Returns:
        The group of each row: `like row 17` after the row that is nearest to its cluster's centre,
        counted from 0.

    Raises:
        ValueError: `count` is not from 1 to the number of rows, or the training cannot be replayed.
    """
    check_size("count", count, 1)
    replay = Replay.of(trainer)
    if count > replay.num_rows:
        raise ValueError(
            f"count={count}: there are {replay.num_rows} training rows; ask for fewer clusters"
        )
    states = _states(replay).numpy()
    scaled = states / np.maximum(states.std(0), np.finfo(states.dtype).tiny)
    draw = stream(seed, Purpose.ROW_CLUSTERS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        centres, of_rows = scipy.cluster.vq.kmeans2(scaled, count, minit="++", seed=draw)
    distances = ((scaled - centres[of_rows]) ** 2).sum(1)
    names = {}
    for cluster in np.unique(of_rows):
        rows = np.flatnonzero(of_rows == cluster)
        names[cluster] = f"like row {rows[distances[rows].argmin()]}"
    return [names[cluster] for cluster in of_rows]


@torch.no_grad()
def _states(replay: Replay) -> Tensor:
    """(n, k), in float64: the mean state of each row."""
    found = []
    for row in range(replay.num_rows):
        batch = replay.batch(replay.loader, [row])
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        arguments = {"input_ids": batch["input_ids"], "attention_mask": mask}
        states = replay.learner.states(replay.start, arguments)
        found.append((states[0] * mask[0, :, None]).sum(0) / mask.sum())
    return torch.stack(found).double().cpu()
