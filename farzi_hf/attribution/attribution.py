"""Which rows made this model: the exact influence of each training row of a stock Trainer on each
test row.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, Trainer

from farzi_hf.attribution.replay import Replay
from farzi_hf.attribution.scoring import KeptScores, Scorer
from farzi_hf.common.files import is_taken
from farzi_hf.data import IGNORED, vocabulary_of
from farzi_hf.distillation import Parameters
from farzi_hf.engine import Adjoint, Tape

_SCORES_FILE = "scores.safetensors"
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
"""  # noqa: E501


class ScoredToken(NamedTuple):
    """A token of a training row."""

    text: str
    """How it is written."""
    score: float
    """Its part of the score of the row."""


class Row(NamedTuple):
    """A training row."""

    row: int
    """Its number."""
    score: float
    """By how much it lowered the loss."""
    text: str
    """What it says."""
    tokens: Sequence[ScoredToken] = ()
    """Its tokens, if they have scores."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each training row lowered the loss of each query."""

    scores: Tensor
    """(m, n) queries × training rows: −∂L_q(θ_T) / ∂w_i, in nats per token. Positive: the row
    lowered the query's loss. To first order, the sum over some rows is the rise of the loss if a
    training leaves these rows out, and all else stays as it was.
    """
    losses: Tensor
    """(m,), the loss of each query after the training, in nats per token."""
    texts: list[str]
    """Of the n training rows."""
    queries: list[str]
    """Texts of the m queries."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How the model was trained, as JSON can hold it."""
    params: Parameters = field(default_factory=dict, repr=False)
    """θ_T by name, of what trained; empty after `load`."""
    token_scores: Tensor | None = None
    """(m, n, L), of each token of a row, or None: the derivative in a weight of its cross-entropy as
    a target. So the first one has 0, and their sum is the score of the row.
    """
    tokens: list[list[str]] = field(default_factory=list, repr=False)
    """Of the n training rows, as they are written; empty without `token_scores`."""

    def top(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that lowered a query's loss the most, the best first; by default the mean loss
        of all queries.
        """
        queries = slice(None) if query is None else [query]
        scores = self.scores[queries].mean(0)
        token_scores = None if self.token_scores is None else self.token_scores[queries].mean(0)
        best_scores, best_rows = scores.topk(min(k, len(scores)))
        rows = []
        for row, score in zip(best_rows.tolist(), best_scores.tolist(), strict=True):
            tokens: tuple[ScoredToken, ...] = ()
            if token_scores is not None:
                texts = self.tokens[row]
                scores_of_row = token_scores[row, : len(texts)].tolist()  # without the padding
                tokens = tuple(map(ScoredToken, texts, scores_of_row))
            rows.append(Row(row, score, self.texts[row], tokens))
        return rows

    def bottom(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that raised it the most, the worst first; where fewer did, those that lowered
        it the least come after them.
        """
        worst_last = self.top(len(self.texts), query)
        return worst_last[::-1][:k]

    def check(self, model: PreTrainedModel, tolerance: float = 1e-2) -> float:
        """‖θ_T − θ‖ / ‖θ‖ over all parameters that trained, where θ is a model that the same
        Trainer has really trained.

        Raises:
            ValueError: it is above `tolerance`, or this attribution was loaded and has no θ_T.
        """
        if not self.params:
            raise ValueError(
                "this attribution was loaded and holds no parameters; check that of attribute()"
            )
        base_model = getattr(model, "get_base_model", lambda: model)()
        theirs = dict(base_model.named_parameters())
        squared_difference = 0
        squared_norm = 0
        for name, x in self.params.items():
            ours = x.double()
            other = theirs[name].detach().to(x.device).double()
            squared_difference += (ours - other).square().sum()
            squared_norm += other.square().sum()
        difference = float((squared_difference / squared_norm).sqrt())
        is_close = difference <= tolerance  # and not NaN
        if not is_close:
            raise ValueError(
                f"model differs from the replayed training by {difference:.2g} of its size, more"
                f" than tolerance={tolerance}: give attribute() a Trainer with the same model,"
                " arguments, data and seeds"
            )
        return difference

    def plot(self) -> Any:
        """The mean scores of all rows, sorted, as a `matplotlib.figure.Figure`."""
        from matplotlib.figure import Figure

        scores = self.scores.mean(0).sort(descending=True).values.numpy(force=True)
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(range(len(scores)), scores)
        axes.set(xlabel="training row, the most useful first", ylabel="score (nats per token)")
        return figure

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `scores.safetensors`, and for `load_dataset(folder)` the tables `rows` (the
        default) and `queries`; all or nothing.

        Raises:
            FileExistsError: the folder holds something already.
        """
        folder = Path(folder)
        if is_taken(folder):
            raise FileExistsError(
                f"folder {str(folder)!r} holds something already; choose another one"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            staging = Path(temporary, "new")
            staging.mkdir()
            facts = {"facts": json.dumps(self.facts)}
            save_file(self._tensors(), staging / _SCORES_FILE, facts)
            pq.write_table(self._rows_table(), staging / "rows.parquet")
            pq.write_table(self._queries_table(), staging / "queries.parquet")
            card = _CARD.format(n=len(self.texts), m=len(self.queries))
            (staging / "README.md").write_text(card, encoding="utf-8")
            staging.rename(folder)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"scores": self.scores, "losses": self.losses}
        if self.token_scores is not None:
            tensors["token_scores"] = self.token_scores
        return {name: x.contiguous() for name, x in tensors.items()}

    def _rows_table(self) -> pa.Table:
        columns: dict[str, Sequence] = {
            "row": range(len(self.texts)),
            "score": self.scores.mean(0).tolist(),
            "scores": self.scores.T.tolist(),
            "text": self.texts,
        }
        if self.token_scores is not None:
            padded = self.token_scores.mean(0).tolist()
            columns["tokens"] = self.tokens
            columns["token_scores"] = [
                scores[: len(texts)] for scores, texts in zip(padded, self.tokens, strict=True)
            ]
        return pa.table(columns)

    def _queries_table(self) -> pa.Table:
        return pa.table(
            {
                "query": range(len(self.queries)),
                "loss": self.losses.tolist(),
                "text": self.queries,
            }
        )

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Attribution:
        """The inverse of `save`, without θ_T.

        Raises:
            FileNotFoundError: the folder holds no attribution.
        """
        folder = Path(folder)
        file = folder / _SCORES_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"folder {str(folder)!r} has no {_SCORES_FILE}; give one of Attribution.save"
            )
        with safe_open(file, "pt") as opened:
            names = opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names}
            metadata = opened.metadata()
        rows = pq.read_table(folder / "rows.parquet")
        queries = pq.read_table(folder / "queries.parquet")
        return cls(
            **tensors,
            texts=rows["text"].to_pylist(),
            queries=queries["text"].to_pylist(),
            facts=json.loads(metadata["facts"]),
            tokens=rows["tokens"].to_pylist() if "token_scores" in tensors else [],
        )


def attribute(
    trainer: Trainer,
    test_dataset: Dataset,
    adjoint: Adjoint | None = None,
    resume_dir: str | os.PathLike | None = None,
    per_token: bool = False,
    damping: float = 0.0,
) -> Attribution:
    """How much each row of a Trainer's training set lowered the loss of each row of a test set,
    exact through the whole training.

    The Trainer's training is replayed: the order of its rows, optimizer, schedule, clipping,
    gradient accumulation, frozen parameters and adapters. Its first gradient is compared with the
    replay's; after `trainer.train()`, `Attribution.check(trainer.model)` compares the end. Before
    that, neither the Trainer nor its model is changed. All queries share one training forward and
    one backward, if their cotangents (three times the trained parameters each, with Adam) fit into
    an eighth of the memory; else groups of them do. Several processes (`accelerate launch`) share
    the rows of each step, as they do in `trainer.train()`, and all get the same result.

    Args:
        trainer: a configured Trainer that has not trained yet. Its model must be a causal language
            model without dropout.
        test_dataset: the queries, in the form of the training set. The loss of a query is its mean
            cross-entropy in nats per token.
        adjoint: how to differentiate; None takes a fast way that needs little memory, and logs the
            choice. For several processes it is `Tape()`.
        resume_dir: a folder that keeps the scores of each group of at most eight queries. A later
            call with the same Trainer and queries goes on from there. The caller removes it. All
            processes must see it.
        per_token: whether each token of a training row gets a score too, see
            `Attribution.token_scores`. Rows must be padded on the right.
        damping: 0 is the exact derivative. With a small `adam_epsilon` that holds for small changes
            alone; 1 tells more about training without many rows: on the way back, Adam's ε is
            larger by 1 × the size of a number of the first gradient (root mean square).

    Raises:
        ValueError: the training cannot be replayed, a query has nothing to predict, or `resume_dir`
            is of another training or other queries; the message says the remedy.
        FloatingPointError: the training diverged, or its derivative did.
    """
    replay = Replay.of(trainer, damping)
    # Not the loader of an evaluation, which the Trainer may keep for its own evaluations.
    queries = trainer.get_test_dataloader(test_dataset)
    _check_queries(replay, queries)
    ids_of_rows = _ids(replay, replay.loader)
    ids_of_queries = _ids(replay, queries)
    weights = replay.ones
    if per_token:
        longest = max(map(len, ids_of_rows))
        weights = weights[:, None].expand(-1, longest)
    if adjoint is None and trainer.args.world_size > 1:
        adjoint = Tape()  # each process would choose by its own rows

    scorer = Scorer(replay, queries, weights, adjoint)
    kept = None if resume_dir is None else KeptScores.of(scorer, Path(resume_dir))
    scored = scorer.score(kept)
    scores = torch.cat([of_group.scores for of_group in scored])

    processing_class = trainer.processing_class
    of_tokens: dict[str, Any] = {}
    if per_token:
        names = vocabulary_of(processing_class).readable.names(replay.learner.vocab_size)
        tokens = [[names[i] for i in ids] for ids in ids_of_rows]
        of_tokens = {"token_scores": scores, "tokens": tokens}
        scores = scores.sum(-1)
    return Attribution(
        scores=scores,
        losses=torch.cat([of_group.losses for of_group in scored]),
        texts=_texts(processing_class, ids_of_rows),
        queries=_texts(processing_class, ids_of_queries),
        facts={
            "model": type(trainer.model).__name__,
            "steps": replay.steps,
            "optimizer": str(replay.optimizer),
        },
        params=scorer.params or replay.train(),
        **of_tokens,
    )


def _check_queries(replay: Replay, queries: DataLoader) -> None:
    """Raises ValueError unless each query has something to predict, and there is one."""
    count = len(queries.dataset)
    batches = (replay.batch(queries, [query]) for query in range(count))
    predicts = [bool((batch["labels"][:, 1:] != IGNORED).any()) for batch in batches]
    empty = [query for query in range(count) if not predicts[query]]
    if empty or not count:
        raise ValueError(
            f"test_dataset has {count} rows, nothing to predict in {empty}; give rows of two tokens"
        )


def _ids(replay: Replay, loader: DataLoader) -> list[list[int]]:
    """The ids of each row of a loader."""
    count = len(loader.dataset)
    return [replay.batch(loader, [row])["input_ids"][0].tolist() for row in range(count)]


def _texts(processing_class: Any, rows: list[list[int]]) -> list[str]:
    """What each row says: decoded by a tokenizer, or the names in a list, or else its ids."""
    if hasattr(processing_class, "batch_decode"):
        return processing_class.batch_decode(rows, skip_special_tokens=True)
    if processing_class is None:
        return [" ".join(map(str, row)) for row in rows]
    vocabulary = vocabulary_of(processing_class)
    return [vocabulary.text([processing_class[i] for i in row]) for row in rows]
