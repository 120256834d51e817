"""Copies of modules."""

from __future__ import annotations

import torch
from torch import nn

from farzi_hf.common.modules import copy_of


class Remembering(nn.Linear):
    """A layer that keeps its last output, as recurrent ones keep their states."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def test_what_a_module_has_kept_of_a_batch_is_copied_without_its_graph():
    module = nn.Sequential(Remembering(3, 2), Remembering(2, 1))
    output = module(torch.ones(4, 3))
    copied = copy_of(module)
    for ours, theirs in zip(module, copied, strict=True):
        assert torch.equal(ours.last, theirs.last)
        assert ours.last.grad_fn is not None
        assert theirs.last.grad_fn is None
        assert theirs.weight is not ours.weight
    copied(torch.zeros(4, 3))
    assert module[1].last is output
