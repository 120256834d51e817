"""FarziData: a few synthetic sequences of soft tokens that stand in for a whole autoregressive dataset.

In the paper's form a summary is two tensors, `latents (μ, ξ, d)` and `decoder (d, V)`. The soft token at position j of sequence i is
`softmax(latents[i, j] @ decoder / τ)`, a distribution over the V entries of the vocabulary (section 3 of the paper,
arXiv 2310.09983). A summary may also have labels of its own, and ids for inputs: see `farzi_hf.summary.forms`. Soft tokens are
computed only for the sequences of one batch: no tensor has the size μ × ξ × V.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainingArguments

from farzi_hf.data import Vocabulary, vocabulary_of
from farzi_hf.models.base import check_size
from farzi_hf.summary.config import FarziDataConfig, check_choice
from farzi_hf.summary.forms import batch_of
from farzi_hf.summary.inner_settings import stock_arguments
from farzi_hf.summary.reading import Decoded, check_numbers, decode, frequencies, hard_rows
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.soft_training import SoftTokenCollator
from farzi_hf.summary.store import ArtefactFolder, Results, fetch_artefact, push_folder, read_artefact
from farzi_hf.summary.store.card import Contents
from farzi_hf.summary.store.folder import CONFIG, TENSORS
from farzi_hf.summary.store.tensor_file import STORAGES, fingerprint, load_tensors
from farzi_hf.summary.store.text import without_local_paths
from farzi_hf.summary.store.untrusted import load_vocabulary
from farzi_hf.summary.store.writing import load_results, read_plots, rows_table, write_artefact

_SHOWN_TOKENS = 5  # likeliest tokens of each position, in the artefact's tables


class FarziData(nn.Module):
    """The summary: its tensors, its `config`, and the vocabulary if it has one.

    The tensors are attributes under the names that `farzi_hf.summary.forms` lists; by default `latents (μ, ξ, d)` and
    `decoder (d, V)`. Those that are learnt are parameters, the others buffers.

    `processing_class` is the tokenizer (or the list of item names) that gives the V entries their meaning, or `None`:
    a summary without one can be trained on, it just cannot be read. `tensors` replace random ones; their shapes are those
    that the config says.

    ```python
    farzi = FarziData(FarziDataConfig(num_sequences=400, sequence_length=50, latent_dim=16, vocab_size=2004))
    farzi(torch.tensor([0, 7]))  # (2, 50, 2004) probabilities
    ```
    """

    def __init__(
        self, config: FarziDataConfig, processing_class: Any = None, tensors: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.processing_class = processing_class
        self._results = (Results(), "")  # with the fingerprint of the tensors that they belong to
        for name, shape in config.shapes.items():
            if name in config.learnt:
                given = tensors[name] if tensors else torch.randn(shape) * config.latent_std
                self.register_parameter(name, nn.Parameter(given))
            else:
                given = tensors[name] if tensors else torch.randint(config.vocab_size, shape, dtype=torch.int32)
                self.register_buffer(name, given)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the summary by name, the very ones that are trained."""
        return {name: getattr(self, name) for name in self.config.shapes}

    @property
    def vocabulary(self) -> Vocabulary:
        """What the V entries stand for, made from `processing_class`."""
        return vocabulary_of(self.processing_class)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: the size of the summary as it is stored."""
        return STORAGES[self.config.storage].nbytes(self.tensors)

    def forward(
        self, indices: Tensor | None = None, functional: Callable[[dict[str, Tensor]], Tensor] | None = None
    ) -> Tensor:
        """Probabilities (b, ξ, V) of the sequences `indices (b,)`, or `functional(tensors)` if that is given.

        They are the soft tokens. A summary whose inputs are ids has none; its probabilities are those of its labels.

        A distillation passes its meta-objective through `forward`, so that DistributedDataParallel and autocast, which wrap the module,
        see an ordinary forward and backward pass. Reading `farzi.latents` from outside would bypass them.

        Raises:
            ValueError: neither argument is given (the soft tokens of all μ sequences at once would not fit into memory),
                or `indices` is not a vector of integers.
        """
        if functional is not None:
            return functional(self.tensors)
        if indices is None or indices.ndim != 1 or indices.is_floating_point():
            got = "None" if indices is None else f"{indices.dtype} of shape {tuple(indices.shape)}"
            raise ValueError(
                f"indices must be an integer tensor of shape (b,), got {got}; pass torch.tensor([0, 1, …])"
            )
        inputs, labels = batch_of(self.tensors, indices, self.config.tau)
        return (inputs if isinstance(inputs, SoftTokens) else labels).probabilities()

    def as_dataset(self) -> Dataset:
        """The sequences as a `datasets.Dataset` of μ rows for the stock Trainer. Use it with `collator()`.

        The column `input_ids` holds (ξ, d) floats, which the collator turns into soft tokens batch by batch, or ξ ids. Labels of
        their own are in the column `labels`, (ξ, e) floats. Trainer drops columns of other names.
        """
        return Dataset(rows_table(self.tensors)).with_format("torch")

    def collator(self) -> SoftTokenCollator:
        """The data collator for `as_dataset()` and for rows of ids: one Trainer can train on soft rows and evaluate on real data.

        It can be pickled, and holds copies of the decoders on the CPU.
        """
        copies = {name: x.detach().cpu().clone() for name, x in self.tensors.items() if name.endswith("decoder")}
        return SoftTokenCollator(
            copies.get("decoder"), self.config.tau, copies.get("label_decoder"), self.config.vocab_size
        )

    def training_arguments(self, output_dir: str | os.PathLike, **changes: Any) -> TrainingArguments:
        """The stock Trainer's arguments for a student that trains as the learners of the distillation did.

        From `config.inner` come the optimizer and its settings, the schedule, the number of steps and the batch size. As in the inner loop,
        gradients are not clipped. Nothing is saved or reported, and every tenth step is logged. A warning says where Trainer
        differs: AdamW's weight decay, and a last incomplete batch, which the inner loop leaves out.

        Args:
            output_dir: Trainer's folder. It stays empty unless `changes` asks for files.
            changes: arguments of `transformers.TrainingArguments` that replace those above or add to them, such as `seed` or `bf16`.

        Raises:
            ValueError: the learning rate or the number of steps is neither in `config.inner` nor in `changes`, or `config.inner` holds
                settings that no inner optimizer accepts.
        """
        return stock_arguments(self.config.inner, self.config.num_sequences, str(output_dir), changes)

    def as_hard_dataset(self, samples_per_sequence: int | None = None, seed: int = 0) -> Dataset:
        """Token ids in place of soft tokens, for models and trainers that take only ids.

        Students learn less from them: docs/results.md says how much less.

        Args:
            samples_per_sequence: n, the sequences drawn from each synthetic one. Every position is drawn from its own distribution.
                `None` takes the likeliest token of each position instead.
            seed: of the draws.

        Returns:
            μ·n rows (μ rows for `None`) with `input_ids` and `labels`, ξ ids each. The n rows of a synthetic sequence are neighbours.
            Labels equal the inputs, or are drawn from the summary's own labels; a student predicts `labels[j + 1]` after position j,
            so the last own label, which has no place in such a row, is left out.
        """
        ids, labels = hard_rows(self.tensors, self.config.tau, samples_per_sequence, seed)
        return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()}).with_format("torch")

    def sample_text(self, samples_per_sequence: int = 1, seed: int = 0) -> list[str]:
        """The rows of `as_hard_dataset(samples_per_sequence, seed)` as texts: with special tokens, and bars between items.

        Raises:
            ValueError: the summary has no vocabulary.
        """
        vocabulary = self.vocabulary
        names = vocabulary.names(self.config.vocab_size)
        ids, _ = hard_rows(self.tensors, self.config.tau, samples_per_sequence, seed)
        return [vocabulary.text([names[i] for i in row]) for row in ids.tolist()]

    def decode(self, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """The likeliest tokens of each position, their probabilities, and the entropy.

        Returns:
            `decoded[i][j] = {"tokens": [...], "probabilities": [...], "entropy": nats}` of position j in sequence i. Tokens are sorted
            by falling probability; they are strings if there is a vocabulary, otherwise ids. There are at most V of them. An input that
            is an id is one token with probability 1. With labels of its own, a position also has `label_tokens`,
            `label_probabilities` and `label_entropy`: what a student should predict after it.
        """
        return decode(self.tensors, self.config, self.vocabulary, check_size("top_k", top_k, 1))

    @torch.no_grad()
    def store_as(self, storage: str) -> None:
        """Rounds the tensors, in place, to what a way of storing keeps of them. They are saved that way from now on.

        Do this once, when the summary is complete: it changes what students learn, by little, and `nbytes`. The metrics of an earlier
        save stay those of the exact numbers until you measure again.

        Args:
            storage: "int8", "int6", "int5" or "int4", so many bits for each number of a float32 summary; or "exact", which rounds nothing.

        Raises:
            ValueError: there is no such way, or numbers that are not float32 are to be rounded.
        """
        known, kept = self.results, STORAGES[check_choice("storage", storage, STORAGES)].rounded(self.tensors)
        for name, tensor in self.tensors.items():
            tensor.copy_(kept[name])
        self.config.storage = storage
        self._results = (known, self.fingerprint())

    def contents(self) -> Contents:
        """The parts that the artefact is written from, with numbers as whoever loads it will find them."""
        exact = {name: tensor.detach() for name, tensor in self.tensors.items()}
        parts = STORAGES[self.config.storage].rounded(exact), self.config, self.vocabulary
        return Contents(*parts, Decoded(*parts, _SHOWN_TOKENS))

    def save_pretrained(
        self,
        folder: str | os.PathLike,
        processing_class: Any = None,
        metrics: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        plots: Sequence[str | os.PathLike] | None = None,
    ) -> None:
        """Writes the whole artefact (tensors, config, vocabulary, parquet tables, card) into `folder`.

        Atomic: a crash at any point leaves the old artefact or the new one whole. Other files in the folder stay, for instance
        a checkpoint's optimizer state. docs/artefact.md lists the files.

        `metrics`, `recipe` and `plots` that are not given stay as they were last saved or loaded, see `results`. Absolute
        paths in them are cut to their last part.

        Args:
            processing_class: tokenizer or list of item names. The summary keeps it, and the config its hash.
            metrics: the results on the card, see `artefact.card.render_card`.
            recipe: everything needed to distil the summary again; becomes `recipe.yaml`.
            plots: image files that are copied into the artefact and shown on the card.

        Raises:
            ValueError: latents or decoder are not finite, the vocabulary does not fit the summary, or the folder
                holds somebody else's model or dataset.
        """
        if processing_class is not None:
            self.processing_class = processing_class
        self.config.adopt_vocabulary(self.vocabulary, "processing_class")
        check_numbers(self.tensors, self.config, "it is not worth saving, go back to a good checkpoint")
        known = self.results
        results = Results(
            metrics=without_local_paths(known.metrics if metrics is None else metrics),
            recipe=without_local_paths(known.recipe if recipe is None else recipe),
            plots=known.plots if plots is None else read_plots(plots),
        )
        write_artefact(self.contents(), Path(folder), results)
        self._results = (results, self.fingerprint())

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | os.PathLike,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike | None = None,
    ) -> FarziData:
        """Loads a summary from a folder or, if there is no such folder, from a dataset repository of the Hub.

        No code in the folder is run, no link is followed, and nothing is changed there.

        Args:
            revision: a branch, tag or commit of the repository; by default its main branch.
            token: of the Hub; by default the one that `hf auth login` has saved.
            cache_dir: the folder for downloads; by default the Hub's cache.

        Raises:
            FileNotFoundError: there is neither a folder nor a repository, or a file of the artefact is missing.
            ValueError: a file is damaged or a link, the tensors are not finite or have other shapes than the config says, or the
                vocabulary is not the one that the summary was distilled with.
        """
        return read_artefact(fetch_artefact(folder_or_repo, revision, token, cache_dir), cls._load)

    @classmethod
    def _load(cls, artefact: ArtefactFolder) -> FarziData:
        config = FarziDataConfig.from_json(artefact.read(CONFIG), artefact.path(CONFIG))
        storage = STORAGES[config.storage]
        stored = load_tensors(artefact.path(TENSORS), storage.layout(config.shapes, config.learnt))
        farzi = cls(config, load_vocabulary(artefact, config.vocab_size), storage.loaded(stored))
        check_numbers(farzi.tensors, config, f"{artefact.path(TENSORS)} is of no use, fetch another one")
        config.adopt_vocabulary(farzi.vocabulary, "folder_or_repo")
        farzi._results = (load_results(artefact), farzi.fingerprint())
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
        """Uploads the artefact to the *dataset* repository `repo_id` in one commit and returns the commit's address.

        Args:
            private: whether a new repository is private.
            revision: the branch to commit to, which is made if it does not exist; by default the main one.
            token: of the Hub; by default the one that `hf auth login` has saved.
            artefact: the arguments of `save_pretrained` beside the folder: processing_class, metrics, recipe, plots.

        Raises:
            httpx.HTTPError: the Hub is out of reach or refuses. Nothing is committed, and another call goes on. See `store.hub.push_folder`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **artefact)
            return push_folder(
                folder, repo_id, private=private, revision=revision, token=token, commit_message=commit_message
            )

    def frequencies(self) -> Tensor:
        """(V,): the share of each vocabulary entry over the inputs of all μ·ξ positions; sums to 1."""
        return frequencies(self.tensors, self.config)

    @property
    def results(self) -> Results:
        """The metrics, recipe and plots of the last save or load; empty if latents or decoder have changed since."""
        results, fingerprint = self._results
        return results if fingerprint == self.fingerprint() else Results()

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
        for name in (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
        ):  # Trainer would take them over too, with a warning
            if hasattr(processing_class, name):
                setattr(self.config, name, getattr(processing_class, name))
