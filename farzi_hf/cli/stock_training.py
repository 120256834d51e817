"""What `farzi attribute` and `farzi weigh` share: a model of somebody's, rows to train it on, and
the stock Trainer that does.
"""

from __future__ import annotations

import copy
import logging
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.models.auto import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

import farzi_hf.models  # noqa: F401
from farzi_hf.attribution import clusters
from farzi_hf.cli.arguments import not_an_option, option_parser, parsed
from farzi_hf.cli.own_rows import (
    Columns,
    OwnRows,
    files_of_rows,
    groups_of,
    history_rows,
    text_rows,
)
from farzi_hf.cli.program import summary_at
from farzi_hf.common.files import find_file, is_taken, read_plain_file
from farzi_hf.common.text import terminal_text
from farzi_hf.data import SequenceCollator
from farzi_hf.data.tokenizer_file import load_tokenizer
from farzi_hf.data.vocabulary import ITEMS_BYTES, ITEMS_FILE, item_names
from farzi_hf.distillation.learner_model import readable_positions
from farzi_hf.summary.store.folder import TENSORS

_OTHER_HEADS = ("summary_", "classifier_")
"""How settings begin that are for other heads than that of a language model."""

STOCK = (
    "All fields of transformers.TrainingArguments work too and say how the model is trained:"
    " --learning_rate, --num_train_epochs, …"
)
COLUMNS = ("user_column", "item_column", "time_column")


def add_arguments(parser: ArgumentParser, output_dir: str) -> None:
    """The arguments that name model and data, and how rows are read."""
    parser.add_argument(
        "model",
        help="folder or repository of a causal language model, with the weights to start from",
    )
    parser.add_argument(
        "data", help="the training rows: a file, a folder, or a data set of the Hub"
    )
    parser.add_argument(
        "--output_dir", default=output_dir, help="a new folder (default: %(default)s)"
    )
    parser.add_argument(
        "--column",
        help="with the text (default: prompt and completion, or messages, whose answers alone are"
        " predicted; or text)",
    )
    for name in COLUMNS:
        parser.add_argument(f"--{name}", help="of interactions, where a user's history is a row")
    parser.add_argument(
        "--max_length",
        type=int,
        default=256,
        help="tokens of a row that are kept, a user's last (default: 256)",
    )
    parser.add_argument(
        "--lora", type=int, metavar="R", help="train adapters of rank R, not all; needs peft"
    )


def add_group_arguments(parser: ArgumentParser, what: str) -> None:
    """Those that make groups of rows, see `Setup.groups`.

    Args:
        what: is done with groups, for the help.
    """
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--group",
        metavar="COLUMN",
        help=f"{what}; a group is a value of this column, such as the source of a row",
    )
    either.add_argument(
        "--by_file",
        action="store_true",
        help="the same for the files of DATA, a folder or a pattern such as 'parts/*.jsonl'",
    )
    either.add_argument(
        "--clusters",
        type=int,
        metavar="N",
        help="the same for N groups of rows with similar hidden states in the model",
    )


def columns_of(args: Namespace) -> Columns:
    """The columns that were named."""
    revision = getattr(args, "revision", None)
    return Columns(args.column, args.user_column, args.item_column, args.time_column, revision)


def free_folder(output_dir: str) -> Path:
    """The folder. Raises ValueError if it holds something."""
    folder = Path(output_dir)
    if is_taken(folder):
        raise ValueError(
            f"--output_dir {output_dir!r} exists already and is not empty: choose another folder"
        )
    return folder


@dataclass(frozen=True)
class Setup:
    """A model and the rows of some data sets, the first of which it is trained on."""

    model: PreTrainedModel
    """With its weights, in float32."""
    names: Any
    """The tokenizer, or the names of the items."""
    rows: list[OwnRows]
    """Of each data set."""
    how: TrainingArguments
    """How it is trained."""

    @classmethod
    def of(cls, args: Namespace, rest: Sequence[str], sources: Sequence[str]) -> Setup:
        """Reads them.

        Args:
            args: those of `add_arguments`.
            rest: fields of TrainingArguments, as they were typed.
            sources: of the rows.

        Raises:
            ValueError: the model or the rows cannot be read, or do not fit each other.
        """
        fixed = ["--output_dir", args.output_dir, "--save_strategy", "no", "--report_to", "none"]
        how, unknown = parsed(option_parser(TrainingArguments), [*fixed, *rest])
        if unknown:
            options = [f"--{name}" for name in (*vars(args), *vars(how))]
            raise ValueError(f"{not_an_option(unknown[0], options)}; see --help")
        model = model_of(args.model, args.lora)
        most = readable_positions(model.eval(), args.max_length)
        columns = columns_of(args)
        if columns.hold_text(sources[0]):
            names = load_tokenizer(args.model)
            rows = [
                text_rows(source, columns.text, names, most, columns.revision) for source in sources
            ]
        else:
            found = [columns.interactions(source) for source in sources]
            names = _names_of_items(args.model, model, found[0].vocabulary)
            rows = [history_rows(each, names, most) for each in found]
        return cls(model, names, rows, how)

    def groups(self, args: Namespace) -> list[str] | None:
        """The group of each of the first rows; None if the arguments ask for none.

        Args:
            args: those of `add_group_arguments`.

        Raises:
            ValueError: a row has none, the rows are of one file, or there are fewer rows than
                clusters.
        """
        if args.clusters is not None:
            return clusters(self.trainer(), args.clusters)
        if args.by_file:
            return files_of_rows(self.rows[0])
        return groups_of(self.rows[0], args.group)

    def trainer(self, **changes: Any) -> Trainer:
        """The stock Trainer of the first rows.

        Args:
            changes: fields of its arguments that are other than those that were typed.
        """
        how = copy.copy(self.how)
        for name, value in changes.items():
            setattr(how, name, value)
        return Trainer(
            self.model,
            how,
            SequenceCollator(),
            self.rows[0].dataset(),
            processing_class=self.names,
        )


def show_log() -> None:
    """Prints which adjoint was chosen, and why."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("farzi_hf.engine").setLevel(logging.INFO)


def _names_of_items(folder: str, model: PreTrainedModel, of_data: list[str]) -> list[str]:
    """The items that the model knows: those that its folder lists, or else those of the data."""
    entries = model.get_input_embeddings().num_embeddings
    listed = items_of(folder, entries)
    names = of_data if listed is None else listed
    if len(names) != entries:
        raise ValueError(
            f"the model has {entries - 1} items, not {len(names) - 1}: list their names in its"
            f" {ITEMS_FILE}"
        )
    return names


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
    if folder.is_dir() and Path(summary_at(name), TENSORS).exists():
        raise ValueError(
            f"{name!r} is a summary, not a model: farzi train {name!r} --output_dir MODEL makes one"
        )
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
            if "drop" in key and isinstance(x, float) and x and not key.startswith(_OTHER_HEADS)
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
            f"{name!r} is not a causal language model within reach ({what}); name another folder or"
            " repository"
        ) from error
    # `loss_type` stays as it is, though transformers warns where it is None: by it the Trainer
    # decides whether the first label of a row counts, and the training is the user's.
    if dropped:
        PartialState().print(f"Dropout is switched off: {terminal_text(', '.join(dropped))}")
    if rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL
    except ImportError:
        raise ValueError(f"--lora {rank} needs peft: pip install peft") from None
    targets = USUAL.get(config.model_type, "all-linear")
    generates = hasattr(model, "prepare_inputs_for_generation")
    adapters = LoraConfig(
        task_type="CAUSAL_LM" if generates else None,
        r=rank,
        target_modules=targets,
        # Matrices of GPT-2 lie the other way round. Peft would see that too, with a warning.
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in model.modules()),
    )
    with warnings.catch_warnings():
        # peft 0.21 asks transformers for a property by its old name.
        message = "`is_gradient_checkpointing` is deprecated"
        warnings.filterwarnings("ignore", message, FutureWarning)
        return get_peft_model(model, adapters)
