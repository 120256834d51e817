"""FarziData: a few synthetic sequences of soft tokens that stand in for a whole autoregressive dataset.

A summary is two tensors, `latents (μ, ξ, d)` and `decoder (d, V)`. The soft token at position j of sequence i is
`softmax(latents[i, j] @ decoder / τ)`, a distribution over the V entries of the vocabulary (section 3 of the paper,
arXiv 2310.09983). Soft tokens are computed only for the sequences of one batch: no tensor has the size μ × ξ × V.
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

from farzi_hf.artefact import ArtefactFolder, Results, fetch_artefact, push_folder, read_artefact
from farzi_hf.artefact.contents import Contents
from farzi_hf.artefact.layout import CONFIG, TENSORS
from farzi_hf.artefact.local_paths import without_local_paths
from farzi_hf.artefact.tensor_file import checksum, load_tensors
from farzi_hf.artefact.vocabulary_files import load_vocabulary
from farzi_hf.artefact.writing import latents_table, load_results, read_plots, write_artefact
from farzi_hf.data import Vocabulary, vocabulary_of
from farzi_hf.summary.collator import SoftTokenCollator
from farzi_hf.summary.config import FarziDataConfig, check_size
from farzi_hf.summary.hard_tokens import CHUNK, hard_tokens
from farzi_hf.summary.soft_tokens import soft_tokens
from farzi_hf.summary.stock_settings import stock_arguments

_SHOWN_TOKENS = 5  # likeliest tokens of each position, in the artefact's tables


def _shapes(config: FarziDataConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of a summary's parameters."""
    return {
        "latents": (config.num_sequences, config.sequence_length, config.latent_dim),
        "decoder": (config.latent_dim, config.vocab_size),
    }


class FarziData(nn.Module):
    """The summary: parameters `latents (μ, ξ, d)` and `decoder (d, V)`, its `config`, and the vocabulary if it has one.

    `processing_class` is the tokenizer (or the list of item names) that gives the V entries their meaning, or `None`:
    a summary without one can be trained on, it just cannot be read. `tensors` are latents and decoder to take, of the shapes
    that the config says, in place of random ones.

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
        if tensors is None:
            tensors = {name: torch.randn(shape) * config.latent_std for name, shape in _shapes(config).items()}
        self.latents, self.decoder = nn.Parameter(tensors["latents"]), nn.Parameter(tensors["decoder"])

    @property
    def vocabulary(self) -> Vocabulary:
        """What the V entries stand for, made from `processing_class`."""
        return vocabulary_of(self.processing_class)

    @property
    def nbytes(self) -> int:
        """Bytes of latents and decoder: the size of the summary as it is stored."""
        return sum(p.numel() * p.element_size() for p in (self.latents, self.decoder))

    def forward(
        self, indices: Tensor | None = None, functional: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Soft tokens (b, ξ, V) of the sequences `indices (b,)`, or `functional(latents, decoder)` if that is given.

        A distillation needs the parameters themselves for its meta-objective. It passes the objective through `forward`, so that
        everything that wraps the module sees an ordinary forward and backward pass: DistributedDataParallel sets its gradient
        hooks here, autocast its casts, `torch.compile` its guards. Reading `farzi.latents` from outside would bypass them.

        Raises:
            ValueError: neither argument is given (the soft tokens of all μ sequences at once would not fit into memory),
                or `indices` is not a vector of integers.
        """
        if functional is not None:
            return functional(self.latents, self.decoder)
        if indices is None or indices.ndim != 1 or indices.is_floating_point():
            got = "None" if indices is None else f"{indices.dtype} of shape {tuple(indices.shape)}"
            raise ValueError(
                f"indices must be an integer tensor of shape (b,), got {got}; pass torch.tensor([0, 1, …])"
            )
        return soft_tokens(self.latents[indices], self.decoder, self.config.tau)

    def as_dataset(self) -> Dataset:
        """The latents as a `datasets.Dataset` of μ rows for the stock Trainer. Use it with `collator()`.

        The only column holds (ξ, d) floats, which the collator turns into soft tokens batch by batch. It is called `input_ids`
        because Trainer drops columns that are no arguments of the model's forward.
        """
        return Dataset(latents_table(self.latents, "input_ids")).with_format("torch")

    def collator(self) -> SoftTokenCollator:
        """The data collator for `as_dataset()` and for rows of ids: one Trainer can train on soft rows and evaluate on real data.

        It can be pickled, and holds a copy of the decoder on the CPU.
        """
        return SoftTokenCollator(self.decoder.detach().cpu().clone(), self.config.tau)

    def training_arguments(self, output_dir: str | os.PathLike, **changes: Any) -> TrainingArguments:
        """The stock Trainer's arguments for a student that trains as the learners of the distillation did.

        From `config.inner` come the optimizer with its learning rate, betas, ε, momentum and weight decay, the number of steps and
        the batch size. The learning rate stays constant and gradients are not clipped, as in the inner loop. Nothing is
        saved or reported, every tenth step is logged, and memory is not pinned on a CPU.

        Trainer's AdamW decays weights in another way than the inner Adam. If the summary was distilled with weight decay, a warning says so.

        Args:
            output_dir: Trainer's folder. It stays empty unless `changes` asks for files.
            changes: arguments of `transformers.TrainingArguments` that replace those above or add to them, such as `seed` or `bf16`.

        Raises:
            ValueError: the learning rate or the number of steps is neither in `config.inner` nor in `changes`, or `config.inner` holds
                settings that no inner optimizer accepts.
        """
        return stock_arguments(self.config.inner, str(output_dir), changes)

    def as_hard_dataset(self, samples_per_sequence: int | None = None, seed: int = 0) -> Dataset:
        """Token ids in place of soft tokens, for models and trainers that take only ids.

        Students learn less from them: docs/results.md says how much less.

        Args:
            samples_per_sequence: n, the sequences drawn from each synthetic one. Every position is drawn from its own distribution.
                `None` takes the likeliest token of each position instead.
            seed: of the draws.

        Returns:
            μ·n rows (μ rows for `None`) with `input_ids` and equal `labels`, ξ ids each. The n rows of a synthetic sequence are
            neighbours.
        """
        ids = self._hard_tokens(samples_per_sequence, seed).tolist()
        return Dataset.from_dict({"input_ids": ids, "labels": ids}).with_format("torch")

    def sample_text(self, samples_per_sequence: int = 1, seed: int = 0) -> list[str]:
        """The rows of `as_hard_dataset(samples_per_sequence, seed)` as texts: with special tokens, and bars between items.

        Raises:
            ValueError: the summary has no vocabulary.
        """
        vocabulary = self.vocabulary
        names = vocabulary.names(self.config.vocab_size)
        rows = self._hard_tokens(samples_per_sequence, seed).tolist()
        return [vocabulary.text([names[i] for i in row]) for row in rows]

    def _hard_tokens(self, samples_per_sequence: int | None, seed: int) -> Tensor:
        """Ids (μ·n, ξ)."""
        if samples_per_sequence is not None:
            check_size("samples_per_sequence", samples_per_sequence, 1)
        return hard_tokens(self.latents, self.decoder, self.config.tau, samples_per_sequence, seed)

    @torch.no_grad()
    def decode(self, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """The likeliest tokens of each position, their probabilities, and the entropy.

        Returns:
            `decoded[i][j] = {"tokens": [...], "probabilities": [...], "entropy": nats}` of position j in sequence i. Tokens are sorted
            by falling probability; they are strings if there is a vocabulary, otherwise ids. There are at most V of them.
        """
        k = min(check_size("top_k", top_k, 1), self.config.vocab_size)
        vocabulary = self.vocabulary
        names = vocabulary.names(self.config.vocab_size) if vocabulary.named else range(self.config.vocab_size)
        positions = []
        for chunk in self.latents.flatten(0, 1).split(CHUNK):
            log_p = torch.log_softmax((chunk @ self.decoder / self.config.tau).float(), dim=-1)
            top = log_p.topk(k)
            entropy = torch.special.entr(log_p.exp()).sum(-1)
            for ids, probabilities, nats in zip(
                top.indices.tolist(), top.values.exp().tolist(), entropy.tolist(), strict=True
            ):
                tokens = [names[i] for i in ids]
                positions.append({"tokens": tokens, "probabilities": probabilities, "entropy": nats})
        length = self.config.sequence_length
        return [positions[start : start + length] for start in range(0, len(positions), length)]

    def contents(self) -> Contents:
        """The parts that the artefact is written from."""
        tensors = {"latents": self.latents.detach(), "decoder": self.decoder.detach()}
        return Contents(tensors, self.config, self.vocabulary, self.decode(_SHOWN_TOKENS))

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
        a checkpoint's optimizer state. See `farzi_hf.artefact.writing` for the layout.

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
        self.adopt_vocabulary("processing_class")
        self._check_numbers("it is not worth saving, go back to a good checkpoint")
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
        farzi = cls(config, load_vocabulary(artefact), load_tensors(artefact.path(TENSORS), _shapes(config)))
        farzi._check_numbers(f"{artefact.path(TENSORS)} is of no use, fetch another one")
        farzi.adopt_vocabulary("folder_or_repo")
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
            ConnectionError: the Hub could not be reached in several attempts. Nothing is committed, and another call
                resumes. See `artefact.hub.push_folder`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **artefact)
            return push_folder(
                folder, repo_id, private=private, revision=revision, token=token, commit_message=commit_message
            )

    @torch.no_grad()
    def _check_numbers(self, remedy: str) -> None:
        """Raises ValueError if soft tokens cannot be computed, or would not be finite."""
        types = {name: tensor.dtype for name, tensor in self.named_parameters()}
        if len(set(types.values())) > 1:
            raise ValueError(
                f"{', '.join(f'{name} is {dtype}' for name, dtype in types.items())}; make them of one type, with .to(dtype)"
            )
        for name, tensor in self.named_parameters():
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} holds NaN or infinity; {remedy}")
        # Cauchy-Schwarz: the product of a latent and a column of the decoder is at most the product of their lengths.
        largest = self.latents.double().norm(dim=-1).max() * self.decoder.double().norm(dim=0).max() / self.config.tau
        if largest > torch.finfo(torch.float32).max:
            raise ValueError(
                f"latents and decoder are so large for tau={self.config.tau:g} that the softmax of their product overflows; {remedy}"
            )

    @torch.no_grad()
    def frequencies(self) -> Tensor:
        """(V,): the share of each vocabulary entry over all μ·ξ positions; sums to 1."""
        total = torch.zeros(self.config.vocab_size, device=self.latents.device)
        for chunk in self.latents.flatten(0, 1).split(CHUNK):
            total += soft_tokens(chunk, self.decoder, self.config.tau).float().sum(0)
        return total / (self.config.num_sequences * self.config.sequence_length)

    @property
    def results(self) -> Results:
        """The metrics, recipe and plots of the last save or load; empty if latents or decoder have changed since."""
        results, fingerprint = self._results
        return results if fingerprint == self.fingerprint() else Results()

    def fingerprint(self) -> str:
        """A hash of latents and decoder: two summaries with equal fingerprints teach a student the same."""
        return " ".join(map(checksum, self.parameters()))

    def adopt_vocabulary(self, argument: str) -> None:
        """Checks the vocabulary against the config. A config without a vocabulary's hash gets this one's."""
        vocabulary = self.vocabulary
        if not vocabulary.named:
            return
        size, found = len(vocabulary), vocabulary.hash()
        if size > self.config.vocab_size:
            raise ValueError(
                f"{argument} brings a vocabulary of {size} entries, but the summary's vocab_size is "
                f"{self.config.vocab_size}; use the one it was distilled with"
            )
        if self.config.vocabulary_hash not in (None, found):
            raise ValueError(
                f"{argument} brings a vocabulary with hash {found[:12]}…, but the summary was distilled with "
                f"{self.config.vocabulary_hash[:12]}…; use that tokenizer or item list"
            )
        self.config.vocabulary_hash = found
