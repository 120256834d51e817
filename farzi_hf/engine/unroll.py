"""Differentiate through training: `unroll` makes the result of an inner loop differentiable in its
data and its start.

Build any outer loss on `theta_T = unroll(inner_loss, params, inputs, optimizer=…, steps=T)` and
call `.backward()`. An object, the *adjoint*, recovers the trajectory then: `GradientGraphs`,
`Direct`, `Tape`, `Checkpoint` or `Reversible`. All give the same exact gradient, and differ in time
and memory.
"""

from __future__ import annotations

import logging
import math
from functools import cache
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from farzi_hf.engine.adjoints import ADJOINTS, Adjoint
from farzi_hf.engine.adjoints.base import Buffers, OuterLosses, graph_bytes
from farzi_hf.engine.compiled_loop import CapturedLoop, CompiledLoop
from farzi_hf.engine.devices import portions
from farzi_hf.engine.inner_loop import (
    InnerLoop,
    InnerLoss,
    Layout,
    TrainingState,
    autocast_settings,
    no_autocast,
    weights,
)
from farzi_hf.engine.optimizers import InnerOptimizer

_log_once = cache(logging.getLogger(__name__).log)


def unroll(
    inner_loss: InnerLoss,
    params: dict[str, Tensor] | TrainingState,
    inputs: tuple[Tensor, ...],
    *,
    optimizer: InnerOptimizer,
    steps: int,
    adjoint: Adjoint | None = None,
    window: int | None = None,
    first_step: int = 1,
    torch_compile: bool | str = False,
) -> dict[str, Tensor]:
    """Train `params` on `inner_loss` for `steps` steps; the result is differentiable in `params`
    and `inputs`.

    Integer and frozen tensors do not train: they reach `inner_loss` unchanged and are returned as
    the same objects. A tensor is frozen if it is an `nn.Parameter` with `requires_grad=False`. If
    any tensor of `params` has `requires_grad=True`, every tensor without it is frozen too. So one
    can pass `dict(model.named_parameters())`, the same with buffers added, or a dict of detached
    clones, which all train. If the loss does not depend on a trained tensor, the tensor's gradient
    is zero: `torch.optim` would skip it, here weight decay still shrinks it.

    Args:
        inner_loss: `inner_loss(params, inputs, step)` returns a scalar, or an iterator of scalars
            whose sum is the loss: the micro-batches of a step, of which one graph is in memory at a
            time (`GradientGraphs` and `Direct` keep all). It must be a pure function, because the
            backward pass evaluates it again (under the autocast settings of the forward pass):
            choose minibatches and dropout by `step`. It must have second derivatives: no flash
            attention, no cuDNN RNN. Only `params` and `inputs` get gradients. Pass a tensor that
            needs one in `inputs`: if the function captures it, it gets one under `Direct` alone.
        params: the start θ_0, by name; or a training that goes on, as `train` has returned it. It
            takes `steps` more steps then.
        inputs: tensors for `inner_loss`, with the meta-variables among them.
        optimizer: `InnerAdam`, `InnerSGD` or another `InnerOptimizer`; its accumulators start at
            zero, or as the training left them.
        steps: T, the number of inner steps to take.
        adjoint: how to differentiate; None takes the fastest one that fits into memory, see
            `choose_adjoint`.
        window: differentiate only the last `window` steps (truncated backpropagation, biased); None
            means all of them. If smaller than `steps`, the gradient in `params` is zero.
        first_step: number of the first step of the whole training: `inner_loss` and the optimizer's
            `lr_schedule` see first_step, first_step + 1, …. Adam's bias corrections count from 1 in
            any case, as its moments start at zero.
        torch_compile: compile the gradient and the reverse step (`farzi_hf.engine.compiled_loop`).
            It needs torch 2.8 or newer. The first call takes a minute or two longer, then steps are
            faster. `inner_loss` must be traceable as a whole, which `torch.nn.GRU`, `LSTM` and
            `RNN` are not. `Direct` and `GradientGraphs` cannot be compiled. A string is a mode of
            `torch.compile`, as "reduce-overhead" for CUDA graphs (never run on a real GPU); where
            it fails, a warning says so. `step` is a tensor then: `x.index_select(0, step.view(1) -
            1)`.

    Returns:
        θ_T, with the keys, order and shapes of `params`. Trained tensors are views of one buffer
        per dtype and device.

    Raises:
        TypeError, ValueError: an argument is unusable; the message names it, the value and the
            remedy.
        RuntimeError: a backward pass with `create_graph=True` through another adjoint than
            `Direct`; torch's own, for a loss that it cannot compile.
    """
    if adjoint is not None and not isinstance(adjoint, Adjoint):
        raise TypeError(
            f"adjoint must be an Adjoint or None, got {adjoint!r:.80}; pass for example Tape()"
        )
    with torch.inference_mode(
        False
    ):  # training needs gradients even if the caller has turned them off
        loop, w = _loop(
            inner_loss, params, inputs, optimizer, steps, window, first_step, torch_compile
        )
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (*w, *inputs))
    with torch.inference_mode(False), no_autocast(loop.autocast):
        w = (
            _usable(adjoint, loop, w, inputs).run(loop, w, inputs)
            if differentiable
            else weights(loop.trained(w, inputs))
        )
    return loop.layout.unflatten(w)


def gradients(
    losses: OuterLosses,
    inner_loss: InnerLoss,
    params: dict[str, Tensor],
    inputs: tuple[Tensor, ...],
    *,
    optimizer: InnerOptimizer,
    steps: int,
    adjoint: Adjoint | None = None,
    torch_compile: bool | str = False,
) -> tuple[list[Tensor], list[Buffers]]:
    """Several outer losses of one training, and the derivatives of each in the inputs that require
    grad.

    The training is taken once forward and once back for all of them. For each, a step back costs a
    vector-Jacobian product through the step's graph (2 G), and a cotangent as large as the
    optimizer's state is in memory.

    Args:
        losses: `losses(theta_T)` gives scalars, one after the other, or a vector.
        adjoint: None takes the fastest that needs at most `LEAN` times the memory of the leanest.
            The other arguments are those of `unroll`.

    Returns:
        The losses, and for each a tuple of derivatives in those `inputs` that require grad.
    """
    with torch.inference_mode(False), torch.enable_grad():
        loop, w = _loop(inner_loss, params, inputs, optimizer, steps, None, 1, torch_compile)
        with no_autocast(loop.autocast):
            return _usable(adjoint, loop, w, inputs, LEAN).gradients(loop, w, inputs, losses)


def train(
    inner_loss: InnerLoss,
    params: dict[str, Tensor] | TrainingState,
    inputs: tuple[Tensor, ...],
    *,
    optimizer: InnerOptimizer,
    steps: int,
    first_step: int = 1,
    torch_compile: bool | str = False,
) -> TrainingState:
    """The same training as `unroll`, without derivatives. It can go on: `unroll` and `train` take
    the result in place of `params`.

    A training in several calls equals one in a single call, bit for bit. Give each call the same
    `inner_loss`, `optimizer` and `first_step`; steps are counted on.
    """
    with torch.inference_mode(False):
        loop, w = _loop(
            inner_loss, params, inputs, optimizer, steps, None, first_step, torch_compile
        )
        with no_autocast(loop.autocast):
            return TrainingState(loop.layout, loop.trained(w, inputs), loop.steps)


LEAN = 4.0
"""How many times the memory of the leanest adjoint a faster one may need where many losses are
differentiated.
"""


def choose_adjoint(loop: InnerLoop, w: Buffers, inputs: Buffers, most: float = math.inf) -> Adjoint:
    """The fastest adjoint that supports the loop and needs no more than its `share` of the device's
    memory, and `most` times the leanest's.

    The memory of each is estimated from the graph of one gradient, which is taken for this. The
    choice and its reason are logged (level INFO). If no adjoint fits, the one with the least memory
    is taken, with a warning.
    """
    if w[0].is_cuda:
        total = torch.cuda.mem_get_info(w[0].device)[1]
    else:
        import psutil  # all else here needs torch alone

        total = psutil.virtual_memory().total
    graph = graph_bytes(loop, w, inputs)
    candidates = [
        adjoint
        for kind in ADJOINTS.values()
        if kind.share and not (adjoint := kind()).refusal(loop)
    ]
    needs = {adjoint: adjoint.memory(loop, w, inputs, graph) for adjoint in candidates}
    shares = {
        adjoint: portions(w[0]).graphs if adjoint.needs_graphs else adjoint.share
        for adjoint in needs
    }
    limits = {
        adjoint: min(shares[adjoint] * total, most * min(needs.values())) for adjoint in needs
    }
    fitting = [adjoint for adjoint, need in needs.items() if need <= limits[adjoint]]
    chosen = fitting[0] if fitting else min(needs, key=needs.__getitem__)
    listed = ", ".join(
        f"{type(a).__name__} {need / 2**30:.2g} of {limits[a] / 2**30:.2g} GiB"
        for a, need in needs.items()
    )
    reason = "the fastest that fits" if fitting else "the smallest, none fits"
    _log_once(
        logging.INFO if fitting else logging.WARNING,
        f"adjoint={chosen!r}: {reason} (estimates: {listed})",
    )
    return chosen


def _usable(
    adjoint: Adjoint | None, loop: InnerLoop, w: Buffers, inputs: Buffers, most: float = math.inf
) -> Adjoint:
    """The adjoint that was given, or the best one; a ValueError if none, or not this one, can
    differentiate the loop.
    """
    if not loop.optimizer.elementwise:
        name = type(loop.optimizer).__name__
        raise ValueError(
            f"optimizer={name} trains, but has no derivative here; give InnerAdam(lr=…), or"
            " torch.no_grad()"
        )
    adjoint = adjoint or choose_adjoint(loop, w, inputs, most)
    if refusal := adjoint.refusal(loop):
        raise ValueError(refusal)
    return adjoint


def _loop(
    inner_loss: InnerLoss,
    start: dict[str, Tensor] | TrainingState,
    inputs: tuple[Tensor, ...],
    optimizer: InnerOptimizer,
    steps: int,
    window: int | None,
    first_step: int,
    torch_compile: bool | str,
) -> tuple[InnerLoop, Buffers]:
    """The loop, and the parameters at its start."""
    _check(start, inputs, optimizer, steps, window)
    if isinstance(torch_compile, str) and torch_compile not in (
        known := torch._inductor.list_mode_options()
    ):
        raise ValueError(
            f"torch_compile={torch_compile!r} is unknown; give True or one of {', '.join(known)}"
        )
    kind = (
        CapturedLoop
        if isinstance(torch_compile, str)
        else CompiledLoop
        if torch_compile
        else InnerLoop
    )
    if isinstance(start, TrainingState):
        layout, w, taken, reached = start.layout, weights(start.states), start.step, start.states
    else:
        layout, taken, reached = Layout.of(start, optimizer), 0, None
        w = layout.flatten(start)
    matmul = torch.backends.cuda.matmul  # with another name from torch 2.9 on
    if w[0].is_cuda and (getattr(matmul, "fp32_precision", None) or matmul.allow_tf32) in (
        "tf32",
        True,
    ):
        _log_once(
            logging.WARNING,
            "TF32 rounds factors to 10 bits; torch.backends.cuda.matmul.allow_tf32 = False ends"
            " that",
        )
    settings = autocast_settings((*w, *inputs))
    which = first_step, settings, taken, reached, torch_compile
    return kind(inner_loss, optimizer, layout, taken + steps, window or steps, *which), w


def _check(params: Any, inputs: Any, optimizer: Any, steps: Any, window: Any) -> None:
    if not isinstance(optimizer, InnerOptimizer):
        raise TypeError(
            f"optimizer must be an InnerOptimizer, got {optimizer!r:.80}; pass InnerAdam(lr=0.01)"
        )
    if isinstance(params, TrainingState):
        of, groups = optimizer.by_parameter(params.layout.sizes), params.layout.groups
        mixed = any(of[name] is not of[names[0]] for names in groups for name in names)
        if mixed or any(
            len(state) != of[names[0]].fields
            for names, state in zip(groups, params.states, strict=True)
        ):
            raise ValueError(
                f"params is a training with another optimizer than {optimizer!r}; go on with the"
                " same one"
            )
    elif (
        not isinstance(params, dict)
        or not params
        or not all(isinstance(x, Tensor) for x in params.values())
    ):
        raise TypeError(
            f"params must be a dict of tensors, got {params!r:.80}; pass"
            " dict(module.named_parameters())"
        )
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(
            f"inputs must be a tuple of tensors, got {inputs!r:.80}; for one tensor pass (x,)"
        )
    if not isinstance(steps, Integral) or steps < 1:
        raise ValueError(
            f"steps must be an integer >= 1, got {steps!r}; without steps, use params as they are"
        )
    if window is not None and not (isinstance(window, Integral) and 1 <= window <= steps):
        raise ValueError(
            f"window must be None or an integer from 1 to steps={steps}, got {window!r}; None"
            " means all"
        )
