"""The inner loop: one step of training, forward or in reverse.

The trained parameters and the optimizer's accumulators are in flat buffers
(`farzi_hf.engine.buffers`). Adjoints (`farzi_hf.engine.adjoints`) decide which steps to run and
when. The steps are here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from farzi_hf.engine.autocast import AutocastSettings, autocast
from farzi_hf.engine.buffers import Buffers, Layout, States, input_leaves, leaves, weights
from farzi_hf.engine.devices import chunks, portions
from farzi_hf.engine.optimizers import InnerOptimizer, State

InnerLoss = Callable[[dict[str, Tensor], tuple[Tensor, ...], int], Tensor | Iterable[Tensor]]
"""A scalar; or scalars, one after the other, whose sum is meant: of micro-batches, of which one
graph is in memory at a time.
"""
Accumulators = Callable[[int, slice], State]
"""`after(group, rows)`: the accumulators of a group after a step, for some of its elements."""


class GradientGraph(NamedTuple):
    """The gradient of one step with its graph, which one backward pass can use."""

    w: Buffers
    """The parameters before the step, leaves of the graph."""
    inputs: Buffers
    """All inputs. Those that require grad are leaves of the graph."""
    g: Buffers
    """The gradient, before it is clipped."""


class Derivatives(NamedTuple):
    """The derivatives of one outer loss, on the way back. Each step in reverse changes them, in
    place.
    """

    states: States
    """In the optimizer's states: dw and the cotangents of the accumulators, of each group."""
    inputs: Buffers
    """dx: in each input that requires grad, summed over the steps that were taken back so far."""


@dataclass(frozen=True)
class InnerLoop:
    """What an adjoint works with: it can run every step of the inner loop forward, and every step
    in reverse.

    Steps are counted t = 1 … `steps` here.
    """

    inner_loss: InnerLoss
    """The loss of a step, see `unroll`."""
    optimizer: InnerOptimizer
    """The optimizer of all parameters. Each group may have one of its own, see `optimizers`."""
    layout: Layout
    """The place of each parameter in the buffers."""
    steps: int
    """The number of the last step."""
    window: int
    """So many of the last steps are `differentiated`."""
    first_step: int
    """The global number of step t = 1, which the loss and the schedule know."""
    autocast: AutocastSettings
    """The caller's, under which the loss runs."""
    taken: int = 0
    """So many of the first steps have been taken by an earlier training."""
    reached: States | None = None
    """The states with which that training ended; None if no step was taken."""
    torch_compile: bool | str = False
    """Whether steps are compiled, and in which mode (`farzi_hf.engine.compiled_loop`)."""

    makes_graphs: ClassVar[bool] = True
    """Whether gradients come with autograd's graphs, which some adjoints keep."""

    @cached_property
    def optimizers(self) -> tuple[InnerOptimizer, ...]:
        """The optimizer of each group."""
        by_name = self.optimizer.by_parameter(self.layout.sizes)
        return tuple(by_name[names[0]] for names in self.layout.groups)

    @property
    def undifferentiated(self) -> range:
        """The steps before the window that have not been taken yet."""
        return range(self.taken + 1, self.steps - self.window + 1)

    @property
    def differentiated(self) -> range:
        """The steps of the window."""
        return range(self.steps - self.window + 1, self.steps + 1)

    @property
    def is_cut(self) -> bool:
        """Whether there are steps before the window. No gradient comes to the start then."""
        return self.window < self.steps

    def global_step(self, t: int) -> int:
        """The number of step t, as the loss and the schedule know it."""
        return self.first_step + t - 1

    def rate(self, t: int) -> float:
        """The learning rate of step t."""
        return self.optimizer.rate(self.global_step(t))

    # -- gradients ---------------------------------------------------------------------------------

    def gradient(
        self, w: Buffers, inputs: Buffers, t: int, *, create_graph: bool = False
    ) -> Buffers:
        """g_t at `w`, which must require grad, before it is clipped."""
        with torch.enable_grad():
            return _total(self._parts(w, inputs, t, create_graph))

    def detached_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        """g_t at `w`, clipped, without a graph."""
        detached = tuple(x.detach() for x in inputs)
        return self.optimizer.clip(self.gradient(leaves(w), detached, t))

    def gradient_graph(self, w: Buffers, inputs: Buffers, t: int) -> GradientGraph:
        """g_t at `w`, before it is clipped, with its graph. The graph shares memory with `w` and
        `inputs`.
        """
        w = leaves(w)
        inputs = input_leaves(inputs)
        return GradientGraph(w, inputs, self.gradient(w, inputs, t, create_graph=True))

    def graphs(self, w: Buffers, inputs: Buffers, t: int) -> Iterator[GradientGraph]:
        """The gradients of the parts of the loss at `w`, with their graphs, which share memory with
        `w` and `inputs`.
        """
        w = leaves(w)
        inputs = input_leaves(inputs)
        for g in self._parts(w, inputs, t, create_graph=True):
            yield GradientGraph(w, inputs, g)
            del g  # as in `_parts`

    def replayed_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        """g_t at `w`, clipped, bit for bit as `reverse` will compute it: with its graph, and so
        with the same kernels.
        """
        # The variable of a loop would keep a graph in memory while the next one is made. `map`
        # keeps none.
        parts = map(_without_graph, self.graphs(w, inputs, t))
        return self.optimizer.clip(_total(parts))

    def clipped(self, graph: GradientGraph) -> Buffers:
        """The gradient of a graph, clipped, without the graph."""
        return self.optimizer.clip(_without_graph(graph))

    def _parts(self, w: Buffers, inputs: Buffers, t: int, create_graph: bool) -> Iterator[Buffers]:
        """The gradients of the parts of the loss, at least one. Only the loss runs under
        autocast.
        """
        step = self.global_step(t)
        with torch.enable_grad(), autocast(self.autocast):
            losses = _each(self.inner_loss(self.layout.unflatten(w), inputs, step))
            loss = next(losses, None)  # None, a loss without parts, is refused
        while True:
            _check_loss(loss, step)
            g = torch.autograd.grad(loss, w, create_graph=create_graph, materialize_grads=True)
            # No graph is in memory beside that of the next part.
            del loss
            yield g
            del g
            with torch.enable_grad(), autocast(self.autocast):
                loss = next(losses, None)
            if loss is None:
                return

    # -- forward -----------------------------------------------------------------------------------

    def start(self, w: Buffers) -> States:
        """The states before the first step that is left to take, in new buffers."""
        if self.reached is not None:
            return tuple(tuple(x.detach().clone() for x in state) for state in self.reached)
        return tuple(
            optimizer.init(flat.detach().clone())
            for optimizer, flat in zip(self.optimizers, w, strict=True)
        )

    def update(self, states: States, g: Buffers, t: int, out: States | None = None) -> States:
        """The states after step t, without a graph, in the buffers of `out` or in new ones."""
        lr = self.rate(t)
        if out is None:
            out = tuple(tuple(map(torch.empty_like, state)) for state in states)
        for optimizer, state, flat, target in zip(self.optimizers, states, g, out, strict=True):
            size = portions(flat).update if optimizer.elementwise else len(flat)
            for rows in chunks(flat, size):
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

    def trained(self, w: Buffers, inputs: Buffers) -> States:
        """The states after the last step, without a graph."""
        inputs = tuple(x.detach() for x in inputs)
        return self.advance(self.start(w), inputs, range(self.taken + 1, self.steps + 1))

    # -- in reverse --------------------------------------------------------------------------------

    def reverse(
        self,
        t: int,
        before: States,
        after: Accumulators | None,
        inputs: Buffers,
        derivatives: Sequence[Derivatives],
        graph: GradientGraph | None = None,
    ) -> Buffers:
        """Carry the derivatives of outer losses back through step t, in place; returns g_t,
        clipped.

        Costs G for the gradient with its graph, and 2 G for each outer loss: a vector-Jacobian
        product through the graph. If the loss has parts, their graphs are made twice: the
        optimizer's pullback needs the whole gradient.

        Args:
            before: the states before the step. If `after` is given, their parameters are enough.
            after: gives the accumulators after the step; with None they are computed from those
                before it.
            inputs: detached. Those that require grad are differentiated.
            derivatives: of each outer loss.
            graph: of the gradient, if it is at hand.
        """
        w = weights(before)
        if graph is None:
            unclipped, graph = self._whole_gradient(w, inputs, t)
        else:
            unclipped = _without_graph(graph)
        g = self.optimizer.clip(unclipped)
        dgs = []
        for of_loss in derivatives:
            dg = self._pullback(t, before, after, g, of_loss.states)
            dgs.append(self.optimizer.clip_pullback(unclipped, dg))
        # The network is differentiated at the parameters before the step, which `before` still
        # holds: the pullback has changed the derivatives alone.
        graphs = self.graphs(w, inputs, t) if graph is None else [graph]
        for part in graphs:
            _add_products(part, dgs, derivatives)
        return g

    def _whole_gradient(
        self, w: Buffers, inputs: Buffers, t: int
    ) -> tuple[Buffers, GradientGraph | None]:
        """g_t before it is clipped, and its graph; None if the loss has several parts, whose graphs
        are not in memory together.
        """
        total = None
        only_graph = None
        for number, graph in enumerate(self.graphs(w, inputs, t)):
            part = _without_graph(graph)
            total = part if total is None else _sum(total, part)
            only_graph = graph if number == 0 else None
            del graph
        return total, only_graph

    def _pullback(
        self, t: int, before: States, after: Accumulators | None, g: Buffers, cotangents: States
    ) -> Buffers:
        """The optimizer's part of `reverse`, in place; returns dg."""
        lr = self.rate(t)
        dg = tuple(map(torch.empty_like, g))
        for group, optimizer in enumerate(self.optimizers):
            for rows in chunks(g[group], portions(g[group]).update):
                state = _part(before[group], rows)
                g_part = g[group][rows]
                if after is None:
                    accumulators = optimizer.step(state, g_part, t, lr)[1:]
                else:
                    accumulators = after(group, rows)
                cotangent = _part(cotangents[group], rows)
                dg[group][rows] = optimizer.pullback(
                    state[0], accumulators, g_part, cotangent, t, lr
                )
        return dg


def _add_products(
    graph: GradientGraph, dgs: Sequence[Buffers], derivatives: Sequence[Derivatives]
) -> None:
    """dw += H_ww·dg and dx += H_xw·dg, for each outer loss."""
    sources = (*graph.w, *(x for x in graph.inputs if x.requires_grad))
    g = [flat for flat in graph.g if flat.requires_grad]
    is_linear = not g  # in all parameters: there are no second derivatives
    if is_linear:
        return
    last = len(derivatives) - 1
    for number, (dg, of_loss) in enumerate(zip(dgs, derivatives, strict=True)):
        pairs = zip(graph.g, dg, strict=True)
        vectors = [vector for flat, vector in pairs if flat.requires_grad]
        try:
            products = torch.autograd.grad(
                g, sources, vectors, allow_unused=True, retain_graph=number < last
            )
        except RuntimeError as error:
            if "derivative for" not in str(error):
                raise
            raise RuntimeError(
                f"inner_loss has no second derivative ({error}); for a model of transformers give"
                ' attn_implementation="eager" where you load or make it'
            ) from error
        dw = weights(of_loss.states)
        for total, product in zip((*dw, *of_loss.inputs), products, strict=True):
            if product is not None:
                total.add_(product)


def _without_graph(graph: GradientGraph) -> Buffers:
    """The gradient of a graph, not clipped."""
    return tuple(flat.detach() for flat in graph.g)


def _sum(g: Buffers, other: Buffers) -> Buffers:
    """g + other, buffer by buffer."""
    return tuple(a + b for a, b in zip(g, other, strict=True))


def _total(parts: Iterable[Buffers]) -> Buffers:
    """The sum of the gradients of the parts of a loss."""
    return functools.reduce(_sum, parts)


def _part(state: State, rows: slice) -> State:
    """Some elements of each buffer of a state."""
    return tuple(x[rows] for x in state)


def _each(loss: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """The parts of a loss. A loss of a wrong type counts as one part, which `_check_loss`
    refuses.
    """
    has_parts = isinstance(loss, Iterable) and not isinstance(loss, Tensor)
    return iter(loss) if has_parts else iter([loss])


def summed(loss: Tensor | Iterable[Tensor]) -> Tensor:
    """A loss in one part."""
    return loss if isinstance(loss, Tensor) else sum(loss)


def _check_loss(loss: Any, step: int) -> None:
    """Raises ValueError unless a loss is a scalar with a graph."""
    is_scalar = isinstance(loss, Tensor) and loss.dim() == 0
    if not (is_scalar and loss.requires_grad):
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise ValueError(
            "inner_loss must return a scalar tensor that depends on the trained params, got"
            f" {str(loss)[:60]}{shape} at step {step}; reduce it with .mean() or .sum(), and"
            " compute it from the params it is given, without detach() or no_grad()"
        )
