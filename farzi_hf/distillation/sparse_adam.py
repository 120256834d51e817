"""Adam on the rows that a step has seen: the outer optimizer of a summary with many sequences.

An outer step sees at most T·b_syn of μ sequences. The gradient of the others is zero, and Adam would still move them, by momentum of older
steps, and let their moments decay. Here they stay as they are.

Why not `torch.optim.SparseAdam`: it scales ε in another way than `torch.optim.AdamW`, so that the two differ even where all rows are seen. It has no
weight decay. It corrects the bias of all moments by one count of steps, so that the first update of a row that is seen late is too large,
(1 − β1) / √(1 − β2) times the rate, 3.2 for Trainer's betas. And it takes sparse gradients, which neither clipping nor NCCL can work with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from transformers.training_args import OptimizerNames


class SparseAdamW(torch.optim.AdamW):
    """AdamW for each row of a parameter by itself, where a row is an entry of the first axis: a sequence of the latents.

    A row whose gradient is zero in all numbers was not seen: its weights and moments do not change, and weights do not decay. Each row has
    its own count of updates, by which its moments are corrected. So a row is at every time where AdamW would have brought it with the gradients of
    that row alone. Where all rows are seen in every step, this is `torch.optim.AdamW`, bit for bit.

    Gradients are dense tensors, as clipping and several processes need them.
    """

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises ValueError if a `FarziConfig` with sparse updates asks for another optimizer than AdamW."""
        if config.sparse_updates and config.optim != OptimizerNames.ADAMW_TORCH:
            raise ValueError(
                f"sparse_updates=True with optim={config.optim.value!r}: only AdamW can update the seen rows alone; set optim='adamw_torch', "
                "or leave sparse_updates out"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As in `torch.optim.Optimizer`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group)
        return loss

    def _step_parameter(self, parameter: Tensor, group: dict) -> None:
        grad, state = parameter.grad, self.state[parameter]
        if not state:
            state["step"] = torch.zeros(len(parameter))  # on the CPU, where torch's AdamW has it too
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        seen = grad.flatten(1).any(dim=1).nonzero()[:, 0].cpu()
        counts, of_row = state["step"][seen].unique(return_inverse=True)
        for i, count in enumerate(counts):  # rows with equal counts, usually a handful of groups
            rows = seen[of_row == i].to(parameter.device)
            tensors = parameter, grad, state["exp_avg"], state["exp_avg_sq"]
            part = [x[rows] for x in tensors]
            adamw(
                *([x] for x in part), [], [count.clone()], foreach=group["foreach"], amsgrad=False, beta1=group["betas"][0],
                beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
            )  # fmt: skip
            for x, new in zip(tensors, part, strict=True):
                if x is not grad:
                    x[rows] = new
        state["step"][seen] += 1
