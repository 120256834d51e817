"""`farzi train SUMMARY`: trains a model on a summary, with the stock Trainer."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer

import farzi_hf.models  # noqa: F401
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, summary_at
from farzi_hf.common.checks import check_rate
from farzi_hf.common.files import is_taken
from farzi_hf.common.settings import from_json
from farzi_hf.data import vocabulary_of
from farzi_hf.data.seeds import check_seed
from farzi_hf.distillation.learner_model import check_causal, readable_positions
from farzi_hf.models.base import check_fields
from farzi_hf.report import Comparison, Measured, TaskData, Verdict
from farzi_hf.report.rows import GivenRow, full_long, prediction_of
from farzi_hf.report.verdict import first_rows
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.untrusted import learner_config
from farzi_hf.summary.student_starts import STUDENT_STARTS
from farzi_hf.summary.teacher import whole


def command(argv: Sequence[str]) -> None:
    """Trains, and saves the model and its tokenizer. With `--evaluate`, it also prints metrics on
    the real test split.
    """
    args = arguments(argv)
    keep_freed_memory()
    with ends_in_one_line(
        "farzi train", FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError
    ):
        check(args)
        farzi = FarziData.from_pretrained(summary_at(args.summary), args.revision)
        farzi.forms.inputs.check_ready()  # before a model is made, which may take long
        real = RealRows.of(farzi, args) if args.evaluate else None
        longest = farzi.config.sequence_length
        given = {"max_steps": args.steps, "learning_rate": args.learning_rate}
        changes = {name: value for name, value in given.items() if value is not None}
        if real is not None:
            longest = max(longest, *map(len, real.test["input_ids"]))
            changes |= real.arguments_of_trainer()
        model = model_of(farzi, args, longest)
        start = farzi.student_start if args.start is None else STUDENT_STARTS[args.start]
        trainer = farzi.trainer(model, args.output_dir, start=start, seed=args.seed, **changes)
        started = time.perf_counter()
        trainer.train()
        seconds = round(time.perf_counter() - started, 2)
        output = Path(args.output_dir)
        trainer.model.save_pretrained(output)
        vocabulary_of(farzi.processing_class).save(output)
        steps = trainer.state.global_step
        print(f"{steps} steps on {args.summary}, {start.word} start; the model is in {output}")
        if real is None:
            return
        metrics = trainer.evaluate(real.test, metric_key_prefix="test")
        print("\n".join(f"{name}: {value:.4g}" for name, value in figures_of(metrics).items()))
        if args.data is not None:
            print(f"\nVerdict: {verdict(farzi, real.data, trainer, seconds)}")


def arguments(argv: Sequence[str]) -> Namespace:
    """The arguments of `farzi train`."""
    parser = CommandParser("farzi train", description=COMMANDS["train"])
    parser.add_argument("summary", help="folder, or dataset repository of the Hub, user/farzi-…")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument(
        "--learner", help="arguments of AutoConfig.for_model as JSON (default: the summary's own)"
    )
    parser.add_argument(
        "--output_dir", default="outputs/student", help="folder of the model (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, help="training steps (default: the summary's own number)"
    )
    parser.add_argument(
        "--learning_rate",
        type=float,
        help="(default: the summary's own, or a quarter of it for a model at least as wide as the"
        " carried teacher that begins with its layers or with fitted ones; a parallel residual"
        " takes it whole)",
    )
    parser.add_argument(
        "--start",
        choices=STUDENT_STARTS,
        help="begin with the tables of the carried teacher, and its layers where they fit, or at"
        " random (default: as the summary says)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and order of the data (default: 0)"
    )
    parser.add_argument(
        "--evaluate", action="store_true", help="evaluate on the test split of the summary's source"
    )
    parser.add_argument("--data_dir", help="folder with the real data, for --evaluate")
    parser.add_argument(
        "--data", help="the real data themselves, for --evaluate: a file or folder; adds a verdict"
    )
    parser.add_argument(
        "--tokenizer", help="the summary's tokenizer, if --evaluate needs its chat template"
    )
    return parser.parse_args(argv)


def check(args: Namespace) -> None:
    """Raises ValueError if arguments do not fit each other, or the folder is taken."""
    if args.steps is not None and args.steps < 1:
        raise ValueError(f"--steps {args.steps} trains nothing: give at least 1")
    if args.learning_rate is not None:
        check_rate("--learning_rate", args.learning_rate)
    for name in ("data_dir", "data", "tokenizer"):
        value = getattr(args, name)
        if value is not None and not args.evaluate:
            raise ValueError(f"--{name} {value!r} is for --evaluate alone: give both, or neither")
    output = Path(args.output_dir)
    if is_taken(output):
        raise ValueError(
            f"--output_dir {str(output)!r} exists already and is not empty: choose another folder"
        )


@dataclass(frozen=True)
class RealRows:
    """The real data of a summary, for `--evaluate`."""

    data: TaskData
    """What the summary was distilled from."""
    test: Dataset
    """The rows of its test split."""

    @classmethod
    def of(cls, farzi: FarziData, args: Namespace) -> RealRows:
        """Those of a summary, where the arguments say that they are."""
        given = {"dataset": args.data, "tokenizer": args.tokenizer}
        named = {name: value for name, value in given.items() if value is not None}
        data = TaskData.of_summary(farzi, args.data_dir, **named)
        seed = check_seed(farzi.results.recipe.get("seed", 42), "recipe.yaml: seed")
        splits = data.splits(data.seeds(seed)[0])
        return cls(data, data.task.evaluation_rows(splits["test"], farzi.config.sequence_length))

    def arguments_of_trainer(self) -> dict[str, Any]:
        """What the stock Trainer needs to measure on them."""
        task = self.data.task
        return {
            "label_names": list(task.label_names),
            "compute_metrics": task.compute_metrics,
            "preprocess_logits_for_metrics": task.preprocess_logits_for_metrics,
        }


def figures_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a model, without those of the machine."""
    of_machine = ("runtime", "per_second", "_time")
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, float) and not name.endswith(of_machine)
    }


def model_of(farzi: FarziData, args: Namespace, longest: int) -> PreTrainedModel:
    """A fresh model over the summary's vocabulary, which reads `longest` ids. Raises ValueError if
    none can be made of the learner.
    """
    learner = (
        from_json("--learner", args.learner)
        if args.learner
        else farzi.results.recipe.get("learner")
    )
    source = "--learner" if args.learner else f"{args.summary}/recipe.yaml: learner"
    if args.learner and isinstance(learner, dict):
        check_fields(
            learner, source, vocab_size=(entries := farzi.config.vocab_size), num_items=entries - 1
        )
    config = learner_config(learner, farzi.config, vocabulary_of(farzi.processing_class), source)
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    if readable_positions(model.eval(), longest) < longest:
        raise ValueError(
            f"{source} makes a model that does not read {longest} positions; choose one with"
            " --learner"
        )
    try:
        check_causal(
            model,
            lambda params, ids: (
                torch.func.functional_call(model, params, kwargs=whole(model, ids)).logits
            ),
        )
    except ValueError as error:
        raise ValueError(
            str(error).replace("learner_init returned", f"{source} makes", 1)
        ) from None
    return model


def verdict(farzi: FarziData, data: TaskData, trainer: Trainer, seconds: float) -> Verdict:
    """On the student that was trained, which took so many seconds."""
    c = Comparison.of_summary(farzi, data, trainer.model.config, device=trainer.args.device.type)
    found = c.statistics(prediction_of(trainer.model.eval()), c.splits["test"])
    ours = Measured(
        "Farzi, stock Trainer", [found], farzi.nbytes, trainer.state.global_step, seconds
    )
    # All data are trained on as the recipe says, so the row is that of the distillation.
    long = full_long(replace(c, num_students=1))
    measured = first_rows(c, GivenRow(ours), long)
    return Verdict.of(c, measured, farzi.results.metrics.get("distillation_seconds"))
