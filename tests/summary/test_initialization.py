"""Where a summary starts: on softened real sequences, by a seed, without ever being V wide."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset
from live_bytes import LiveBytes
from torch import Tensor

from farzi_hf.data import flatten_sequences
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.initialization import (
    Clusters,
    Random,
    Spectral,
    _mutual_information,
    _neighbours,
    real_windows,
    token_vectors,
)

SENTENCES = [[2, 4, 5, 4, 3], [2, 5, 5, 3], [2, 6, 3], [2, 4, 5, 6, 4, 3]]
V = 8
STARTS = {"random": Random(), "spectral": Spectral(), "clusters": Clusters()}


def dataset_of(sentences: Sequence[Sequence[int]]) -> Dataset:
    return Dataset.from_dict({"input_ids": sentences})


def flat(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    return flatten_sequences(dataset_of(sentences))


def summary(mu: int = 6, xi: int = 7, d: int = 4, vocab_size: int = V, **settings) -> FarziData:
    return FarziData(FarziDataConfig(mu, xi, d, vocab_size, **settings))


def soft_tokens(farzi: FarziData) -> Tensor:
    with torch.no_grad():
        return farzi(torch.arange(farzi.config.num_sequences))


def frequencies(sentences: Sequence[Sequence[int]], vocab_size: int = V) -> Tensor:
    counts = np.bincount(np.concatenate(sentences), minlength=vocab_size) + 0.1
    return torch.from_numpy(counts / counts.sum()).float()


# -- windows ---------------------------------------------------------------------------------------


def test_windows_are_consecutive_whole_sentences_in_random_order():
    cut = real_windows(*flat(SENTENCES), (3, 6), np.random.default_rng(0))
    assert cut.shape == (3, 6)
    assert cut.dtype == np.int64
    text, order = cut.reshape(-1).tolist(), []
    while text:  # one sentence after the other
        (found,) = [i for i, sentence in enumerate(SENTENCES) if text[: len(sentence)] == sentence]
        order.append(found)
        del text[: len(SENTENCES[found])]
    assert sorted(order) == [0, 1, 2, 3]
    assert not np.array_equal(cut, real_windows(*flat(SENTENCES), (3, 6), np.random.default_rng(1)))


def test_windows_repeat_the_text_where_it_is_too_short():
    cut = real_windows(*flat([[2, 4, 3]]), (2, 4), np.random.default_rng(0))
    assert cut.tolist() == [[2, 4, 3, 2], [4, 3, 2, 4]]


# -- token vectors ---------------------------------------------------------------------------------


def dense_information(pairs: Sequence[tuple[int, int]], vocab_size: int) -> np.ndarray:
    """(V, V) positive pointwise mutual information of token and context, by its definition."""
    counts = np.zeros((vocab_size, vocab_size))
    for token, context in pairs:
        counts[token, context] += 1
    smoothed = counts.sum(0) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(counts / counts.sum(1, keepdims=True) / (smoothed / smoothed.sum()))
    return np.where(counts > 0, np.maximum(information, 0), 0)


def test_mutual_information_is_the_dense_formula(sequences, tokenizer):
    sentences, vocab_size = sequences["train"]["input_ids"], len(tokenizer)
    left, right = _neighbours(*flat(sentences))
    pairs = [pair for sentence in sentences for pair in pairwise(sentence)]
    for ours, theirs in (
        (_mutual_information(left, right, vocab_size), dense_information(pairs, vocab_size)),
        (
            _mutual_information(right, left, vocab_size),
            dense_information([p[::-1] for p in pairs], vocab_size),
        ),
    ):
        assert theirs.max() > 1
        np.testing.assert_allclose(ours.to_dense(), theirs, rtol=1e-5, atol=1e-6)


def test_the_boundary_between_sequences_is_no_pair_of_neighbours():
    """What follows the end of a sequence in memory, the next one's start, does not follow it in the
    text.
    """
    left, right = _neighbours(*flat([[2, 4, 3], [2, 5, 3]]))
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(2, 4), (4, 3), (2, 5), (5, 3)]


def test_token_vectors_span_what_the_exact_decomposition_does(sequences, tokenizer):
    sentences, vocab_size, dim = sequences["train"]["input_ids"], len(tokenizer), 4
    tokens, lengths = flat(sentences)
    pairs = [pair for sentence in sentences for pair in pairwise(sentence)]
    information = [
        dense_information(part, vocab_size) for part in (pairs, [p[::-1] for p in pairs])
    ]
    weight = np.sqrt(np.bincount(tokens, minlength=vocab_size) + 1)
    u, s, _ = np.linalg.svd(weight[:, None] * np.concatenate(information, axis=1))
    expected = u[:, :dim] * np.sqrt(s[:dim]) / weight[:, None]
    norms = np.linalg.norm(expected, axis=1)
    known = (
        norms > 1e-3 * norms.max()
    )  # of the others the decomposition says nothing in so few dimensions
    assert 30 < known.sum() < vocab_size
    expected = expected[known] / norms[known, None]
    found = token_vectors(tokens, lengths, vocab_size, dim, seed=0).numpy()
    # The vectors of a decomposition are free to flip; what counts is their products.
    np.testing.assert_allclose(found[known] @ found[known].T, expected @ expected.T, atol=2e-3)
    assert np.linalg.norm(found[~known], axis=1).max() < 0.05


def test_tokens_with_the_same_neighbours_point_the_same_way():
    sentences = [[2, 4, 6, 3], [2, 5, 6, 3], [2, 7, 3, 0], [2, 4, 6, 3], [2, 5, 6, 3]]
    vectors = token_vectors(*flat(sentences), V, 3, seed=0)
    similarity = vectors @ vectors.T
    torch.testing.assert_close(similarity[4, 5], torch.tensor(1.0))
    assert similarity[4, 7] < 0.9
    assert similarity[4, 6] < 0.5
    assert vectors[1].norm() < 0.05  # never seen


# -- starts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("d", [4, 1])  # one dimension holds the token frequencies
def test_a_spectral_start_is_its_formula(d, tau):
    farzi = summary(d=d, tau=tau)
    Spectral(2.0)(farzi, dataset_of(SENTENCES), seed=3)
    windows = real_windows(*flat(SENTENCES), (6, 7), np.random.default_rng(3))
    vectors = token_vectors(*flat(SENTENCES), V, d - 1, seed=3)
    expected = frequencies(SENTENCES) * (2.0 * vectors[torch.from_numpy(windows)] @ vectors.T).exp()
    torch.testing.assert_close(soft_tokens(farzi), expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize("initialize", STARTS.values(), ids=STARTS)
def test_a_start_is_a_function_of_its_seed_and_leaves_the_global_random_state_alone(initialize):
    before, starts = (torch.get_rng_state(), np.random.get_state()[1]), []  # noqa: NPY002
    for seed in (1, 1, 2):
        starts.append(farzi := summary(labels="own"))
        torch.set_rng_state(before[0])  # a new summary draws from it
        initialize(farzi, dataset_of(SENTENCES), seed)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    first, second, other = (soft_tokens(farzi) for farzi in starts)
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)
    assert all(
        parameter.requires_grad and parameter.is_leaf for parameter in starts[0].parameters()
    )


def test_random_starts_have_the_deviation_of_the_config():
    farzi = summary(50, 20, 8, 100, latent_std=0.25)
    Random()(farzi, dataset_of(SENTENCES), seed=0)
    assert farzi.latents.std().item() == pytest.approx(0.25, rel=0.05)
    assert farzi.decoder.std().item() == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize(
    ("d", "sentences"),
    [
        (2, SENTENCES),
        (V, SENTENCES),
        (V + 5, SENTENCES),
        (4, [[2, 4, 3]]),
        (4, [[2, 3]]),
        (4, [[4, 4]]),
    ],
)
def test_any_number_of_dimensions_and_few_real_tokens(d, sentences):
    farzi = summary(d=d)
    Spectral()(farzi, dataset_of(sentences), seed=0)
    assert torch.isfinite(soft_tokens(farzi)).all()


def test_nothing_has_the_size_of_all_soft_tokens():
    mu, xi, d, vocab_size = 60, 50, 4, 500
    generator = np.random.default_rng(0)
    sentences = dataset_of([generator.integers(vocab_size, size=12).tolist() for _ in range(400)])
    farzi = summary(mu, xi, d, vocab_size)
    with LiveBytes() as largest:
        Spectral()(farzi, sentences, seed=0)
    tracemalloc.start()  # NumPy reports its allocations to it
    try:
        Spectral()(farzi, sentences, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mu * xi * d <= largest.elements < mu * xi * vocab_size / 20
    assert peak < mu * xi * vocab_size * 4 / 5


# -- groups of tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_a_position_is_a_group_of_tokens_around_a_centre(tau):
    """By the formula, with the centre read from the latents: p(v) ∝ f(v) exp(−κ |x_v − c|²)."""
    farzi, kappa = summary(d=5, labels="own", tau=tau), 0.7
    vectors = torch.randn(V, 3, generator=torch.Generator().manual_seed(0))
    Clusters(kappa)(farzi, dataset_of(SENTENCES), 3, vectors)
    assert farzi.latents[..., 3:].eq(1).all()
    points, centres = (
        farzi.decoder[:3].T.detach() / tau,
        farzi.latents[..., :3].detach() / (2 * kappa),
    )
    assert points.std().item() == pytest.approx(1.0)
    torch.testing.assert_close(  # the same distances between tokens, up to one factor
        torch.cdist(points, points) / torch.cdist(points, points).mean(),
        torch.cdist(vectors, vectors) / torch.cdist(vectors, vectors).mean(),
        rtol=1e-3,
        atol=1e-3,
    )
    distance = torch.cdist(points[None, None], centres[:, :, None])[..., 0].square()
    expected = frequencies(SENTENCES) * (-kappa * distance).exp()
    torch.testing.assert_close(
        soft_tokens(farzi), expected / expected.sum(-1, keepdim=True), rtol=1e-4, atol=1e-5
    )


def test_tokens_that_are_alike_share_a_centre_and_every_centre_stands_somewhere():
    vectors = torch.zeros(V, 2)
    vectors[[2, 3]], vectors[[4, 5, 6]] = torch.tensor([0.0, 5.0]), torch.tensor([5.0, 0.0])
    farzi = summary(d=4, labels="own")
    Clusters(50.0)(farzi, dataset_of(SENTENCES), 1, vectors)
    likeliest = soft_tokens(farzi).topk(3).indices.sort(-1).values.flatten(0, 1)
    found = {tuple(row) for row in likeliest.tolist()}
    assert (4, 5, 6) in found
    assert all({2, 3} <= set(row) or row == (4, 5, 6) for row in found)


def test_groups_of_few_principal_components(sequences, tokenizer):
    narrow = summary(10, 5, 40, len(tokenizer), labels="own")
    Clusters()(narrow, sequences["train"], 0, vectors=torch.randn(len(tokenizer), 4))
    assert torch.isfinite(soft_tokens(narrow)).all()


@pytest.mark.parametrize("settings", [{"d": 2, "labels": "own"}, {"d": 4}])
def test_groups_need_labels_of_their_own_and_room(settings):
    with pytest.raises(
        ValueError, match=r"initialization='clusters' needs labels='own' and latent_dim of 3, got"
    ):
        Clusters()(summary(**settings), dataset_of(SENTENCES), 0)
