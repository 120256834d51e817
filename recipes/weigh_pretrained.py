"""Do learnt weights tell right answers from wrong ones? A pretrained model with adapters, and rows
of which half have the answer of another row.

    python recipes/weigh_pretrained.py --model FOLDER --data_dir FOLDER    # 12 minutes of a core

`--model` is a folder or a repository of a causal language model, for example SmolLM2-135M-Instruct.
`--data_dir` has `instructions`: a pool as gzipped JSON lines with `prompt`, `completion` and
`source`. Rows are drawn from sources whose answers differ, by default sentences that are to be made
of some words; a wrong answer is that of another row of the same source. The target is right rows of
the same sources. Loss is on the answers alone.

The table has the area under the curve (AUC): how often a row with a right answer is before one with
a wrong answer, of all pairs; .5 is blind. Beside the weights after each outer step stand the ways
that cost less, and the loss of each answer in the pretrained model, for which nothing is trained.
Weights are kept in `output_dir` after each outer step, so a run that was stopped goes on.
"""

from __future__ import annotations

import gzip
import json
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from weigh import plain_arguments, rows_in_file

from farzi_hf.attribution.choosers import (
    CrossEntropyDifference,
    GradientCosine,
    NGramImportance,
    Ranked,
    SelectionProblem,
    graded,
)
from farzi_hf.attribution.outer_steps import RowWeights, bar_of, outer_steps
from farzi_hf.attribution.smoothness import cost_of_smoothness, smoothness
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.cli.own_rows import OwnRows
from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.cli.stock_training import model_of
from farzi_hf.data import SequenceCollator
from farzi_hf.data.tokenizer_file import load_tokenizer
from farzi_hf.report import markdown, save_json

_DISTINCT = 0.9
"""The least share of a source's rows that have an answer of their own. Where many rows share an
answer, such as "yes", another row's answer is often right.
"""

Instruction = dict[str, str]
"""A prompt, its completion, and the source."""


class LossOfAnswer(Ranked):
    """How likely the pretrained model finds a row's answer: less its mean loss, in nats."""

    name = "the pretrained model's own loss of the answer"
    is_cheap = True

    @torch.no_grad()
    def scores(self, problem: SelectionProblem) -> Tensor:
        replay = problem.trainings.replay
        batches = (replay.batch(replay.loader, [row]) for row in range(problem.num_rows))
        losses = [replay.learner.hard_loss(replay.start, batch) for batch in batches]
        return -torch.stack(losses)


def auc(scores: Sequence[float] | Tensor, is_right: Sequence[bool]) -> float:
    """The share of pairs of a right and a wrong row in which the right one has the higher score. A
    tie counts half.
    """
    right = np.asarray(is_right, dtype=bool)
    values = np.asarray(scores, dtype=np.float64)
    found = mannwhitneyu(values[right], values[~right])
    return float(found.statistic / (right.sum() * (~right).sum()))


def drawn(
    pool: Sequence[Instruction], tokenizer: PreTrainedTokenizerBase, args: Namespace
) -> tuple[list[Instruction], list[Instruction], list[bool]]:
    """The rows to weigh, of which half have a wrong answer; the rows of the target; and which of
    the first are right.

    Raises:
        ValueError: the pool has too few rows that are short and have an answer of their own.
    """
    draw = np.random.default_rng(args.seed)
    of_source: dict[str, list[Instruction]] = defaultdict(list)
    for row in pool:
        if row["source"].startswith(args.source):
            of_source[row["source"]].append(row)
    varied = [
        rows
        for rows in of_source.values()
        if len({row["completion"] for row in rows}) >= _DISTINCT * len(rows)
    ]
    short = [row for rows in varied for row in rows if _fits(row, tokenizer, args)]
    needed = args.rows + args.target_rows
    if len(short) < needed:
        raise ValueError(
            f"--rows and --target_rows ask for {needed} rows; {len(short)} of --source"
            f" {args.source!r} are short enough and have an answer of their own: ask for fewer, or"
            " raise --max_length"
        )
    chosen = [short[i] for i in draw.permutation(len(short))[:needed]]
    rows = chosen[: args.rows]
    is_right = [number % 2 == 0 for number in range(len(rows))]
    answers = {
        source: sorted({row["completion"] for row in same if _fits(row, tokenizer, args)})
        for source, same in of_source.items()
    }
    weighed = [
        row if right else {**row, "completion": _other(answers[row["source"]], row, draw)}
        for row, right in zip(rows, is_right, strict=True)
    ]
    return weighed, chosen[args.rows :], is_right


def _fits(row: Instruction, tokenizer: PreTrainedTokenizerBase, args: Namespace) -> bool:
    """Whether a row is short enough to be read whole."""
    text = f"{row['prompt']}\n{row['completion']}"
    return len(tokenizer(text)["input_ids"]) + 2 <= args.max_length  # and where it begins and ends


def _other(answers: Sequence[str], row: Instruction, draw: np.random.Generator) -> str:
    """One of these answers that is not the row's own."""
    others = [answer for answer in answers if answer != row["completion"]]
    return others[draw.integers(len(others))]


def trainer_of(args: Namespace, rows: OwnRows, tokenizer: PreTrainedTokenizerBase) -> Trainer:
    """A stock Trainer of the model's adapters."""
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)  # of the adapters
        model = model_of(args.model, args.lora)
    settings = plain_arguments(
        args,
        Path(args.output_dir, "trainer"),
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        adam_epsilon=args.epsilon,
        disable_tqdm=args.quiet,
    )
    return Trainer(model, settings, SequenceCollator(), rows.dataset(), processing_class=tokenizer)


def main(argv: Sequence[str] | None = None) -> None:
    """The table."""
    args = parse(argv)
    keep_freed_memory()
    begin = time.perf_counter()
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(args.model)
    path = Path(args.data_dir, "instructions", "pool.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        pool = [json.loads(line) for line in file]
    weighed, right, is_right = drawn(pool, tokenizer, args)
    rows, target = (
        rows_in_file(chosen, folder / f"{name}.jsonl", tokenizer, args.max_length)
        for name, chosen in (("rows", weighed), ("target", right))
    )
    trainings = Trainings.of(trainer_of(args, rows, tokenizer), args.seed)
    targets = {"right answers": target.dataset()}
    own = trainings.replay.optimizer
    gentler = replace(own, lr=args.smooth_learning_rate)
    learning = replace(trainings.with_optimizer(gentler), warm=None if args.cold else trainings)
    problem = SelectionProblem(trainings, targets, args.rows // 2, learning)
    table: list[dict[str, str]] = []

    def tell(way: str, scores: Tensor, seconds: float) -> None:
        area = auc(scores, is_right)
        table.append({"way": way, "AUC": f"{area:.3f}", "seconds": f"{seconds:.0f}"})
        print(f"{time.perf_counter() - begin:.0f} s: {way}: AUC {area:.3f}", flush=True)
        save_json({"settings": vars(args), "table": table}, folder / "table.json")

    for way in (RIVALS[name] for name in args.rivals):
        start = time.perf_counter()
        scores = problem.scores(way)
        tell(way.name, scores, time.perf_counter() - start)
    if args.smoothness:
        with bar_of(learning, cost_of_smoothness(learning, targets)) as bar:
            found = smoothness(learning, targets, bar)
        print(f"{found.ratio:.0%} of a predicted change comes true: {found}", flush=True)
    begins = torch.ones(args.rows)
    from_prior = ""
    if args.prior:
        prior = RIVALS[args.prior]
        begins = graded(problem.scores(prior), args.rows)
        from_prior = f" from {prior.name}"
    seconds = 0.0
    for steps in range(1, args.outer_steps + 1):
        start = time.perf_counter()
        state = outer_steps(
            learning,
            targets,
            RowWeights(begins),
            steps,
            folder=folder / f"weights{from_prior.replace(' ', '-')}",
        )
        seconds += time.perf_counter() - start
        loss = state.history[-1]["loss"]
        weights = state.learnt.weights()
        tell(f"weights after {steps} outer steps{from_prior} (loss {loss:.3f})", weights, seconds)
    print(f"\n{markdown(table)}")


RIVALS = {
    "loss": LossOfAnswer(),
    "n_grams": NGramImportance(),
    "cross_entropy": CrossEntropyDifference(),
    "cosine": GradientCosine(),
}
"""The ways that cost less; the last one costs half an outer step."""


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser("weigh_pretrained.py", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder or a repository")
    parser.add_argument("--data_dir", required=True, help="the folder with the data sets")
    parser.add_argument("--output_dir", default="outputs/weigh_pretrained")
    parser.add_argument("--seed", type=int, default=0, help="of rows, adapters and orders")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--target_rows", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=32, help="longer rows are not drawn")
    parser.add_argument(
        "--source", default="common_gen", help="what the names of sources begin with; '' takes all"
    )
    parser.add_argument("--lora", type=int, default=8, help="the rank of the adapters")
    parser.add_argument("--steps", type=int, default=25, help="of a training")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument(
        "--smooth_learning_rate", type=float, default=1e-3, help="where weights are learnt"
    )
    parser.add_argument("--epsilon", type=float, default=1e-2, help="of Adam")
    parser.add_argument("--outer_steps", type=int, default=2)
    parser.add_argument(
        "--prior", choices=RIVALS, help="the way whose scores the weights begin with; else all 1"
    )
    parser.add_argument(
        "--cold", action="store_true", help="learn weights in adapters that begin from nothing"
    )
    parser.add_argument(
        "--smoothness", action="store_true", help="measure it first; costs another outer step"
    )
    parser.add_argument(
        "--rivals",
        nargs="*",
        choices=RIVALS,
        default=["loss", "n_grams", "cross_entropy"],
        help="the ways that cost less",
    )
    parser.add_argument("--quiet", action="store_true", help="no bar")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
