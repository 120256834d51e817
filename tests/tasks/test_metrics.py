"""Metrics against plain loops, under the stock Trainer, and as an `evaluate` module."""

from __future__ import annotations

import math
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from datasets import DatasetDict
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    EvalPrediction,
    GPT2Config,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from farzi_hf.metrics import (
    bootstrap_interval,
    language_modeling_metrics,
    pad_statistics,
    perplexity_interval,
    sentence_totals,
    token_metrics,
    token_statistics,
)
from farzi_hf.tasks import text

MODULE = Path(text.__file__)


def by_hand(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The definitions, token by token."""
    sentences, right, count = [], 0, 0
    for row, targets in zip(logits.double(), labels, strict=True):
        nll = []
        for j in range(len(targets) - 1):
            target = int(targets[j + 1])
            if target != -100:
                nll.append(-math.log(torch.softmax(row[j], -1)[target].item()))
                right += int(row[j].argmax()) == target
        count += len(nll)
        sentences.append(nll)
    return {
        "perplexity": math.exp(sum(map(sum, sentences)) / count),
        "sentence_perplexity": float(np.mean([math.exp(sum(nll) / len(nll)) for nll in sentences])),
        "accuracy": right / count,
    }


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (5, 6), generator=generator)
    labels[1, 4:] = -100
    labels[3, 2:] = -100
    return torch.randn(5, 6, 7, generator=generator) * 2, labels


def test_metrics_equal_their_definitions(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    statistics = token_statistics(*batch)
    assert statistics.shape == (5, 5, 3)
    assert statistics.dtype == torch.float32
    assert token_metrics(statistics.numpy()) == pytest.approx(by_hand(*batch), rel=1e-5)


def test_statistics_take_half_precision_and_the_tuple_of_a_trainer(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    expected = token_statistics(logits.bfloat16().float(), labels)
    torch.testing.assert_close(token_statistics((logits.bfloat16(), None), labels), expected)


def test_the_trainers_padding_does_not_count(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    statistics = token_statistics(*batch).numpy()
    padded = np.pad(statistics, ((0, 0), (0, 3), (0, 0)), constant_values=-100)
    assert token_metrics(padded) == token_metrics(statistics)


def test_metrics_under_the_stock_trainer(
    tiny_config: GPT2Config, sequences: DatasetDict, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    args = TrainingArguments(
        tmp_path, per_device_eval_batch_size=3, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True
    )
    trainer = Trainer(
        model, args, data_collator=collator, eval_dataset=sequences["test"],
        preprocess_logits_for_metrics=token_statistics, compute_metrics=language_modeling_metrics,
    )  # fmt: skip
    measured = trainer.evaluate()
    whole = collator(list(sequences["test"]))
    with torch.no_grad():
        expected = by_hand(model.eval()(**whole).logits, whole["labels"])
    assert {name: measured[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_a_diverged_model_has_infinite_perplexity() -> None:
    statistics = np.array([[[2000.0, 0.0, 1.0]]])
    assert token_metrics(statistics) == {"perplexity": math.inf, "sentence_perplexity": math.inf, "accuracy": 0.0}


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        (np.zeros((2, 3, 7)), r"shape \(2, 3, 7\).*preprocess_logits_for_metrics"),
        (np.zeros((2, 4, 3)), "no predicted token"),
    ],
)
def test_metrics_bad_input(statistics: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        language_modeling_metrics(EvalPrediction(predictions=statistics, label_ids=None))


def test_evaluate_module(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    metric = evaluate.load(str(MODULE))
    statistics = token_statistics(*batch)
    expected = token_metrics(statistics.numpy())
    assert metric.compute(predictions=statistics) == pytest.approx(expected)
    metric.add_batch(predictions=statistics[:2])
    metric.add_batch(predictions=[row[row[:, 2] > 0] for row in statistics[2:].numpy()])  # as long as each sentence is
    assert metric.compute() == pytest.approx(expected)


def test_pad_statistics_of_ragged_rows() -> None:
    padded = pad_statistics([[[1.0, 0.0, 1.0]], [], [[2.0, 1.0, 1.0], [3.0, 0.0, 1.0]]])
    assert padded.shape == (3, 2, 3)
    assert sentence_totals(padded).tolist() == [[1.0, 0.0, 1.0], [5.0, 1.0, 2.0]]


def test_bootstrap_interval_is_as_wide_as_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    low, high = bootstrap_interval(values, confidence=0.9)
    half = 1.645 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    assert (low, high) == bootstrap_interval(values, confidence=0.9)
    assert (low, high) != bootstrap_interval(values, confidence=0.9, seed=1)


def test_perplexity_interval_resamples_sentences() -> None:
    nll = np.random.default_rng(0).gamma(4.0, 1.0, size=(100, 1, 1))
    statistics = np.concatenate([np.repeat(nll, 8, axis=1), np.ones((100, 8, 2))], axis=-1)  # 8 equal tokens a sentence
    low, high = perplexity_interval(statistics, resamples=300)
    assert low < token_metrics(statistics)["perplexity"] < high
    # eight copies of a token say no more than one
    assert (low, high) == pytest.approx(perplexity_interval(statistics[:, :1], resamples=300))


@pytest.mark.parametrize(
    ("values", "confidence", "message"), [([], 0.95, "values is empty"), ([1.0], 95, "confidence=95")]
)
def test_bootstrap_bad_input(values: list[float], confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(np.array(values), confidence=confidence)


def test_no_resamples_are_refused() -> None:
    with pytest.raises(ValueError, match="resamples=0 resamples nothing"):
        bootstrap_interval(np.ones(3), resamples=0)
