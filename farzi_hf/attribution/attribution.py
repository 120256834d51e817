"""Which rows made this model: the exact influence of each training row of a stock Trainer on each
test row.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import accelerate
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
from farzi_hf.attribution.weighted_training import influence
from farzi_hf.common.files import is_taken
from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.data import IGNORED, vocabulary_of
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import is_constant
from farzi_hf.engine import Adjoint, Tape
from farzi_hf.summary.store.tensor_file import fingerprint

_SHARE = 1 / 8  # of the memory for the cotangents of queries
# queries, where they are kept: a training forward and its graphs back are a sixth of the work then
_KEPT_TOGETHER = 8
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


class Row(NamedTuple):
    """A training row: its number, its score, its text, and its tokens with the score of each if
    there are any.
    """

    row: int
    score: float
    text: str
    tokens: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each training row lowered the loss of each query.

    Attributes:
        scores: (m, n) queries × training rows: −∂L_q(θ_T) / ∂w_i, in nats per token. Positive: the
            row lowered the query's loss. To first order, the sum over some rows is the rise of the
            loss if a training leaves these rows out, and all else stays as it was.
        losses: (m,), the loss of each query after the training, in nats per token.
        texts: of the n training rows.
        queries: texts of the m queries.
        facts: how the model was trained, as JSON can hold it.
        params: θ_T by name, of what trained; empty after `load`.
        token_scores: (m, n, L), of each token of a row, or None: the derivative in a weight of its
            cross-entropy as a target. So the first one has 0, and their sum is the score of the
            row.
        tokens: of the n training rows, as they are written; empty without `token_scores`.
    """

    scores: Tensor
    losses: Tensor
    texts: list[str]
    queries: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    params: Parameters = field(default_factory=dict, repr=False)
    token_scores: Tensor | None = None
    tokens: list[list[str]] = field(default_factory=list, repr=False)

    def top(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that lowered a query's loss the most, the best first; by default the mean loss
        of all queries.
        """
        chosen = slice(None) if query is None else [query]
        found = (scores := self.scores[chosen].mean(0)).topk(min(k, len(scores)))
        of_tokens = (self.scores[..., None] if self.token_scores is None else self.token_scores)[
            chosen
        ].mean(0)
        rows, tokens = (
            zip(*map(Tensor.tolist, found), strict=True),
            self.tokens or [()] * len(scores),
        )
        return [
            Row(i, score, self.texts[i], tuple(zip(tokens[i], of_tokens[i].tolist(), strict=False)))
            for score, i in rows
        ]

    def bottom(self, k: int = 10, query: int | None = None) -> list[Row]:
        """The k rows that raised it the most, the worst first; where fewer did, those that lowered
        it the least come after them.
        """
        return self.top(len(self.texts), query)[::-1][:k]

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
        theirs = dict(getattr(model, "get_base_model", lambda: model)().named_parameters())
        pairs = [
            (x.double(), theirs[name].detach().to(x.device).double())
            for name, x in self.params.items()
        ]
        far = float(
            (
                sum((a - b).square().sum() for a, b in pairs)
                / sum(b.square().sum() for _, b in pairs)
            ).sqrt()
        )
        if not far <= tolerance:
            remedy = "give attribute() a Trainer with the same model, arguments, data and seeds"
            size = f"{far:.2g} of its size, more than tolerance={tolerance}"
            raise ValueError(f"model differs from the replayed training by {size}: {remedy}")
        return far

    def plot(self) -> Any:
        """The mean scores of all rows, sorted, as a `matplotlib.figure.Figure`."""
        from matplotlib.figure import Figure

        scores = self.scores.mean(0).sort(descending=True).values.numpy(force=True)
        axes = (figure := Figure(figsize=(6, 3.5), layout="constrained")).subplots()
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
            of_tokens = {} if self.token_scores is None else {"token_scores": self.token_scores}
            tensors = {
                name: x.contiguous()
                for name, x in {"scores": self.scores, "losses": self.losses, **of_tokens}.items()
            }
            save_file(tensors, staging / "scores.safetensors", {"facts": json.dumps(self.facts)})
            scores = {"score": self.scores.mean(0).tolist(), "scores": self.scores.T.tolist()}
            rows = {"row": range(len(self.texts)), **scores, "text": self.texts}
            for each in of_tokens.values():
                cut = [
                    x[: len(own)] for x, own in zip(each.mean(0).tolist(), self.tokens, strict=True)
                ]
                rows |= {"tokens": self.tokens, "token_scores": cut}
            queries = {
                "query": range(len(self.queries)),
                "loss": self.losses.tolist(),
                "text": self.queries,
            }
            for name, table in (("rows", rows), ("queries", queries)):
                pq.write_table(pa.table(table), staging / f"{name}.parquet")
            (staging / "README.md").write_text(
                _CARD.format(n=len(self.texts), m=len(self.queries)), encoding="utf-8"
            )
            staging.rename(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Attribution:
        """The inverse of `save`, without θ_T.

        Raises:
            FileNotFoundError: the folder holds no attribution.
        """
        folder = Path(folder)
        if not (folder / "scores.safetensors").is_file():
            raise FileNotFoundError(
                f"folder {str(folder)!r} has no scores.safetensors; give one of Attribution.save"
            )
        with safe_open(folder / "scores.safetensors", "pt") as file:
            tensors, facts = (
                {name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
                json.loads(file.metadata()["facts"]),
            )
        rows, queries = (pq.read_table(folder / f"{name}.parquet") for name in ("rows", "queries"))
        tokens = rows["tokens"].to_pylist() if "token_scores" in tensors else []
        return cls(
            **tensors,
            texts=rows["text"].to_pylist(),
            queries=queries["text"].to_pylist(),
            facts=facts,
            tokens=tokens,
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
    of_test = trainer.get_test_dataloader(test_dataset)  # the Trainer keeps that of an evaluation
    count, device = len(of_test.dataset), trainer.args.device
    batches = (replay.batch(of_test, [query]) for query in range(count))
    empty = [
        query
        for query, batch in enumerate(batches)
        if not (batch["labels"][:, 1:] != IGNORED).any()
    ]
    if empty or not count:
        raise ValueError(
            f"test_dataset has {count} rows, nothing to predict in {empty}; give rows of two tokens"
        )
    loaders = replay.loader, of_test
    rows, asked = (
        [replay.batch(x, [i])["input_ids"][0].tolist() for i in range(len(x.dataset))]
        for x in loaders
    )
    weights = replay.ones[:, None].expand(-1, max(map(len, rows))) if per_token else replay.ones
    adjoint = adjoint or (
        Tape() if trainer.args.world_size > 1 else None
    )  # each process would choose by its own rows
    memory = (
        torch.cuda.mem_get_info(device)[1]
        if device.type == "cuda"
        else psutil.virtual_memory().total
    )
    trained = sum(x.nbytes for x in replay.start.values() if not is_constant(x))
    at_once = max(
        1,
        int(
            _SHARE
            * memory
            // ((replay.optimizer.fields + 1) * trained + weights.numel() * weights.element_size())
        ),
    )
    at_once = at_once if resume_dir is None else min(at_once, _KEPT_TOGETHER)
    groups = [range(i, min(i + at_once, count)) for i in range(0, count, at_once)]
    forward = replay.steps + (adjoint is None)  # the choice takes a gradient
    back = (
        2 if trainer.args.gradient_accumulation_steps == 1 else 1
    )  # of micro-batches, each graph is made twice
    params: Parameters = {}

    def scored(queries: range) -> dict[str, Tensor]:
        losses = []

        def of_queries(theta: Parameters) -> Iterator[Tensor]:
            params.update({name: x.detach() for name, x in theta.items() if not is_constant(x)})
            for query in queries:
                losses.append(
                    (
                        loss := replay.learner.hard_loss(theta, replay.batch(of_test, [query]))
                    ).detach()
                )
                yield loss

        # Forward each step is one gradient; backward two, of which one is with its graph, and two
        # products for each query.
        costs = itertools.chain(
            itertools.repeat(1, forward), itertools.repeat(back * (1 + len(queries)))
        )
        seen = replace(replay, on_gradient=lambda: shown.update(next(costs)))
        with trainer.accelerator.autocast():
            scores = influence(seen, of_queries, weights=weights, adjoint=adjoint)
        scores = accelerate.utils.reduce(scores, "sum")  # each process knows what its rows did
        return {"scores": scores.cpu().contiguous(), "losses": torch.stack(losses).cpu()}

    parts = [
        None if resume_dir is None else Path(resume_dir, f"queries-{q.start}-{q.stop}.safetensors")
        for q in groups
    ]
    identity = "" if resume_dir is None else _identity(replay, of_test, weights.shape)
    missing = [
        len(queries)
        for queries, path in zip(groups, parts, strict=True)
        if not (path and path.exists())
    ]
    total = sum(forward + replay.steps * (2 + 2 * queries) for queries in missing)
    first = trainer.is_world_process_zero()
    with tqdm(
        total=total,
        desc="Attribution",
        unit="gradient",
        disable=trainer.args.disable_tqdm or not first,
    ) as shown:
        found = [
            _kept(path, identity, partial(scored, queries), first)
            for queries, path in zip(groups, parts, strict=True)
        ]
    scores, losses = (torch.cat([part[name] for part in found]) for name in ("scores", "losses"))
    facts = {
        "model": type(trainer.model).__name__,
        "steps": replay.steps,
        "optimizer": str(replay.optimizer),
    }
    texts, params = (
        (_texts(trainer.processing_class, x) for x in (rows, asked)),
        params or replay.train(),
    )
    names = (
        vocabulary_of(trainer.processing_class).readable.names(replay.learner.vocab_size)
        if per_token
        else ()
    )
    of_tokens = (scores, [[names[i] for i in row] for row in rows]) if per_token else ()
    return Attribution(
        scores.sum(-1) if per_token else scores, losses, *texts, facts, params, *of_tokens
    )


def _kept(
    path: Path | None, identity: str, make: Callable[[], dict[str, Tensor]], writes: bool
) -> dict[str, Tensor]:
    """What `make` returns, or what an earlier call has kept of it in the file. One of the processes
    writes it.
    """
    if path and path.exists():
        try:
            tensors, facts = load_tensors(path)
        except ValueError as error:
            raise ValueError(
                f"resume_dir: {str(path)!r} is damaged ({error}); remove it, and these scores are"
                " made again"
            ) from None
        if facts.get("identity") != identity:
            raise ValueError(
                f"resume_dir: {str(path)!r} is of another training or other queries; give a new"
                " folder"
            )
        return tensors
    made = make()
    if path and writes:
        save_tensors(path, made, identity=identity)
    return made


def _identity(replay: Replay, of_test: DataLoader, shape: torch.Size) -> str:
    """A hash of all that the scores depend on: θ_0, the rows and their order, the optimizer, the
    queries, and the shape of the weights.
    """
    rates = [replay.optimizer.rate(step) for step in range(1, replay.steps + 1)]
    model = (
        [is_constant(x) for x in replay.start.values()],
        replay.learner.model.config.to_json_string(),
        replay.trainer.args.bf16,
    )
    digest = hashlib.sha256(
        repr(
            (*shape, replay.order, rates, replace(replay.optimizer, lr_schedule=None), model)
        ).encode()
    )
    for loader in (replay.loader, of_test):
        for row in range(len(loader.dataset)):
            digest.update(fingerprint(replay.batch(loader, [row])).encode())
    digest.update(fingerprint(replay.start).encode())
    return digest.hexdigest()


def _texts(processing_class: Any, rows: list[list[int]]) -> list[str]:
    """What each row says: decoded by a tokenizer, or the names in a list, or else its ids."""
    if hasattr(processing_class, "batch_decode"):
        return processing_class.batch_decode(rows, skip_special_tokens=True)
    if processing_class is None:
        return [" ".join(map(str, row)) for row in rows]
    vocabulary = vocabulary_of(processing_class)
    return [vocabulary.text([processing_class[i] for i in row]) for row in rows]
