"""The mean embedding of soft tokens over a large vocabulary, twice differentiable (`farzi_hf.summary.vocabulary_sums`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from farzi_hf.summary.targets import SoftTokens
from farzi_hf.summary.tiles import Tiles
from farzi_hf.summary.vocabulary_sums import add_product, check_once, exact, pulled_back


def mean_embedding(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v: soft tokens (…, V) and the embeddings E (V, h) of all entries give (…, h), of the type of E.

    The first derivatives in E can be differentiated again, in everything. Those in the tokens cannot: with
    create_graph=True they raise an error.

    Raises:
        ValueError: the tokens are of another vocabulary than the table.
    """
    tokens.check(len(table))
    with torch.autocast(table.device.type, enabled=False):
        dtype = torch.promote_types(tokens.latents.dtype, table.dtype)
        flat, entries = tokens.to(dtype).flat(), table.to(dtype)
        if torch.compiler.is_compiling():
            x = flat.probabilities() @ entries
        else:
            x = _MeanEmbedding.apply(flat, entries)
            if any(y.requires_grad for y in flat.tensors):
                x = x + _TokenDerivative.apply(flat, entries.detach(), *flat.tensors)
    return x.to(table.dtype).view(*tokens.shape[:-1], table.shape[1])


class _MeanEmbedding(torch.autograd.Function):
    """x_j = Σ_v q_jv E_v, (n, h); dE_v = Σ_j q_jv dx_j."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor) -> Tensor:
        ctx.tokens, ctx.table = tokens, table.detach()
        return _product(tokens, table)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        return None, _TableGradient.apply(ctx.tokens, ctx.table, dx, *ctx.tokens.tensors)


class _TableGradient(torch.autograd.Function):
    """dE (V, h); with A the cotangent of it, its derivatives are Σ_v q_jv A_v in dx_j, and ⟨A_v, dx_j⟩ in q_jv."""

    @staticmethod
    @exact
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, dx: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(dx, *tensors)
        total, tiles = torch.zeros_like(table), Tiles(len(dx), len(table), table)
        memory = tokens.memory(tiles)
        for rows in tiles.rows:
            q = tokens.filled(tiles, rows, memory)
            for i, entries in enumerate(tiles.entries):
                share = q.share(i)
                add_product(total[entries], q.tiles[i], dx[rows] if share is None else dx[rows] * share)
        return total

    @staticmethod
    @once_differentiable
    @exact
    def backward(ctx: Any, big_a: Tensor) -> tuple[Any, ...]:
        tokens, (dx, *_), needed = ctx.tokens, ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals = pulled_back(tokens, dx, big_a, 1.0, needed) if any(needed) else [None for _ in needed]
        return None, None, _product(tokens, big_a), *totals


class _TokenDerivative(torch.autograd.Function):
    """Zeros (n, h), with the derivatives of x_j = Σ_v q_jv E_v in the tensors of q. It is a node of its own, as `_TargetDerivative` is."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(table, *tensors)
        return table.new_zeros(len(tokens), table.shape[1])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        check_once("tokens")
        table, *_ = ctx.saved_tensors
        return None, None, *pulled_back(ctx.tokens, dx, table, 1.0, ctx.needs_input_grad[2:])


@exact
def _product(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v of each position, (n, h)."""
    x, tiles = table.new_empty(len(tokens), table.shape[1]), Tiles(len(tokens), len(table), table)
    memory = tokens.memory(tiles)
    for rows in tiles.rows:
        q = tokens.filled(tiles, rows, memory)
        x[rows] = q.mean([torch.mm(tile, table[entries]) for tile, entries in zip(q.tiles, tiles.entries, strict=True)])
    return x
