"""Which rows made this model: the exact influence of each training row of a stock Trainer on each
test row.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer

from farzi_hf.attribution.groups import Groups, intervals_over_trainings
from farzi_hf.attribution.queries import check_rows, queries_of
from farzi_hf.attribution.replay import Replay
from farzi_hf.attribution.scoring import KeptScores, Scorer
from farzi_hf.common.checks import check_place, check_size
from farzi_hf.common.files import is_taken
from farzi_hf.common.text import markdown_text
from farzi_hf.data import vocabulary_of
from farzi_hf.distillation import Parameters
from farzi_hf.engine import Adjoint, Tape

_SCORES_FILE = "scores.safetensors"
_GROUP_SCORES = "group_scores_of_trainings"
_HEAT_MAP = "groups.png"
_SHOWN_GROUPS = 60
_CARD = """---
configs:
- config_name: rows
  data_files: rows.parquet
  default: true
- config_name: queries
  data_files: queries.parquet{config_of_groups}
---
Influence of {n:,} training rows on {m:,} queries (`farzi_hf.attribution`). A positive score: the
row lowered the query's loss. To first order it is the rise of the loss, in nats per token, of a
training without the row.
{page_of_groups}"""
_CONFIG_OF_GROUPS = """
- config_name: groups
  data_files: groups.parquet"""
_PAGE_OF_GROUPS = """
The mean score of a row of each group, in standard deviations of a row's score for that query, with
95 % intervals over {over}:

{table}

![groups](groups.png)
"""


class ScoredToken(NamedTuple):
    """A token of a training row."""

    text: str
    """How it is written."""
    score: float
    """Its part of the score of the row."""


class ScoredRow(NamedTuple):
    """A training row with its score."""

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
    groups: Groups | None = field(default=None, repr=False)
    """Of the n training rows, if `attribute` was told of groups."""
    group_scores_of_trainings: Tensor | None = field(default=None, repr=False)
    """(K, m, G), the group scores of K trainings whose mean this is; None of a single one."""

    @classmethod
    def pooled(cls, of_trainings: Sequence[Attribution]) -> Attribution:
        """The mean of attributions of the same rows and queries to several trainings, such as those
        of other seeds. Intervals of groups are then over trainings.

        Raises:
            ValueError: there are fewer than two, or their rows, queries or groups differ.
        """
        first, *others = of_trainings
        is_same = all(
            (each.texts, each.queries, each.groups) == (first.texts, first.queries, first.groups)
            for each in others
        )
        if not others or not is_same:
            raise ValueError(
                f"of_trainings has {len(of_trainings)} attributions; give two or more, of the same"
                " rows, queries and groups"
            )
        of_groups = None
        if first.groups is not None:
            of_groups = torch.stack([each.group_scores for each in of_trainings])
        return cls(
            scores=torch.stack([each.scores for each in of_trainings]).mean(0),
            losses=torch.stack([each.losses for each in of_trainings]).mean(0),
            texts=first.texts,
            queries=first.queries,
            facts={**first.facts, "trainings": len(of_trainings)},
            groups=first.groups,
            group_scores_of_trainings=of_groups,
        )

    @property
    def group_names(self) -> list[str]:
        """The G groups in the order of their first rows; none without groups."""
        return [] if self.groups is None else self.groups.names

    @cached_property
    def group_scores(self) -> Tensor:
        """(m, G): the mean score of a row of the group, in nats per token. Rows that no step has
        read count, with 0.

        Raises:
            ValueError: there are no groups.
        """
        return self._groups.means(self.scores)

    @cached_property
    def group_intervals(self) -> Tensor:
        """(m, G, 2): 95 % intervals of `group_scores`, over several trainings if these were pooled,
        and over the rows of a group otherwise; NaN where a group has one row.
        """
        if self.group_scores_of_trainings is None:
            return self._groups.intervals(self.scores)
        return intervals_over_trainings(self.group_scores_of_trainings)

    @property
    def row_deviations(self) -> Tensor:
        """(m,): the standard deviation of the rows' scores, in which group scores of different
        queries can be compared; NaN of a single row.
        """
        if self.scores.shape[1] < 2:  # of which torch would warn
            return torch.full_like(self.scores[:, 0], torch.nan)
        return self.scores.std(1)

    @property
    def _groups(self) -> Groups:
        if self.groups is None:
            raise ValueError(
                "this attribution has no groups; give attribute(…, groups=) a column of the training"
                " rows, or a list"
            )
        return self.groups

    def top(self, k: int = 10, query: int | None = None) -> list[ScoredRow]:
        """The k rows that lowered a query's loss the most, the best first; by default the mean loss
        of all queries. Raises ValueError if there is no query of this number, or `k` is negative.
        """
        k = check_size("k", k, 0)
        count = len(self.scores)
        is_number = isinstance(query, Integral) and 0 <= query < count
        if query is not None and not is_number:
            raise ValueError(f"query={query!r} is none of the {count}; give 0 to {count - 1}")
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
            rows.append(ScoredRow(row, score, self.texts[row], tokens))
        return rows

    def bottom(self, k: int = 10, query: int | None = None) -> list[ScoredRow]:
        """The k rows that raised it the most, the worst first; where fewer did, those that lowered
        it the least come after them. Raises ValueError as `top` does.
        """
        k = check_size("k", k, 0)
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
                " arguments, data and seeds; or, if it computes in bf16, a larger tolerance"
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

    def plot_groups(self) -> Any:
        """A heat map of groups and queries, in deviations of a row, as a
        `matplotlib.figure.Figure`. Of many groups those with the highest and lowest scores.
        """
        from matplotlib.figure import Figure

        scores = self.group_scores / self.row_deviations[:, None]
        shown = self._groups_by_score()
        numbers = scores[:, shown].T.numpy(force=True)
        size = (3 + 0.6 * len(self.queries), 1.5 + 0.22 * len(shown))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        reach = max(float(abs(numbers).max()), 1e-12)
        image = axes.imshow(numbers, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
        names = [_short(self.group_names[group]) for group in shown]
        axes.set_yticks(range(len(shown)), names, fontsize=7, parse_math=False)
        queries = [_short(query) for query in self.queries]
        axes.set_xticks(
            range(len(queries)), queries, fontsize=7, rotation=45, ha="right", parse_math=False
        )
        figure.colorbar(image, label="mean score of a row (deviations of a row)")
        return figure

    def _groups_by_score(self) -> list[int]:
        """Groups with the highest and lowest mean scores, the highest first."""
        relative = (self.group_scores / self.row_deviations[:, None]).mean(0)
        order = relative.argsort(descending=True, stable=True).tolist()
        half = _SHOWN_GROUPS // 2
        return order if len(order) <= _SHOWN_GROUPS else order[:half] + order[-half:]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `scores.safetensors`, and for `load_dataset(folder)` the tables `rows` (the
        default) and `queries`; with groups the table `groups`, a heat map and a page with them. All
        or nothing.

        Raises:
            FileExistsError: the folder holds something already.
        """
        check_place("folder", folder, "a new folder")
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
            if self.groups is not None:
                pq.write_table(self._groups_table(), staging / "groups.parquet")
                from farzi_hf.common.fonts import fonts_of  # and matplotlib, which takes long

                figure = self.plot_groups()
                with fonts_of(figure):
                    figure.savefig(staging / _HEAT_MAP, dpi=120)
            (staging / "README.md").write_text(self._card(), encoding="utf-8")
            staging.rename(folder)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"scores": self.scores, "losses": self.losses}
        if self.token_scores is not None:
            tensors["token_scores"] = self.token_scores
        if self.group_scores_of_trainings is not None:
            tensors[_GROUP_SCORES] = self.group_scores_of_trainings
        return {name: x.contiguous() for name, x in tensors.items()}

    def _rows_table(self) -> pa.Table:
        columns: dict[str, Sequence] = {
            "row": range(len(self.texts)),
            "score": self.scores.mean(0).tolist(),
            "scores": self.scores.T.tolist(),
            "text": self.texts,
        }
        if self.groups is not None:
            columns["group"] = self.groups.of_rows
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

    def _groups_table(self) -> pa.Table:
        return pa.table(
            {
                "group": self.group_names,
                "rows": self._groups.sizes.tolist(),
                "scores": self.group_scores.T.tolist(),
                "intervals": self.group_intervals.transpose(0, 1).tolist(),
            }
        )

    def _card(self) -> str:
        of_groups = {"config_of_groups": "", "page_of_groups": ""}
        if self.groups is not None:
            several = self.group_scores_of_trainings is not None
            table = [
                {str(markdown_text(name)): str(markdown_text(cell)) for name, cell in row.items()}
                for row in self.table_of_groups()
            ]
            head = list(table[0])
            lines = [head, ["---"] * len(head), *(list(row.values()) for row in table)]
            page = _PAGE_OF_GROUPS.format(
                over="trainings" if several else "the rows of a group",
                table="\n".join(f"| {' | '.join(line)} |" for line in lines),
            )
            of_groups = {"config_of_groups": _CONFIG_OF_GROUPS, "page_of_groups": page}
        return _CARD.format(n=len(self.texts), m=len(self.queries), **of_groups)

    def table_of_groups(self) -> list[dict[str, str]]:
        """A row for each group, the highest mean score first: its rows, and for each query the
        score of a row of it with its interval, in standard deviations of a row's score.
        """
        sizes = self.row_deviations[:, None]
        scores = self.group_scores / sizes
        intervals = self.group_intervals / sizes[..., None]
        table = []
        for group in self._groups_by_score():
            row = {"group": self.group_names[group], "rows": f"{int(self.groups.sizes[group]):,}"}
            for number, query in enumerate(self.queries):
                low, high = intervals[number, group].tolist()
                reach = "one row" if low != low else f"{low:+.2f} to {high:+.2f}"
                row[f"{number}: {_short(query)}"] = f"{scores[number, group]:+.2f} ({reach})"
            table.append(row)
        return table

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Attribution:
        """The inverse of `save`, without θ_T.

        Raises:
            FileNotFoundError: the folder holds no attribution.
        """
        check_place("folder", folder, "one of Attribution.save")
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
            groups=Groups(rows["group"].to_pylist()) if "group" in rows.column_names else None,
        )


def attribute(
    trainer: Trainer,
    test_dataset: Dataset | Mapping[str, Dataset],
    adjoint: Adjoint | None = None,
    resume_dir: str | os.PathLike | None = None,
    per_token: bool = False,
    damping: float = 0.0,
    groups: str | Sequence[Any] | None = None,
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
            cross-entropy in nats per token. A mapping from names to test sets makes each of these
            one query: the mean over the tokens of all its rows.
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
        groups: the name of a column of the training set, or a list with an entry for each row, such
            as the row's source. See `Attribution.group_scores`.

    Raises:
        ValueError: the training cannot be replayed, a query has nothing to predict or ids that the
            model does not know, or `resume_dir` is of another training or other queries; the
            message says the remedy.
        FloatingPointError: the training diverged, or its derivative did.
    """
    check_rows("test_dataset", test_dataset)
    replay = Replay.of(trainer, damping)
    of_rows = None if groups is None else Groups.of(groups, trainer.train_dataset)
    queries = queries_of(replay, test_dataset)
    queries.check()
    rows = range(replay.num_rows)
    ids_of_rows = [replay.batch(replay.loader, [row])["input_ids"][0].tolist() for row in rows]
    weights = replay.ones
    if per_token:
        longest = max(map(len, ids_of_rows))
        weights = weights[:, None].expand(-1, longest)
    if adjoint is None and trainer.args.world_size > 1:
        adjoint = Tape()  # each process would choose by its own rows

    scorer = Scorer(replay, queries, weights, adjoint)
    kept = None if resume_dir is None else KeptScores.of(scorer, Path(resume_dir))
    scored = scorer.score(kept)
    scores = torch.cat([part.scores for part in scored])

    processing_class = trainer.processing_class
    of_tokens: dict[str, Any] = {}
    if per_token:
        names = vocabulary_of(processing_class).readable.names(replay.learner.vocab_size)
        tokens = [[names[i] for i in ids] for ids in ids_of_rows]
        of_tokens = {"token_scores": scores, "tokens": tokens}
        scores = scores.sum(-1)
    names = queries.names
    if names is None:
        of_queries = (queries.ids(query) for query in range(len(queries)))
        names = _texts(processing_class, [ids for (ids,) in of_queries])
    return Attribution(
        scores=scores,
        losses=torch.cat([part.losses for part in scored]),
        texts=_texts(processing_class, ids_of_rows),
        queries=names,
        facts={
            "model": type(trainer.model).__name__,
            "steps": replay.steps,
            "optimizer": str(replay.optimizer),
        },
        params=scorer.params or replay.train(),
        groups=of_rows,
        **of_tokens,
    )


def _texts(processing_class: Any, rows: list[list[int]]) -> list[str]:
    """What each row says: decoded by a tokenizer, or the names in a list, or else its ids."""
    if hasattr(processing_class, "batch_decode"):
        return processing_class.batch_decode(rows, skip_special_tokens=True)
    if processing_class is None:
        return [" ".join(map(str, row)) for row in rows]
    vocabulary = vocabulary_of(processing_class)
    return [vocabulary.text([processing_class[i] for i in row]) for row in rows]


def _short(text: str, most: int = 40) -> str:
    """The beginning of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
