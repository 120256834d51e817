"""FarziData: a few synthetic sequences of soft tokens that stand in for a whole autoregressive dataset.

A summary is two tensors, `latents (μ, ξ, d)` and `decoder (d, V)`. The soft token at position j of sequence i is
`softmax(latents[i, j] @ decoder / τ)`, a distribution over the V entries of the vocabulary (section 3 of the paper,
arXiv 2310.09983). Soft tokens are only ever materialised for the sequences in hand: nothing here has the size
μ × ξ × V.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

from farzi_hf import publishing

_DECODE_CHUNK = 512  # positions whose V probabilities exist at the same time in decode()


class FarziDataConfig(PreTrainedConfig):
    """Shape and provenance of a summary.

    Args:
        num_sequences: μ, how many synthetic sequences there are.
        sequence_length: ξ, positions per sequence (at least 2: one to read and one to predict).
        latent_dim: d, numbers stored per position.
        vocab_size: V, entries of the vocabulary that soft tokens are distributions over.
        tau: τ, the temperature of the softmax.
        latent_std: standard deviation of the normal distribution that a new summary's latents *and* decoder are drawn
            from. The default of 0.1 starts every soft token close to uniform, which keeps the first meta-gradients
            small.
        inner: settings of the inner loop that the summary was distilled with (optimizer, lr, eps, steps, …). A student
            that is to reproduce the published figures uses them. Anything JSON can hold.
        vocabulary_hash: `publishing.vocabulary_hash` of the tokenizer or item list, `None` while there is none.

    Raises:
        ValueError: a size that is too small, or a τ or latent_std that is not a positive finite number.
    """

    model_type = "farzi_data"

    num_sequences: int = 1
    sequence_length: int = 2
    latent_dim: int = 1
    vocab_size: int = 2
    tau: float = 1.0
    latent_std: float = 0.1
    inner: dict[str, Any] | None = None
    vocabulary_hash: str | None = None

    def __init__(
        self,
        # Defaults exist because transformers builds configs without arguments to tell what differs from them.
        num_sequences: int = 1,
        sequence_length: int = 2,
        latent_dim: int = 1,
        vocab_size: int = 2,
        tau: float = 1.0,
        latent_std: float = 0.1,
        inner: Mapping[str, Any] | None = None,
        vocabulary_hash: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.num_sequences = _size("num_sequences", num_sequences, 1)
        self.sequence_length = _size("sequence_length", sequence_length, 2)
        self.latent_dim = _size("latent_dim", latent_dim, 1)
        self.vocab_size = _size("vocab_size", vocab_size, 2)
        self.tau = _positive("tau", tau)
        self.latent_std = _positive("latent_std", latent_std)
        self.inner = _as_json("inner", inner)
        self.vocabulary_hash = vocabulary_hash
        super().__init__(**kwargs)


def soft_tokens(latents: Tensor, decoder: Tensor, tau: float) -> Tensor:
    """`softmax(latents @ decoder / τ)`: latents (…, d) and decoder (d, V) give probabilities (…, V)."""
    return torch.softmax(latents @ decoder / tau, dim=-1)


class FarziData(nn.Module):
    """The summary: parameters `latents (μ, ξ, d)` and `decoder (d, V)`, its `config`, and the vocabulary if it has one.

    `processing_class` is the tokenizer (or the list of item names) that gives the V entries their meaning, or `None`:
    a summary without one can be trained on, it just cannot be read.

    ```python
    farzi = FarziData(FarziDataConfig(num_sequences=400, sequence_length=50, latent_dim=16, vocab_size=2004))
    farzi(torch.tensor([0, 7]))  # (2, 50, 2004) probabilities
    ```
    """

    def __init__(self, config: FarziDataConfig, processing_class: Any = None) -> None:
        super().__init__()
        self.config = config
        self.processing_class = processing_class
        shape = (config.num_sequences, config.sequence_length, config.latent_dim)
        self.latents = nn.Parameter(torch.randn(shape) * config.latent_std)
        self.decoder = nn.Parameter(torch.randn(config.latent_dim, config.vocab_size) * config.latent_std)

    @property
    def nbytes(self) -> int:
        """Bytes of latents and decoder: the size of the summary as it is stored."""
        return sum(p.numel() * p.element_size() for p in (self.latents, self.decoder))

    def forward(
        self, indices: Tensor | None = None, functional: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Soft tokens (b, ξ, V) of the sequences `indices (b,)`, or `functional(latents, decoder)` where one is given.

        Distillation needs a meta-objective of the parameters, not their soft tokens. Passing it through forward lets
        whatever wraps the module see an ordinary forward and backward pass: DistributedDataParallel arms its gradient
        hooks here, autocast its casts, `torch.compile` its guards. Reading `farzi.latents` from outside bypasses them.

        Raises:
            ValueError: neither argument given (all μ sequences at once are what a summary must never materialise),
                or `indices` that are not a vector of integers.
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
        """The latents as a `datasets.Dataset` of μ rows for the stock Trainer, to be used with `collator()`.

        The one column is called `input_ids` because Trainer drops columns that the model's forward does not name; it
        holds (ξ, d) floats, which the collator turns into soft tokens batch by batch.
        """
        return Dataset(publishing.latents_table(self.latents, "input_ids")).with_format("torch")

    def collator(self) -> SoftTokenCollator:
        """The data collator that goes with `as_dataset()`: picklable, holds a copy of the decoder on the CPU."""
        return SoftTokenCollator(self.decoder.detach().cpu().clone(), self.config.tau)

    @torch.no_grad()
    def decode(self, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """What each position says: per sequence, per position, its likeliest tokens and how sure it is.

        Returns:
            `decoded[i][j] = {"tokens": [...], "probabilities": [...], "entropy": nats}`, tokens by falling
            probability: strings where there is a vocabulary, otherwise ids. At most V of them.
        """
        k = min(_size("top_k", top_k, 1), self.config.vocab_size)
        names = publishing.token_strings(self.processing_class, self.config.vocab_size)
        positions = []
        for chunk in self.latents.flatten(0, 1).split(_DECODE_CHUNK):
            log_p = torch.log_softmax((chunk @ self.decoder / self.config.tau).float(), dim=-1)
            top = log_p.topk(k)
            entropy = torch.special.entr(log_p.exp()).sum(-1)
            for ids, probabilities, nats in zip(
                top.indices.tolist(), top.values.exp().tolist(), entropy.tolist(), strict=True
            ):
                tokens = ids if names is None else [names[i] for i in ids]
                positions.append({"tokens": tokens, "probabilities": probabilities, "entropy": nats})
        length = self.config.sequence_length
        return [positions[start : start + length] for start in range(0, len(positions), length)]

    def save_pretrained(
        self,
        folder: str | os.PathLike,
        processing_class: Any = None,
        metrics: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        plots: Sequence[str | os.PathLike] = (),
    ) -> None:
        """Writes the whole artefact (tensors, config, vocabulary, parquet tables, card) into `folder`.

        Atomic: a crash at any point leaves the artefact that was there, or the new one, whole. Other files in the
        folder (a checkpoint's optimizer state, say) are left alone. See `publishing.write_artefact` for the layout.

        Args:
            processing_class: tokenizer or list of item names; remembered, as is its hash in the config.
            metrics: what the summary achieves; the card's results. See `publishing.render_card`.
            recipe: everything needed to distil it again; becomes `recipe.yaml`.
            plots: image files to copy into the artefact and show on the card.

        Raises:
            ValueError: latents or decoder not finite, a vocabulary that does not fit the summary, or a folder that
                holds somebody else's model or dataset.
        """
        if processing_class is not None:
            self.processing_class = processing_class
        self.adopt_vocabulary("processing_class")
        for name, tensor in (("latents", self.latents), ("decoder", self.decoder)):
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} holds NaN or infinity and is not worth saving; go back to a good checkpoint")
        publishing.write_artefact(self, Path(folder), metrics=metrics, recipe=recipe, plots=plots)

    @classmethod
    def from_pretrained(cls, folder_or_repo: str | os.PathLike, revision: str | None = None) -> FarziData:
        """Loads a summary from a folder or, when there is no such folder, from a dataset repository of the Hub.

        Raises:
            FileNotFoundError: neither exists, or a file of the artefact is missing.
            ValueError: tensors whose shapes are not the config's, or a vocabulary other than the one distilled with.
        """
        folder = publishing.fetch_artefact(folder_or_repo, revision)
        config = FarziDataConfig.from_pretrained(folder)
        tensors = load_file(folder / publishing.TENSORS)
        with torch.device("meta"):
            farzi = cls(config)
        for name, parameter in farzi.named_parameters():
            found = tuple(tensors[name].shape) if name in tensors else "missing"
            if found != tuple(parameter.shape):
                raise ValueError(
                    f"{name} in {folder / publishing.TENSORS} is {found}, but config.json says "
                    f"{tuple(parameter.shape)}; the two files belong to different summaries, fetch it again"
                )
        farzi.load_state_dict(tensors, assign=True)
        farzi.processing_class = publishing.load_vocabulary(folder)
        farzi.adopt_vocabulary("folder_or_repo")
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

        `artefact` takes what `save_pretrained` takes beside the folder: processing_class, metrics, recipe, plots.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **artefact)
            return publishing.push_folder(
                folder, repo_id, private=private, revision=revision, token=token, commit_message=commit_message
            )

    def adopt_vocabulary(self, argument: str) -> None:
        """Checks the vocabulary against the config; a config that knows none yet takes its hash."""
        if self.processing_class is None:
            return
        size, found = len(self.processing_class), publishing.vocabulary_hash(self.processing_class)
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


@dataclass
class SoftTokenCollator:
    """Turns rows of `FarziData.as_dataset()` into a batch for a model that went through `attach_soft_inputs`.

    Gives `input_ids` and `labels`, both the soft tokens (b, ξ, V), and `shift_labels (b, ξ − 1)`, the likeliest target
    of each prediction as an integer. Trainer counts a batch's items on `shift_labels` where there is one; without it,
    it would count vocabulary entries and divide the loss by V times too much.
    """

    decoder: Tensor
    tau: float

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        latents = torch.stack([torch.as_tensor(row["input_ids"], dtype=self.decoder.dtype) for row in rows])
        soft = soft_tokens(latents, self.decoder, self.tau)
        return {"input_ids": soft, "labels": soft, "shift_labels": soft[:, 1:].argmax(-1)}


def _size(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return int(value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")
    return float(value)


def _as_json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`value` as it will read back from config.json (tuples become lists), so that a reloaded config is equal."""
    if value is None:
        return None
    try:
        return json.loads(json.dumps(dict(value)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold only what JSON can store, got {value!r}: {error}") from None
