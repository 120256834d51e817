"""`farzi attribute MODEL DATA --test TEST`: which rows of a text, or users' histories, made a model
good, or bad, at others.
"""

import logging
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import (
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.models.auto import AutoConfig, AutoModelForCausalLM

import farzi_hf.models  # noqa: F401
from farzi_hf.attribution import attribute
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.common.checks import check_size
from farzi_hf.common.files import find_file, is_taken, read_plain_file
from farzi_hf.common.text import terminal_text
from farzi_hf.data import Interactions, SequenceCollator, load_interactions
from farzi_hf.data.files import stream_of
from farzi_hf.data.own import TEXT, recognise, texts_of
from farzi_hf.data.text import ids_of
from farzi_hf.data.tokenizer_file import load_tokenizer
from farzi_hf.data.vocabulary import ITEMS_BYTES, ITEMS_FILE, item_names
from farzi_hf.distillation.learner_model import readable_positions
from farzi_hf.engine import ADJOINTS

COLUMNS = ("user_column", "item_column", "time_column")


def command(argv: Sequence[str]) -> None:
    """Scores all rows, saves the scores, and prints the rows that helped and harmed the most."""
    stock = (
        "All fields of transformers.TrainingArguments work too and say how the model is trained:"
        " --learning_rate, --num_train_epochs, …"
    )
    parser = ArgumentParser(
        "farzi attribute", description=COMMANDS["attribute"], epilog=stock, allow_abbrev=False
    )
    parser.add_argument(
        "model",
        help="folder or repository of a causal language model, with the weights to start from",
    )
    parser.add_argument(
        "data", help="the training rows: a file, a folder, or a data set of the Hub"
    )
    parser.add_argument("--test", required=True, help="the queries, in the form of the data")
    parser.add_argument(
        "--output_dir", default="outputs/attribution", help="a new folder (default: %(default)s)"
    )
    parser.add_argument("--column", help="with the text (default: text)")
    for name in COLUMNS:
        parser.add_argument(f"--{name}", help="of interactions, where a user's history is a row")
    parser.add_argument(
        "--max_length",
        type=int,
        default=256,
        help="tokens of a row that are kept, a user's last (default: 256)",
    )
    parser.add_argument(
        "--queries", type=int, default=16, help="rows of the test that are taken (default: 16)"
    )
    parser.add_argument(
        "--lora", type=int, metavar="R", help="train adapters of rank R, not all; needs peft"
    )
    parser.add_argument(
        "--per_token",
        action="store_true",
        help="score each token of a row too; the first ones are printed",
    )
    parser.add_argument(
        "--damping",
        type=float,
        default=0.0,
        help="1: less exact; says more of leaving out many rows (default 0)",
    )
    parser.add_argument(
        "--adjoint", choices=ADJOINTS, help="by default a fast one that needs little memory"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="then train with the Trainer too, and compare the weights",
    )
    parser.add_argument(
        "--top", type=int, default=10, help="rows of each kind to print (default: 10)"
    )
    args, rest = parser.parse_known_args(argv)
    keep_freed_memory()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("farzi_hf.engine").setLevel(
        logging.INFO
    )  # says which adjoint was chosen, and why
    with ends_in_one_line("farzi attribute", OSError, FloatingPointError):
        for name, least in (("max_length", 2), ("queries", 1), ("top", 1)):
            check_size(f"--{name}", getattr(args, name), least)
        output = Path(args.output_dir)
        if is_taken(output):
            raise ValueError(
                f"--output_dir {args.output_dir!r} exists already and is not empty: choose another"
                " folder"
            )
        fixed = ["--output_dir", args.output_dir, "--save_strategy", "no", "--report_to", "none"]
        (how,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*fixed, *rest])
        say = PartialState().print  # in one of several processes
        model, columns = (
            model_of(args.model, args.lora),
            {name: getattr(args, name) for name in COLUMNS},
        )
        most = readable_positions(model.eval(), args.max_length)
        if (
            recognise(
                args.data,
                text_column=args.column,
                user_column=args.user_column,
                item_column=args.item_column,
            )
            == TEXT
        ):
            names = load_tokenizer(args.model)
            data, test = (
                texts(source, args.column or "text", names, most)
                for source in (args.data, args.test)
            )
        else:
            found = [
                load_interactions(source, min_interactions=2, **columns)
                for source in (args.data, args.test)
            ]
            entries = model.get_input_embeddings().num_embeddings
            listed = items_of(args.model, entries)
            names = found[0].vocabulary if listed is None else listed
            if len(names) != entries:
                raise ValueError(
                    f"the model has {entries - 1} items, not {len(names) - 1}: list their names in"
                    f" its {ITEMS_FILE}"
                )
            data, test = (histories(x, names, most) for x in found)
        data, test = (Dataset.from_dict({"input_ids": ids}) for ids in (data, test[: args.queries]))
        trainer = Trainer(model, how, SequenceCollator(), data, processing_class=names)
        parts = output.with_name(f".{output.name}-parts")
        found = attribute(
            trainer,
            test,
            args.adjoint and ADJOINTS[args.adjoint](),
            parts,
            args.per_token,
            args.damping,
        )
    if trainer.is_world_process_zero():
        found.save(output)
        for part in parts.glob("queries-*.safetensors"):
            part.unlink()
        parts.rmdir()
    for title, sign, shown in (
        ("lowered", 1, found.top(args.top)),
        ("raised", -1, found.bottom(args.top)),
    ):
        columns = "row, blank ones not counted; nats per token; text"
        say(f"\nThe rows that {title} the mean loss of {len(test)} queries the most ({columns}):")
        for row in shown:
            first = sorted(row.tokens, key=lambda token: -sign * token[1])[:4]
            marked = "".join(f"  [{name.strip()} {score:+.1e}]" for name, score in first)
            say(
                f"{row.row:>7} {row.score:>+11.3e} "
                f" {terminal_text(row.text, most=100)}{terminal_text(marked)}"
            )
    if not args.damping and "adam" in how.optim and how.adam_epsilon < 1e-4:
        say(
            f"\nWith --adam_epsilon {how.adam_epsilon:g} these hold for small changes; --damping 1"
            " says more of leaving out many"
        )
    say(f"\nAll scores: farzi_hf.attribution.Attribution.load({args.output_dir!r})")
    if args.check:
        trainer.train()
        say(
            "The stock Trainer's weights differ from the replay's by"
            f" {found.check(trainer.model):.1e} of their size"
        )


def texts(
    source: str, column: str, tokenizer: PreTrainedTokenizerBase, most: int
) -> list[list[int]]:
    """The first ids of each row of a text that is not blank and has a token to predict."""
    found = ids_of(
        tokenizer, texts_of(stream_of(source, column=column)["train"], column, tokenizer, source)
    )
    if not (rows := [ids[:most] for ids in found if len(ids) > 1]):
        raise ValueError(f"{source!r} has no rows with text in {column!r}; name the --column")
    return rows


def histories(found: Interactions, names: list[str], most: int) -> list[list[int]]:
    """The model's ids of the last items of each user."""
    vocabulary, places = found.vocabulary, {name: i for i, name in enumerate(names)}
    if vocabulary == names:  # titles may be there twice
        return [[int(i) for i in sequence[-most:]] for sequence in found.sequences]
    times = Counter(names), Counter(vocabulary)
    if wrong := [name for name in vocabulary if [count[name] for count in times] != [1, 1]]:
        what = f"{len(wrong)} items of {found.description}, such as {wrong[0]!r}"
        raise ValueError(
            f"the model lacks {what}, or several items have one such name; leave them out"
        )
    return [[places[vocabulary[i]] for i in sequence[-most:]] for sequence in found.sequences]


def items_of(model: str, entries: int) -> list[str] | None:
    """The names of at most so many items in the model's folder, which somebody else may have
    filled; None where it names none.
    """
    path = find_file(Path(model), ITEMS_FILE) if Path(model).is_dir() else None
    if path is None:
        return None
    return item_names(read_plain_file(path, ITEMS_BYTES), path, entries)


def model_of(name: str, rank: int | None) -> PreTrainedModel:
    """The model with its weights in float32 and without dropout; with adapters if they
    have a rank. Of a folder, which somebody else may have filled, no pickle is read.
    """
    folder = Path(name)
    tensors = [path.name for path in folder.glob("*.safetensors")]
    pickles = [path.name for path in folder.glob("*.bin")]
    if pickles and not tensors:
        raise ValueError(
            f"{name!r} has its weights in {terminal_text(min(pickles))}, a pickle, which is not"
            " read: save the model with save_pretrained where you trust it, as safetensors"
        )
    eager = "eager"  # fused attention has no second derivative, and a config may name code for it
    try:
        config = AutoConfig.from_pretrained(
            name, attn_implementation=eager, trust_remote_code=False
        )
        dropped = {
            key: 0.0
            for key, x in config.to_dict().items()
            if "drop" in key and isinstance(x, float) and x
        }
        config.update(dropped)
        model = AutoModelForCausalLM.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            use_safetensors=True if folder.is_dir() else None,
            attn_implementation=eager,
            trust_remote_code=False,
        )
    except Exception as error:  # each architecture fails in its own way
        what = terminal_text(f"{type(error).__name__}: {' '.join(str(error).split())}", 500)
        raise ValueError(
            f"{name!r} is no causal language model within reach ({what}); name another folder or"
            " repository"
        ) from error
    if dropped:
        PartialState().print(f"Dropout is switched off: {terminal_text(', '.join(dropped))}")
    if rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL
    except ImportError:
        raise ValueError(f"--lora {rank} needs peft: pip install peft") from None
    targets, generates = (
        USUAL.get(config.model_type, "all-linear"),
        hasattr(model, "prepare_inputs_for_generation"),
    )
    return get_peft_model(
        model,
        LoraConfig(task_type="CAUSAL_LM" if generates else None, r=rank, target_modules=targets),
    )
