"""`farzi attribute MODEL DATA --test TEST`: which rows of a text made a model good, or bad, at other rows."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import Dataset
from transformers import HfArgumentParser, PreTrainedModel, Trainer, TrainingArguments
from transformers.models.auto import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from farzi_hf.attribution import attribute
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.data import SequenceCollator
from farzi_hf.data.files import stream_of
from farzi_hf.data.text import ids_of
from farzi_hf.engine import ADJOINTS
from farzi_hf.summary.store.folder import is_taken
from farzi_hf.summary.store.text import terminal_text


def command(argv: Sequence[str]) -> None:
    """Scores all rows, saves the scores, and prints the rows that helped and harmed the most."""
    stock = "All fields of transformers.TrainingArguments work too and say how the model is trained: --learning_rate, --num_train_epochs, …"
    parser = ArgumentParser("farzi attribute", description=COMMANDS["attribute"], epilog=stock, allow_abbrev=False)
    parser.add_argument("model", help="folder or repository of a causal language model, with the weights to start from")
    parser.add_argument("data", help="the training rows: a file, a folder, or a data set of the Hub")
    parser.add_argument("--test", required=True, help="the queries, in the form of the data")
    parser.add_argument("--output_dir", default="outputs/attribution", help="a new folder (default: %(default)s)")
    parser.add_argument("--column", default="text", help="with the text (default: %(default)s)")
    parser.add_argument("--max_length", type=int, default=256, help="tokens of a row that are kept (default: 256)")
    parser.add_argument("--queries", type=int, default=16, help="rows of the test that are taken (default: 16)")
    parser.add_argument("--lora", type=int, metavar="R", help="train adapters of rank R, not all; needs peft")
    parser.add_argument("--adjoint", choices=ADJOINTS, help="by default a fast one that needs little memory")
    parser.add_argument("--check", action="store_true", help="then train with the Trainer too, and compare the weights")
    parser.add_argument("--top", type=int, default=10, help="rows of each kind to print (default: 10)")
    args, rest = parser.parse_known_args(argv)
    keep_freed_memory()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("farzi_hf.engine").setLevel(logging.INFO)  # says which adjoint was chosen, and why
    with ends_in_one_line("farzi attribute", OSError, FloatingPointError):
        output = Path(args.output_dir)
        if is_taken(output):
            raise ValueError(f"--output_dir {args.output_dir!r} exists already and is not empty: choose another folder")
        fixed = ["--output_dir", args.output_dir, "--save_strategy", "no", "--report_to", "none"]
        (how,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*fixed, *rest])
        tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=False)

        def rows(source: str, most: int | None = None) -> Dataset:
            texts = [row.get(args.column) for row in stream_of(source)["train"]][:most]
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{source!r} has no rows, or some without text in {args.column!r}; name the --column")
            return Dataset.from_dict({"input_ids": [ids[: args.max_length] for ids in ids_of(tokenizer, texts)]})

        data, test, model = rows(args.data), rows(args.test, args.queries), model_of(args.model, args.lora)
        trainer = Trainer(model, how, SequenceCollator(), data, processing_class=tokenizer)
        parts = output.with_name(f".{output.name}-parts")
        found = attribute(trainer, test, args.adjoint and ADJOINTS[args.adjoint](), parts)
    found.save(output)
    for part in parts.glob("queries-*.safetensors"):
        part.unlink()
    parts.rmdir()
    for title, shown in (("lowered", found.top(args.top)), ("raised", found.bottom(args.top))):
        print(f"\nThe rows that {title} the mean loss of {len(test)} queries the most (row, nats per token, text):")
        print("\n".join(f"{row.row:>7} {row.score:>+11.3e}  {terminal_text(row.text, most=100)}" for row in shown))
    print(f"\nAll scores: farzi_hf.attribution.Attribution.load({args.output_dir!r})")
    if args.check:
        trainer.train()
        print(f"The stock Trainer's weights differ from the replay's by {found.check(trainer.model):.1e} of their size")


def model_of(name: str, rank: int | None) -> PreTrainedModel:
    """The model with its weights in float32 and without dropout; with adapters if they have a rank."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    dropped = {key: 0.0 for key, x in config.to_dict().items() if "drop" in key and isinstance(x, float) and x}
    config.update(dropped)
    if dropped:
        print(f"Dropout is switched off: {', '.join(dropped)}")
    model = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=torch.float32, trust_remote_code=False)
    if rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError(f"--lora {rank} needs peft: pip install peft") from None
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=rank))
