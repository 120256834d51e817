"""Hit rate, nDCG and AUC of recommendations over all items, as an `evaluate` metric.

    from farzi_hf.tasks.modules import Ranking

    metric = Ranking()
    for batch in batches:
        metric.add_batch(predictions=rank_statistics(scores, batch["targets"], batch["seen"]))
    metric.compute(ks=(10, 100))

`evaluate.load(PATH_OF_THIS_FILE)` makes the same metric.
"""

import datasets
import evaluate

from farzi_hf.tasks.metrics.ranking import rank_metrics

_DESCRIPTION = """Hit rate and nDCG at each k, and AUC, of one target per user among all items, as fractions."""

_INPUTS = """
Args:
    predictions: per user (rank of the target, AUC), as `farzi_hf.metrics.rank_statistics` gives them.
    ks: lengths of the recommended lists.
Returns:
    hr@k, ndcg@k, auc
"""


class Ranking(evaluate.Metric):
    """Hit rate, nDCG and AUC, see `farzi_hf.tasks.metrics.ranking`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.List(datasets.Value("float64"))}),
        )

    def _compute(self, predictions: list[list[float]], ks: tuple[int, ...] = (10, 100)) -> dict[str, float]:
        return rank_metrics(predictions, ks)
