"""What positions say, where not all V probabilities of them exist at the same time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from tiny_artefacts import tiny
from torch import nn

from farzi_hf.summary import FarziData, FarziDataConfig, reading
from farzi_hf.summary.reading import check_numbers


@given(
    block=st.integers(1, 60),
    count=st.integers(1, 4),
    entries=st.integers(2, 30),
    k=st.integers(1, 30),
    size=st.sampled_from([1e-3, 1.0, 50.0, 1e9, 1e18]),
    seed=st.integers(0, 100),
)
def test_blocks_of_entries_say_what_all_say(block, count, entries, k, size, seed):
    draws = torch.Generator().manual_seed(seed)
    latents = torch.randn(count, 3, generator=draws) * size
    decoder = torch.randn(3, entries, generator=draws) * size
    k = min(k, entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BLOCK", block)
        ids, probabilities, entropy = reading._summed_up(latents, decoder, k)
    log_p = torch.log_softmax((latents @ decoder).double(), dim=-1)
    torch.testing.assert_close(
        probabilities.double(), log_p.exp().topk(k).values, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        log_p.exp().gather(1, ids), log_p.exp().topk(k).values, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        entropy.double(), torch.special.entr(log_p.exp()).sum(1), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("own", [False, True])
def test_positions_over_many_entries_are_read_a_block_at_a_time(own):
    entries = 10**6
    sizes = {"inputs": "tokens", "labels": "own", "label_dim": 1} if own else {}
    config = FarziDataConfig(2, 8, 1, entries, **sizes)
    farzi = FarziData(config)
    with LiveBytes() as live:
        decoded = farzi.decode(3)
    assert len(decoded) == 2
    assert live.elements <= entries + reading._BLOCK  # 16 positions have 16 million probabilities


def test_lengths_of_many_vectors_are_measured_a_block_at_a_time(monkeypatch):
    farzi = tiny(vocab_size=1000)
    monkeypatch.setattr(reading, "_BLOCK", 100)
    with LiveBytes() as live:
        check_numbers(farzi.forms, farzi.tensors, "mend it")
    assert live.peak < 8 * 1000
    nn.init.constant_(farzi.latents, 1e30)
    nn.init.constant_(farzi.decoder, 1e30)
    with pytest.raises(ValueError, match="overflow the softmax"):
        check_numbers(farzi.forms, farzi.tensors, "mend it")
