"""Soft tokens: the softmax that computes them, what positions should predict, the embedding that
feeds them to a model, and the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from farzi_hf.engine.devices import values_are_free


@dataclass(frozen=True, eq=False)
class HardTargets:
    """Ids (n,) that n positions should predict. The methods are those of `SoftTokens`; ids have no
    derivative.
    """

    ids: Tensor
    tensors: ClassVar[tuple[Tensor, ...]] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, dtype: torch.dtype) -> HardTargets:
        return self

    def check(self, entries: int) -> None:
        if not values_are_free(self.ids) or not len(self.ids):
            return
        least, largest = map(int, torch.aminmax(self.ids))
        if not 0 <= least <= largest < entries:
            raise ValueError(
                f"targets has ids from {least} to {largest}, but the vocabulary has 0 to"
                f" {entries - 1}"
            )

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.ids, reduction="none")

    def block(self, rows: slice, out: Tensor) -> Tensor:
        return self.ids[rows, None]

    def dot(self, block: Tensor, z: Tensor, free: Tensor) -> Tensor:
        return z.gather(1, block)[:, 0]

    def sum_of_dots(self, block: Tensor, z: Tensor) -> Tensor:
        return z.gather(1, block).sum()

    def subtract(self, block: Tensor, p: Tensor, total: Tensor) -> Tensor:
        return p.scatter_add_(1, block, -total.expand(block.shape))

    def pull_back(self, *_: Any) -> None:
        return


@dataclass(frozen=True, eq=False)
class GivenTargets:
    """Distributions q (n, V) that n positions should predict, as they are. The methods are those of
    `SoftTokens`; the distributions have no derivative.
    """

    probabilities: Tensor
    tensors: ClassVar[tuple[Tensor, ...]] = ()

    def __len__(self) -> int:
        return len(self.probabilities)

    def to(self, dtype: torch.dtype) -> GivenTargets:
        return GivenTargets(self.probabilities.to(dtype))

    def check(self, entries: int) -> None:
        if self.probabilities.shape[-1] != entries:
            raise ValueError(
                f"targets are distributions over {self.probabilities.shape[-1]} entries, but the"
                f" vocabulary has {entries}; give some over as many"
            )

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return -(self.probabilities * logits.log_softmax(-1)).sum(-1)

    def block(self, rows: slice, out: Tensor) -> Tensor:
        return self.probabilities[rows]

    def dot(self, block: Tensor, z: Tensor, free: Tensor) -> Tensor:
        return (block * z).sum(1)  # `free` may be the block itself, which is still needed

    def sum_of_dots(self, block: Tensor, z: Tensor) -> Tensor:
        return torch.dot(block.flatten(), z.flatten())

    def subtract(self, block: Tensor, p: Tensor, total: Tensor) -> Tensor:
        return p.addcmul_(block, total, value=-1.0)

    def pull_back(self, *_: Any) -> None:
        return


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """`softmax(latents @ decoder / τ)`: distributions over the vocabulary, as the factors that they
    are made of.

    As targets q of n positions they have one axis. `farzi_hf.summary.vocabulary_sums` takes them in
    blocks of r positions.

    Args:
        latents: (…, d).
        decoder: (d, V); None if the latents have V numbers themselves.
        tau: τ.
    """

    latents: Tensor
    decoder: Tensor | None
    tau: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """(…, V)."""
        entries = (self.latents if self.decoder is None else self.decoder).shape[-1]
        return torch.Size((*self.latents.shape[:-1], entries))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that the distributions depend on."""
        return (self.latents,) if self.decoder is None else (self.latents, self.decoder)

    def logits(self) -> Tensor:
        """Of all of them at once, (…, V)."""
        latents = self.latents / self.tau  # the smaller of the two factors
        return latents if self.decoder is None else latents @ self.decoder

    def probabilities(self) -> Tensor:
        """All of them at once, (…, V)."""
        return torch.softmax(self.logits(), dim=-1)

    def to(self, dtype: torch.dtype) -> SoftTokens:
        """The same with numbers of this type."""
        return SoftTokens(
            self.latents.to(dtype),
            None if self.decoder is None else self.decoder.to(dtype),
            self.tau,
        )

    def flat(self) -> SoftTokens:
        """The same with one axis of positions."""
        return SoftTokens(self.latents.flatten(0, -2), self.decoder, self.tau)

    def following(self) -> SoftTokens:
        """Of sequences (b, ξ, V), what comes next: (b, ξ − 1, V)."""
        return SoftTokens(self.latents[:, 1:], self.decoder, self.tau)

    def __len__(self) -> int:
        return len(self.latents)

    def check(self, entries: int) -> None:
        """Raises ValueError unless they are distributions over that many entries."""
        if self.shape[-1] != entries:
            raise ValueError(
                f"soft tokens over {self.shape[-1]} entries, but the model's vocabulary has"
                f" {entries}; give Trainer data_collator=farzi.collator(), and build the model with"
                " vocab_size=farzi.config.vocab_size"
            )

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """logsumexp(z_j) − ⟨q_j, z_j⟩ of logits (n, V), (n,), by torch's own functions."""
        return -(self.probabilities() * logits.log_softmax(-1)).sum(-1)

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor, bool]:
        """Latents / τ and decoder without a graph, and whether their products are small."""
        latents = self.latents.detach() / self.tau
        decoder = self.decoder.detach()
        return latents, decoder, products_are_small(latents, decoder.T)

    def block(self, rows: slice, out: Tensor) -> Tensor:
        """Those of the positions `rows`, without a graph, in a form that the methods below take.
        May overwrite `out` (r, V).
        """
        if self.decoder is None:
            return torch.softmax(self.latents.detach()[rows] / self.tau, 1, out=out)
        latents, decoder, small = self._factors
        return softmax_(torch.mm(latents[rows], decoder, out=out), small)

    def dot(self, block: Tensor, z: Tensor, free: Tensor) -> Tensor:
        """⟨q_j, z_j⟩ of a block, (r,). Overwrites `free`."""
        return row_dot(block, z, free)

    def sum_of_dots(self, block: Tensor, z: Tensor) -> Tensor:
        """Σ_j ⟨q_j, z_j⟩ of a block, (): in one pass over memory, where `dot` takes three."""
        return torch.dot(block.flatten(), z.flatten())

    def subtract(self, block: Tensor, p: Tensor, total: Tensor) -> Tensor:
        """p − total · q of a block, with total (r, 1) or (), in the memory of `p` (r, V)."""
        return p.addcmul_(block, total, value=-1.0)

    def pull_back(
        self,
        rows: slice,
        block: Tensor,
        dq: Tensor,
        means: Tensor,
        scale: Tensor | float,
        totals: Sequence[Tensor | None],
        free: Tensor,
    ) -> None:
        """Adds a block's part of the derivatives in `tensors` to `totals`, if that in q is `scale`
        · `dq`. Overwrites `free`.

        Args:
            means: ⟨q_j, dq_j⟩, (r,).
            totals: None where nobody needs one.
        """
        if all(total is None for total in totals):
            return
        du = torch.sub(dq, means[:, None], out=free).mul_(block)
        if self.decoder is None:
            totals[0][rows].add_(du.mul_(scale / self.tau))
            return
        dlatents, ddecoder = totals
        if dlatents is not None:
            dlatents[rows].add_(torch.mm(du, self.decoder.detach().T).mul_(scale / self.tau))
        if ddecoder is not None:
            ddecoder.addmm_((self.latents.detach()[rows] * (scale / self.tau)).T, du)


Targets = HardTargets | GivenTargets | SoftTokens


def products_are_small(x: Tensor, table: Tensor) -> bool:
    """Whether no number of x Tᵀ exceeds 40, by the lengths of the rows of x (n, k) and T (V, k).
    Then sums of their exponentials are far from where float32 ends, and nobody needs to find the
    largest one. False where it cannot be told without waiting for a device.
    """
    return (
        values_are_free(x)
        and len(x) > 0
        and bool(x.norm(dim=1).amax() * table.norm(dim=1).amax() <= 40.0)
    )


def softmax_(logits: Tensor, small: bool) -> Tensor:
    """Of each row of logits (r, V), in their place. Where they are small, in a half of the time of
    torch.softmax.
    """
    if not small:
        return torch.softmax(logits, 1, out=logits)
    return logits.exp_().mul_(logits.sum(1, keepdim=True).reciprocal_())


def row_dot(x: Tensor, y: Tensor, free: Tensor) -> Tensor:
    """⟨x_j, y_j⟩ of each row, (r,), of matrices (r, V). Overwrites `free`."""
    return torch.mul(x, y, out=free).sum(1)


def soft_tokens(latents: Tensor, decoder: Tensor, tau: float) -> Tensor:
    """`softmax(latents @ decoder / τ)`: latents (…, d) and decoder (d, V) give probabilities (…,
    V).
    """
    return SoftTokens(latents, decoder, tau).probabilities()


def shifted_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed next-token cross-entropy and the number of predicted tokens.

    Args:
        logits: (b, L, V); position j predicts token j + 1.
        labels: integer ids (b, L), where -100 is ignored; or soft tokens (b, L, V) or (b, L + 1, V)
            that sum to one over V. `labels[:, j + 1]` is what position j predicts, so with L + 1
            labels every position predicts one.

    Returns:
        The loss summed over tokens, in nats, and the token count, both scalars. With soft labels q,
        a token's loss is -Σ_v q_v log p_v.
    """
    if labels.is_floating_point():
        size, length, entries = logits.shape
        shape = tuple(labels.shape)
        if shape not in ((size, length, entries), (size, length + 1, entries)):
            raise ValueError(
                f"labels: soft tokens of shape {shape}, but the logits are {tuple(logits.shape)};"
                " give Trainer data_collator=farzi.collator(), and the model the summary's"
                " vocabulary size (config.vocab_size)"
            )
        predicted = labels[:, 1:].to(logits.dtype)
        log_p = logits[:, : predicted.shape[1]].log_softmax(-1)
        return -(predicted * log_p).sum(), logits.new_tensor(predicted[..., 0].numel())
    targets = labels[:, 1:]
    loss = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return loss, (targets != -100).sum()


def feed_soft_tokens(
    model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook (`with_kwargs=True`): floating-point `input_ids` (b, L, V) reach the model
    as their mean embeddings (b, L, h).

    The embedding module itself is called on all ids, because some modules scale their output
    (Gemma's does).
    """
    soft = kwargs.get("input_ids", args[0] if args else None)
    if not (isinstance(soft, Tensor) and soft.is_floating_point()):
        return args, kwargs
    entries = vocabulary_size(model)
    SoftTokens(soft, None).check(entries)
    # Autocast would round the product to half precision, and a one-hot token would no longer be
    # exactly its id.
    with torch.autocast(soft.device.type, enabled=False):
        ids = torch.arange(entries, device=soft.device)[None]  # a batch, as its hooks expect it
        [table] = model.get_input_embeddings()(ids)
        embeds = soft.to(table.dtype) @ table
    # Only Trainer needs shift_labels, for counting. A model without **kwargs would raise TypeError.
    kept = {key: value for key, value in kwargs.items() if key not in ("input_ids", "shift_labels")}
    return (None, *args[1:]) if args else (), {**kept, "inputs_embeds": embeds}


def train_padding_row(model: PreTrainedModel) -> None:
    """Gives a tied embedding's padding row its gradient at the input too, which torch leaves out.

    The head trains that row in any case. Without its part at the input, the derivative of a
    training would be wrong.
    """
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    if head is not None and head.weight is embedding.weight:
        embedding.padding_idx = None


def vocabulary_size(model: PreTrainedModel) -> int:
    """V: the entries of the model's input embedding."""
    return model.get_input_embeddings().weight.shape[0]


def check_is_model(model: Any, argument: str = "model") -> None:
    """Raises ValueError for what is no model of transformers, such as the name of one.

    Args:
        argument: names it in the error.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "get_input_embeddings"):
        raise ValueError(
            f"{argument} is a {type(model).__name__}, no model of transformers; give one, such as"
            " AutoModelForCausalLM.from_config(…)"
        )


def check_student(model: PreTrainedModel, entries: int) -> None:
    """Raises ValueError if a student has another vocabulary than the summary, which has so many
    entries, or is no model.
    """
    check_is_model(model)
    found = vocabulary_size(model)
    if found != entries:
        raise ValueError(
            f"model has a vocabulary of {found} entries, the summary one of {entries}; build it"
            f" with {entries}, for the summary's tokenizer or items"
        )
