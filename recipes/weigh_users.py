"""Which histories to train a recommender on, if some were made up by bots: all ways to choose them,
compared by hit rate on held-out users.

    python recipes/weigh_users.py --dataset magazine --data_dir FOLDER --splits 0 1 2
    python recipes/weigh_users.py --dataset Beauty.csv.gz --data_dir FOLDER --min_interactions 3 \\
        --learner '{"model_type": "fmlp", "hidden_size": 16}' --bots promoted
    python recipes/weigh_users.py --dataset sample_interactions               # embedded, a minute

A share of the histories (a fifth) is made up and put among the training users' own; as many rows as
are real stay. One half of the validation users is the target, the other half chooses the way.
Figures are of the test users, whose histories are real. Nothing reads which rows are made up, but
the oracle and the columns that count them. `--bots` says how they are made:

- `popular`: as long as real histories, items drawn by how often they occur;
- `promoted`: items drawn from a few that real users rarely have;
- `copied`: the histories of a few users, again and again.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments
from weigh import plain_arguments

from farzi_hf.attribution.choice import interval
from farzi_hf.attribution.choosers import (
    AllRows,
    BestOf,
    CalibratedScores,
    Chooser,
    CrossEntropyDifference,
    GradientCosine,
    InfluenceOfOne,
    NGramImportance,
    OuterSteps,
    RandomRows,
    SelectionProblem,
)
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.smoothness import smooth_enough
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.data import SequenceCollator
from farzi_hf.data.sequences import evaluation_windows
from farzi_hf.report import markdown, save_json
from farzi_hf.tasks.items import Recommendation, rank_metrics, target_ranks

_FIRST = 10_000
"""The number of the first training that measures. Weights are learnt in others."""
_PROMOTED = 50
"""How many items bots promote."""
_COPIED = 0.01
"""The share of the real users whose histories are copied."""

Histories = list[list[int]]


# -- bots ------------------------------------------------------------------------------------------


def popular(real: Histories, count: int, draw: np.random.Generator) -> Histories:
    """Items drawn by how often they occur."""
    items = np.concatenate(real)
    return [draw.choice(items, length).tolist() for length in _lengths(real, count, draw)]


def promoted(real: Histories, count: int, draw: np.random.Generator) -> Histories:
    """Items drawn from a few that are among the rarer half of all."""
    counts = np.bincount(np.concatenate(real))
    by_count = np.argsort(counts[1:], kind="stable") + 1  # 0 is the padding
    chosen = draw.permutation(by_count[: len(by_count) // 2])[:_PROMOTED]
    return [draw.choice(chosen, length).tolist() for length in _lengths(real, count, draw)]


def copied(real: Histories, count: int, draw: np.random.Generator) -> Histories:
    """The histories of a few users, again and again."""
    few = draw.permutation(len(real))[: max(1, round(_COPIED * len(real)))]
    return [list(real[i]) for i in draw.choice(few, count)]


BOTS = {"popular": popular, "promoted": promoted, "copied": copied}


def _lengths(real: Histories, count: int, draw: np.random.Generator) -> list[int]:
    return draw.choice([len(row) for row in real], count).tolist()


# -- ways that nobody else has ---------------------------------------------------------------------


class Oracle(Chooser):
    """The real histories, which no other way may look at."""

    name = "real histories alone (oracle)"
    is_cheap = True

    def __init__(self, is_real: Sequence[bool]) -> None:
        self.is_real = is_real

    def weights(self, problem: SelectionProblem) -> Tensor:
        return torch.tensor(self.is_real).float()


def ways_of(is_real: Sequence[bool], outer_steps: int) -> list[Chooser]:
    """All ways, the cheap ones first."""
    cheap = (NGramImportance(), CrossEntropyDifference(), GradientCosine())
    return [
        Oracle(is_real),
        AllRows(),
        RandomRows(),
        *cheap,
        InfluenceOfOne(),
        CalibratedScores(cheap),
        OuterSteps(outer_steps),
        OuterSteps(outer_steps, BestOf(cheap)),
    ]


# -- one split of the users ------------------------------------------------------------------------


def split_rows(args: Namespace, split: int) -> list[dict[str, Any]]:
    """What each way chose, and how good models trained on it are."""
    settings = {"min_interactions": args.min_interactions} if args.min_interactions else {}
    task, splits_of, description = Recommendation.load(args.dataset, args.data_dir, **settings)
    splits = splits_of(split)
    print(f"split {split}: {description}", flush=True)
    draw = np.random.default_rng(split)
    real = [list(row) for row in splits["train"]["input_ids"]]
    count = round(args.share / (1 - args.share) * len(real))
    pool = [*real, *BOTS[args.bots](real, count, draw)]
    order = draw.permutation(len(pool))
    rows = [pool[i][-args.max_length :] for i in order]
    is_real = (order < len(real)).tolist()
    held_out = [list(row)[-args.max_length :] for row in splits["validation"]["input_ids"]]
    half = len(held_out) // 2
    targets = {"users": Dataset.from_dict({"input_ids": held_out[:half]})}
    dev = {"users": Dataset.from_dict({"input_ids": held_out[half:]})}
    config = task.learner_config(json.loads(args.learner), args.max_length)

    def start() -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", trust_remote_code=False
        )

    folder = Path(args.output_dir, f"split-{split}")
    trainer = Trainer(
        model_init=start,
        args=_arguments(args, folder, max_steps=args.steps),
        data_collator=SequenceCollator(0),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
    )
    trainings = Trainings.of(trainer, split)
    smooth, said = smooth_enough(trainings, targets, not args.cold)
    print("\n".join(said), flush=True)
    problem = SelectionProblem(trainings, targets, len(real), smooth)
    test = evaluation_windows(splits["test"], args.max_length)
    held_out_parts = {
        "dev": dev,
        "test": {"users": Dataset.from_dict({"input_ids": test["input_ids"]})},
    }
    found = []
    ways = ways_of(is_real, args.outer_steps)
    for way in [each for each in ways if not args.only or each.name in args.only]:
        begin = time.perf_counter()
        weights = way.weights(problem)
        seconds = time.perf_counter() - begin
        measured = [
            _measured(trainings, weights, number, held_out_parts, test, start(), args)
            for number in range(args.trainings)
        ]
        problem.note_dev_losses(way.name, [each["dev"] for each in measured])
        bots = sum(w > 0 and not own for w, own in zip(weights.tolist(), is_real, strict=True))
        found.append(
            {
                "method": way.name,
                "is_cheap": way.is_cheap,
                "rows": int((weights > 0).sum()),
                "bots": bots,
                "of_bots": count,
                "seconds": seconds,
                "measured": measured,
            }
        )
        hits = float(np.mean([each["hr@100"] for each in measured]))
        print(
            f"{way.name}: {bots} bots, HR@100 {100 * hits:.1f} %, dev"
            f" {problem.dev_loss(way.name):.3f}, {seconds:.0f} s",
            flush=True,
        )
    return found


def _measured(
    trainings: Trainings,
    weights: Tensor,
    number: int,
    parts: Mapping[str, Mapping[str, Dataset]],
    test: Dataset,
    model: PreTrainedModel,
    args: Namespace,
) -> dict[str, float]:
    """The losses on the parts, and hit rates on the test users, of one fresh training."""
    training = trainings.training(weights, _FIRST + number)
    with torch.no_grad():
        theta = training.train()
        losses = {name: Targets(training, part).value(theta, 0) for name, part in parts.items()}
    model.load_state_dict(theta, strict=False)
    model.tie_weights()
    predictions = Trainer(
        model,
        _arguments(args, Path(args.output_dir, "predictions"), label_names=["labels", "seen"]),
        SequenceCollator(0),
        preprocess_logits_for_metrics=target_ranks,
    ).predict(test)
    return {**losses, **rank_metrics(predictions.predictions)}


def _arguments(args: Namespace, folder: Path, **how: Any) -> TrainingArguments:
    return plain_arguments(
        args,
        folder,
        per_device_eval_batch_size=256,
        learning_rate=args.learning_rate,
        adam_epsilon=args.epsilon,
        disable_tqdm=True,
        **how,
    )


# -- the table of all splits -----------------------------------------------------------------------


def table_of(splits: Sequence[list[dict[str, Any]]]) -> list[dict[str, str]]:
    """Means over all splits and trainings. The way that is the best on the dev part is chosen in
    each split, and stands in the last row.
    """
    of_way: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for rows in splits:
        for row in rows:
            of_way[row["method"]].append(row)
        most = min(row["rows"] for row in rows)
        allowed = [row for row in rows if row["rows"] <= most and "oracle" not in row["method"]]
        of_way["chosen by the dev part"].append(min(allowed, key=_dev))
    return [_row(way, rows) for way, rows in of_way.items()]


def _dev(row: dict[str, Any]) -> float:
    return float(np.mean([each["dev"] for each in row["measured"]]))


def _row(way: str, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    def of(metric: str) -> float:
        return float(np.mean([[each[metric] for each in row["measured"]] for row in rows]))

    def percent(metric: str) -> str:
        values = [[each[metric] for each in row["measured"]] for row in rows]
        middle = float(np.mean(values))
        low, high = interval(np.mean(values, axis=1) if len(rows) > 1 else values[0])
        return f"{100 * middle:.1f} ({100 * low:.1f}–{100 * high:.1f})"

    return {
        "trained on": way,
        "rows": f"{np.mean([row['rows'] for row in rows]):,.0f}",
        "made up, of all": f"{np.mean([row['bots'] / row['of_bots'] for row in rows]):.0%}",
        "dev, nats": f"{of('dev'):.3f}",
        "test, nats": f"{of('test'):.3f}",
        "HR@10, %": percent("hr@10"),
        "HR@100, %": percent("hr@100"),
        "nDCG@10, %": percent("ndcg@10"),
        "seconds": f"{np.mean([row['seconds'] for row in rows]):.0f}",
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The table."""
    args = parse(argv)
    keep_freed_memory()
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    splits = []
    for split in args.splits:
        splits.append(split_rows(args, split))
        save_json({"settings": vars(args), "splits": splits}, folder / "table.json")
        print(f"\n{markdown(table_of(splits))}\n", flush=True)


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser("weigh_users.py", description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="magazine")
    parser.add_argument("--data_dir", help="the folder with the data set")
    parser.add_argument("--min_interactions", type=int, help="of a user")
    parser.add_argument("--output_dir", default="outputs/weigh_users")
    parser.add_argument("--splits", type=int, nargs="+", default=[0], help="of the users")
    parser.add_argument("--bots", choices=BOTS, default="popular")
    parser.add_argument("--share", type=float, default=0.2, help="of made-up histories")
    parser.add_argument(
        "--learner",
        default='{"model_type": "sasrec", "hidden_size": 16, "num_hidden_layers": 1,'
        ' "num_attention_heads": 1, "dropout": 0.0, "initializer_range": 0.02}',
        help="arguments of AutoConfig.for_model, as JSON",
    )
    parser.add_argument("--max_length", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--epsilon", type=float, default=1e-4, help="of Adam")
    parser.add_argument("--outer_steps", type=int, default=8)
    parser.add_argument("--trainings", type=int, default=3, help="fresh models for each way")
    parser.add_argument(
        "--cold", action="store_true", help="weights are learnt in models that begin from nothing"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of ways; all by default")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
