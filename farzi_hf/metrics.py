"""The metrics under their short name: `from farzi_hf.metrics import ranking_metrics`. They live in `farzi_hf.tasks.metrics`."""

from farzi_hf.tasks.metrics import *  # noqa: F403
from farzi_hf.tasks.metrics import __all__  # noqa: F401
