"""Tiles cover a matrix once, and the softmax of a block is torch's, whatever its tiles."""

from __future__ import annotations

import math

import pytest
import torch

from farzi_hf.summary import tiles
from farzi_hf.summary.tiles import Softmax, Tiles


@pytest.mark.parametrize(("n", "entries"), [(0, 5), (1, 1), (7, 11), (300, 40), (33, 1000)])
@pytest.mark.parametrize(("block", "tile"), [(1 << 23, 1 << 19), (1000, 100), (1, 1)])
def test_tiles_cover_the_matrix_once(monkeypatch, n, entries, block, tile):
    monkeypatch.setitem(tiles.BLOCK, "cpu", block)
    monkeypatch.setitem(tiles.TILE, "cpu", tile)
    monkeypatch.setattr(tiles, "FEWEST", 16)
    cut = Tiles(n, entries, torch.empty(0))
    seen = torch.zeros(n, entries)
    memory = cut.block()
    for rows in cut.rows:
        parts = cut.split(memory, rows)
        assert len({part.data_ptr() for part in parts}) == len(cut.entries)
        for e, part, view in zip(cut.entries, parts, cut.views(cut.tile(), rows), strict=True):
            assert part.is_contiguous()
            assert part.shape == view.shape == seen[rows, e].shape
            seen[rows, e] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("width", [1, 3, 8])
def test_softmax_of_a_block(width):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, 8, generator=generator, dtype=torch.float64) * 30
    z[0, :3] = z[1, 3:] = -math.inf  # whole tiles without anything
    z[2, 0] = 1e4
    softmax = Softmax([torch.empty_like(part) for part in z.split(width, 1)])
    x = torch.randn(8, generator=generator, dtype=torch.float64)
    parts, bits = [], [part * tiles.BITS for part in z.split(width, 1)]
    for i, weights in enumerate(x.split(width)):
        assert not softmax.has(i)
        softmax.normalise(i, bits[i].clone())
        parts.append(softmax.tiles[i] @ weights)
    expected = z.softmax(1)
    torch.testing.assert_close(softmax.log_sums() / tiles.BITS, z.logsumexp(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(softmax.mean(parts), expected @ x, rtol=0, atol=1e-12)
    elsewhere = [torch.full_like(part, torch.nan) for part in bits]
    for i, part in enumerate(elsewhere):
        torch.testing.assert_close(softmax.whole(i, part), expected.split(width, 1)[i], rtol=0, atol=1e-14)
    for _ in range(2):  # the share is taken once
        found = torch.cat([softmax[i] for i in range(len(softmax.tiles))], 1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    again = softmax.mean([softmax[i] @ weights for i, weights in enumerate(x.split(width))])
    torch.testing.assert_close(again, expected @ x, rtol=0, atol=1e-12)
    softmax.forget()
    again = softmax.again(elsewhere)
    for i, part in enumerate(bits):
        assert not again.has(i)
        again.normalise(i, part)
        torch.testing.assert_close(again[i], expected.split(width, 1)[i], rtol=1e-11, atol=1e-14)


def test_the_softmax_of_nothing_is_no_number():
    softmax = Softmax([torch.empty(1, 2), torch.empty(1, 2)])
    for i in range(2):
        softmax.normalise(i, torch.full((1, 2), -math.inf))
    assert torch.stack([softmax[0], softmax[1]]).isnan().all()  # as torch's
