"""Summaries that carry a teacher: made of a trained model, without an outer step, and made into
fixed rows. `FarziData.from_teacher` and `FarziData.materialize` call this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from farzi_hf.common.checks import check_size
from farzi_hf.summary.config import FarziDataConfig
from farzi_hf.summary.endless import DrawnRows
from farzi_hf.summary.forms import INPUTS, OwnLabels, TeacherLabels, TokenInputs
from farzi_hf.summary.inner_settings import STUDENTS_OF_A_TEACHER
from farzi_hf.summary.origins import MADE_UP
from farzi_hf.summary.soft_tokens import check_is_model, vocabulary_size
from farzi_hf.summary.store.tensor_file import SHARES, TEACHER
from farzi_hf.summary.teacher import check_made_again, plain_config, teacher_model

if TYPE_CHECKING:
    from farzi_hf.summary.farzi_data import FarziData


@torch.no_grad()
def summary_of_teacher(
    kind: type[FarziData],
    teacher: PreTrainedModel,
    *,
    inputs: str,
    sequence_length: int,
    frequencies: Tensor | Sequence[float] | None,
    storage: str,
    tokenizer: Any,
    num_sequences: int,
    seed: int,
) -> FarziData:
    """See `FarziData.from_teacher`. `kind` is the class of the summary."""
    check_is_model(teacher, "teacher")
    shares = _shares(frequencies, vocabulary_size(teacher))
    config = FarziDataConfig(
        num_sequences,
        sequence_length,
        vocab_size=len(shares),
        inputs=inputs,
        labels=TeacherLabels.name,
        teacher=plain_config(teacher.config),
        seed=seed,
        inner=STUDENTS_OF_A_TEACHER,
    )
    if not INPUTS[inputs].is_endless:
        config.origin = MADE_UP.name
    ids = DrawnRows(shares, sequence_length, seed).rows(0, num_sequences)
    remedy = "give a plain causal language model"
    check_made_again(teacher, teacher_model(config), ids[:2], "teacher", remedy)
    tensors = {SHARES: shares, "input_ids": ids.int()}  # the inputs take those that they have
    for name, parameter in teacher.named_parameters():
        tensors[TEACHER + name] = parameter.detach().float().cpu().clone()
    farzi = kind(config, tokenizer, tensors)
    config.adopt_vocabulary(farzi.vocabulary, "tokenizer")
    farzi.store_as(storage)
    return farzi


def _shares(frequencies: Tensor | Sequence[float] | None, size: int) -> Tensor:
    """How often each of `size` entries is drawn, (V,) with a sum of 1."""
    frequencies = torch.ones(size) if frequencies is None else frequencies
    try:
        shares = torch.as_tensor(frequencies, dtype=torch.float64).cpu()
    except (TypeError, ValueError):  # what is no number
        shares = torch.zeros(0)
    is_one_each = shares.shape == (size,)
    if not is_one_each or not torch.isfinite(shares).all() or shares.min() < 0 or shares.max() <= 0:
        raise ValueError(
            f"frequencies must be {size} numbers, one for each entry of the vocabulary: finite ones"
            " from 0 on, where 0 is never drawn, and not 0 for all"
        )
    return (shares / shares.sum()).float()


@torch.no_grad()
def materialized(
    farzi: FarziData, num_sequences: int, sequence_length: int | None, label_dim: int | None
) -> FarziData:
    """See `FarziData.materialize`."""
    config = farzi.config
    check_size("num_sequences", num_sequences)
    length = config.sequence_length
    if sequence_length is not None:
        length = check_size("sequence_length", sequence_length)
    if label_dim is not None:
        check_size("label_dim", label_dim)
    labels = farzi.forms.labels
    if not labels.carries_teacher:
        raise ValueError(
            f"labels={config.labels!r}: rows are fixed; materialize() is for labels='teacher'"
        )
    return labelled(farzi, _first_rows(farzi, num_sequences, length), label_dim)


def labelled(farzi: FarziData, ids: Tensor, label_dim: int | None = None) -> FarziData:
    """The rows of ids (n, L) with the labels of the teacher that `farzi` carries, as a summary of
    fixed rows.
    """
    config = farzi.config
    labels = farzi.forms.labels
    latents, decoder = labels.factors(farzi.tensors, ids.to(farzi.teacher.device), label_dim)
    fixed = FarziDataConfig(
        *ids.shape,
        vocab_size=config.vocab_size,
        inner=_of_rows(config.inner),
        inputs=TokenInputs.name,
        labels=OwnLabels.name,
        label_dim=len(decoder),
        origin=MADE_UP.name if farzi.origin.is_made_up else farzi.origin.name,
        vocabulary_hash=config.vocabulary_hash,
    )
    tensors = {
        "input_ids": ids.int().to(latents.device),
        "label_latents": latents,
        "label_decoder": decoder,
    }
    return type(farzi)(fixed, farzi.processing_class, tensors)


def _of_rows(inner: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The settings of students without what only a summary with a teacher has."""
    if inner is None:
        return None
    return {name: x for name, x in inner.items() if name not in TeacherLabels.of_students}


def _first_rows(farzi: FarziData, num_sequences: int, length: int) -> Tensor:
    """The ids (μ, ξ) of the first rows. Raises ValueError if there are not so many, or the teacher
    does not read them.
    """
    source = farzi.endless(length=length)
    if source is None:
        ids = farzi.forms.inputs.batch(farzi.tensors, slice(0, num_sequences))[:, :length]
    else:
        if length > farzi.config.sequence_length:  # the teacher was tried with fewer
            teacher = farzi.collator().forms.labels.teacher
            shares = farzi.forms.inputs.frequencies(farzi.tensors)
            some = DrawnRows(shares, length, 0).beginning(1, length)
            teacher.check(teacher.tensors, some, "teacher", "give a smaller sequence_length")
        ids = source.rows(0, num_sequences)
    if ids.shape != (num_sequences, length):
        config = farzi.config
        raise ValueError(
            f"num_sequences={num_sequences}, sequence_length={length}: the summary stores"
            f" {config.num_sequences} rows of {config.sequence_length} ids; give no more"
        )
    return ids
