"""The inner loop: one step of training, forward or in reverse.

The trained parameters are in one flat buffer per dtype and device (`Layout`), and the network gets
views of it, so the optimizer's cost does not depend on the number of tensors. Adjoints
(`farzi_hf.engine.adjoints`) decide which steps to run and when. The steps are here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from farzi_hf.engine.devices import chunks, portions
from farzi_hf.engine.optimizers import InnerOptimizer, State

Buffers = tuple[Tensor, ...]
"""One flat tensor per group of parameters. A group is all parameters of one dtype, device and
optimizer.
"""
InnerLoss = Callable[[dict[str, Tensor], tuple[Tensor, ...], int], Tensor | Iterable[Tensor]]
"""A scalar; or scalars, one after the other, whose sum is meant: of micro-batches, of which one
graph is in memory at a time.
"""
States = tuple[State, ...]
"""One optimizer state per group."""
Accumulators = Callable[[int, slice], State]
"""`after(group, rows)`: the accumulators of a group after a step, for some of its elements."""
Pulled = tuple[States, Buffers]
"""Of one outer loss: its derivatives in the states (the cotangents), and so far in each input that
requires grad.
"""
AutocastSettings = dict[str, tuple[torch.dtype, bool]]
"""For each kind of device: the autocast dtype, and whether autocast is on."""


@dataclass(frozen=True)
class Layout:
    """The place of each trained tensor in the flat buffers, and the tensors that do not train
    (`constants`).
    """

    names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[torch.Size, ...], ...]
    constants: dict[str, Tensor]

    @classmethod
    def of(cls, params: dict[str, Tensor], optimizer: InnerOptimizer) -> Layout:
        """Sort `params` into groups and constants; the docstring of `unroll` has the rule."""
        plain_tensors_train = not any(x.requires_grad for x in params.values())
        groups: dict[tuple[torch.dtype, torch.device, int], list[str]] = {}
        optimizers = optimizer.by_parameter({name: x.shape for name, x in params.items()})
        constants: dict[str, Tensor] = {}
        for name, x in params.items():
            trains = x.requires_grad or (plain_tensors_train and not isinstance(x, nn.Parameter))
            if trains and (x.dtype == torch.float16 or x.is_complex()):
                raise ValueError(
                    f"params[{name!r}] is {x.dtype}, in which squares of gradients vanish or are"
                    " not real; train float32 parameters, under autocast if the network should be"
                    " fast"
                )
            if trains and x.is_floating_point():
                groups.setdefault((x.dtype, x.device, id(optimizers[name])), []).append(name)
            else:
                constants[name] = x
        if not groups:
            raise ValueError(
                f"params has no tensor to train, got {len(params)} frozen or integer ones"
                f" ({next(iter(params))}, …); set requires_grad=True on those that should train"
            )
        shapes = tuple(tuple(params[name].shape for name in names) for names in groups.values())
        return cls(tuple(params), tuple(map(tuple, groups.values())), shapes, constants)

    @property
    def sizes(self) -> dict[str, torch.Size]:
        """The shapes of all tensors by name."""
        trained = itertools.chain.from_iterable(map(zip, self.groups, self.shapes))
        return {**{name: x.shape for name, x in self.constants.items()}, **dict(trained)}

    def flatten(self, params: dict[str, Tensor]) -> Buffers:
        """Copy the trained tensors into new flat buffers."""
        return tuple(
            torch.cat([params[name].reshape(-1) for name in names]) for names in self.groups
        )

    def unflatten(self, w: Buffers) -> dict[str, Tensor]:
        """All tensors by name, in their order; the trained ones are views of the buffers. They are
        split at once: its backward is one concatenation.
        """
        params = dict(self.constants)
        for flat, names, shapes in zip(w, self.groups, self.shapes, strict=True):
            parts = flat.split([shape.numel() for shape in shapes])
            params.update(
                (name, part.view(shape))
                for name, part, shape in zip(names, parts, shapes, strict=True)
            )
        return {name: params[name] for name in self.names}


@dataclass(frozen=True)
class TrainingState:
    """A training that has stopped and can go on: `unroll` and `train` take it in place of `params`.

    Attributes:
        layout: the place of each parameter in the buffers.
        states: the optimizer's states, in flat buffers. Never change them.
        step: the number of steps taken.
    """

    layout: Layout
    states: States
    step: int

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters by name. They share memory with `states`."""
        return self.layout.unflatten(weights(self.states))

    def to_tensors(self, name: str) -> dict[str, Tensor]:
        """Copies of the states, for a file in which this one is called `name`."""
        return {
            f"{name}.{group}.{i}": x.clone()
            for group, state in enumerate(self.states)
            for i, x in enumerate(state)
        }

    @classmethod
    def of_tensors(
        cls,
        name: str,
        tensors: Mapping[str, Tensor],
        start: dict[str, Tensor],
        optimizer: InnerOptimizer,
        step: int,
    ) -> TrainingState:
        """The inverse, for a training from `start`, whose constants and devices count. Raises
        KeyError if there is no such state.
        """
        layout, found = Layout.of(start, optimizer), []
        for group, names in enumerate(layout.groups):
            count = sum(each.startswith(f"{name}.{group}.") for each in tensors)
            found.append(
                tuple(
                    tensors[f"{name}.{group}.{i}"].to(start[names[0]].device)
                    for i in range(max(1, count))
                )
            )
        return cls(layout, tuple(found), step)


@dataclass(frozen=True)
class GradientGraph:
    """The gradient `g` of one step with its graph, which one backward pass can use; `w` and
    `inputs` are its leaves.
    """

    w: Buffers
    inputs: Buffers
    g: Buffers


@dataclass(frozen=True)
class InnerLoop:
    """What an adjoint works with: it can run every step of the inner loop forward, and every step
    in reverse.

    Steps are counted t = 1 … `steps` here. The first `taken` of them have been taken by an earlier
    training, which ended with the states `reached`. The last `window` of them are `differentiated`.
    If the loop `is_cut`, there are steps before the window, and no gradient comes to the start.
    """

    inner_loss: InnerLoss
    optimizer: InnerOptimizer
    layout: Layout
    steps: int
    window: int
    first_step: int
    autocast: AutocastSettings
    taken: int = 0
    reached: States | None = None
    torch_compile: bool | str = False

    makes_graphs: ClassVar[bool] = True

    @cached_property
    def optimizers(self) -> tuple[InnerOptimizer, ...]:
        """Of each group."""
        each = self.optimizer.by_parameter(self.layout.sizes)
        return tuple(each[names[0]] for names in self.layout.groups)

    @property
    def undifferentiated(self) -> range:
        return range(self.taken + 1, self.steps - self.window + 1)

    @property
    def differentiated(self) -> range:
        return range(self.steps - self.window + 1, self.steps + 1)

    @property
    def is_cut(self) -> bool:
        return self.window < self.steps

    def start(self, w: Buffers) -> States:
        """The states before the first step to take, in new buffers."""
        if self.reached is not None:
            return tuple(tuple(x.detach().clone() for x in state) for state in self.reached)
        return tuple(
            optimizer.init(flat.detach().clone())
            for optimizer, flat in zip(self.optimizers, w, strict=True)
        )

    def trained(self, w: Buffers, inputs: Buffers) -> States:
        """The states after the last step, without a graph."""
        inputs = tuple(x.detach() for x in inputs)
        return self.advance(self.start(w), inputs, range(self.taken + 1, self.steps + 1))

    def gradient(
        self, w: Buffers, inputs: Buffers, t: int, *, create_graph: bool = False
    ) -> Buffers:
        """g_t at `w`, which must require grad, before it is clipped."""
        with torch.enable_grad():
            return functools.reduce(_add, self._parts(w, inputs, t, create_graph))

    def _parts(self, w: Buffers, inputs: Buffers, t: int, create_graph: bool) -> Iterator[Buffers]:
        """The gradients of the parts of the loss."""
        step, losses = self.number(t), None
        for number in itertools.count():
            with torch.enable_grad(), autocast(self.autocast):
                if losses is None:
                    found = self.inner_loss(self.layout.unflatten(w), inputs, step)
                    losses = iter(
                        [found]
                        if isinstance(found, Tensor) or not isinstance(found, Iterable)
                        else found
                    )
                loss = next(losses, None)
            if loss is None and number:
                return
            _check_loss(loss, step)
            g = torch.autograd.grad(loss, w, create_graph=create_graph, materialize_grads=True)
            del loss
            yield g
            del g

    def graphs(self, w: Buffers, inputs: Buffers, t: int) -> Iterator[GradientGraph]:
        """The gradients of the parts of the loss at `w`, with their graphs, which share memory with
        `w` and `inputs`.
        """
        w, inputs = leaves(w), tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)
        return (GradientGraph(w, inputs, g) for g in self._parts(w, inputs, t, True))

    def detached_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        """g_t at `w`, clipped, without a graph."""
        return self.optimizer.clip(self.gradient(leaves(w), tuple(x.detach() for x in inputs), t))

    def gradient_graph(self, w: Buffers, inputs: Buffers, t: int) -> GradientGraph:
        """g_t at `w`, before it is clipped, with its graph. The graph shares memory with `w` and
        `inputs`.
        """
        w, inputs = leaves(w), tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)
        return GradientGraph(w, inputs, self.gradient(w, inputs, t, create_graph=True))

    def replayed_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        """g_t at `w`, clipped, bit for bit as `reverse` will compute it: with its graph, and so
        with the same kernels.
        """
        return self.optimizer.clip(
            functools.reduce(_add, map(_without_graph, self.graphs(w, inputs, t)))
        )

    def clipped(self, graph: GradientGraph) -> Buffers:
        """The gradient of a graph, clipped, without it."""
        return self.optimizer.clip(_without_graph(graph))

    def update(self, states: States, g: Buffers, t: int, out: States | None = None) -> States:
        """The states after step t, without a graph, in the buffers of `out` or in new ones."""
        lr, out = (
            self.rate(t),
            out or tuple(tuple(map(torch.empty_like, state)) for state in states),
        )
        for optimizer, state, flat, target in zip(self.optimizers, states, g, out, strict=True):
            for rows in chunks(flat, portions(flat).update if optimizer.elementwise else len(flat)):
                optimizer.step(_part(state, rows), flat[rows], t, lr, out=_part(target, rows))
        return out

    def advance(
        self, states: States, inputs: Buffers, ts: range, tape: list[Buffers] | None = None
    ) -> States:
        """Take the steps `ts` without a graph, in the buffers of `states`; append each g_t to
        `tape` if given.
        """
        with torch.no_grad():
            for t in ts:
                g = self.detached_gradient(weights(states), inputs, t)
                states = self.update(states, g, t, out=states)
                if tape is not None:
                    tape.append(g)
        return states

    def reverse(
        self,
        t: int,
        before: States,
        after: Accumulators | None,
        inputs: Buffers,
        pulled: Sequence[Pulled],
        graph: GradientGraph | None = None,
    ) -> Buffers:
        """Carry the cotangents of `pulled` back through step t, and add the step's part to the
        inputs' derivatives, all in place; returns g_t, clipped.

        Costs G for the gradient with its graph, and 2 G for each outer loss: a vector-Jacobian
        product through the graph. If the loss has parts, their graphs are made twice: the
        optimizer's pullback needs the whole gradient.

        Args:
            before: the states before the step. If `after` is given, their parameters are enough.
            after: gives the accumulators after the step; with None they are computed from those
                before it.
            inputs: detached. Those that require grad are differentiated.
            pulled: of each outer loss.
            graph: of the gradient, if it is at hand.
        """
        unclipped = None if graph is None else _without_graph(graph)
        if graph is None:
            for number, part in enumerate(self.graphs(weights(before), inputs, t)):
                graph = None if number else part
                unclipped = (
                    _without_graph(part)
                    if unclipped is None
                    else _add(unclipped, _without_graph(part))
                )
            part = None  # its memory is that of the next graph
        g = self.optimizer.clip(unclipped)
        pulled_back = (self._pullback(t, before, after, g, cotangents) for cotangents, _ in pulled)
        dgs = [self.optimizer.clip_pullback(unclipped, dg) for dg in pulled_back]
        # The parameters before the step are what `before` holds, whatever becomes of the
        # cotangents.
        for part in self.graphs(weights(before), inputs, t) if graph is None else [graph]:
            _add_products(part, dgs, pulled)
        return g

    def _pullback(
        self, t: int, before: States, after: Accumulators | None, g: Buffers, cotangents: States
    ) -> Buffers:
        """The optimizer's part of `reverse`, in place; returns dg."""
        lr, dg = self.rate(t), tuple(map(torch.empty_like, g))
        for group, (state, flat, cotangent, target) in enumerate(
            zip(before, g, cotangents, dg, strict=True)
        ):
            optimizer = self.optimizers[group]
            for rows in chunks(flat, portions(flat).update):
                part, g = _part(state, rows), flat[rows]
                accumulators = after(group, rows) if after else optimizer.step(part, g, t, lr)[1:]
                target[rows] = optimizer.pullback(
                    part[0], accumulators, g, _part(cotangent, rows), t, lr
                )
        return dg

    def rate(self, t: int) -> float:
        """The learning rate of step t."""
        return self.optimizer.rate(self.number(t))

    def number(self, t: int) -> int:
        """The global number of step t, as the loss and the schedule know it."""
        return self.first_step + t - 1


def _add_products(graph: GradientGraph, dgs: Sequence[Buffers], pulled: Sequence[Pulled]) -> None:
    """dw += H_ww·dg and dx += H_xw·dg, for each outer loss."""
    sources = (*graph.w, *(x for x in graph.inputs if x.requires_grad))
    for left, dg, (cotangents, dx) in zip(reversed(range(len(pulled))), dgs, pulled, strict=True):
        linked = [
            (flat, vector) for flat, vector in zip(graph.g, dg, strict=True) if flat.requires_grad
        ]
        if not linked:  # the loss is linear: there are no second derivatives
            return
        graphs, vectors = zip(*linked, strict=True)
        products = torch.autograd.grad(
            graphs, sources, vectors, allow_unused=True, retain_graph=left > 0
        )
        for total, product in zip((*weights(cotangents), *dx), products, strict=True):
            if product is not None:
                total.add_(product)


def _without_graph(graph: GradientGraph) -> Buffers:
    return tuple(flat.detach() for flat in graph.g)


def _add(g: Buffers, other: Buffers) -> Buffers:
    return tuple(a + b for a, b in zip(g, other, strict=True))


def summed(loss: Tensor | Iterable[Tensor]) -> Tensor:
    """A loss in one part."""
    return loss if isinstance(loss, Tensor) else sum(loss)


def _part(state: State, rows: slice) -> State:
    return tuple(x[rows] for x in state)


def weights(states: States) -> Buffers:
    """The parameters of the states."""
    return tuple(state[0] for state in states)


def leaves(w: Buffers) -> Buffers:
    """The parameters as leaves for autograd. They share memory with `w`."""
    return tuple(flat.detach().requires_grad_() for flat in w)


def autocast_settings(tensors: Buffers) -> AutocastSettings:
    """The caller's autocast settings for every kind of device that `tensors` are on."""
    devices = {x.device.type for x in tensors if torch.amp.is_autocast_available(x.device.type)}
    return {
        device: (torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        for device in sorted(devices)
    }


def autocast(settings: AutocastSettings) -> ExitStack:
    """Enter these settings, without autocast's cache of cast weights, which would stay in memory
    after the graph of a step.
    """
    stack = ExitStack()
    for device, (dtype, enabled) in settings.items():
        stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
    return stack


def no_autocast(settings: AutocastSettings) -> ExitStack:
    """Turn autocast off on the devices of `settings`: only the loss runs under it, not its
    derivatives or the optimizer.
    """
    return autocast({device: (dtype, False) for device, (dtype, _) in settings.items()})


def _check_loss(loss: Any, step: int) -> None:
    if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise ValueError(
            "inner_loss must return a scalar tensor that depends on the trained params, got"
            f" {str(loss)[:60]}{shape} at step {step}; reduce it with .mean() or .sum(), and"
            " compute it from the params it is given, without detach() or no_grad()"
        )
