"""Distils users' histories, compares the summary with real data, and saves an artefact that anyone
can load.

    accelerate launch recipes/recsys.py --dataset ml-100k --data_dir FOLDER             # configs/ml-100k_50x50.yaml
    accelerate launch recipes/recsys.py --config recipes/configs/magazine_50x20.yaml    # another data set or size
    accelerate launch recipes/recsys.py --splits 0 1 2                                  # several splits, one table

Each split of the users has its own distillation in `output_dir/split-N`, with the artefact in
`summary/`. If you start the script again, it goes on from the last checkpoint and does not repeat
finished splits. `output_dir` gets `table.md`, `table.csv` and figures. `ptb.py` shows the steps of
one distillation; `farzi distil CONFIG` does the same as this script.
"""

from collections.abc import Sequence
from pathlib import Path

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import distil
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import RunSettings

CONFIG = Path(__file__).resolve().parent / "configs" / "ml-100k_50x50.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Every process distils; the first one compares, prints and writes."""
    keep_freed_memory()
    with ends_in_one_line("recsys.py"):
        settings, args = parse_arguments((RunSettings, FarziConfig), CONFIG, argv)
        distil(settings.load(), args)


if __name__ == "__main__":
    run(main)
