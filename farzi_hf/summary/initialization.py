"""The start of a summary: `Random`, `Spectral` and `Clusters` set the latents and the decoder of a
`FarziData`, `Ids` its input ids.

After a random start every soft token is near uniform. On text the meta-gradient then moves all
positions to the same token frequencies, and the distillation stays there: a summary without order
has no gradient towards order (a saddle). `Spectral` starts beyond the saddle, at real sequences in
which each token is softened to the tokens that are used alike. How soft they have to be depends on
the data, on μ and on T.
"""

from __future__ import annotations

import heapq
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.data.seeds import Purpose, derive, seeded, stream
from farzi_hf.data.streams import RowStream, start_sequences
from farzi_hf.summary.origins import LEARNT, MADE_UP, REAL, SOFTENED, Origin

if TYPE_CHECKING:
    from farzi_hf.summary.farzi_data import FarziData

TrainingRows = Dataset | RowStream
"""Real sequences, from which a start is made."""
Array = np.ndarray

CONCENTRATION = 8.0
"""κ of a spectral start, by default."""


class Start(ABC):
    """How the inputs of a new summary begin. A subclass is a frozen dataclass; its fields with a
    help text are settings of `FarziConfig`.
    """

    by_teacher: ClassVar[bool] = False
    """Whether the input embeddings of the teacher, where there is one, make a better start than
    `token_vectors`.
    """

    origin: Origin | None
    """What the rows are after this start; None where the form of the inputs says it."""

    def __call__(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        """Sets the inputs of a summary, and says in its config where they come from.

        The arguments are those of `fill`.
        """
        self.fill(farzi, dataset, seed, vectors)
        farzi.config.origin = None if self.origin is None else self.origin.name

    @abstractmethod
    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        """Sets the inputs of a summary.

        Args:
            farzi: changed in place. No tensor of size μ×ξ×V is built.
            dataset: sequences of ids in the column `input_ids`.
            seed: of all that is drawn.
            vectors: (V, n) one for each token, such as a teacher's embedding.
        """


@dataclass(frozen=True)
class Ids(Start):
    """Ids of `real_windows` or another function of its kind.

    Attributes:
        draw: the function.
        origin: what ids are that were made so.
    """

    draw: Callable[..., Array]
    origin: Origin

    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        tokens, lengths = start_sequences(dataset, seed)
        ids = self.draw(
            tokens, lengths, tuple(farzi.input_ids.shape), stream(seed, Purpose.INPUT_SEQUENCES)
        )
        farzi.input_ids.copy_(torch.from_numpy(ids))


@dataclass(frozen=True)
class Shares(Start):
    """How often each id is drawn: as often as it stands in the data, to the power
    `Vocabulary.draw_power`: students see rare items more often than users do.
    """

    origin: ClassVar[None] = None

    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        tokens, _ = start_sequences(dataset, seed)
        counts = torch.from_numpy(np.bincount(tokens, minlength=farzi.config.vocab_size)).float()
        shares = counts**farzi.vocabulary.draw_power * (counts > 0)
        farzi.frequencies.copy_(shares / shares.sum())


@dataclass(frozen=True)
class Random(Start):
    """Normal latents and decoder with standard deviation `config.latent_std`: soft tokens close to
    uniform.
    """

    origin: ClassVar[Origin] = LEARNT

    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(derive(seed, Purpose.SUMMARY_NORMAL))
        for parameter in (farzi.latents, farzi.decoder):
            parameter.data.copy_(
                torch.randn(parameter.shape, generator=generator) * farzi.config.latent_std
            )


@dataclass(frozen=True)
class Spectral(Start):
    """Real sequences with softened tokens: a position with token w has p(v) ∝ f(v) exp(κ u_w·u_v).

    f is the frequency of a token, u_v ∈ R^{d−1} its unit vector from `token_vectors`, κ the
    concentration. These distributions factorise exactly: the latents of the position are (1, √κ
    u_w), and the decoder's columns are τ (log f(v), √κ u_v). With d = 1 every position has the
    token frequencies. μ windows of ξ tokens are cut from the sequences in random order, and
    repeated if there are too few.

    Args:
        concentration: κ. With a small κ only frequencies are left; with a large κ only the real
            tokens, which a learner memorises: the more often T steps repeat a sequence, the smaller
            it should be. None: `CONCENTRATION`.
    """

    origin: ClassVar[Origin] = SOFTENED
    concentration: float | None = setting(
        None, "κ of a spectral start, by default 8; about 2 suits ten sequences"
    )

    def __post_init__(self) -> None:
        _check_concentration(self.concentration)

    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        config = farzi.config
        generator = stream(seed, Purpose.SUMMARY_WINDOWS)
        kappa = CONCENTRATION if self.concentration is None else self.concentration
        tokens, lengths = start_sequences(dataset, seed)
        shape = (config.num_sequences, config.sequence_length)
        windows = torch.from_numpy(real_windows(tokens, lengths, shape, generator))
        frequency = np.bincount(tokens, minlength=config.vocab_size) + 0.1  # no token is impossible
        log_frequency = torch.from_numpy(np.log(frequency)).float()
        log_frequency = (log_frequency - log_frequency.mean())[None]
        vectors = token_vectors(tokens, lengths, config.vocab_size, config.latent_dim - 1, seed)
        vectors = vectors * kappa**0.5
        ones = torch.ones(*windows.shape, 1)
        farzi.latents.data.copy_(torch.cat([ones, vectors[windows]], dim=-1))
        farzi.decoder.data.copy_(torch.cat([log_frequency, vectors.T]) * config.tau)


@dataclass(frozen=True)
class Clusters(Start):
    """Groups of tokens that are alike, in random order: p(v) ∝ f(v) exp(−κ |x_v − c|²) at a
    position with the centre c.

    With few positions, a student sees all tokens so, each among those like it; ids would show it a
    few of them. There are as many centres as positions, but not more than half of the tokens. Each
    stands once; the other positions draw centres by the frequency of their groups. These
    distributions factorise exactly: the latents of a position are (2 κ c, 1, 1), and the decoder's
    columns are τ (x_v, −κ |x_v|², log f(v)). The x_v are the d − 2 principal components of the
    vectors of the tokens, by default of `token_vectors`. The summary needs labels of its own,
    because the order says nothing.

    Args:
        concentration: κ, where the entries of the x_v have a standard deviation of 1. None: 0.5.

    Raises:
        ValueError: d is less than 3, or the labels are shared.
    """

    by_teacher: ClassVar[bool] = True
    origin: ClassVar[Origin] = LEARNT
    concentration: float | None = setting(None, "κ of a start in clusters, by default 0.5")

    def __post_init__(self) -> None:
        _check_concentration(self.concentration)

    def fill(
        self, farzi: FarziData, dataset: TrainingRows, seed: int, vectors: Tensor | None = None
    ) -> None:
        config = farzi.config
        kappa = 0.5 if self.concentration is None else self.concentration
        if config.latent_dim < 3 or farzi.forms.labels.are_inputs:
            raise ValueError(
                "initialization='clusters' needs labels='own' and latent_dim of 3, got"
                f" {config.labels!r} and {config.latent_dim}; set them"
            )
        tokens, lengths = start_sequences(dataset, seed)
        counts = torch.from_numpy(np.bincount(tokens, minlength=config.vocab_size)).float()
        if vectors is None:
            vectors = token_vectors(tokens, lengths, config.vocab_size, config.latent_dim - 2, seed)
        points = _components(vectors.detach().float().cpu(), config.latent_dim - 2)
        positions = config.num_sequences * config.sequence_length
        generator = torch.Generator().manual_seed(derive(seed, Purpose.SUMMARY_CLUSTERS))
        number = min(positions, max(1, int((counts > 0).sum()) // 2))
        centres, group = _centres(points, counts.sqrt(), number, generator)
        share = torch.zeros(len(centres)).index_add_(0, group, counts) + 1e-9
        missing = max(1, positions - len(centres))
        rest = torch.multinomial(share, missing, replacement=True, generator=generator)
        chosen = torch.cat([torch.arange(len(centres)), rest])[:positions]
        order = torch.randperm(positions, generator=generator)
        chosen = chosen[order].view(config.num_sequences, -1)
        ones = torch.ones(*chosen.shape, 2)
        farzi.latents.data.copy_(torch.cat([2 * kappa * centres[chosen], ones], dim=-1))
        log_frequency = torch.log(counts + 0.1)[None]
        columns = [
            points.T,
            -kappa * points.square().sum(1)[None],
            log_frequency - log_frequency.mean(),
        ]
        farzi.decoder.data.copy_(torch.cat(columns) * config.tau)


def _check_concentration(value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(
            f"concentration={value} is not usable; give a number above 0, or None for the default"
        )


_ROUNDS = 30
"""Of Lloyd's algorithm."""


def _components(vectors: Tensor, count: int) -> Tensor:
    """(V, n) to (V, count): the principal components, with zeros where there are fewer, scaled to a
    standard deviation of 1.
    """
    components = vectors - vectors.mean(dim=0)
    if components.shape[1] > count:
        _, _, directions = torch.linalg.svd(components, full_matrices=False)
        components = components @ directions[:count].T
    scaled = components / components.std().clamp_min(1e-12)
    return F.pad(scaled, (0, count - components.shape[1]))


def _centres(
    points: Tensor, weights: Tensor, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Centres (number, n) of groups of weighted tokens, by Lloyd's algorithm from random tokens,
    and the group of each token (V,).
    """
    centres = points[torch.multinomial(weights, number, generator=generator)]
    for _ in range(_ROUNDS):
        group = torch.cdist(points, centres).argmin(dim=1)
        weight = torch.zeros(number).index_add_(0, group, weights)[:, None]
        total = torch.zeros_like(centres).index_add_(0, group, points * weights[:, None])
        centres = torch.where(weight > 0, total / weight.clamp_min(1e-9), centres)
    return centres, torch.cdist(points, centres).argmin(dim=1)


def token_vectors(tokens: Array, lengths: Array, vocab_size: int, dim: int, seed: int) -> Tensor:
    """(V, dim) unit vectors: tokens with the same left and right neighbours point the same way.

    They are the leading left singular vectors, scaled by the roots of the singular values, of a
    matrix: the positive pointwise mutual information between a token and its right and left
    neighbours (Levy & Goldberg, 2014). Its rows are weighted by the root of the token's count, so
    that frequent tokens decide the directions. Tokens without neighbours get a vector of almost
    zero.
    """
    if dim == 0:
        return torch.zeros(vocab_size, 0)
    left, right = _neighbours(tokens, lengths)
    weight = torch.from_numpy(np.sqrt(np.bincount(tokens, minlength=vocab_size) + 1)).float()
    sides = (
        _mutual_information(left, right, vocab_size),
        _mutual_information(right, left, vocab_size),
    )
    matrix = torch.cat(sides, dim=1).coalesce()
    rows, _ = matrix.indices()
    matrix = _sparse(matrix.indices(), matrix.values() * weight[rows], matrix.shape)
    rank = min(dim, vocab_size)
    with seeded(derive(seed, Purpose.SUMMARY_PROJECTION)):
        u, s, _ = torch.svd_lowrank(matrix, q=min(rank + 10, vocab_size), niter=4)
    vectors = torch.zeros(vocab_size, dim)
    vectors[:, :rank] = u[:, :rank] * s[:rank].sqrt() / weight[:, None]
    # A token without neighbours has a row of rounding errors, which must not become a direction.
    return torch.nn.functional.normalize(
        vectors, dim=1, eps=1e-4 * vectors.norm(dim=1).max().item() + 1e-12
    )


def _neighbours(tokens: Array, lengths: Array) -> tuple[Array, Array]:
    """Each pair of adjacent tokens of a sequence, as (left, right)."""
    inside = np.ones(len(tokens), dtype=bool)
    inside[np.cumsum(lengths) - 1] = False  # the last token of a sequence has no right neighbour
    at = np.flatnonzero(inside)
    return tokens[at], tokens[at + 1]


def _mutual_information(
    tokens: Array, contexts: Array, vocab_size: int, smoothing: float = 0.75
) -> Tensor:
    """Sparse (V, V): max(0, log p(context | token) / p(context)), with p(context) ∝ count^0.75
    against rare contexts.
    """
    pairs, counts = np.unique(tokens * vocab_size + contexts, return_counts=True)
    token = pairs // vocab_size
    context = pairs % vocab_size
    context_share = np.bincount(contexts, minlength=vocab_size) ** smoothing
    context_share = context_share / context_share.sum()
    occurrences = np.bincount(tokens, minlength=vocab_size)
    information = np.log(counts / occurrences[token] / context_share[context])
    values = torch.from_numpy(np.maximum(information, 0)).float()
    return _sparse(torch.from_numpy(np.stack([token, context])), values, (vocab_size, vocab_size))


def _sparse(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        # torch warns unless it is told whether to check; torch 2.11 warns even then.
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


# -- ids: functions of all ids of the data end to end, the length of each sequence, the shape (μ, ξ)
# -- and a generator


def real_windows(
    tokens: Array, lengths: Array, shape: tuple[int, int], generator: np.random.Generator
) -> Array:
    """Consecutive ids of the sequences in random order, repeated if there are too few."""
    starts = np.cumsum(lengths) - lengths
    missing = shape[0] * shape[1]
    sequences = []
    for i in generator.permutation(len(lengths)):
        if missing <= 0:
            break
        sequences.append(tokens[starts[i] : starts[i] + lengths[i]])
        missing -= lengths[i]
    return np.resize(np.concatenate(sequences), shape).astype(np.int64)


def covering_windows(
    tokens: Array, lengths: Array, shape: tuple[int, int], generator: np.random.Generator
) -> Array:
    """Real windows that together show as many different ids as a greedy choice finds: each shows
    the most ids that are still missing.
    """
    count = max(1, len(tokens) // shape[1])
    windows = real_windows(tokens, lengths, (count, shape[1]), generator)
    missing = set(tokens.tolist())
    queue = [(-len(ids), i, ids) for i, ids in enumerate(map(set, windows.tolist()))]
    heapq.heapify(queue)
    chosen: list[int] = []
    while queue and len(chosen) < shape[0]:
        _, i, ids = heapq.heappop(queue)
        left = ids & missing
        if queue and -len(left) > queue[0][0]:  # the gain has shrunk since it was computed
            heapq.heappush(queue, (-len(left), i, left))
            continue
        chosen.append(i)
        missing -= left
    return np.resize(windows[chosen], shape)


def made_up(
    tokens: Array, lengths: Array, shape: tuple[int, int], generator: np.random.Generator
) -> Array:
    """Each id of the data once, the rest drawn by frequency, all in random order: no sequence of
    the data is in it.

    If there are more ids than positions, different ids are drawn by frequency.
    """
    ids, counts = np.unique(tokens, return_counts=True)
    shares = counts / counts.sum()
    size = shape[0] * shape[1]
    if len(ids) >= size:
        drawn = generator.choice(ids, size, replace=False, p=shares)
    else:
        drawn = np.concatenate([ids, generator.choice(ids, size - len(ids), p=shares)])
    return generator.permutation(drawn).reshape(shape)


def made_up_by_root(
    tokens: Array, lengths: Array, shape: tuple[int, int], generator: np.random.Generator
) -> Array:
    """Ids drawn by the square root of their frequency, each on its own: no sequence of the data is
    in it.
    """
    ids, counts = np.unique(tokens, return_counts=True)
    shares = counts**0.5 / (counts**0.5).sum()
    return generator.choice(ids, shape, p=shares)


INITIALIZATIONS: dict[str, type[Start]] = {
    "spectral": Spectral,
    "clusters": Clusters,
    "random": Random,
}
"""Of soft inputs, by name."""

INPUT_SEQUENCES: dict[str, Ids] = {
    **{draw.__name__: Ids(draw, MADE_UP) for draw in (made_up, made_up_by_root)},
    **{draw.__name__: Ids(draw, REAL) for draw in (real_windows, covering_windows)},
}
"""Of inputs that are ids, by name."""
