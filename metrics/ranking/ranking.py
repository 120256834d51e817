"""Hit rate, nDCG and AUC of recommendations over all items, as an `evaluate` metric.

    metric = evaluate.load("metrics/ranking")
    for batch in batches:
        metric.add_batch(predictions=rank_statistics(scores, batch["targets"], batch["seen"]))
    metric.compute(ks=(10, 100))

A local script: `evaluate` copies it away and imports it from there, so `farzi_hf` has to be installed.
"""

import datasets
import evaluate

from farzi_hf.metrics import rank_metrics

_DESCRIPTION = """Hit rate and nDCG at each k, and AUC, of one target per user among all items, as fractions."""

_INPUTS = """
Args:
    predictions: per user (rank of the target, AUC), as `farzi_hf.metrics.rank_statistics` gives them.
    ks: lengths of the recommended lists.
Returns:
    hr@k, ndcg@k, auc
"""


class Ranking(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.List(datasets.Value("float64"))}),
        )

    def _compute(self, predictions: list[list[float]], ks: tuple[int, ...] = (10, 100)) -> dict[str, float]:
        return rank_metrics(predictions, ks)
