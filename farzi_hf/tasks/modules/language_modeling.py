"""Perplexity of the corpus, mean perplexity of its sentences and token accuracy, as an `evaluate` metric.

    from farzi_hf.tasks.modules import LanguageModeling

    metric = LanguageModeling()
    for batch in batches:
        metric.add_batch(predictions=token_statistics(model(**batch).logits, batch["labels"]))
    metric.compute()

`evaluate.load(PATH_OF_THIS_FILE)` makes the same metric.
"""

import datasets
import evaluate
import numpy as np

from farzi_hf.tasks.metrics.language_modeling import pad_statistics, token_metrics

_DESCRIPTION = (
    """Perplexity over all tokens, mean of the sentences' perplexities, and share of tokens predicted right."""
)

_INPUTS = """
Args:
    predictions: per sentence and predicted token (negative log-likelihood in nats, correct, valid), as
        `farzi_hf.metrics.token_statistics` gives them; sentences may differ in length.
Returns:
    perplexity, sentence_perplexity, accuracy
"""


class LanguageModeling(evaluate.Metric):
    """Perplexity and accuracy, see `farzi_hf.tasks.metrics.language_modeling`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.List(datasets.List(datasets.Value("float64")))}),
        )

    def _compute(self, predictions: list[list[list[float]]]) -> dict[str, float]:
        return token_metrics(pad_statistics(predictions, np.float64))
