"""Tiny tokenizers of four kinds, and what can be told of one."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AddedToken, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

import farzi_hf.data
from farzi_hf.data import vocabulary_of

TEXTS = [
    "The cat sat on the mat.",
    "a catéd  mat, <extra> of [MASK] 12 cats!",
    "",
    "日本 <pad> cat cat",
]


def trained(
    model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = (
        normalizer,
        pre_tokenizer,
        decoder,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def byte_bpe():
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False
    )
    bpe = trained(models.BPE(), trainer, None, pre_tokenizers.ByteLevel(), decoders.ByteLevel())
    vocabulary = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in vocabulary["merges"]]
    return GPT2Tokenizer(
        vocab=vocabulary["vocab"], merges=merges, pad_token="<|endoftext|>", model_max_length=1024
    )


def word_pieces():
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "##s",
        "##d",
        "sat",
        "mat",
        ".",
        ",",
        "a",
    ]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)})


def unigram():
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<pad>"], unk_token="<unk>", show_progress=False
    )
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    pieces = trained(
        models.Unigram(), trainer, normalizer, pre_tokenizers.Metaspace(), decoders.Metaspace()
    )
    mask = AddedToken("<mask>", lstrip=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token=mask,
        padding_side="left",
        extra_special_tokens=["<extra>"],
    )


def ours():
    return farzi_hf.data.word_tokenizer(TEXTS, vocab_size=20)


KINDS = [byte_bpe, word_pieces, unigram, ours]


def facts(tokenizer) -> dict:
    """What a summary and its students use of a tokenizer."""
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    return {
        "hash": vocabulary_of(tokenizer).hash(),
        "length": len(tokenizer),
        "ids": ids,
        "without special": [
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS
        ],
        "texts": [tokenizer.decode(i) for i in ids],
        "shown": [tokenizer.decode(i, skip_special_tokens=True) for i in ids],
        "each": [tokenizer.decode([i]) for i in range(len(tokenizer))],
        "special": (
            tokenizer.special_tokens_map,
            tokenizer.extra_special_tokens,
            sorted(tokenizer.all_special_ids),
        ),
        "settings": (tokenizer.model_max_length, tokenizer.padding_side, tokenizer.truncation_side),
        "padded": tokenizer(TEXTS, padding=True, truncation=True, max_length=7)["input_ids"],
    }
