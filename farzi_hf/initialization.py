"""Where a summary starts: `random` or `bigrams`, each a function that sets the latents and the decoder of a `FarziData`.

A random start leaves every soft token near uniform. On text the meta-gradient then takes all positions to the same word
frequencies and stays there: with no order in the summary there is no gradient towards order (a saddle). `bigrams` starts
beyond it, at the best rank-d fit of real sequences that were blurred by a bigram model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from farzi_hf.data import flatten_sequences
from farzi_hf.farzi_data import FarziData

Initialization = Callable[[FarziData, Dataset, int], None]


def random(farzi: FarziData, dataset: Dataset, seed: int) -> None:
    """Normal latents and decoder with standard deviation `config.latent_std`: soft tokens close to uniform."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in farzi.parameters():
        draw = torch.randn(parameter.shape, generator=generator) * farzi.config.latent_std
        parameter.data.copy_(draw)


def bigrams(
    farzi: FarziData,
    dataset: Dataset,
    seed: int,
    blend: float = 0.2,
    steps: int = 500,
    lr: float = 0.05,
    batch: int = 20,
) -> None:
    """Fits soft tokens to real sequences, each token blurred by what usually follows the one before it.

    The target at position j of a sequence w is q_j = blend · onehot(w_j) + (1 − blend) · P(· | w_{j−1}), with P the bigram
    probabilities smoothed by the token frequencies. As an input q_j tells what was there, as a target it says what may
    come: it carries the statistics of the whole dataset, not those of μ·ξ tokens. Latents and decoder minimise the
    cross-entropy to q by Adam. The first decoder row starts as the log frequencies, its latents at 1, so that the others
    are left with what a position says beyond frequency.

    Args:
        farzi: changed in place; nothing larger than (batch, ξ, V) is built.
        dataset: sequences of ids in the column `input_ids`; μ windows of ξ tokens are cut from them in random order.
        seed: of the windows and of the fit.
        blend: share of the token that really stood there.
        steps, lr, batch: of the fit. The learning rate falls linearly to 0.
    """
    generator, config = np.random.default_rng(seed), farzi.config
    tokens, lengths = flatten_sequences(dataset)
    model = _Bigrams(tokens, lengths, config.vocab_size)
    windows = torch.from_numpy(_windows(tokens, lengths, (config.num_sequences, config.sequence_length), generator))
    random(farzi, dataset, seed)
    latents, decoder = (p.detach().clone() for p in (farzi.latents, farzi.decoder))
    latents[..., 0] = 1.0
    decoder[0] = model.log_frequency * config.tau
    latents, decoder = latents.requires_grad_(), decoder.requires_grad_()
    optimizer = torch.optim.Adam([latents, decoder], lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(steps):
        rows = torch.from_numpy(generator.permutation(config.num_sequences)[:batch])
        logits = latents[rows] @ decoder / config.tau
        loss = F.cross_entropy(logits.flatten(0, 1), model.blurred(windows[rows], blend).flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    farzi.latents.data.copy_(latents.detach())
    farzi.decoder.data.copy_(decoder.detach())


class _Bigrams:
    """Smoothed bigram probabilities, (n(u, v) + k f(v)) / (n(u) + k), kept as sparse counts."""

    PRIOR = 100.0
    """k: a context with this many occurrences weighs as much as the token frequencies f."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, vocab_size: int):
        self.vocab_size = vocab_size
        ends = np.cumsum(lengths)
        inside = np.ones(len(tokens), dtype=bool)
        inside[ends - 1] = False  # the last token of a sequence is no context
        context, following = tokens[inside], tokens[np.flatnonzero(inside) + 1]
        pairs, self.counts = np.unique(context.astype(np.int64) * vocab_size + following, return_counts=True)
        self.following = pairs % vocab_size
        self.starts = np.searchsorted(pairs, np.arange(vocab_size + 1) * vocab_size)
        frequency = np.bincount(following, minlength=vocab_size) + 0.1  # no token is impossible
        self.frequency = (frequency / frequency.sum()).astype(np.float32)

    @property
    def log_frequency(self) -> Tensor:
        """(V,) log f, centred."""
        log_frequency = torch.from_numpy(self.frequency).log()
        return log_frequency - log_frequency.mean()

    def following_probabilities(self, contexts: np.ndarray) -> np.ndarray:
        """(n,) contexts → (n, V) float32."""
        known, which = np.unique(contexts, return_inverse=True)
        rows = np.tile(self.PRIOR * self.frequency, (len(known), 1))
        for row, u in zip(rows, known, strict=True):
            span = slice(self.starts[u], self.starts[u + 1])
            row[self.following[span]] += self.counts[span]
        return (rows / rows.sum(-1, keepdims=True))[which.reshape(-1)]

    def blurred(self, windows: Tensor, blend: float) -> Tensor:
        """(b, ξ) ids → (b, ξ, V): the token itself blended with what follows its predecessor; the first has none."""
        b, length = windows.shape
        expected = self.following_probabilities(windows[:, :-1].reshape(-1).numpy()).reshape(b, length - 1, -1)
        first = np.broadcast_to(self.frequency, (b, 1, self.vocab_size))
        q = torch.from_numpy(np.concatenate([first, expected], axis=1)) * (1 - blend)
        return q.scatter_add_(-1, windows[..., None], torch.full((b, length, 1), blend))


def _windows(
    tokens: np.ndarray, lengths: np.ndarray, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """(μ, ξ) consecutive tokens of the sequences in random order, repeated where there are too few."""
    starts = np.cumsum(lengths) - lengths
    order = generator.permutation(len(lengths))
    needed, stream = shape[0] * shape[1], []
    for i in order:
        if needed <= 0:
            break
        stream.append(tokens[starts[i] : starts[i] + lengths[i]])
        needed -= lengths[i]
    return np.resize(np.concatenate(stream), shape).astype(np.int64)
