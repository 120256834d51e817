"""What `FarziTrainer` is given: checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from farzi_hf.data import SequenceCollator
from farzi_hf.summary import FarziData, FarziDataConfig


def run_check(name: str, check: Callable[..., None], *args: Any) -> None:
    """Runs a check of the package; its error then names the argument of ours."""
    try:
        check(*args)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def language_model_collator(processing_class: Any) -> SequenceCollator:
    """The default collator. It has a token predicted that the tokenizer only uses for padding too, as EOS often is."""
    if processing_class is None:
        raise ValueError(
            "processing_class and data_collator are both None; give the tokenizer, or a collator that returns "
            "input_ids, attention_mask and labels"
        )
    padding_id = getattr(processing_class, "pad_token_id", None)
    others = {
        getattr(processing_class, f"{name}_token_id", None) for name in ("bos", "eos", "unk", "sep", "cls", "mask")
    }
    return SequenceCollator(None if padding_id in others else padding_id)


def check_summary(farzi_data: FarziData, expected: FarziDataConfig) -> None:
    """A given summary has to be the one that the recipe describes and the learner reads."""
    for name in ("vocab_size", "num_sequences", "sequence_length", "latent_dim", "tau"):
        ours, theirs = getattr(farzi_data.config, name), getattr(expected, name)
        if ours != theirs:
            source = "the learner's" if name == "vocab_size" else f"args.{name}"
            raise ValueError(f"farzi_data has {name}={ours}, but {source} is {theirs}; make the two equal")


def adopt_vocabulary(farzi_data: FarziData, processing_class: Any) -> None:
    """Checks the vocabulary now rather than when the summary is saved."""
    if processing_class is not None:
        farzi_data.processing_class = processing_class
        farzi_data.adopt_vocabulary("processing_class")
    if isinstance(processing_class, PreTrainedTokenizerBase):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):  # Trainer does so too, but with a warning
            setattr(farzi_data.config, name, getattr(processing_class, name))
