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
from collections.abc import Iterable
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from farzi_hf.engine.adjoints import ADJOINTS, Adjoint
from farzi_hf.engine.adjoints.base import Gradients, OuterLosses, graph_bytes
from farzi_hf.engine.autocast import autocast_settings, no_autocast
from farzi_hf.engine.buffers import Buffers, Layout, TrainingState, weights
from farzi_hf.engine.compiled_loop import CapturedLoop, CompiledLoop
from farzi_hf.engine.devices import portions
from farzi_hf.engine.inner_loop import InnerLoop, InnerLoss
from farzi_hf.engine.optimizers import InnerOptimizer

LEAN = 4.0
"""How many times the memory of the leanest adjoint a faster one may need where many losses are
differentiated.
"""

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
            choose minibatches and dropout by `step`, and call `module.eval()` if a module has
            dropout or batch normalisation. It must have second derivatives: no cuDNN RNN, no flash
            attention (`attn_implementation="eager"` in transformers). Only `params` and `inputs`
            get gradients. Pass a tensor that needs one in `inputs`: if the function captures it, it
            gets one under `Direct` alone.
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
            `torch.compile`, as "reduce-overhead" for CUDA graphs; where it fails, a warning says
            so. `step` is a tensor then: `x.index_select(0, step.view(1) -
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
    _check_adjoint(adjoint)
    # Training needs gradients even if the caller has turned them off.
    with torch.inference_mode(False):
        loop, w = _loop(
            inner_loss, params, inputs, optimizer, steps, window, first_step, torch_compile
        )
    is_differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (*w, *inputs))
    with torch.inference_mode(False), no_autocast(loop.autocast):
        if is_differentiable:
            adjoint = _usable(adjoint, loop, w, inputs)
            last = adjoint.run(loop, w, inputs)
        else:
            last = weights(loop.trained(w, inputs))
    return loop.layout.unflatten(last)


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
) -> Gradients:
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
    _check_adjoint(adjoint)
    with torch.inference_mode(False), torch.enable_grad():
        loop, w = _loop(inner_loss, params, inputs, optimizer, steps, None, 1, torch_compile)
        with no_autocast(loop.autocast):
            adjoint = _usable(adjoint, loop, w, inputs, times_leanest=LEAN)
            return adjoint.gradients(loop, w, inputs, losses)


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


# -- the adjoint -----------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """An adjoint that can differentiate a loop."""

    adjoint: Adjoint
    """With its default settings."""
    need: float
    """Bytes that it needs, by an estimate."""
    limit: float
    """Bytes that it may need to be chosen."""

    @property
    def fits(self) -> bool:
        """Whether it needs no more than it may."""
        return self.need <= self.limit

    def __str__(self) -> str:
        name = type(self.adjoint).__name__
        return f"{name} needs {_size(self.need)} of {_size(self.limit)}"


def _size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def choose_adjoint(
    loop: InnerLoop, w: Buffers, inputs: Buffers, times_leanest: float = math.inf
) -> Adjoint:
    """The fastest adjoint that supports the loop and needs no more than its `share` of the device's
    memory, and `times_leanest` times what the leanest needs.

    The memory of each is estimated from the graph of one gradient, which is taken for this. The
    choice and its reason are logged (level INFO). If no adjoint fits, the one with the least memory
    is taken, with a warning.
    """
    candidates = _candidates(loop, w, inputs, times_leanest)
    fitting = [candidate for candidate in candidates if candidate.fits]
    if fitting:
        chosen = fitting[0]  # `ADJOINTS` has the fastest first
        level = logging.INFO
        reason = "the fastest that fits into memory"
    else:
        chosen = min(candidates, key=lambda candidate: candidate.need)
        level = logging.WARNING
        reason = "the smallest, because none fits into memory"
    estimates = ", ".join(map(str, candidates))
    _log_once(level, f"adjoint={chosen.adjoint!r}: {reason} (estimates: {estimates})")
    return chosen.adjoint


def _candidates(
    loop: InnerLoop, w: Buffers, inputs: Buffers, times_leanest: float
) -> list[Candidate]:
    """The adjoints that can be chosen for a loop, in the order of `ADJOINTS`. One with a share of 0
    is never chosen.
    """
    graph = graph_bytes(loop, w, inputs)
    every_adjoint = [kind() for kind in ADJOINTS.values() if kind.share > 0]
    adjoints = [adjoint for adjoint in every_adjoint if adjoint.refusal(loop) is None]
    needs = [adjoint.memory(loop, w, inputs, graph) for adjoint in adjoints]
    most = times_leanest * min(needs)
    memory = _memory(w[0])
    share_of_graphs = portions(w[0]).graphs
    candidates = []
    for adjoint, need in zip(adjoints, needs, strict=True):
        share = share_of_graphs if adjoint.needs_graphs else adjoint.share
        candidates.append(Candidate(adjoint, need, limit=min(share * memory, most)))
    return candidates


def _memory(x: Tensor) -> int:
    """Bytes of all memory of a tensor's device."""
    if x.is_cuda:
        _, total = torch.cuda.mem_get_info(x.device)
        return total
    import psutil  # all else here needs torch alone

    return psutil.virtual_memory().total


def _check_adjoint(adjoint: Any) -> None:
    """Raises TypeError unless it is an adjoint, or None."""
    if adjoint is not None and not isinstance(adjoint, Adjoint):
        raise TypeError(
            f"adjoint must be an Adjoint or None, got {adjoint!r:.80}; pass for example Tape()"
        )


def _usable(
    adjoint: Adjoint | None,
    loop: InnerLoop,
    w: Buffers,
    inputs: Buffers,
    times_leanest: float = math.inf,
) -> Adjoint:
    """The adjoint that was given, or the one that is chosen where none is.

    Args:
        times_leanest: limits the choice, see `choose_adjoint`.

    Raises:
        ValueError: the adjoint, or every one, cannot differentiate the loop.
    """
    if not loop.optimizer.elementwise:
        name = type(loop.optimizer).__name__
        raise ValueError(
            f"optimizer={name} trains, but has no derivative here; give InnerAdam(lr=…), or"
            " torch.no_grad()"
        )
    if adjoint is None:
        adjoint = choose_adjoint(loop, w, inputs, times_leanest)
    refusal = adjoint.refusal(loop)
    if refusal is not None:
        raise ValueError(refusal)
    return adjoint


# -- the loop --------------------------------------------------------------------------------------


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
    _check(inner_loss, start, inputs, optimizer, steps, window)
    loop_class = _loop_class(torch_compile)
    if isinstance(start, TrainingState):
        layout = start.layout
        w = weights(start.states)
        taken = start.step
        reached = start.states
    else:
        layout = Layout.of(start, optimizer)
        w = layout.flatten(start)
        taken = 0
        reached = None
    _warn_of_tf32(w[0])
    loop = loop_class(
        inner_loss=inner_loss,
        optimizer=optimizer,
        layout=layout,
        steps=taken + steps,
        window=steps if window is None else window,
        first_step=first_step,
        autocast=autocast_settings((*w, *inputs)),
        taken=taken,
        reached=reached,
        torch_compile=torch_compile,
    )
    return loop, w


def _loop_class(torch_compile: bool | str) -> type[InnerLoop]:
    """The class of the loop. Raises ValueError for a mode that the compiler does not have."""
    if not isinstance(torch_compile, str):
        return CompiledLoop if torch_compile else InnerLoop
    modes = torch._inductor.list_mode_options()
    if torch_compile not in modes:
        raise ValueError(
            f"torch_compile={torch_compile!r} is unknown; give True or one of {', '.join(modes)}"
        )
    return CapturedLoop


def _warn_of_tf32(x: Tensor) -> None:
    """Warns, once, if torch rounds the factors of matrix products on the tensor's device."""
    if not x.is_cuda:
        return
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # from torch 2.9 on
    rounds = precision == "tf32" if precision else matmul.allow_tf32
    if rounds:
        _log_once(
            logging.WARNING,
            "TF32 rounds factors to 10 bits; torch.backends.cuda.matmul.allow_tf32 = False ends"
            " that",
        )


def _shown(value: Any) -> str:
    """A value as an error shows it: its type, where it prints several lines, as a module does."""
    printed = repr(value)
    return type(value).__name__ if "\n" in printed else printed[:80]


def _check(
    inner_loss: Any, params: Any, inputs: Any, optimizer: Any, steps: Any, window: Any
) -> None:
    """Raises an error unless the arguments of `unroll` are usable together."""
    if not callable(inner_loss):
        raise TypeError(
            f"inner_loss must be a function, got {_shown(inner_loss)}; pass"
            " inner_loss(params, inputs, step), which returns a scalar"
        )
    if not isinstance(optimizer, InnerOptimizer):
        raise TypeError(
            f"optimizer must be an InnerOptimizer, got {_shown(optimizer)}; pass InnerAdam(lr=0.01)"
        )
    if isinstance(params, TrainingState):
        if not _continues(params, optimizer):
            raise ValueError(
                f"params is a training with another optimizer than {optimizer!r}; go on with the"
                " same one"
            )
    elif not (isinstance(params, dict) and params and _are_tensors(params.values())):
        raise TypeError(
            f"params must be a dict of tensors, got {_shown(params)}; pass"
            " dict(module.named_parameters())"
        )
    if not (isinstance(inputs, tuple) and _are_tensors(inputs)):
        raise TypeError(
            f"inputs must be a tuple of tensors, got {inputs!r:.80}; for one tensor pass (x,)"
        )
    if not (isinstance(steps, Integral) and steps >= 1):
        raise ValueError(
            f"steps must be an integer >= 1, got {steps!r}; without steps, use params as they are"
        )
    if window is not None and not (isinstance(window, Integral) and 1 <= window <= steps):
        raise ValueError(
            f"window must be None or an integer from 1 to steps={steps}, got {window!r}; None"
            " means all"
        )


def _are_tensors(values: Iterable[Any]) -> bool:
    """Whether all of these are tensors."""
    return all(isinstance(x, Tensor) for x in values)


def _continues(training: TrainingState, optimizer: InnerOptimizer) -> bool:
    """Whether the optimizer may be that of the training: each group has one optimizer, with as many
    accumulators as its state has.
    """
    optimizers = optimizer.by_parameter(training.layout.sizes)
    for names, state in zip(training.layout.groups, training.states, strict=True):
        of_group = optimizers[names[0]]
        is_mixed = any(optimizers[name] is not of_group for name in names)
        if is_mixed or len(state) != of_group.fields:
            return False
    return True
