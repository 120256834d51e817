"""What a form of inputs, and a form of labels, has to say and to do. Everything outside asks the
form: nobody looks at its name, or at the names of its tensors.

A form has no default words. One that leaves out a word that a card, a page or a table needs cannot
be made: Python names what is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from farzi_hf.data import Vocabulary
from farzi_hf.summary.endless import EndlessRows, RowsDataset
from farzi_hf.summary.forms.words import InputWords, LabelWords
from farzi_hf.summary.initialization import Start
from farzi_hf.summary.origins import Origin
from farzi_hf.summary.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents
    from farzi_hf.summary.teacher import CarriedTeacher

Tensors = Mapping[str, Tensor]
"""The tensors of a summary, by name."""

TrainerRow = Mapping[str, Any]
"""A row for a Trainer, by column."""

Position = dict[str, Any]
"""What one position says: `tokens`, `probabilities`, `entropy`, and those of its label with
`label_` before them. A form whose rows are no positions has entries of its own, such as `text`.
"""

Likeliest = Callable[[Sequence[Any], Sequence[float]], str]
"""Writes tokens and their probabilities into one cell of a table."""


@dataclass(frozen=True)
class Part:
    """One tensor of a form."""

    axes: tuple[str | int, ...]
    """Its sizes: names of fields of a `FarziDataConfig`, or numbers."""

    is_learnt: bool
    """Whether outer steps change it. It is a parameter then, and a buffer otherwise."""

    is_ids: bool
    """Whether it holds ids of the vocabulary. Otherwise it holds floats."""

    begin: Callable[[tuple[int, ...], FarziDataConfig], Tensor] | None
    """Makes the tensor of a new summary, of its shape and the config; None where a model brings it.
    """

    def shape(self, config: FarziDataConfig) -> tuple[int, ...]:
        """In a summary with that config."""
        return tuple(getattr(config, axis) if isinstance(axis, str) else axis for axis in self.axes)

    @property
    def is_per_sequence(self) -> bool:
        """Whether it has a row for each sequence."""
        return self.axes[:1] == ("num_sequences",)

    @property
    def is_per_position(self) -> bool:
        """Whether such a row has an entry for each position."""
        return self.axes[:2] == ("num_sequences", "sequence_length")


def normal(shape: tuple[int, ...], config: FarziDataConfig) -> Tensor:
    """The begin of a tensor with normal numbers, of standard deviation `config.latent_std`."""
    return torch.randn(shape) * config.latent_std


def any_ids(shape: tuple[int, ...], config: FarziDataConfig) -> Tensor:
    """The begin of a tensor of ids: any ids of the vocabulary."""
    return torch.randint(config.vocab_size, shape, dtype=torch.int32)


def equal_shares(shape: tuple[int, ...], config: FarziDataConfig) -> Tensor:
    """The begin of a tensor (V,) of frequencies: all entries are as frequent."""
    return torch.full(shape, 1 / config.vocab_size)


@dataclass(frozen=True)
class Table:
    """A table of the artefact, in Parquet: a config of the dataset repository."""

    name: str
    """Of the folder and of the config; one of `Form.table_names`."""

    comment: str
    """What a row is, for the card's code."""

    rows: Callable[[], pa.Table]
    """Makes the table. A card needs name and comment alone."""


class Form(ABC):
    """One form of inputs or of labels. An object of it belongs to one summary.

    Some words are attributes of the class, `name = "soft"`, because configs and tables ask for them
    before there is a summary.

    A dataclass `Settings` inside of a form, where it has one, holds the settings of a `FarziConfig`
    that concern this form alone.

    Args:
        config: of the summary.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """In `FarziDataConfig.inputs` or `FarziDataConfig.labels`. An attribute of the class."""

    def __init__(self, config: FarziDataConfig) -> None:
        self.config = config

    sizes: ClassVar[tuple[str, ...]] = ()
    """The names of the sizes of a `FarziDataConfig` that such a form alone has, and that others
    refuse; `parts` counts with them. `check` refuses a config where one that it needs is None.
    """

    @classmethod
    @abstractmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        """The tensors of such a summary by name, in the order of the file."""

    @classmethod
    @abstractmethod
    def check(cls, config: FarziDataConfig) -> None:
        """Completes the fields of a new config that concern this form. Raises ValueError if one
        does not fit it.
        """

    @abstractmethod
    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        """Raises ValueError, with the remedy, if nothing can be computed with this form's tensors.
        That floats are finite is known before.
        """

    def register(self, farzi: nn.Module, given: Tensors | None) -> None:
        """Makes this form's tensors attributes of a summary: those that are given, or new ones."""
        for name, part in self.parts(self.config).items():
            new = given is None
            tensor = part.begin(part.shape(self.config), self.config) if new else given[name]
            if part.is_learnt:
                farzi.register_parameter(name, nn.Parameter(tensor))
            else:
                farzi.register_buffer(name, tensor)

    def shared(self, tensors: Tensors) -> dict[str, Tensor]:
        """Copies, on the CPU, of this form's tensors that all rows share."""
        return {
            name: tensors[name].detach().cpu().clone()
            for name, part in self.parts(self.config).items()
            if not part.is_per_sequence
        }

    @property
    def numbers_per_position(self) -> int:
        """How many of this form's numbers are learnt for one position alone."""
        learnt = (part for part in self.parts(self.config).values() if part.is_learnt)
        return sum(part.shape(self.config)[-1] for part in learnt if part.is_per_sequence)

    # -- files -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def table_names(self) -> tuple[str, ...]:
        """The names of the tables that such a form can have. A save replaces the folders of these
        names, and no others. An attribute of the class.
        """

    @abstractmethod
    def tables(self, contents: Contents) -> list[Table]:
        """The tables of this form. If the inputs have some, the first one is the default config of
        the repository; otherwise the first one of the labels is.
        """

    @abstractmethod
    def torch_code(self) -> str:
        """Lines of Python, for the card, that compute with torch alone what the rows of `tables`
        mean; "" where there is nothing to compute.
        """

    # -- tables of positions -----------------------------------------------------------------------

    @abstractmethod
    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        """The cells of a position in the card's table, by column."""

    @abstractmethod
    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        """The cells of a position in the table of `farzi show`, by column."""


class Inputs(Form):
    """What a student reads: see `StoredInputs` and `EndlessInputs`."""

    @property
    @abstractmethod
    def result_words(self) -> str:
        """What a row of a table of results calls them: "drawn ids". An attribute of the class."""

    @property
    @abstractmethod
    def labels_by_default(self) -> str:
        """The name of the labels that a `FarziConfig` has with such inputs, if it says none. An
        attribute of the class.
        """

    @property
    @abstractmethod
    def start(self) -> str | Start:
        """How they begin in a distillation: a `Start`, or the name of the setting that names one.
        An attribute of the class.
        """

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Whether rows are made, as many as a training asks for. Then μ is the number of rows that
        are shown. An attribute of the class.
        """

    @property
    @abstractmethod
    def browsed(self) -> str | None:
        """What the page to browse draws: "", the distributions of the inputs; "label_", those of
        the labels; None: there is no page.
        """

    @classmethod
    @abstractmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        """What a table of experiments says of the settings of such inputs, a `FarziConfig`."""

    # -- training ----------------------------------------------------------------------------------

    @abstractmethod
    def batch(self, tensors: Tensors, rows: Tensor | slice) -> SoftTokens | Tensor:
        """Soft tokens (b, ξ, V) or ids (b, ξ), differentiable in the tensors.

        Args:
            tensors: of the summary.
            rows: (b,) numbers of sequences, or a slice; of endless inputs the ids (b, ξ) of made
                rows.
        """

    @abstractmethod
    def endless(
        self, tensors: Tensors, labels: Labels, seed: int, length: int
    ) -> EndlessRows | None:
        """The rows of a training, of `length` ids; None where rows are stored."""

    @abstractmethod
    def frequencies(self, tensors: Tensors) -> Tensor | None:
        """How often each entry is drawn, (V,); None where none is drawn."""

    @abstractmethod
    def looked_up(self, tensors: Tensors) -> Tensor | None:
        """All ids whose embeddings any student of the summary looks up; None where these may be
        all of the vocabulary.
        """

    # -- the stock Trainer -------------------------------------------------------------------------

    @abstractmethod
    def check_ready(self) -> None:
        """Raises ValueError if a student cannot train on the rows of `dataset` as they are."""

    @abstractmethod
    def dataset(
        self, tensors: Tensors, labels: Labels, num_rows: int | None, seed: int | None
    ) -> Dataset | RowsDataset:
        """See `FarziData.as_dataset`."""

    @abstractmethod
    def knows(self, values: Tensor) -> bool:
        """Whether these can be the `input_ids` of a row of `dataset`."""

    @property
    @abstractmethod
    def wanted(self) -> str:
        """What `knows` wants beside ids, at the end of an error: ", or latents (ξ, 4) of this
        summary"; "" where ids are all.
        """

    @abstractmethod
    def collated(self, values: Sequence[Tensor], shared: Tensors) -> dict[str, Tensor]:
        """The arguments of a student for a batch of rows that `knows` knows.

        Args:
            values: the `input_ids` of each row.
            shared: the tensors that all rows share, see `Forms.shared`.
        """

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def decode(
        self, tensors: Tensors, rows: Tensor | slice, names: Sequence[Any], top_k: int
    ) -> list[list[Position]]:
        """What the positions of sequences say; see `FarziData.decode`. The rows are those of
        `batch`.
        """

    @abstractmethod
    def text(self, sequence: Sequence[Position], vocabulary: Vocabulary) -> str:
        """A decoded sequence as one text."""

    @abstractmethod
    def browsed_ids(self, decoded: Sequence[Sequence[Position]]) -> list[list[int]] | None:
        """The ids that a student reads at the positions of the page to browse, where tokens are
        ids; None where a position has no id.
        """

    @property
    @abstractmethod
    def columns_comment(self) -> str:
        """What `columns` adds to the comment of a table of labels: ", ids"."""

    @abstractmethod
    def columns(self, contents: Contents) -> dict[str, pa.Array]:
        """The columns that a table of labels, of a row a sequence, has for the inputs."""

    @abstractmethod
    def place(self, sequence: int, position: int) -> dict[str, str]:
        """The first cells of a row of `farzi show`: where the position stands."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where the rows come from, and so what is said of them and whether a card prints them."""

    @abstractmethod
    def words(self, vocabulary: Vocabulary) -> InputWords:
        """What card, page and figures say of the inputs of a summary with that vocabulary."""


class Labels(Form):
    """What a student should predict after each position."""

    @property
    @abstractmethod
    def goes_with(self) -> tuple[type[Inputs], ...]:
        """The classes of the inputs that such labels go with: those that have what the labels need,
        such as ids, or stored positions. A subclass goes with them too, so a new kind of inputs
        says by its base class which labels fit it. An attribute of the class.
        """

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The fields of a `FarziDataConfig` that such a summary alone has. An attribute of the
        class.
        """

    @property
    @abstractmethod
    def defaults(self) -> Mapping[str, Any]:
        """The settings of a `FarziConfig` that leaves them open. An attribute of the class."""

    @property
    @abstractmethod
    def of_students(self) -> tuple[str, ...]:
        """The names of its settings that the training of a student needs: `config.inner` of a
        summary has them. An attribute of the class.
        """

    @property
    @abstractmethod
    def by_teachers(self) -> bool:
        """Whether teachers, trained on the data, complete the start of a summary: they are packed
        into one that carries its teacher, and `begin_at` takes their labels in any other, as in
        `OwnLabels`. An attribute of the class.
        """

    @property
    @abstractmethod
    def carries_teacher(self) -> bool:
        """Whether the summary carries a teacher. An attribute of the class."""

    @property
    @abstractmethod
    def are_inputs(self) -> bool:
        """Whether the label of a position is the next input, so that the order of the inputs is
        what a student learns.
        """

    @property
    @abstractmethod
    def row_of_start(self) -> str:
        """The row of a table that has students on the start of a summary; {inputs} stands for
        `Inputs.result_words`, {start} for `StudentStart.word`. An attribute of the class.
        """

    @property
    @abstractmethod
    def row_without_steps(self) -> str | None:
        """The row of a table that has students on a summary without outer steps; None where it is
        called as any other. An attribute of the class.
        """

    # -- the model that computes them --------------------------------------------------------------

    @property
    @abstractmethod
    def model(self) -> PreTrainedModel | None:
        """The teacher in the summary, in evaluation mode: `FarziData.teacher`. None where there is
        none.
        """

    @property
    @abstractmethod
    def teacher(self) -> CarriedTeacher | None:
        """The same as a function of the summary's tensors: `FarziData.carried`."""

    def on_cpu(self) -> Labels:
        """The same for a process that has no other device: a model is copied."""
        return self

    def moved(self) -> None:
        """What is to be done after the tensors were moved to a device."""

    def replaced(self) -> None:
        """What is to be done after others were put in the place of the tensors."""

    def entered_mode(self) -> None:
        """What is to be done after `train()` or `eval()` of the summary."""

    # -- training ----------------------------------------------------------------------------------

    @abstractmethod
    def batch(
        self, tensors: Tensors, rows: Tensor | slice, inputs: SoftTokens | Tensor
    ) -> SoftTokens:
        """What the first n positions predict, (b, n, V), where n is ξ − 1 if labels are inputs and
        ξ for others; differentiable in the tensors.

        Args:
            tensors: of the summary.
            rows: those of `Inputs.batch`.
            inputs: what it gave.
        """

    # -- the stock Trainer -------------------------------------------------------------------------

    @abstractmethod
    def column(self, tensors: Tensors, count: int, length: int) -> Tensor | None:
        """The column `labels` of so many rows of ξ positions, (count, ξ, …); None where rows need
        none. Trainer drops columns of other names, so what tells the rows of a summary from rows of
        ids to evaluate on is here.
        """

    @abstractmethod
    def knows(self, row: TrainerRow) -> bool:
        """Whether the labels of a row are those of `column`."""

    @abstractmethod
    def collated(self, rows: Sequence[TrainerRow], read: Tensor, shared: Tensors) -> Tensor:
        """(b, n + 1, V) probabilities of a batch of rows that `knows` knows, in which
        `labels[:, j + 1]` is what position j predicts.

        Args:
            rows: of the batch.
            read: its soft tokens (b, ξ, V) or ids (b, ξ).
            shared: the tensors that all rows share, see `Forms.shared`.
        """

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def decode(
        self,
        tensors: Tensors,
        rows: Tensor | slice,
        inputs: Inputs,
        names: Sequence[Any],
        top_k: int,
    ) -> list[list[Position]] | None:
        """What each position predicts, in the keys of a position; None where labels are the
        inputs.
        """

    @abstractmethod
    def words(self, inputs: InputWords, vocabulary: Vocabulary, nbytes: int) -> LabelWords:
        """What card, page and `farzi show` say of the summary.

        Args:
            inputs: what is said of the inputs.
            vocabulary: of the summary.
            nbytes: of the summary, as it is stored.
        """

    @abstractmethod
    def commands(self, repo: str) -> list[str]:
        """What to type in a terminal to use such a summary, for the card."""
