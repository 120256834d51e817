"""Which rows made this model: the exact influence of each training row of a stock Trainer on each test row."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, Trainer

from farzi_hf.attribution.replay import Replay
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import is_constant
from farzi_hf.engine import Adjoint, gradients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARE = 1 / 8  # of the memory for the cotangents of queries
_CARD = """---
configs:
- config_name: rows
  data_files: rows.parquet
  default: true
- config_name: queries
  data_files: queries.parquet
---
Influence of {n:,} training rows on {m:,} queries (`farzi_hf.attribution`). A positive score: the row lowered the query's loss. To first
order it is the rise of the loss, in nats per token, of a training without the row.
"""


class Row(NamedTuple):
    """A training row: its number, its score, and its text."""

    row: int
    score: float
    text: str


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each training row lowered the loss of each query.

    Attributes:
        scores: (m, n) queries × training rows: −∂L_q(θ_T) / ∂w_i, in nats per token. Positive: the row lowered the query's loss. To first
            order, the sum over some rows is the rise of the loss if a training leaves these rows out, and all else stays as it was.
        losses: (m,), the loss of each query after the training, in nats per token.
        texts: of the n training rows.
        queries: texts of the m queries.
        facts: how the model was trained, as JSON can hold it.
        params: θ_T by name, of what trained; empty after `load`.
    """

    scores: Tensor
    losses: Tensor
    texts: Sequence[str]
    queries: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    params: Parameters = field(default_factory=dict, repr=False)

    def top(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that lowered a query's loss the most, the best first; by default the mean loss of all queries."""
        return self._rows(k, query, largest=True)

    def bottom(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that raised it the most, the worst first; where fewer did, those that lowered it the least come after them."""
        return self._rows(k, query, largest=False)

    def _rows(self, k: int, query: int | None, *, largest: bool) -> list[Row]:
        scores = self.scores.mean(0) if query is None else self.scores[query]
        found = scores.topk(min(k, len(scores)), largest=largest)
        return [
            Row(i, score, self.texts[i]) for score, i in zip(found.values.tolist(), found.indices.tolist(), strict=True)
        ]

    def check(self, model: PreTrainedModel, tolerance: float = 1e-2) -> float:
        """Compares θ_T with a model that the same Trainer has really trained.

        Returns:
            The relative difference, ‖θ_T − θ‖ / ‖θ‖ over all parameters that trained.

        Raises:
            ValueError: it is above `tolerance`, or this attribution was loaded and has no θ_T.
        """
        if not self.params:
            raise ValueError(
                "this attribution was loaded and holds no parameters; check the one that attribute() returned"
            )
        theirs = dict(getattr(model, "get_base_model", lambda: model)().named_parameters())
        pairs = [(x.double(), theirs[name].detach().to(x.device).double()) for name, x in self.params.items()]
        far = sum((a - b).square().sum() for a, b in pairs).sqrt() / sum(b.square().sum() for _, b in pairs).sqrt()
        if not far <= tolerance:
            raise ValueError(
                f"model differs from the replayed training by {float(far):.2g} of its size, more than tolerance={tolerance}: it was trained "
                "in another way; give attribute() a Trainer with the same model, arguments and data, under the same seeds"
            )
        return float(far)

    def plot(self) -> Figure:
        """The mean scores of all rows, sorted, and where they change their sign."""
        from matplotlib.figure import Figure

        scores = self.scores.mean(0).sort(descending=True).values.numpy(force=True)
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(range(len(scores)), scores, where=scores >= 0, label="lowered the loss")
        axes.fill_between(range(len(scores)), scores, where=scores <= 0, label="raised the loss")
        axes.set_xlabel("training row, the most useful first")
        axes.set_ylabel("score (nats per token)")
        axes.legend()
        return figure

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `scores.safetensors`, and for `load_dataset(folder)` the tables `rows` (the default) and `queries`; all or nothing.

        Raises:
            FileExistsError: the folder holds something already.
        """
        folder = Path(folder)
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise FileExistsError(f"folder {str(folder)!r} holds something already; choose another one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            tensors = {"scores": self.scores.cpu().contiguous(), "losses": self.losses.cpu().contiguous()}
            save_file(tensors, staging / "scores.safetensors", {"facts": json.dumps(self.facts)})
            means, each = self.scores.mean(0).tolist(), self.scores.T.tolist()
            numbers = {"row": range(len(self.texts)), "score": means, "scores": each, "text": list(self.texts)}
            pq.write_table(pa.table(numbers), staging / "rows.parquet")
            queries = {"query": range(len(self.queries)), "loss": self.losses.tolist(), "text": list(self.queries)}
            pq.write_table(pa.table(queries), staging / "queries.parquet")
            (staging / "README.md").write_text(_CARD.format(n=len(self.texts), m=len(self.queries)), encoding="utf-8")
            staging.chmod(0o755)
            staging.rename(folder)
        except BaseException:
            shutil.rmtree(staging)
            raise

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Attribution:
        """The inverse of `save`, without θ_T.

        Raises:
            FileNotFoundError: the folder holds no attribution.
        """
        folder = Path(folder)
        if not (folder / "scores.safetensors").is_file():
            raise FileNotFoundError(
                f"folder {str(folder)!r} holds no scores.safetensors; give one that Attribution.save wrote"
            )
        with safe_open(folder / "scores.safetensors", "pt") as file:
            scores, losses, facts = (file.get_tensor("scores"), file.get_tensor("losses"), file.metadata()["facts"])
        texts = (pq.read_table(folder / f"{name}.parquet", columns=["text"])["text"] for name in ("rows", "queries"))
        return cls(scores, losses, *(column.to_pylist() for column in texts), json.loads(facts))


def attribute(trainer: Trainer, test_dataset: Dataset, adjoint: Adjoint | None = None) -> Attribution:
    """How much each row of a Trainer's training set lowered the loss of each row of a test set, exact through the whole training.

    The Trainer's training is replayed (`farzi_hf.attribution.replay`): the order of its rows, its optimizer, schedule, clipping and
    gradient accumulation, frozen parameters and adapters. Its first gradient is compared with the replay's. Neither the Trainer nor its
    model is changed; after `trainer.train()`, `Attribution.check(trainer.model)` compares the end as well.

    All queries share one training forward and one backward, if their cotangents (three times the trained parameters each, with Adam) fit
    into an eighth of the memory; else groups of them do.

    Args:
        trainer: a configured Trainer that has not trained yet. Its model must be a causal language model without dropout.
        test_dataset: the queries, in the form of the training set. The loss of a query is its mean cross-entropy in nats per token.
        adjoint: how to differentiate; None takes the fastest that needs little memory (see `farzi_hf.engine.gradients`), and logs the choice.

    Raises:
        ValueError: the training cannot be replayed, or a query has nothing to predict; the message says the remedy.
        FloatingPointError: the training diverged, or its derivative did.
    """
    replay = Replay.of(trainer)
    of_test = trainer.get_eval_dataloader(test_dataset)
    count, params = len(of_test.dataset), {}
    for query in range(count):
        if not (replay.batch(of_test, [query])["labels"][:, 1:] != IGNORED).any():
            raise ValueError(f"test_dataset[{query}] has nothing to predict; leave it out")
    if not count:
        raise ValueError("test_dataset has no rows; give one query at least")
    device, steps = trainer.args.device, len(replay.steps)
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else psutil.virtual_memory().total
    trained = sum(x.nbytes for x in replay.start.values() if not is_constant(x))
    at_once = max(1, min(count, int(_SHARE * memory // (replay.optimizer.fields * trained))))
    groups = [range(i, min(i + at_once, count)) for i in range(0, count, at_once)]
    shown = tqdm(
        total=len(groups) * 3 * steps + 2 * steps * count,
        desc="Attribution",
        unit="gradient",
        disable=trainer.args.disable_tqdm,
    )
    scores, losses = [], []
    for queries in groups:
        evaluated = 0

        def loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            nonlocal evaluated
            evaluated += 1  # forward; then backward, with two products for each query
            shown.update(1 if evaluated <= steps else 2 + 2 * len(queries))  # noqa: B023
            return replay.loss(params, inputs, step)

        def of_queries(theta: Parameters) -> Iterator[Tensor]:
            params.update({name: x.detach() for name, x in theta.items() if not is_constant(x)})
            for query in queries:  # noqa: B023
                yield replay.learner.hard_loss(theta, replay.batch(of_test, [query]))

        w, how = replay.ones.clone().requires_grad_(), {"optimizer": replay.optimizer, "steps": steps}
        with trainer.accelerator.autocast():
            values, found = gradients(of_queries, loss, replay.start, (w,), adjoint=adjoint, **how)
        losses += [x.cpu() for x in values]
        scores += [dw.neg().cpu() for (dw,) in found]
    shown.close()
    found = torch.stack(scores)
    if not bool(found.isfinite().all()):
        raise FloatingPointError(
            f"the scores are not finite after {steps} steps with {replay.optimizer}: the training or its derivative diverged; give a "
            "smaller learning_rate, or a larger adam_epsilon, such as 1e-4"
        )
    facts = {"model": type(trainer.model).__name__, "steps": steps, "optimizer": str(replay.optimizer)}
    texts = (_texts(trainer, loader) for loader in (replay.loader, of_test))
    return Attribution(found, torch.stack(losses), *texts, facts, params)


def _texts(trainer: Trainer, loader: DataLoader) -> list[str]:
    """What each row says: decoded by the Trainer's tokenizer, or else its ids."""
    ids = [loader.dataset[i]["input_ids"] for i in range(len(loader.dataset))]
    if hasattr(trainer.processing_class, "batch_decode"):
        return trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    return [" ".join(str(int(x)) for x in row) for row in ids]
