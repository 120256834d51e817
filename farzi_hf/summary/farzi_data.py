"""FarziData: a few synthetic sequences of soft tokens that stand in for a whole autoregressive
dataset.

In the paper's form a summary is two tensors, `latents (μ, ξ, d)` and `decoder (d, V)`. The soft
token at position j of sequence i is `softmax(latents[i, j] @ decoder / τ)`, a distribution over the
V entries of the vocabulary (section 3 of the paper, arXiv 2310.09983). A summary may also have
labels of its own, and ids for inputs: see `farzi_hf.summary.forms`. Soft tokens are computed only
for the sequences of one batch: no tensor has the size μ × ξ × V.
"""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys
from transformers import PreTrainedModel, Trainer, TrainingArguments

from farzi_hf.common.checks import check_place, check_size
from farzi_hf.common.messages import escaped_messages
from farzi_hf.common.text import publishable, terminal_text
from farzi_hf.data import Vocabulary, vocabulary_of
from farzi_hf.data.seeds import check_seed
from farzi_hf.summary.config import FarziDataConfig, check_choice
from farzi_hf.summary.endless import EndlessRows, RowsDataset
from farzi_hf.summary.forms import TokenInputs, forms_of
from farzi_hf.summary.forms.common_inputs import rows_of_ids
from farzi_hf.summary.from_teacher import labelled, materialized, summary_of_teacher
from farzi_hf.summary.inner_settings import OwnOptimizer, inner_optimizer, training_arguments
from farzi_hf.summary.origins import REAL, Origin
from farzi_hf.summary.reading import Decoded, check_ids, check_numbers, hard_rows
from farzi_hf.summary.real_rows import summary_of_rows
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.soft_training import SoftTokenCollator
from farzi_hf.summary.store.budget import Budget, OverBudgetError
from farzi_hf.summary.store.card import OF_THE_DATA
from farzi_hf.summary.store.contents import Contents
from farzi_hf.summary.store.folder import CONFIG, TENSORS, ArtefactFolder, read_artefact
from farzi_hf.summary.store.hub import check_repository, fetch_artefact, upload_artefact
from farzi_hf.summary.store.tensor_file import STORAGES, fingerprint, load_tensors
from farzi_hf.summary.store.vocabulary_files import load_vocabulary
from farzi_hf.summary.store.writing import Results, load_results, read_plots, write_artefact
from farzi_hf.summary.student_starts import STUDENT_STARTS, StudentStart, start_named, start_of
from farzi_hf.summary.student_trainer import student_trainer
from farzi_hf.summary.teacher import CarriedTeacher

logger = logging.getLogger(__name__)

_SHOWN_TOKENS = 5
"""Likeliest tokens of each position in the artefact's tables."""


class _ResultsOfTensors(NamedTuple):
    """What was saved or loaded with a summary, and the tensors to which it belongs."""

    results: Results
    """Metrics, recipe and plots."""
    fingerprint: str
    """Of the tensors. Empty: of none that the summary has had."""


class _FileSize(NamedTuple):
    """The bytes of a summary's tensors in a file that was read."""

    nbytes: int
    """Of all of them."""
    storage: str
    """How they are stored there."""
    fingerprint: str
    """Of the tensors."""


class FarziData(nn.Module):
    """The summary: its tensors, its `config`, and the vocabulary if it has one.

    Its `forms` are its inputs and its labels, which say what it consists of. Their tensors are
    attributes under the names that `farzi_hf.summary.forms` lists; by default `latents (μ, ξ, d)`
    and `decoder (d, V)`. Those that are learnt are parameters, the others buffers.

    Args:
        config: the sizes and the forms.
        processing_class: the tokenizer, or the list of item names, that gives the V entries their
            meaning. A summary without one can be trained on, but not be read.
        tensors: by name, in place of random ones; their shapes are those that the config says.

    ```python
    sizes = {"num_sequences": 400, "sequence_length": 50, "latent_dim": 16, "vocab_size": 2004}
    farzi = FarziData(FarziDataConfig(**sizes))
    farzi(torch.tensor([0, 7]))  # (2, 50, 2004) probabilities
    ```
    """

    def __init__(
        self,
        config: FarziDataConfig,
        processing_class: Any = None,
        tensors: Mapping[str, Tensor] | None = None,
    ):
        super().__init__()
        if not isinstance(config, FarziDataConfig):
            raise ValueError(
                f"config is a {type(config).__name__}; give a FarziDataConfig, or load a summary"
                " with FarziData.from_pretrained"
            )
        self.config = config
        self.processing_class = processing_class
        self.forms = forms_of(config)
        self.forms.inputs.register(self, tensors)
        self.forms.labels.register(self, tensors)
        self._saved = _ResultsOfTensors(Results(), "")
        self._file_size: _FileSize | None = None
        self._own_optimizer = OwnOptimizer()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the summary by name, the very ones that are trained."""
        registered = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name: registered[name] for name in self.forms.parts}

    @property
    def carried(self) -> CarriedTeacher | None:
        """The teacher in the summary as a function of its tensors; None where there is none. The
        model itself is `teacher`.
        """
        return self.forms.labels.teacher

    @property
    def origin(self) -> Origin:
        """Where its rows come from, and so whether a card prints them."""
        return self.forms.inputs.origin

    @property
    def vocabulary(self) -> Vocabulary:
        """What the V entries stand for, made from `processing_class`."""
        return vocabulary_of(self.processing_class)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: the size of the summary as it is stored."""
        storage = self.config.storage
        read = self._file_size
        if read is not None and read.storage == storage and read.fingerprint == self.fingerprint():
            return read.nbytes
        return STORAGES[storage].nbytes(self.tensors)

    def __repr__(self) -> str:
        config = self.config
        parts = [f"inputs={config.inputs!r}", f"labels={config.labels!r}"]
        if self.forms.labels.carries_teacher:
            count = sum(x.numel() for x in self.teacher.parameters())
            parts.append(f"teacher={self.teacher.config.model_type!r} of {count:,} numbers")
        rows = "any number of" if self.is_endless else f"{config.num_sequences:,}"
        parts += [f"{rows} rows of {config.sequence_length}", f"{config.vocab_size:,} entries"]
        return f"FarziData({', '.join(parts)}, {self.nbytes:,} bytes, {config.storage!r})"

    # -- as a module of torch ----------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The tensors, and not the second names of weights that layers of a teacher share."""
        state = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", "")
        return type(state)(
            (name, x) for name, x in state.items() if name.removeprefix(prefix) in self.forms.parts
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """The inverse of `state_dict`."""
        missing, unexpected = super().load_state_dict(state_dict, strict=False, assign=assign)
        if assign:
            self.forms.labels.replaced()
        missing = [name for name in missing if name in self.forms.parts]
        if strict and (missing or unexpected):
            raise RuntimeError(
                f"state_dict lacks {missing} and has {unexpected} beside; give that of such a"
                " summary"
            )
        return _IncompatibleKeys(missing, unexpected)

    def _apply(self, *args: Any, **kwargs: Any) -> FarziData:
        """Changes all tensors, for `to`, `float`, `cuda` and their like."""
        super()._apply(*args, **kwargs)
        self.forms.labels.moved()
        return self

    def train(self, mode: bool = True) -> FarziData:
        """As of any module; but a carried teacher has no dropout, because its labels are the same
        whenever they are asked for.
        """
        super().train(mode)
        self.forms.labels.entered_mode()
        return self

    def forward(
        self,
        indices: Tensor | None = None,
        functional: Callable[[dict[str, Tensor]], Tensor] | None = None,
    ) -> Tensor:
        """Probabilities (b, ξ, V) of the sequences `indices (b,)`, or `functional(tensors)` if that
        is given.

        They are the soft tokens. A summary whose inputs are ids has none; its probabilities are
        those of its labels.

        A distillation passes its meta-objective through `forward`, so that DistributedDataParallel
        and autocast, which wrap the module, see an ordinary forward and backward pass. Reading
        `farzi.latents` from outside would bypass them.

        Raises:
            ValueError: neither argument is given (the soft tokens of all μ sequences at once would
                not fit into memory), or `indices` is not a vector of integers, or has none or a
                negative one where rows are made.
        """
        if functional is not None:
            return functional(self.tensors)
        is_tensor = isinstance(indices, Tensor)
        is_of_integers = (
            is_tensor and not indices.is_floating_point() and indices.dtype != torch.bool
        )
        if not is_of_integers or indices.ndim != 1:
            got = f"{indices!r:.100}"
            if is_tensor:
                got = f"{indices.dtype} of shape {tuple(indices.shape)}"
            raise ValueError(
                f"indices must be an integer tensor of shape (b,), got {got}; pass"
                " torch.tensor([0, …])"
            )
        source = self.endless()
        if source is not None:
            if not len(indices) or indices.min() < 0:
                raise ValueError(
                    f"indices are {indices.tolist()!r:.100}; give one or more, from 0 on, of rows"
                    " that are made"
                )
            indices = torch.cat([source.rows(i, 1) for i in indices.tolist()])
        inputs, labels = self.forms.batch(self.tensors, indices)
        tokens = inputs if isinstance(inputs, SoftTokens) else labels
        return tokens.probabilities()

    # -- rows to train on --------------------------------------------------------------------------

    @property
    def is_endless(self) -> bool:
        """Whether it makes its rows, as many as a training asks for. Its μ is then the number of
        rows that are shown.
        """
        return self.forms.inputs.is_endless

    def endless(self, seed: int | None = None, length: int | None = None) -> EndlessRows | None:
        """The rows of a training whose inputs are made when they are read; None where inputs are
        stored.

        Args:
            seed: of the rows; by default `config.seed`.
            length: ids of a row; by default ξ.
        """
        return self.forms.endless(self.tensors, seed, length)

    def as_dataset(
        self, num_rows: int | None = None, seed: int | None = None
    ) -> Dataset | RowsDataset:
        """The rows for the stock Trainer: a `datasets.Dataset` of μ rows, or a stream where inputs
        are drawn or written. Use it with `collator()`.

        The column `input_ids` holds (ξ, d) floats, which the collator turns into soft tokens batch
        by batch, or ξ ids. Labels of their own are in the column `labels`, (ξ, e) floats. Trainer
        drops columns of other names. Those of a carried teacher are made by the collator.

        Args:
            num_rows: of a stream, the rows of an epoch. The next epoch goes on where it ended. By
                default, a stream has no end.
            seed: of a stream; by default `config.seed`. A row depends on (seed, position) alone,
                whoever reads it.

        Raises:
            ValueError: rows that are stored have neither.
        """
        return self.forms.inputs.dataset(self.tensors, self.forms.labels, num_rows, seed)

    def collator(self) -> SoftTokenCollator:
        """The data collator for `as_dataset()` and for rows of ids: one Trainer can train on soft
        rows and evaluate on real data.

        It can be pickled, and holds copies of the decoders, or of a carried teacher, on the CPU.
        """
        shared = self.forms.shared(self.tensors)
        return SoftTokenCollator(self.forms.on_cpu(), shared, self._own_optimizer.rows_read)

    def training_arguments(
        self, output_dir: str | os.PathLike, **changes: Any
    ) -> TrainingArguments:
        """The stock Trainer's arguments for a student that trains as the learners of the
        distillation did.

        From `config.inner` come the optimizer and its settings, the schedule, the number of steps
        and the batch size. As in the inner loop, gradients are not clipped. Nothing is saved or
        reported, and every tenth step is logged. A warning says where Trainer differs: AdamW's
        weight decay, and a last incomplete batch, which the inner loop leaves out.

        Args:
            output_dir: Trainer's folder. It stays empty unless `changes` asks for files.
            changes: arguments of `transformers.TrainingArguments` that replace those above or add
                to them, such as `seed` or `bf16`.

        Raises:
            ValueError: the learning rate or the number of steps is neither in `config.inner` nor in
                `changes`, or `config.inner` holds settings that no inner optimizer accepts.
        """
        stored = None if self.is_endless else self.config.num_sequences
        if "lr" in (self.config.inner or {}) and "optim" not in changes:
            self._own_optimizer.expected(inner_optimizer(self.config.inner))
        return training_arguments(self.config.inner, stored, str(output_dir), changes)

    @property
    def optimizer_cls_and_kwargs(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]] | None:
        """For the stock Trainer's argument of this name: the optimizer that students had, where
        `training_arguments` cannot name it, else None.

        Without it, Trainer has AdamW at the same settings, which needs more steps: a warning says
        so where it was not read before the first row.
        """
        self._own_optimizer.given()
        if "lr" not in (self.config.inner or {}):
            return None
        return inner_optimizer(self.config.inner).stock_class

    def trainer(
        self,
        model: PreTrainedModel,
        output_dir: str | os.PathLike = "student",
        *,
        start: StudentStart | str | None = None,
        **changes: Any,
    ) -> Trainer:
        """The stock Trainer for a student of this summary, ready to `train()`.

        It has `as_dataset()`, `collator()`, `training_arguments()` and `optimizer_cls_and_kwargs`,
        and the model begins as the summary says, see `student_start`. One that begins with the
        teacher's layers, or with fitted ones, and is not narrower than the teacher takes a quarter
        of the summary's learning rate, unless attention and MLP of its layers work side by side
        (GPT-NeoX). Give Trainer all these yourself where you need other arguments of it.

        Args:
            model: a new causal model over the vocabulary of the summary, or a recommender over its
                items. It is changed in place.
            output_dir: as for `training_arguments`.
            start: how the model begins, "teacher" or "random"; by default `student_start`.
            changes: arguments of `Trainer`, such as `compute_metrics`, or of `TrainingArguments`,
                such as `seed`. A `learning_rate` is taken as it is.

        Raises:
            ValueError: the rows are text (see `summary.forms`), the model has another vocabulary,
                or see `training_arguments`.
        """
        start = self.student_start if start is None else start_named(start)
        return student_trainer(self, model, output_dir, start, changes)

    def as_hard_dataset(self, samples_per_sequence: int | None = None, seed: int = 0) -> Dataset:
        """Token ids in place of soft tokens, for models and trainers that take only ids.

        Students learn less from them: docs/paper_tables.md says how much less.

        Args:
            samples_per_sequence: n, the sequences drawn from each synthetic one. Every position is
                drawn from its own distribution. `None` takes the likeliest token of each position
                instead.
            seed: of the draws.

        Returns:
            μ·n rows (μ rows for `None`) with `input_ids` and `labels`, ξ ids each. The n rows of a
            synthetic sequence are neighbours. Labels equal the inputs, or are drawn from the
            summary's own labels; a student predicts `labels[j + 1]` after position j, so the last
            own label, which has no place in such a row, is left out.
        """
        source = self.endless()
        ids, labels = hard_rows(self.forms, self.tensors, source, samples_per_sequence, seed)
        columns = {"input_ids": ids.tolist(), "labels": labels.tolist()}
        return Dataset.from_dict(columns).with_format("torch")

    def decode(self, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """The likeliest tokens of each position, their probabilities, and the entropy.

        Returns:
            `decoded[i][j] = {"tokens": [...], "probabilities": [...], "entropy": nats}` of position
            j in sequence i. Tokens are sorted by falling probability; they are strings if there is
            a vocabulary, otherwise ids. There are at most V of them. An input that is an id is one
            token with probability 1. With labels of its own, a position also has `label_tokens`,
            `label_probabilities` and `label_entropy`: what a student should predict after it.
        """
        check_size("top_k", top_k, 1)
        rows = self.decoded(self.tensors, self.vocabulary, top_k)
        return rows[:]

    def decoded(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary, top_k: int) -> Decoded:
        """As `decode`, but each row is made when it is read.

        Args:
            tensors: of the summary, or what is left of them after rounding.
            vocabulary: names the entries.
            top_k: the likeliest tokens of a position.
        """
        return Decoded(self.forms, tensors, self.forms.endless(tensors), vocabulary, top_k)

    @torch.no_grad()
    def beginning(self, num_sequences: int, positions: int) -> FarziData:
        """The first positions of the first sequences as a summary of its own, to be shown: what it
        takes does not depend on μ and ξ.

        Args:
            num_sequences: at most 256 where rows are made.
            positions: at least 2.

        Raises:
            ValueError: the labels of a carried teacher would take too many seconds or bytes.
        """
        count = min(num_sequences, self.config.num_sequences)
        length = min(positions, self.config.sequence_length)
        if not self.forms.labels.carries_teacher:
            config = copy.deepcopy(self.config)
            config.num_sequences = count
            config.sequence_length = length
            tensors = self.forms.beginning_of(self.tensors, count, length)
            return FarziData(config, self.processing_class, tensors)
        rows = self.endless()
        try:
            with Budget.of_load(self.config.shapes):
                if rows is None:
                    ids = self.forms.inputs.batch(self.tensors, slice(0, count))[:, :length]
                else:
                    ids = rows.beginning(count, length)
                return labelled(self, ids.to(self.teacher.device))
        except OverBudgetError as error:
            raise ValueError(
                f"num_sequences={count}, positions={length}: the teacher labels them too slowly"
                f" ({error}); show fewer"
            ) from error

    # -- a carried teacher -------------------------------------------------------------------------

    @classmethod
    def from_teacher(
        cls,
        teacher: PreTrainedModel,
        *,
        inputs: str = "drawn",
        sequence_length: int,
        frequencies: Tensor | Sequence[float] | None = None,
        storage: str = "int6",
        tokenizer: Any = None,
        num_sequences: int = 64,
        seed: int = 0,
    ) -> FarziData:
        """A summary that carries a trained model, whose predictions are the labels. No outer step
        is needed.

        Args:
            teacher: a causal language model, or a recommender of `farzi_hf.models`.
            inputs: "drawn", ids by frequency; "written", ids that the teacher writes; "tokens",
                drawn ids that are fixed.
            sequence_length: ξ, ids of a row.
            frequencies: (V,) positive numbers, how often an id is drawn; 0: never. By default all
                alike.
            storage: how the teacher's numbers are stored. It computes with what is left of them
                from now on.
            tokenizer: or a list of items' names.
            num_sequences: μ, the rows that are shown; where inputs are "tokens", all rows.
            seed: of the rows.

        Raises:
            ValueError: the teacher cannot be made again from its config, or cannot read ξ ids; or
                the frequencies are none.
        """
        return summary_of_teacher(
            cls,
            teacher,
            inputs=inputs,
            sequence_length=sequence_length,
            frequencies=frequencies,
            storage=storage,
            tokenizer=tokenizer,
            num_sequences=num_sequences,
            seed=seed,
        )

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any]] | Dataset,
        weights: Tensor | Sequence[float],
        tokenizer: Any = None,
        vocab_size: int = 2,
        sequence_length: int = 2,
        metrics: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> FarziData:
        """A summary that is rows of your data, with weights: those whose weight is not 0.

        Args:
            rows: of the data, in columns of your own that JSON can hold: text, chats, numbers.
            weights: (n,), one for each row; they are scaled so that a row that stays has 1 on
                average.
            tokenizer: of the model that they were chosen with, or a list of items' names.
            vocab_size: of that model.
            sequence_length: the most ids of a row.
            metrics: figures and facts for its card; `dataset` names the data, with their revision,
                and `licence` their licence.
            recipe: how the weights were learnt.

        Raises:
            ValueError: a weight is negative or not finite, or all are 0; or a row holds what JSON
                cannot, or has a column `weight`.
        """
        farzi = summary_of_rows(cls, rows, weights, tokenizer, vocab_size, sequence_length)
        results = Results(publishable(metrics or {}), publishable(recipe or {}))
        farzi._saved = _ResultsOfTensors(results, farzi.fingerprint())
        return farzi

    def materialize(
        self, num_sequences: int, sequence_length: int | None = None, label_dim: int | None = None
    ) -> FarziData:
        """The first rows of a summary that carries a teacher, with its labels, as a summary of
        fixed rows with labels of their own.

        Args:
            num_sequences: μ of it.
            sequence_length: ξ of it; by default that of this summary.
            label_dim: e, numbers of a label; by default as many as the teacher's head has. With
                fewer, the closest labels of that rank are taken.

        Raises:
            ValueError: the summary carries no teacher, or stores fewer rows; a size is below 1; or
                the teacher does not read ξ ids.
        """
        fixed = materialized(self, num_sequences, sequence_length, label_dim)
        fixed._saved = self._saved._replace(fingerprint="")
        return fixed

    def with_inputs(self, inputs: str) -> FarziData:
        """The same summary with inputs of another form that has the same tensors: "written" in
        place of "drawn", or the other way round. The two share their tensors.

        Raises:
            ValueError: the form has other tensors, or does not go with the labels.
        """
        config = self.config.with_inputs(inputs)
        summary = type(self)(config, self.processing_class, self.tensors)
        summary._saved = self._saved
        return summary

    def with_rows(self, ids: Tensor | Sequence[Sequence[int]]) -> FarziData:
        """The same summary with these rows of ids (n, L) for inputs, in the place of those that it
        makes. It shares the tensors of the labels.

        Raises:
            ValueError: it has no carried teacher, or ids are no rows of integers, or outside the
                vocabulary.
        """
        if not self.forms.labels.carries_teacher:
            raise ValueError(
                f"labels={self.config.labels!r}: rows are fixed; with_rows() is for"
                " labels='teacher'"
            )
        ids = rows_of_ids(ids)
        check_ids("ids", {"ids": ids}, self.config.vocab_size, "give ids of its vocabulary")
        config = copy.copy(self.config)
        config.inputs = TokenInputs.name
        config.num_sequences, config.sequence_length = ids.shape
        config.origin = REAL.name  # nobody knows who wrote them
        device = self.teacher.device
        tensors = {**self.tensors, "input_ids": ids.int().to(device)}
        return type(self)(config, self.processing_class, tensors)

    def start(self, model: PreTrainedModel, seed: int = 0) -> list[str]:
        """Sets what the carried teacher knows of the vocabulary into a new model of any kind and
        width, in place: input embedding, head, learnt positions; also its layers, where the model
        is of its kind and deeper, or where a GPT-2 is the teacher of a GPT-2 of another width, a
        Llama, a Mistral, a Qwen2 or a GPT-NeoX. Where the vocabulary is far larger than the layers,
        these are fitted to the teacher's states. See `farzi_hf.summary.start`.

        Most models with such layers, or with fitted ones, that are at least as wide as the teacher
        want a quarter of the summary's learning rate: `trainer` gives them that.

        Args:
            model: a new causal model over the vocabulary of the summary, or a recommender over its
                items.
            seed: of the rows that the teacher writes for it, where its states are looked at.

        Returns:
            The names of the parameters that were set. The others stay as they are.

        Raises:
            ValueError: the summary carries no teacher, or the model has another vocabulary.
        """
        if not self.forms.labels.carries_teacher:
            raise ValueError(
                f"labels={self.config.labels!r}: no teacher is carried; start() is for"
                " labels='teacher'"
            )
        rows = self.forms.rows_of_start(self.tensors, check_seed(seed))
        return STUDENT_STARTS["teacher"].set_into(model, self.teacher, rows)

    @property
    def student_start(self) -> StudentStart:
        """How students begin, as `config.inner` says. Call `start` for a new model where this is
        not random.
        """
        return start_of(self.config.inner, self.forms.labels.carries_teacher)

    # -- files -------------------------------------------------------------------------------------

    @torch.no_grad()
    def store_as(self, storage: str) -> None:
        """Rounds the tensors, in place, to what a way of storing keeps of them. They are saved that
        way from now on.

        Do this once, when the summary is complete: it changes what students learn, by little, and
        `nbytes`. The metrics of an earlier save stay those of the exact numbers until you measure
        again.

        Args:
            storage: "int8", "int6", "int5" or "int4", so many bits for each number of a float32
                summary; "coded6" to "coded2", the same coded by their entropy; or "exact", which
                rounds nothing.

        Raises:
            ValueError: there is no such way, or numbers that are not float32 are to be rounded.
        """
        results = self.results
        check_choice("storage", storage, STORAGES)
        rounded = STORAGES[storage].rounded(self.tensors)
        for name, tensor in self.tensors.items():
            tensor.copy_(rounded[name])
        self.config.storage = storage
        self._keep(results)

    def contents(self) -> Contents:
        """The parts that the artefact is written from, with numbers as whoever loads it will find
        them.
        """
        exact = {name: tensor.detach() for name, tensor in self.tensors.items()}
        tensors = STORAGES[self.config.storage].rounded(exact)
        vocabulary = self.vocabulary
        decoded = self.decoded(tensors, vocabulary, _SHOWN_TOKENS)
        return Contents(self.forms, tensors, vocabulary, decoded)

    def save_pretrained(
        self,
        folder: str | os.PathLike,
        processing_class: Any = None,
        metrics: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        plots: Sequence[str | os.PathLike] | None = None,
        show_rows: bool = False,
    ) -> None:
        """Writes the whole artefact (tensors, config, vocabulary, parquet tables, card) into
        `folder`.

        Atomic: a crash at any point leaves the old artefact or the new one whole. Other files in
        the folder stay, for instance a checkpoint's optimizer state. docs/artefact.md lists the
        files.

        `metrics`, `recipe` and `plots` that are not given stay as they were last saved or loaded,
        see `results`. Absolute paths in them are cut to their last part.

        Args:
            processing_class: tokenizer or list of item names. The summary keeps it, and the config
                its hash.
            metrics: the results on the card, see `store.card.render_card`.
            recipe: everything needed to distil the summary again; becomes `recipe.yaml`.
            plots: image files that are copied into the artefact and shown on the card.
            show_rows: card, `viewer.html` and the plot `tokens.png` show rows even where these are
                not made up, and so may be sequences of the data. Without it, such a summary has
                neither of the two files. The licence of the data, `metrics["licence"]`, has to
                allow it.

        Raises:
            ValueError: latents or decoder are not finite, the vocabulary does not fit the summary,
                the folder holds somebody else's model or dataset, or no licence allows to show
                rows.
        """
        check_place("folder", folder, "a folder to write into")
        results = self._complete(processing_class, metrics, recipe, plots)
        write_artefact(self.contents(), Path(folder), results, show_rows)
        self._keep(results)

    def _complete(
        self,
        processing_class: Any = None,
        metrics: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        plots: Sequence[str | os.PathLike] | None = None,
    ) -> Results:
        """Takes over the arguments of `save_pretrained`, and checks that the summary can be saved.
        Returns what is saved beside it.
        """
        if processing_class is not None:
            self.processing_class = processing_class
        self.config.adopt_vocabulary(self.vocabulary, "processing_class")
        remedy = "it is not worth saving, go back to a good checkpoint"
        check_numbers(self.forms, self.tensors, remedy)
        earlier = self.results
        return Results(
            metrics=publishable(earlier.metrics if metrics is None else metrics),
            recipe=publishable(earlier.recipe if recipe is None else recipe),
            plots=earlier.plots if plots is None else read_plots(plots),
        )

    @classmethod
    @escaped_messages
    def from_pretrained(
        cls,
        folder_or_repo: str | os.PathLike,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike | None = None,
    ) -> FarziData:
        """Loads a summary from a folder or, if there is no such folder, from a dataset repository
        of the Hub.

        No code in the folder is run, no link is followed, and nothing is changed there.

        Args:
            revision: a branch, tag or commit of the repository; by default its main branch.
            token: of the Hub; by default the one that `hf auth login` has saved.
            cache_dir: the folder for downloads; by default the Hub's cache.

        Raises:
            FileNotFoundError: there is neither a folder nor a repository, or a file of the artefact
                is missing.
            ValueError: a file is damaged or a link, the tensors are not finite or have other shapes
                than the config says, or the vocabulary is not the one that the summary was
                distilled with.
        """
        return read_artefact(fetch_artefact(folder_or_repo, revision, token, cache_dir), cls._load)

    @classmethod
    def _load(cls, artefact: ArtefactFolder) -> FarziData:
        config = FarziDataConfig.from_json(artefact.read(CONFIG), artefact.path(CONFIG))
        storage = STORAGES[config.storage]
        path = artefact.path(TENSORS)
        stored = load_tensors(path, storage.layout(config.shapes, config.floats))
        try:
            tensors = storage.loaded(stored, config.shapes)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        vocabulary = load_vocabulary(artefact, config.vocab_size)
        budget = Budget.of_load(config.shapes)
        try:
            with budget:
                farzi = cls(config, vocabulary, tensors)
            check_numbers(farzi.forms, farzi.tensors, f"{path} is of no use, fetch another one")
            with budget:
                farzi.forms.check_teacher(farzi.tensors, f"teacher of {path}", budget)
        except OverBudgetError as error:
            raise ValueError(
                f"{path} takes more than a load may cost ({error}); do not trust it"
            ) from error
        config.adopt_vocabulary(farzi.vocabulary, "folder_or_repo")
        fingerprint = farzi.fingerprint()
        farzi._saved = _ResultsOfTensors(load_results(artefact), fingerprint)
        # To pack them again, only to count their bytes, takes longer than the load.
        nbytes = sum(x.nbytes for x in stored.values())
        farzi._file_size = _FileSize(nbytes, config.storage, fingerprint)
        return farzi

    def push_to_hub(
        self,
        repo_id: str,
        private: bool | None = None,
        revision: str | None = None,
        token: str | None = None,
        commit_message: str = "Upload Farzi data",
        **artefact: Any,
    ) -> str:
        """Uploads the artefact to the *dataset* repository `repo_id` in one commit and returns the
        commit's address. A line warns first of a summary whose teacher has learnt rows by heart.

        Everything is written anew from the tensors, the vocabulary, the metrics and the recipe. So
        of a summary that somebody else wrote no page, card or table goes up as it was. Plots that
        are no PNG or JPEG are left out, with a warning.

        Args:
            private: whether a new repository is private.
            revision: the branch to commit to, which is made if it does not exist; by default the
                main one.
            token: of the Hub; by default the one that `hf auth login` has saved.
            artefact: the arguments of `save_pretrained` beside the folder: processing_class,
                metrics, recipe, plots, show_rows.

        Raises:
            httpx.HTTPError: the Hub is out of reach or refuses. Nothing is committed, and another
                call goes on. See `store.hub.upload_artefact`.
        """
        check_repository(repo_id)
        with tempfile.TemporaryDirectory() as folder:
            metrics = self.write_published(Path(folder), **artefact).metrics
            warning = metrics.get("memory_warning")
            if warning:
                said = terminal_text(f"{warning} {metrics.get('memory', '')}", 1000)
                logger.warning("%s Everybody who can read %s can look for them.", said, repo_id)
            return upload_artefact(Path(folder), repo_id, private, revision, token, commit_message)

    def write_published(self, folder: Path, show_rows: bool = False, **artefact: Any) -> Results:
        """Writes into the empty `folder` what `push_to_hub` uploads, with the same arguments of
        `save_pretrained`. Returns what it holds beside the summary.
        """
        results = self._complete(**artefact)
        published = results.published()
        write_artefact(self.contents(), folder, published, show_rows)
        self._keep(results)
        return published

    @property
    def results(self) -> Results:
        """The metrics, recipe and plots of the last save or load; of tensors that have changed
        since, what is known of their data alone.
        """
        saved = self._saved
        if saved.fingerprint == self.fingerprint():
            return saved.results
        metrics = saved.results.metrics
        return Results({name: x for name, x in metrics.items() if name in OF_THE_DATA})

    def _keep(self, results: Results) -> None:
        """Notes the results of the present tensors."""
        self._saved = _ResultsOfTensors(results, self.fingerprint())

    def fingerprint(self) -> str:
        """A hash of all tensors: two summaries with equal fingerprints teach a student the same."""
        return fingerprint(self.tensors)

    def adopt_processing_class(self, processing_class: Any, argument: str) -> None:
        """Takes over a tokenizer or a list of item names, and the ids of its special tokens.

        Args:
            argument: names it in an error.

        Raises:
            ValueError: the summary has another vocabulary.
        """
        self.processing_class = processing_class
        self.config.adopt_vocabulary(self.vocabulary, argument)
        # Trainer would take them over too, with a warning.
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if hasattr(processing_class, name):
                setattr(self.config, name, getattr(processing_class, name))
