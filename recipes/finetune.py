"""Trains a model on a published summary and on the real data behind it, both with the stock
Trainer, and compares the results.

    python recipes/finetune.py --summary outputs/ptb_50x50/summary --data_dir FOLDER       # a folder, or user/farzi-… of the Hub
    python recipes/finetune.py --summary user/farzi-ptb --learner '{"model_type": "llama", "hidden_size": 16, …}'
    python recipes/finetune.py --summary user/farzi-ptb --model NAME                       # pretrained weights, a folder or of the Hub
    python recipes/finetune.py --data notes.jsonl --model FOLDER --lora 8                  # distils the data for a pretrained model first

With `--data`, the teacher is the pretrained model, fine-tuned on the data; the summary carries it,
and the model is then fine-tuned on the summary. `--lora RANK` adds rows of trainings that leave the
model as it is and learn adapters (`pip install peft`).

The model can be any causal language model or recommender of transformers with the vocabulary of the
summary. By default it is the untrained learner of the summary. The summary's `recipe.yaml` names
the real data. Every model trains with the summary's settings, on about as many tokens per step.
`output_dir` gets `table.md`, `table.csv` and `comparison.png`.
"""  # noqa: E501

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, default_data_collator
from transformers.pytorch_utils import Conv1D

from farzi_hf import FarziConfig, FarziData, FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept, write_recipe
from farzi_hf.report import (
    Comparison,
    Measured,
    RunSettings,
    Student,
    TaskData,
    markdown,
    save_csv,
    save_text,
)
from farzi_hf.report.plots import plot_comparison
from farzi_hf.report.rows import prediction_of, student_arguments, train_stock
from farzi_hf.summary.teacher import plain_config


@dataclass
class FinetuneArguments:
    """The summary, the real data, and the models to train."""

    summary: str | None = field(
        default=None, metadata={"help": "folder or dataset repository of the summary"}
    )
    data: str | None = field(
        default=None,
        metadata={"help": "text to distil, in place of a summary: as for `farzi distil`"},
    )
    revision: str | None = field(
        default=None, metadata={"help": "branch, tag or commit of the repository"}
    )
    data_dir: str | None = field(default=None, metadata={"help": "folder with the real data"})
    learner: str | None = field(
        default=None, metadata={"help": "arguments of AutoConfig.for_model, as JSON"}
    )
    model: str | None = field(
        default=None, metadata={"help": "pretrained weights, in place of a learner"}
    )
    lora: int = field(
        default=0, metadata={"help": "rank of the adapters in rows more; 0: no such rows"}
    )
    inputs: str = field(
        default="written", metadata={"help": "of a summary of --data: written or drawn"}
    )
    storage: str = field(
        default="coded5", metadata={"help": "of a summary of --data: how its teacher is stored"}
    )
    learning_rate: float = field(
        default=0.005, metadata={"help": "of a teacher of --data, and of students of it"}
    )
    steps: int | None = field(
        default=None, metadata={"help": "training steps; by default the summary's number"}
    )
    long_steps: int = field(
        default=2000, metadata={"help": "training steps of the row 'full data, long'"}
    )
    num_students: int = field(
        default=3, metadata={"help": "models per row, each with its own seed"}
    )
    output_dir: str = field(default="outputs/finetune", metadata={"help": "folder of the results"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even if there is a GPU"})

    def __post_init__(self) -> None:
        if self.learner is not None and self.model is not None:
            raise ValueError(
                f"learner={self.learner!r} and model={self.model!r} are both given: name one of"
                " them"
            )
        if (self.summary is None) == (self.data is None):
            raise ValueError(f"summary={self.summary!r}, data={self.data!r}: give one of them")
        if (self.data is not None or self.lora) and self.model is None:
            raise ValueError(
                f"data={self.data!r} and lora={self.lora} are for pretrained weights: give model"
            )
        if min(self.num_students, self.long_steps, 1 if self.steps is None else self.steps) < 1:
            raise ValueError("num_students, long_steps and steps have to be at least 1")

    @property
    def of_models(self) -> dict[str, Any]:
        """The settings that each model depends on: with more students or with adapters, those that
        are done stay.
        """
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("num_students", "lora")
        }

    @property
    def ranks(self) -> list[int]:
        """Of the trainings of each row: 0 is the whole model."""
        return [0, self.lora] if self.lora else [0]


def main(argv: Sequence[str] | None = None) -> None:
    """The whole recipe, in one process."""
    keep_freed_memory()
    with ends_in_one_line("finetune.py", OSError):
        (args,) = HfArgumentParser(FinetuneArguments).parse_args_into_dataclasses(
            argv, look_for_args_file=False
        )
        check_outputs(
            Path(args.output_dir),
            ("recipe.yaml", "table.md", "table.csv", "comparison.png"),
            args.of_models,
        )
        summary = args.summary or distilled(args)
        farzi = FarziData.from_pretrained(summary, args.revision)
        changes = {} if args.learner is None else {"learner": args.learner}
        data = TaskData.of_summary(
            farzi, args.data_dir or (args.data and str(Path(args.data).parent)), **changes
        )
        config = args.model and AutoConfig.from_pretrained(args.model, trust_remote_code=False)
        c = Comparison.of_summary(
            farzi, data, config, "cpu" if args.use_cpu else None, num_students=args.num_students
        )
        c = replace(
            c,
            steps=args.steps or c.steps,
            long_training=replace(c.long_training, steps=args.long_steps),
        )
    write_recipe(Path(args.output_dir), args.of_models)
    print(f"{summary}: {c.learner.model.config.model_type}, {c.steps} steps", flush=True)
    measured = [*itself(c, args), *on_summary(c, args), *on_real(c, args), *c.counted()]
    rows = [c.row(part) for part in measured]
    folder = Path(args.output_dir)
    table = markdown([c.task.readable(row) for row in rows])
    save_text(table + "\n", folder / "table.md")
    save_csv(rows, folder / "table.csv")
    plot_comparison(
        rows, folder / "comparison.png", c.task.metric, metric_label=c.task.metric_label
    )
    print(f"\n{table}\n\nTable: {folder / 'table.md'}")


def distilled(args: FinetuneArguments) -> Path:
    """The folder of a summary of `--data`, whose learner is the pretrained model. One that is there
    already is taken.
    """
    folder = Path(args.output_dir) / "summary"
    if folder.exists():
        return folder
    config = AutoConfig.from_pretrained(args.model, trust_remote_code=False)
    learner = {name: value for name, value in plain_config(config).items() if name != "vocab_size"}
    data = RunSettings(dataset=args.data, tokenizer=args.model, learner=learner).load()
    splits = data.splits(42)
    settings = FarziConfig(
        str(Path(args.output_dir) / "run"),
        labels="teacher",
        inputs=args.inputs,
        storage=args.storage,
        sequence_length=100,
        inner_learning_rate=args.learning_rate,
        inner_epsilon=1e-6,
        inner_steps=args.steps or 300,
        teacher_learning_rate=args.learning_rate,
        teacher_steps=args.long_steps,
        packing_steps=args.long_steps // 2,
        max_steps=0,
        report_to="none",
        use_cpu=args.use_cpu,
        inner_optimizer="adamw",  # that of all rows
    )
    pretrained = partial(AutoModelForCausalLM.from_pretrained, args.model, trust_remote_code=False)
    trainer = FarziTrainer(
        pretrained, settings, splits["train"], splits["validation"], task=data.task
    )
    # Before the summary, which must not be taken for that of other data.
    write_recipe(Path(args.output_dir), args.of_models)
    trainer.train()
    metrics = {
        "dataset": data.settings.dataset,
        "teacher_seconds": trainer.state.log_history[-1].get("start_seconds"),
    }
    trainer.model.save_pretrained(
        folder,
        data.task.processing_class,
        metrics=metrics,
        recipe={**data.recipe([42]), **settings.to_recipe()},
    )
    return folder


def trained(
    c: Comparison,
    args: FinetuneArguments,
    method: str,
    rows: Callable[[int], Dataset],
    collator: Callable,
    nbytes: int,
    lora: int = 0,
    **settings: Any,
) -> Measured:
    """Models, or adapters of that rank, that the stock Trainer trains on `rows(seed)`. Each that is
    done is kept in `output_dir`.
    """

    def train(seed: int) -> Student:
        torch.manual_seed(seed)
        make = (
            AutoModelForCausalLM.from_pretrained if args.model else AutoModelForCausalLM.from_config
        )
        model = make(args.model or c.learner.model.config, trust_remote_code=False)
        if lora:
            from peft import LoraConfig, get_peft_model

            # Its matrices lie the other way round.
            gpt2 = any(isinstance(part, Conv1D) for part in model.modules())
            adapters = LoraConfig(
                task_type="CAUSAL_LM",
                r=lora,
                lora_alpha=2 * lora,
                target_modules="all-linear",
                fan_in_fan_out=gpt2,
            )
            model = get_peft_model(model, adapters)
        arguments = student_arguments(
            c, args.output_dir, seed, **{"max_steps": c.steps, **settings}
        )
        return train_stock(model, rows(seed), collator, arguments)

    name = f"{method}, LoRA" if lora else method
    folder = Path(args.output_dir) / "models" / re.sub(r"[^a-z0-9]+", "-", name.lower())
    steps = settings.get("max_steps", c.steps)
    known = {**args.of_models, "lora": lora}
    one = lambda seed: c.trained(name, train, [seed], nbytes, steps).to_json()  # noqa: E731
    parts = [
        Measured.from_json(kept(folder / f"{i}.json", known, partial(one, seed)))
        for i, seed in enumerate(c.seeds)
    ]
    seconds = round(sum(part.seconds for part in parts) / len(parts), 2)
    return replace(parts[0], students=[part.students[0] for part in parts], seconds=seconds)


def itself(c: Comparison, args: FinetuneArguments) -> list[Measured]:
    """The pretrained model as it is, and the teacher that the summary carries."""
    models = (
        {}
        if args.model is None
        else {
            "the model, not fine-tuned": AutoModelForCausalLM.from_pretrained(
                args.model, trust_remote_code=False
            )
        }
    )
    models |= {} if c.farzi.carried is None else {"teacher": c.farzi.teacher}
    test = c.splits["test"]
    return [
        Measured(name, [c.statistics(prediction_of(model.eval()), test)], c.farzi.nbytes)
        for name, model in models.items()
    ]


def on_summary(c: Comparison, args: FinetuneArguments) -> list[Measured]:
    """Rows on the summary: soft tokens; ids, drawn anew each time that a sequence is read; and the
    likeliest ids. Or what its teacher labels.
    """
    farzi, inner = c.farzi, c.farzi.config.inner
    if farzi.is_endless:
        name = f"Farzi, {farzi.forms.inputs.result_words}"
        nbytes = farzi.nbytes
        rows = lambda seed: farzi.as_dataset(seed=seed)  # noqa: E731
        return [trained(c, args, name, rows, farzi.collator(), nbytes, rank) for rank in args.ranks]
    visits = math.ceil(c.steps * inner["synthetic_batch_size"] / farzi.config.num_sequences)
    token_bytes = c.token_bytes(farzi.config.num_sequences * farzi.config.sequence_length)
    soft = farzi.collator()
    ids = default_data_collator
    return [
        trained(c, args, "Farzi, soft tokens", lambda seed: farzi.as_dataset(), soft, farzi.nbytes),
        trained(
            c,
            args,
            f"Farzi, {visits} samples each",
            lambda seed: farzi.as_hard_dataset(visits, seed),
            ids,
            visits * token_bytes,
        ),
        trained(
            c,
            args,
            "Farzi, likeliest tokens",
            lambda seed: farzi.as_hard_dataset(),
            ids,
            token_bytes,
        ),
    ]


def on_real(c: Comparison, args: FinetuneArguments) -> list[Measured]:
    """Rows on real data: all data, for as many steps and for long; and as many random sequences or
    bytes as the summary has.
    """
    draws: dict[str, tuple[Callable[[int], Dataset], dict[str, Any]]] = {
        "full data": (c.all_sequences, {}),
        "full data, long": (
            c.all_sequences,
            {"max_steps": args.long_steps, "lr_scheduler_type": "linear"},
        ),
        "random, same sequences": (c.draw_sequences, {}),
        "random, same bytes": (c.draw_bytes, {}),
    }
    if c.farzi.is_endless:  # its number of sequences means nothing
        del draws["random, same sequences"]
    measured = []
    for method, (draw, settings) in draws.items():
        first = draw(c.seeds[0])
        settings = {
            "per_device_train_batch_size": c.real_batch_size(c.real_data(first).dataset),
            **settings,
        }
        rows = lambda seed, draw=draw: c.real_data(draw(seed)).dataset  # noqa: E731
        for rank in args.ranks:
            measured.append(
                trained(c, args, method, rows, c.task.collator, c.nbytes(first), rank, **settings)
            )
    return measured


if __name__ == "__main__":
    run(main)
