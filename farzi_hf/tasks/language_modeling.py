"""Text: the next token of each sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction

from farzi_hf.data import (
    SequenceCollator,
    flatten_sequences,
)
from farzi_hf.data.sequences import packed_windows
from farzi_hf.tasks.base import Outputs, Row, Statistics, Task, count_cells
from farzi_hf.tasks.baselines import (
    InterpolatedBigram,
    Unigram,
)
from farzi_hf.tasks.metrics import (
    bootstrap_interval,
    corpus_perplexity,
    language_modeling_metrics,
    mean_and_spread,
    pad_statistics,
    sentence_totals,
    token_statistics,
)
from farzi_hf.tasks.modules import evaluate_module


class LanguageModeling(Task):
    """Text: the next token of each sentence. Seeds share the test split.

    ```python
    FarziTrainer(learner_init=config, args=args, task=LanguageModeling(tokenizer), train_dataset=train, eval_dataset=valid)
    ```

    Args:
        processing_class: the tokenizer.
        pack: whether training rows are all sentences end to end, cut to the length of a synthetic sequence; by default they are the
            sentences. A stream is packed 256 rows at a time. Evaluation rows are sentences always.
    """

    label_names = ("labels",)
    metric = "perplexity"
    metric_label = "Test perplexity"
    percent = False
    ratio_label = "its perplexity over ours"
    compared = ("perplexity",)
    entries = "tokens"

    def __init__(self, processing_class: Any, pack: bool = False) -> None:
        super().__init__(processing_class)
        self.pack = pack

    @cached_property
    def collator(self) -> SequenceCollator:
        """Pads with the tokenizer's padding token. If the token has another role too, such as EOS, it is predicted as well.

        Raises:
            ValueError: there is no tokenizer.
        """
        tokenizer = self.processing_class
        if tokenizer is None:
            raise ValueError(
                "processing_class, data_collator and task are all None; give the tokenizer, or a collator that returns "
                "input_ids, attention_mask and labels"
            )
        padding = getattr(tokenizer, "pad_token_id", None)
        roles = ("bos", "eos", "unk", "sep", "cls", "mask")
        others = {getattr(tokenizer, f"{role}_token_id", None) for role in roles}
        return SequenceCollator(None if padding in others else padding)

    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        """The sentences themselves, or windows of all sentences end to end: see `packed_windows`."""
        return packed_windows(sequences, length) if self.pack else sequences

    def evaluation_rows(self, sequences: Dataset, length: int) -> Dataset:
        """The sentences themselves."""
        return sequences

    def preprocess_logits_for_metrics(self, logits: Tensor, labels: Any) -> Tensor:
        return token_statistics(logits, labels)

    def compute_metrics(self, eval_prediction: EvalPrediction) -> dict[str, float]:
        return language_modeling_metrics(eval_prediction)

    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """(N, 1, 3): the sums of `token_statistics` for each sentence. The model reads them by length, so that little is padded."""
        order = np.argsort(flatten_sequences(sequences)[1], kind="stable")
        tokens = outputs(sequences.select(order), lambda logits, batch: token_statistics(logits, batch["labels"]))
        totals = sentence_totals(pad_statistics(tokens))
        if len(totals) < len(sequences):
            raise ValueError(
                f"{len(sequences) - len(totals)} of {len(sequences)} sentences have nothing to predict; filter them out"
            )
        return totals[np.argsort(order)][:, None]

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        return evaluate_module("language_modeling").compute(predictions=statistics)

    def row(self, method: str, students: Statistics, nbytes: int) -> Row:
        flat = [np.asarray(student) for seed in students for student in seed]
        totals = np.stack([sentence_totals(values) for values in flat], axis=1)

        def mean_perplexity(rows: np.ndarray) -> float:
            return float(np.mean(corpus_perplexity(rows)))

        results = [self.metrics(values) for values in flat]
        return {
            "method": method,
            **(mean_and_spread(results) if len(results) > 1 else results[0]),
            "perplexity_interval": list(bootstrap_interval(totals, mean_perplexity)),
            "bytes": nbytes,
        }

    def error(self, statistics: np.ndarray) -> float:
        return self.metrics(statistics)["perplexity"]

    def counted(self, train: Dataset, validation: Dataset, test: Dataset, vocab_size: int) -> dict[str, np.ndarray]:
        """A unigram and an interpolated bigram."""
        bigram = InterpolatedBigram.fit(train, vocab_size, validation)
        models = {"unigram": bigram.unigram, "interpolated bigram": bigram}
        return {name: sentence_totals(model.token_statistics(test))[:, None] for name, model in models.items()}

    def reference_lines(self, splits: Mapping[str, Dataset], vocab_size: int) -> dict[str, float]:
        unigram = Unigram.fit(splits["train"], vocab_size)
        return {"unigram": unigram.metrics(splits["validation"])["perplexity"]}

    def headline(self, row: Row) -> str:
        return f"perplexity {row['perplexity']:,.1f}"

    def readable(self, row: Row) -> dict[str, str]:
        def digits(value: float) -> int:
            return 1 if value < 1000 else 0

        def spread(name: str, scale: int = 1) -> str:
            values = [scale * row[key] for key in (name, f"{name}_std") if key in row]
            return " ± ".join(f"{value:,.{digits(values[0])}f}" for value in values)

        return {
            "trained on": row["method"],
            "perplexity": spread("perplexity"),
            "95 % interval": " – ".join(f"{edge:,.{digits(edge)}f}" for edge in row["perplexity_interval"]),
            "sentence perplexity": spread("sentence_perplexity"),
            "accuracy, %": spread("accuracy", scale=100),
            **count_cells(row),
        }

    def paired(self, ours: Statistics, theirs: Statistics) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """The quotient is their perplexity divided by ours."""
        both = [np.concatenate([np.asarray(seed) for seed in group]) for group in (ours, theirs)]
        totals, count = np.concatenate(both)[:, :, 0], len(both[0])  # (students, N, 3)

        def quotient(rows: np.ndarray) -> float:
            perplexities = corpus_perplexity(rows)
            return float(np.mean(perplexities[count:]) / np.mean(perplexities[:count]))

        return totals.transpose(1, 0, 2), quotient
