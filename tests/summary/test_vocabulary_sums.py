"""Sums over the vocabulary: equal to the plain formulas up to second derivatives, whatever the
blocks, and without a tensor of that size.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from torch import Tensor

from farzi_hf.engine.devices import PORTIONS
from farzi_hf.summary import vocabulary_sums
from farzi_hf.summary.soft_tokens import GivenTargets, HardTargets, SoftTokens
from farzi_hf.summary.vocabulary_sums import linear_cross_entropy, mean_embedding

N, K, V, D, TAU = 7, 3, 11, 2, 0.7


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture(params=["one block", "many blocks"])
def cut(request, monkeypatch):
    """Seven positions in one block, or in blocks of two."""
    if request.param == "many blocks":
        monkeypatch.setattr(vocabulary_sums, "FEWEST", 2)
        monkeypatch.setitem(PORTIONS, "cpu", PORTIONS["cpu"]._replace(block=1))


def derivatives(value: Tensor, weights: list[Tensor], everything: list[Tensor]) -> list[Tensor]:
    """The value, all first derivatives, and the derivatives in everything of those in the weights,
    along a random direction.
    """
    first = torch.autograd.grad(value, everything, retain_graph=True)
    again = torch.autograd.grad(value, weights, create_graph=True)
    along = sum((g * normal(*g.shape, seed=9).detach()).sum() for g in again)
    return [value, *first, *torch.autograd.grad(along, everything, materialize_grads=True)]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def plain_cross_entropy(h: Tensor, w: Tensor, c: Tensor | None, q: Tensor) -> Tensor:
    z = F.linear(h, w, c)
    return (z.logsumexp(-1) - (q * z).sum(-1)).sum()


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_cross_entropy_of_soft_tokens_is_the_plain_formula(cut, biased, factored):
    weights = [normal(N, K), normal(V, K, seed=1), *([normal(V, seed=2)] if biased else [])]
    tokens = [normal(N, D, seed=3), normal(D, V, seed=4)] if factored else [normal(N, V, seed=3)]
    latents, decoder = tokens if factored else (*tokens, None)
    h, w, c = weights if biased else (*weights, None)
    q = torch.softmax((latents @ decoder if factored else latents) / TAU, -1)
    everything = [*weights, *tokens]
    expected = derivatives(0.3 * plain_cross_entropy(h, w, c, q), weights, everything)
    found = 0.3 * linear_cross_entropy(h, w, c, SoftTokens(latents, decoder, TAU))
    assert_equal(derivatives(found, weights, everything), expected)


@pytest.mark.parametrize("counted", [True, False])
def test_cross_entropy_of_given_distributions_is_the_plain_formula(cut, counted):
    h, w, counts = (normal(*shape, seed=i) for i, shape in enumerate([(N, K), (V, K), (N,)]))
    q = torch.softmax(normal(N, V, seed=3).detach(), -1)
    weights = [h, w, counts] if counted else [h, w]
    z = h @ w.T
    losses = z.logsumexp(-1) - (q * z).sum(-1)
    times = counts if counted else 1.0
    found = linear_cross_entropy(h, w, None, GivenTargets(q), counts if counted else None)
    assert_equal(
        derivatives(0.3 * found, weights, weights),
        derivatives(0.3 * (losses * times).sum(), weights, weights),
    )
    torch.testing.assert_close(linear_cross_entropy(z, None, None, GivenTargets(q)), losses.sum())
    with pytest.raises(ValueError, match=f"over {V - 1} entries"):
        linear_cross_entropy(h, w, None, GivenTargets(q[:, 1:]))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_cross_entropy_of_ids_is_torchs_and_positions_count_as_much_as_they_should(
    cut, biased, counted
):
    """Also where the derivative in the counts is differentiated again."""
    weights = [
        normal(N, K),
        normal(V, K, seed=1),
        *([normal(V, seed=2)] if biased else []),
        normal(N, seed=3),
    ]
    ids = torch.randint(V, (N,), generator=torch.Generator().manual_seed(0))
    *arguments, counts = weights
    counts, weights = (counts, weights) if counted else (None, arguments)
    times = counts if counted else 1.0
    losses = F.cross_entropy(F.linear(*arguments), ids, reduction="none")
    h, w, c = arguments if biased else (*arguments, None)
    found = 0.3 * linear_cross_entropy(h, w, c, HardTargets(ids), counts)
    assert_equal(
        derivatives(found, weights, weights),
        derivatives(0.3 * (losses * times).sum(), weights, weights),
    )
    z = F.linear(*arguments)
    torch.testing.assert_close(
        linear_cross_entropy(z, None, None, HardTargets(ids), counts), (losses * times).sum()
    )


@pytest.mark.parametrize(
    ("states", "counts"),
    [
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float64", "float32"),
        ("float32", "bool"),
    ],
)
def test_counts_of_another_type_than_the_sum(states, counts):
    """The last states of a model under autocast, and weights in float32 of a model in float64,
    ended in an error of torch.
    """
    states, counts = (getattr(torch, name) for name in (states, counts))
    h, w = (
        normal(*shape, seed=i).detach().to(states).requires_grad_()
        for i, shape in enumerate([(N, K), (V, K)])
    )
    c = (torch.arange(N) % 2).to(counts)
    loss = linear_cross_entropy(h, w, None, HardTargets(torch.arange(N) % V), c)
    expected = (
        F.cross_entropy((h @ w.T).double(), torch.arange(N) % V, reduction="none") @ c.double()
    )
    torch.testing.assert_close(loss.double(), expected, rtol=0.02, atol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [h, w]))


def test_soft_tokens_take_no_counts():
    with pytest.raises(ValueError, match="counts are given beside SoftTokens"):
        linear_cross_entropy(
            normal(N, K), normal(V, K), None, SoftTokens(normal(N, V), None), torch.ones(N)
        )


def test_cross_entropy_of_logits_is_torchs():
    z, q = normal(N, V), SoftTokens(normal(N, V, seed=1), None)
    expected = -(q.probabilities() * z.log_softmax(-1)).sum()
    torch.testing.assert_close(linear_cross_entropy(z, None, None, q), expected)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_argument_changes_nothing_for_the_other(cut, frozen):
    weights, tokens = (
        [normal(N, K), normal(V, K, seed=1)],
        [normal(N, D, seed=3), normal(D, V, seed=4)],
    )
    weights[frozen] = weights[frozen].detach()
    trained = [weights[1 - frozen]]
    q = torch.softmax(tokens[0] @ tokens[1] / TAU, -1)
    expected = derivatives(plain_cross_entropy(*weights, None, q), trained, [*trained, *tokens])
    found = linear_cross_entropy(*weights, None, SoftTokens(*tokens, TAU))
    assert_equal(derivatives(found, trained, [*trained, *tokens]), expected)


def test_mean_embedding_is_the_plain_product(cut):
    """In a loss that is not linear in the embeddings, as a network is not."""
    tokens, table, mixing = (
        [normal(N, D), normal(D, V, seed=1)],
        normal(V, 4, seed=2),
        normal(4, 4, seed=3).detach(),
    )

    def loss(x: Tensor) -> Tensor:
        return torch.tanh(x @ mixing).square().sum()

    everything = [*tokens, table]
    expected = derivatives(
        loss(torch.softmax(tokens[0] @ tokens[1] / TAU, -1) @ table), [table], everything
    )
    found = derivatives(loss(mean_embedding(SoftTokens(*tokens, TAU), table)), [table], everything)
    assert_equal(found, expected)


def test_one_hot_tokens_have_the_embedding_of_their_ids(cut):
    table, ids = normal(V, 4), torch.tensor([[3, 0], [10, 3]])
    found = mean_embedding(SoftTokens(F.one_hot(ids, V).double().log(), None), table)
    assert torch.equal(found, table[ids])


@pytest.mark.parametrize(
    ("states", "model", "summary", "computed"),
    [
        ("float32", "bfloat16", "float32", "float32"),  # adapters on a constant base in bfloat16
        ("float64", "float64", "float32", "float64"),
        ("bfloat16", "bfloat16", "bfloat16", "float32"),
    ],
)
def test_types_may_differ_and_derivatives_have_those_of_their_tensors(
    cut, states, model, summary, computed
):
    states, model, summary, computed = (
        getattr(torch, name) for name in (states, model, summary, computed)
    )
    h, w, c, table = (
        normal(*shape, seed=i).detach().to(dtype).requires_grad_()
        for i, (shape, dtype) in enumerate(
            [((N, K), states), ((V, K), model), ((V,), model), ((V, 4), model)]
        )
    )
    tokens = [
        normal(*shape, seed=4).detach().to(summary).requires_grad_() for shape in ((N, D), (D, V))
    ]
    loss, x = (
        linear_cross_entropy(h, w, c, SoftTokens(*tokens, TAU)),
        mean_embedding(SoftTokens(*tokens, TAU), table),
    )
    assert (loss.dtype, x.dtype) == (computed, model)
    found = torch.autograd.grad(loss + x.sum(), [h, w, c, table, *tokens])
    doubles = [x.detach().double().requires_grad_() for x in (h, w, c, table, *tokens)]
    q = torch.softmax(doubles[4] @ doubles[5] / TAU, -1)
    expected = torch.autograd.grad(
        plain_cross_entropy(*doubles[:3], q) + (q @ doubles[3]).sum(), doubles
    )
    for ours, theirs, like in zip(found, expected, (h, w, c, table, *tokens), strict=True):
        assert ours.dtype == like.dtype
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max())
        )


@pytest.mark.parametrize(("scale", "offset"), [(100.0, 0.0), (10.0, 1e4)])
def test_large_logits_are_as_exact_as_torchs(scale, offset):
    """In float32. What a sum over the entries is rounded by, at the size of the logits, is no
    factor of a position's probabilities.
    """
    exact = [normal(50, 8), normal(1000, 8, seed=1) * scale / 8**0.5, normal(1000, seed=2) + offset]
    ids = torch.arange(50)

    def of(tensors: list[Tensor], ours: bool) -> tuple[float, Tensor]:
        h, w, c = (x.detach().requires_grad_() for x in tensors)
        plain = F.cross_entropy(F.linear(h, w, c), ids, reduction="sum")
        value = linear_cross_entropy(h, w, c, HardTargets(ids)) if ours else plain
        dh, dc = torch.autograd.grad(value, (h, c), create_graph=True)
        return dc.sum().item(), torch.autograd.grad(
            (dh * normal(50, 8, seed=3).to(dh.dtype)).sum(), h
        )[0]

    single = [x.float() for x in exact]
    (sum_of_ours, ours), (_, torchs), (_, expected) = (
        of(single, True),
        of(single, False),
        of(exact, False),
    )
    ours, torchs = (
        ((found - expected).norm() / expected.norm()).item() for found in (ours, torchs)
    )
    assert ours < 3 * torchs + 1e-6
    assert abs(sum_of_ours) < 1e-5  # of p − q


def test_a_second_derivative_that_is_not_there_raises():
    h, w, latents = normal(N, K), normal(V, K, seed=1), normal(N, V, seed=2)
    value = linear_cross_entropy(h, w, None, SoftTokens(latents, None))
    with pytest.raises(
        RuntimeError, match="derivative in soft tokens cannot be differentiated again"
    ):
        torch.autograd.grad(value, latents, create_graph=True)
    with pytest.raises(
        RuntimeError, match="derivative in soft tokens cannot be differentiated again"
    ):
        torch.autograd.grad(
            mean_embedding(SoftTokens(latents, None), w).sum(), latents, create_graph=True
        )


def test_autocast_does_not_round(cut):
    weights = [normal(N, K), normal(V, K, seed=1)]
    tokens = [normal(N, D, seed=3), normal(D, V, seed=4)]
    single = [x.detach().float().requires_grad_() for x in (*weights, *tokens)]

    def found(bf16: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            soft = SoftTokens(*single[2:], TAU)
            value = (
                linear_cross_entropy(*single[:2], None, soft)
                + mean_embedding(soft, single[1]).square().sum()
            )
            return derivatives(value, single[:2], single)

    assert all(map(torch.equal, found(True), found(False)))


def test_targets_of_another_vocabulary_or_number_are_refused():
    h, w = normal(N, K), normal(V, K, seed=1)
    for ids in (torch.full((N,), V), torch.full((N,), -1)):
        with pytest.raises(ValueError, match="but the vocabulary has 0 to 10"):
            linear_cross_entropy(h, w, None, HardTargets(ids))
    for entries in (V + 2, V - 2):
        tokens = SoftTokens(normal(N, D), normal(D, entries))
        with pytest.raises(
            ValueError,
            match=f"soft tokens over {entries} entries, but the model's vocabulary has {V}",
        ):
            linear_cross_entropy(h, w, None, tokens)
        with pytest.raises(
            ValueError,
            match=f"soft tokens over {entries} entries, but the model's vocabulary has {V}",
        ):
            mean_embedding(tokens, w)
    with pytest.raises(ValueError, match="8 targets for 7 states"):
        linear_cross_entropy(h, w, None, HardTargets(torch.zeros(N + 1, dtype=torch.long)))


@pytest.mark.parametrize("value", ["the function", "its gradient"])
@pytest.mark.parametrize("function", ["cross-entropy", "embedding"])
def test_tokens_that_change_before_the_backward_pass_raise(cut, function, value):
    h, w, u, d = normal(N, K), normal(V, K, seed=1), normal(N, D, seed=2), normal(D, V, seed=3)
    tokens = SoftTokens(u, d, TAU)
    found = (
        linear_cross_entropy(h, w, None, tokens)
        if function == "cross-entropy"
        else mean_embedding(tokens, w)
    )
    if value == "its gradient":
        found = torch.autograd.grad(found.square().sum(), w, create_graph=True)[0]
    with torch.no_grad():
        d.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(found.sum(), u)


def test_no_positions(cut):
    w, d = normal(V, K), normal(D, V, seed=1)
    for shape in ((0, D), (2, 0, D)):
        tokens = SoftTokens(normal(*shape), d, TAU)
        embedded = mean_embedding(tokens, w)
        assert embedded.shape == (*shape[:-1], K)
        assert torch.equal(torch.autograd.grad(embedded.sum(), w)[0], torch.zeros_like(w))
    for targets in (
        SoftTokens(normal(0, D), d, TAU),
        HardTargets(torch.zeros(0, dtype=torch.long)),
    ):
        loss = linear_cross_entropy(normal(0, K), w, None, targets)
        assert loss == 0
        assert torch.equal(torch.autograd.grad(loss, w)[0], torch.zeros_like(w))


class Stop(torch.autograd.Function):
    """Has no derivative, and says so."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


@pytest.mark.parametrize("power", [1, 2])
def test_nothing_that_comes_back_is_no_derivative(cut, power):
    h, w, u, d = normal(N, K), normal(V, K, seed=1), normal(N, D, seed=2), normal(D, V, seed=3)
    value = linear_cross_entropy(h * 1, w * 1, None, SoftTokens(u * 1, d * 1)) ** power
    (g,) = torch.autograd.grad(value, h, create_graph=True)
    for found in torch.autograd.grad(Stop.apply(g).sum(), (h, w, u, d), allow_unused=True):
        assert found is None or not found.any()


def test_threads_may_go_back_through_one_graph(cut):
    h, w, u, d = normal(N, K), normal(V, K, seed=1), normal(N, D, seed=2), normal(D, V, seed=3)
    (g,) = torch.autograd.grad(
        linear_cross_entropy(h, w, None, SoftTokens(u, d)), w, create_graph=True
    )
    value = g.square().sum()
    expected = torch.autograd.grad(value, (h, u), retain_graph=True)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(
            lambda _: torch.autograd.grad(value, (h, u), retain_graph=True), range(20)
        ):
            assert_equal(list(found), list(expected))


@pytest.mark.parametrize("tau", [1.0, TAU])
def test_a_graph_keeps_no_copy_of_soft_tokens_without_factors(tau):
    h, w, u = normal(64, K), normal(500, K, seed=1), normal(64, 500, seed=2)
    with LiveBytes() as live:
        kept = torch.autograd.grad(
            linear_cross_entropy(h, w, None, SoftTokens(u, None, tau)), h, create_graph=True
        )
        gc.collect()
        assert live.now < u.nbytes / 4
    assert kept


def test_no_tensor_has_the_size_of_positions_times_vocabulary(monkeypatch):
    """Value, gradient and second derivatives; a block has a hundredth of the positions, and there
    are four at a time.
    """
    monkeypatch.setitem(PORTIONS, "cpu", PORTIONS["cpu"]._replace(block=1))
    monkeypatch.setattr(vocabulary_sums, "FEWEST", 2)
    n, v = 200, 1000
    h, w, u, d = (torch.randn(*s).requires_grad_() for s in ((n, 4), (v, 4), (n, 3), (3, v)))
    with LiveBytes() as largest:
        tokens = SoftTokens(u, d)
        loss = linear_cross_entropy(h + mean_embedding(tokens, w), w, None, tokens)
        g = torch.autograd.grad(loss, (h, w), create_graph=True)
        sum(x.square().sum() for x in g).backward()
    assert u.grad.abs().sum() > 0
    assert (
        largest.elements <= 8 * max(n, v) < n * v / 20
    )  # four blocks, or both factors of a product side by side
