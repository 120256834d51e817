"""A start of students that is not random: what a carried teacher knows of the vocabulary goes into
a new model of any kind and width.

Most steps of a student that starts at random are spent on its tables: what an entry means when it
is read (the input embedding) and when it is predicted (the head). A summary that carries its
teacher holds both. A model of another kind reads them as its own after five corrections:

- what the teacher multiplies an embedding by, inside the module or behind it, belongs to the table;
- the gain γ and the shift β of the teacher's last norm belong to the head: logits W (γ ∘ x̂ + β) + b
  are (W γ) x̂ + (W β + b), and a new model's own norm has gain 1;
- what either model multiplies logits by belongs to the head;
- states of a recurrent student lie between −1 and 1, and those of a teacher behind its norm are
  larger, so its head becomes larger;
- another width needs a map, the same for both tables, because one model's states meet both.

Known as GUIDE (arXiv 2510.06502) and weight subcloning (arXiv 2312.09299), for models of one
family; and SimKD's reused head (arXiv 2203.14001).

A student of the teacher's own kind begins with its layers, too, if it has more of them, or another
width for which there is a map; see `farzi_hf.summary.layers`. So does a Llama or a GPT-NeoX, whose
teacher is a GPT-2; see `farzi_hf.summary.rotary_layers` and `farzi_hf.summary.neox_layers`. Where
the vocabulary is far larger than the layers, as in recommenders, the layers of any other student are
fitted to the teacher's states; see `farzi_hf.summary.fitted_states`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from farzi_hf.data.seeds import seeded
from farzi_hf.summary.fitted_states import Head, TeacherStates, fitted, rows_to_read
from farzi_hf.summary.layers import (
    OF_A_LAYER,
    layers_at_another_width,
    layers_of_a_deeper_model,
    normed,
)
from farzi_hf.summary.narrower import Rows, narrower_layers
from farzi_hf.summary.neox_layers import neox_layers
from farzi_hf.summary.rotary_layers import rotary_layers
from farzi_hf.summary.soft_tokens import check_student, vocabulary_size
from farzi_hf.summary.teacher import no_padding, parameter_names, whole

_SMALL = 1e-3  # by which a head is scaled, so that a cap of its logits does not show
_TRIED = 4  # ids that a model reads when it is looked at
_HUGE = 1e4  # by which embeddings are multiplied, to see whether states grow with them
_NEARLY_ONE = 0.9  # what an LSTM's states, which grow step by step, reach within these ids
_DEVIATIONS = 3  # of a normal distribution, within which nearly all of it lies
_WITH_ALL_OF_IT = 0.25  # of the rate, where a student has all that the teacher's layers do
_POSITIONS = re.compile(r"(?:^|\.)(?:wpe|embed_positions|position_embeddings?|positions)\.weight$")


@dataclass(frozen=True)
class Tables:
    """What a model knows of the vocabulary's entries, in the units in which it computes."""

    inputs: Tensor
    """(V, e): what its layers get for each entry."""
    head: Tensor | None
    """(V, k): the logits are its products with states that have no gain; None without a head that is
    a matrix.
    """
    bias: Tensor | None
    """(V,): what is added to the logits; None if nothing is."""
    positions: tuple[str, Tensor] | None
    """The name of a table of learnt positions, and the table (n, e); None without one."""


@torch.no_grad()
def start(teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows | None = None) -> list[str]:
    """Sets what `teacher` knows of the vocabulary into `model`, in place.

    Args:
        teacher: a trained causal model, with weights on any device.
        model: a new causal model over the same vocabulary, of any kind and width.
        rows: makes rows of which the teacher's states are looked at, where that is worth it; None:
            its weights alone are.

    Returns:
        The names of the parameters that were set. The others stay as they are.

    Raises:
        ValueError: the model has another vocabulary.
    """
    return set_values(model, start_values(teacher, model, rows))


@torch.no_grad()
def set_values(model: PreTrainedModel, values: Mapping[str, Tensor]) -> list[str]:
    """Sets the values into the parameters of these names, in place; returns the names."""
    parameters = dict(model.named_parameters())
    for name, value in values.items():
        if parameters[name].is_inference():
            raise ValueError(
                f"model was made under torch.inference_mode(), so its {name} cannot be set; make it"
                " outside of it"
            )
        parameters[name].copy_(value)
    return list(values)


@torch.no_grad()
def start_values(
    teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows | None = None
) -> dict[str, Tensor]:
    """The values of the parameters that `start` sets, by name, of the model's types and devices."""
    check_student(model, vocabulary_size(teacher))
    # The caller's random numbers stay as they are.
    with seeded(), _without_dropout(teacher, model):
        theirs = _Look(teacher)
        student = _Look(model)
        tables = theirs.tables
        larger = _head_for(theirs, student)
    maps = maps_between(tables, student.widths, student.is_tied)
    values = {student.embedding_name: maps.inputs(tables.inputs) / student.input_scale}
    if student.head_name is not None and tables.head is not None:
        if student.is_tied:
            values[student.embedding_name] *= larger
        else:
            weight = maps.head(tables.head) / student.output_scale
            values[student.head_name] = larger * weight / student.own_gain
        if student.bias_name is not None and tables.bias is not None:
            values[student.bias_name] = tables.bias / student.output_scale
    values |= _positions(tables, student, maps.inputs)
    layers = _layers(teacher, model, rows)
    values |= layers
    if rows is not None and not layers:
        with torch.inference_mode(False), torch.no_grad(), _without_dropout(teacher, model):
            values |= _fitted(theirs, student, tables, values, rows, larger > 1)
    parameters = dict(model.named_parameters())
    values = {name: value.to(parameters[name]) for name, value in values.items()}
    for name, value in values.items():
        if not torch.isfinite(value).all():
            raise ValueError(
                f"the carried teacher makes numbers for {name} that are not finite; begin at random"
            )
    return values


@contextmanager
def _without_dropout(*models: PreTrainedModel) -> Iterator[None]:
    """Inside, the models are in evaluation mode; afterwards each module is in the mode in which it
    was.
    """
    modules = [module for model in models for module in model.modules()]
    modes = [module.training for module in modules]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _head_for(teacher: _Look, student: _Look) -> float:
    """By what the student's head is multiplied, because its states cannot be as large as the
    teacher's, whose products with the head are the logits; 1 where they can be, and where the
    student's head is not the teacher's.
    """
    if not _has_its_head(teacher, student):
        return 1.0
    if not student.saturates or teacher.saturates:
        return 1.0
    return max(1.0, _DEVIATIONS * teacher.size(with_gain=student.is_tied))


def _has_its_head(teacher: _Look, student: _Look) -> bool:
    """Whether the student's head is made of the teacher's. One that is tied to its embedding is
    not, unless the teacher's is tied, too.
    """
    have_heads = student.head_name is not None and teacher.head_name is not None
    return have_heads and (not student.is_tied or teacher.is_tied)


def _layers(
    teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows | None
) -> dict[str, Tensor]:
    """What the first map that there is between the two models makes of the teacher's layers; {}
    without one.
    """
    maps = [layers_of_a_deeper_model]
    if rows is not None:
        of_rows = (narrower_layers, rotary_layers, neox_layers)
        maps += [partial(make, rows=rows) for make in of_rows]
    maps.append(layers_at_another_width)
    found = (make(teacher, model) for make in maps)
    return next(filter(None, found), {})


def _fitted(
    theirs: _Look,
    student: _Look,
    tables: Tables,
    values: Mapping[str, Tensor],
    rows: Rows,
    is_bounded: bool,
) -> dict[str, Tensor]:
    """What is fitted to the states of the teacher's own rows: the tables of a narrower student, and
    all that is between the tables; {} where that would take long.

    Args:
        theirs: the teacher.
        student: the new model.
        tables: the teacher's.
        values: of the parameters that are set already.
        rows: as the teacher writes them.
        is_bounded: whether the student's states are, and the teacher's are not.
    """
    if not _has_its_head(theirs, student):
        return {}
    ids = rows_to_read(theirs.model, student.model, values, rows)
    if ids is None:
        return {}
    states = TeacherStates(theirs.model, theirs.head(), ids)
    own = {}
    if student.widths[1] < theirs.widths[1]:
        own = _narrower_tables(states, student, tables, is_bounded)
    values = {**values, **own}
    return own | fitted(student.model, values, student.head(values), states)


def _narrower_tables(
    states: TeacherStates, student: _Look, tables: Tables, is_bounded: bool
) -> dict[str, Tensor]:
    """The head of a narrower student, by name, and what is in the same space."""
    has_bias = student.bias_name is not None
    to_student, shift = states.narrower_head(student.widths[1], has_bias)
    if is_bounded:
        to_student = to_student * _DEVIATIONS
    head = states.head
    values = {student.head_name: head.weight @ to_student / student.output_scale}
    if has_bias:
        values[student.bias_name] = (head.bias + head.weight @ shift) / student.output_scale
    if student.is_tied:
        values |= _positions(tables, student, lambda rows: rows @ to_student)
    return values


def _positions(
    tables: Tables, student: _Look, to_student: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """The learnt positions of a student, by name: the first ones are the teacher's; {} where not
    both models have them, or they begin elsewhere.
    """
    if student.positions is None or tables.positions is None:
        return {}
    name, table = student.positions
    teachers_name, positions = tables.positions
    if _first_position(name) != _first_position(teachers_name):
        return {}
    count = min(len(table), len(positions))
    values = table.detach().float().cpu().clone()
    values[:count] = to_student(positions[:count]) / student.behind_embedding
    return {name: values}


def share_of_rate(teacher: PreTrainedModel, model: PreTrainedModel, names: Iterable[str]) -> float:
    """What a student takes of the learning rate of students that begin at random or with tables
    alone, if these of its parameters were set.

    A student that begins with layers, or with fitted ones, and is as wide as its teacher does nearly
    what the teacher does, before its first step. Steps of the whole rate lead it away from there. A
    narrower one has more to learn (`recipes/LOG.md`, "Rates of students that begin with layers"),
    and so has one whose MLPs do not read what attention writes beside them.

    Args:
        teacher: whose parameters they are.
        model: the student.
        names: as `start` returns them.
    """
    widths = [each.get_input_embeddings().weight.shape[1] for each in (teacher, model)]
    names = set(names)
    has_layers = any(OF_A_LAYER.search(name) for name in names)
    has_layers |= all(name in names for name, _ in model.named_parameters())  # a GRU has no list
    is_parallel = getattr(model.config, "use_parallel_residual", False)
    has_all = has_layers and widths[1] >= widths[0] and not is_parallel
    return _WITH_ALL_OF_IT if has_all else 1.0


def _first_position(name: str) -> int:
    """The row of the first position in a table of that name."""
    return 2 if name.endswith("embed_positions.weight") else 0  # as OPT has it


# -- a model, looked at ----------------------------------------------------------------------------


@torch.no_grad()
def tables_of(model: PreTrainedModel) -> Tables:
    """What a trained model knows of the vocabulary's entries, as float32 on the CPU."""
    return _Look(model).tables


class _Look:
    """A model and how it uses its tables, found out by running it on a few ids.

    Attributes:
        embedding: the module of the input embedding.
        embedding_name: its weight among the model's parameters.
        head_name: that of the head; None without a head that is a matrix over the vocabulary.
        bias_name: that of the head's bias, or None.
        input_scale: by what the model multiplies its embedding, in all.
        behind_embedding: by what it multiplies what the module of the embedding returns.
        output_scale: by what it multiplies products of states and head, before any cap.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.embedding = model.get_input_embeddings()
        self.embedding_name = parameter_names(model, self.embedding)["weight"]
        head = model.get_output_embeddings()
        entries = vocabulary_size(model)
        self.head_name: str | None = None
        self.bias_name: str | None = None
        if isinstance(head, nn.Linear) and head.out_features == entries:
            names = parameter_names(model, head)
            self.head_name = names["weight"]
            self.bias_name = names.get("bias")
        first = no_padding(model.config)
        count = max(1, min(_TRIED, entries - first))
        ids = torch.arange(first, first + count, device=self.embedding.weight.device)
        self._run = _Run(model, ids[None])
        self.behind_embedding = self._behind_embedding()
        self.input_scale = self._in_embedding(ids) * self.behind_embedding
        self.output_scale = 1.0 if self.head_name is None else self._behind_head()

    @property
    def tables(self) -> Tables:
        """As float32 on the CPU."""
        inputs = self.read_all().float().cpu() * self.behind_embedding
        head = None
        bias = None
        if self.head_name is not None:
            module = self.model.get_output_embeddings()
            weight = module.weight.detach().float().cpu() * self.output_scale
            gain, shift = self.last_norm()
            head = weight * gain
            bias = weight @ shift
            if getattr(module, "bias", None) is not None:
                bias = bias + module.bias.detach().float().cpu() * self.output_scale
            if not bias.any():
                bias = None
        positions = self.positions
        if positions is not None:
            name, table = positions
            positions = (name, table.detach().float().cpu() * self.behind_embedding)
        return Tables(inputs, head, bias, positions)

    def head(self, values: Mapping[str, Tensor] | None = None) -> Head:
        """What makes logits of what the head reads, as float32 on the CPU.

        Args:
            values: of parameters, by name, in place of the model's own.
        """
        of_all = {**dict(self.model.named_parameters()), **(values or {})}
        weight = of_all[self.head_name].detach().float().cpu() * self.output_scale
        if self.bias_name is None:
            return Head(weight, torch.zeros(len(weight)))
        return Head(weight, of_all[self.bias_name].detach().float().cpu() * self.output_scale)

    @property
    def is_tied(self) -> bool:
        """Whether the head is the input embedding."""
        return self.head_name == self.embedding_name

    @property
    def saturates(self) -> bool:
        """Whether the states that the head reads lie between −1 and 1."""
        return self._run.last_norm is None and self._run.saturates()

    def size(self, with_gain: bool) -> float:
        """The root mean square of the states that the head reads; without gain and shift of the
        last norm, or with them.
        """
        states = self._run.states.float().cpu()
        if not with_gain:
            gain, shift = self.last_norm()
            states = (states - shift) / gain.where(gain != 0, 1.0)
        return float(states.square().mean().sqrt())

    @property
    def widths(self) -> tuple[int, int | None]:
        """Of the input embedding and of the head."""
        head = self.model.get_output_embeddings()
        return self.embedding.weight.shape[1], None if self.head_name is None else head.in_features

    @property
    def positions(self) -> tuple[str, Tensor] | None:
        """The name and the values of a table of learnt positions; None where there is none as wide
        as the input embedding.
        """
        width = self.embedding.weight.shape[1]
        for name, parameter in self.model.named_parameters():
            if _POSITIONS.search(name) and parameter.dim() == 2 and parameter.shape[1] == width:
                return name, parameter
        return None

    @property
    def own_gain(self) -> float:
        """The gain with which a new model's last norm begins, of all dimensions: mostly 1. A
        Nemotron adds 1 to weights that begin at 1. 1 where dimensions differ, as in a trained
        model.
        """
        gain, _ = self.last_norm()
        first = float(gain[0])
        is_equal = bool((gain == first).all())
        is_another = first != 0 and abs(first - 1) > 1e-3  # that of a Gemma is 1 but for rounding
        return first if is_equal and is_another else 1.0

    def read_all(self) -> Tensor:
        """(V, e): what the module of the embedding returns for all entries."""
        ids = torch.arange(vocabulary_size(self.model), device=self.embedding.weight.device)
        return self.embedding(ids[None])[0]

    def last_norm(self) -> tuple[Tensor, Tensor]:
        """Gain and shift (k,) of the norm whose output is what the head reads; 1 and 0 without."""
        module = self._run.last_norm
        width = self.model.get_output_embeddings().in_features
        if module is None:
            return torch.ones(width), torch.zeros(width)
        weight = module.weight.detach().float().cpu()
        bias = getattr(module, "bias", None)
        shift = torch.zeros(width) if bias is None else bias.detach().float().cpu()
        return weight + self._run.gain_of_zero(module), shift

    def _in_embedding(self, ids: Tensor) -> float:
        """By what the module of the embedding multiplies rows of its weight."""
        return _multiple(self.embedding(ids[None])[0], self.embedding.weight[ids])

    def _behind_embedding(self) -> float:
        """By what the model multiplies the embedding before anything else is added to it."""
        return 1.0 if self._run.first is None else _multiple(self._run.first, self._run.embedded)

    def _behind_head(self) -> float:
        """By what the model multiplies small logits."""
        logits, products = self._run.small_logits(self.head_name)
        return _multiple(logits, products)


class _Run:
    """A model's forward pass over a few ids (1, L), and what passed between its modules.

    Attributes:
        embedded: what the embedding has returned.
        first: what the first module after it has got; None where that is not a product of it.
        last_norm: the norm whose output the head has read; None without one.
        states: what the head has read.
    """

    def __init__(self, model: PreTrainedModel, ids: Tensor) -> None:
        self._model = model
        self._ids = ids
        self.embedded: Tensor | None = None
        self.first: Tensor | None = None
        self.last_norm: nn.Module | None = None
        self._norm_input: Tensor | None = None
        self._norms: list[tuple[nn.Module, Tensor, Tensor]] = []
        self.states: Tensor | None = None
        embedding = model.get_input_embeddings()
        head = model.get_output_embeddings()
        hooks = [embedding.register_forward_hook(self._at_embedding)]
        if isinstance(head, nn.Module):
            hooks.append(head.register_forward_pre_hook(self._at_head))
        for module in model.modules():
            if module not in (embedding, head, model):
                hooks.append(module.register_forward_hook(self._behind, with_kwargs=True))
                hooks.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
        self._read(hooks)
        for module, given, returned in reversed(self._norms):
            if self.states is not None and torch.equal(returned, self.states):
                self.last_norm = module
                self._norm_input = given
                break

    def _read(self, hooks: Iterable[RemovableHandle]) -> Any:
        """What the model returns for the ids. The hooks are removed afterwards."""
        try:
            return self._model(**whole(self._model, self._ids))
        finally:
            for hook in hooks:
                hook.remove()

    def _at_embedding(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.embedded is None:
            self.embedded = output.detach()

    def _at_head(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.states = args[0].detach()

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Notes what the first module after the embedding gets, if it is a multiple of it."""
        if self.embedded is None or self.first is not None:
            return
        given = args[0] if args else kwargs.get("hidden_states")
        if isinstance(given, Tensor) and given.shape == self.embedded.shape:
            self.first = given.detach()

    def _behind(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Notes what a norm has got and returned."""
        weight = getattr(module, "weight", None)
        is_norm = "norm" in type(module).__name__.lower()
        if is_norm and isinstance(weight, Tensor) and weight.dim() == 1 and args:
            self._norms.append((module, args[0].detach(), output.detach()))

    def saturates(self) -> bool:
        """Whether huge embeddings drive states to −1 or 1 and not beyond, as tanh does."""
        noted: list[Tensor] = []
        embedding = self._model.get_input_embeddings()
        head = self._model.get_output_embeddings()
        hooks = [
            embedding.register_forward_hook(lambda module, args, output: output * _HUGE),
            head.register_forward_pre_hook(lambda module, args: noted.append(args[0])),
        ]
        self._read(hooks)
        return _NEARLY_ONE <= float(noted[0].abs().max()) <= 1.001  # rounding

    def gain_of_zero(self, norm: nn.Module) -> float:
        """The gain of a norm whose weight is 0: 1 where gains are 1 + weight, as Gemma's are."""
        zero = {name: torch.zeros_like(x) for name, x in norm.named_parameters()}
        one = {**zero, "weight": torch.ones_like(norm.weight)}
        at_zero = torch.func.functional_call(norm, zero, (self._norm_input,))
        if not at_zero.any():
            return 0.0
        at_one = torch.func.functional_call(norm, one, (self._norm_input,))
        return _multiple(at_zero, at_one - at_zero)

    def small_logits(self, head_name: str) -> tuple[Tensor, Tensor]:
        """Logits of a head that is `_SMALL` times as large, and the products that they are of."""
        head = self._model.get_output_embeddings()
        noted: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            small = nn.functional.linear(args[0], module.weight) * _SMALL
            noted.append(small)
            return small

        output = self._read([head.register_forward_hook(note)])
        return output.logits, noted[-1]


def _multiple(x: Tensor, of: Tensor) -> float:
    """c, where x = c · of up to rounding; 1 where x is not a multiple."""
    x = x.detach().double().flatten()
    of = of.detach().double().flatten()
    square = float(of @ of)
    if x.shape != of.shape or square == 0:
        return 1.0
    c = float(x @ of) / square
    is_multiple = float((x - c * of).norm()) <= 1e-3 * abs(c) * square**0.5
    return c if is_multiple and c != 0 else 1.0


# -- another width ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maps:
    """How tables of the teacher's widths become tables of the student's widths."""

    inputs: Callable[[Tensor], Tensor]
    """Of rows (…, e) of what layers get."""
    head: Callable[[Tensor], Tensor]
    """Of rows (…, k) of the head."""


def maps_between(tables: Tables, widths: tuple[int, int | None], is_tied: bool = False) -> Maps:
    """The maps from a teacher's tables to a student's widths.

    Narrower: onto the right singular vectors of both tables on top of each other, each divided by
    its norm, so that neither outweighs the other. Wider: columns stand there again, and the head
    has a part of each copy, so that products of the two stay (Net2Net, arXiv 1511.05641); in a
    student whose head is its embedding, zeros, because a copy would double its logits.
    """
    e = tables.inputs.shape[1]
    k = None if tables.head is None else tables.head.shape[1]
    has_two_tables = k is not None and widths[1] is not None and not is_tied
    if has_two_tables and widths[0] > e and widths[1] > k:
        of_inputs, _ = _copied_columns(e, widths[0])
        of_head, copies = _copied_columns(k, widths[1])
        return Maps(lambda rows: rows[..., of_inputs], lambda rows: rows[..., of_head] / copies)
    shares_space = e == k and widths[0] == widths[1]
    if shares_space:
        both = torch.cat([normed(tables.inputs), normed(tables.head)])
        shared = _map(both, widths[0])
        return Maps(shared, shared)
    of_inputs = _map(tables.inputs, widths[0])
    of_head = of_inputs if k is None or widths[1] is None else _map(tables.head, widths[1])
    return Maps(of_inputs, of_head)


def _copied_columns(own: int, width: int) -> tuple[Tensor, Tensor]:
    """Which of the columns of a narrower table stand in each of `width` columns, and how often each
    of these stands there, (width,) each.
    """
    columns = torch.arange(width) % own
    return columns, torch.bincount(columns)[columns]


def _map(table: Tensor, width: int) -> Callable[[Tensor], Tensor]:
    """A map of rows as wide as the table's to rows of another width."""
    own = table.shape[1]
    if width == own:
        return lambda rows: rows
    if width > own:
        return lambda rows: nn.functional.pad(rows, (0, width - own))
    leading = _leading_vectors(table, width)
    return lambda rows: rows @ leading.to(rows)


def _leading_vectors(table: Tensor, width: int) -> Tensor:
    """The right singular vectors of a table (n, e) with the largest values, (e, width); zeros where
    it has fewer.
    """
    table = table.double()
    if len(table) < table.shape[1]:  # a square of (e, e) may be far larger than the table
        _, _, vectors = torch.linalg.svd(table, full_matrices=False)
        leading = vectors[:width].T.flip(1)
        missing = width - leading.shape[1]
        return nn.functional.pad(leading, (missing, 0))
    # The singular vectors of a table are the eigenvectors of its square.
    _, vectors = torch.linalg.eigh(table.T @ table)
    return vectors[:, -width:]
