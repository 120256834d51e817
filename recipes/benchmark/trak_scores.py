"""TRAK scores (Park et al., 2023) by its authors' library: `pip install traker`, which is in the
extra `bench`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from trak import TRAKer
from trak.gradient_computers import IterativeGradientComputer
from trak.modelout_functions import AbstractModelOutput

from farzi_hf.attribution import WeightedTraining
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Parameters

_CHUNK = 50  # sequences in a batch
_RIDGE = 1e-3  # added to the matrix of the projected gradients' products
_FIELDS = ("input_ids", "labels", "attention_mask")


def trak_scores(
    training: WeightedTraining, test: dict[str, Tensor], models: Sequence[Parameters]
) -> Tensor:
    """(m, n): how much each training sequence helps each of m test sequences, in the mean over the
    trained models.

    Args:
        test: a batch of m test sequences.
    """
    model = training.learner.model
    count = len(test["input_ids"])
    dimensions = max(101, training.num_rows // 2)  # with 100 or less, the library's projector fails
    with TemporaryDirectory() as folder:
        traker = TRAKer(
            model=model,
            task=Margin(),
            train_set_size=training.num_rows,
            save_dir=folder,
            device="cpu",
            proj_dim=dimensions,
            gradient_computer=IterativeGradientComputer,
            use_half_precision=False,
            lambda_reg=_RIDGE,
            logging_level=logging.ERROR,
        )
        for number, theta in enumerate(models):
            traker.load_checkpoint(_state(model, theta), model_id=number)
            for batch in _batches(training.rows):
                traker.featurize(batch, num_samples=len(batch[0]))
        traker.finalize_features()
        for number, theta in enumerate(models):
            traker.start_scoring_checkpoint(
                "test", _state(model, theta), model_id=number, num_targets=count
            )
            for batch in _batches(test):
                traker.score(batch, num_samples=len(batch[0]))
        return torch.tensor(traker.finalize_scores("test")).T


class Margin(AbstractModelOutput):
    """The output that TRAK linearises, for a causal language model: Σ log(p / (1 − p)) over the
    tokens of a sequence.
    """

    def __init__(self) -> None:
        super().__init__()

    def get_output(self, model: nn.Module, weights: Any, buffers: Any, *batch: Tensor) -> Tensor:
        """(b,)"""
        log_p, counted = _log_likelihoods(model, batch)
        margins = log_p - torch.log(-torch.expm1(log_p.clamp(max=-1e-6)))
        return torch.where(counted, margins, 0.0).sum(1)

    @torch.no_grad()
    def get_out_to_loss_grad(
        self, model: nn.Module, weights: Any, buffers: Any, batch: Sequence[Tensor]
    ) -> Tensor:
        """(b, 1): the mean of 1 − p over the tokens."""
        log_p, counted = _log_likelihoods(model, batch)
        return torch.where(counted, -torch.expm1(log_p), 0.0).sum(1, keepdim=True) / counted.sum(
            1, keepdim=True
        )


def _log_likelihoods(model: nn.Module, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """log p of each next token (b, L − 1), and which of them count."""
    ids, labels, mask = batch
    following = ids[:, 1:]
    counted = labels[:, 1:] != IGNORED
    log_p = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return log_p.gather(-1, following[..., None])[..., 0], counted


def _batches(rows: dict[str, Tensor]) -> Iterator[list[Tensor]]:
    """Batches of ids, labels and mask."""
    full = {"attention_mask": torch.ones_like(rows["input_ids"]), **rows}
    yield from zip(*(full[name].split(_CHUNK) for name in _FIELDS), strict=True)


def _state(model: nn.Module, theta: Parameters) -> dict[str, Tensor]:
    return {**model.state_dict(), **{name: x.detach() for name, x in theta.items()}}
