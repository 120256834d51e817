"""The metrics under their short name: `from farzi_hf.metrics import ranking_metrics`. They live in `farzi_hf.evaluation.metrics`."""

from farzi_hf.evaluation.metrics import *  # noqa: F403
from farzi_hf.evaluation.metrics import __all__  # noqa: F401
