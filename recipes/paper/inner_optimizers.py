"""Compares inner optimizers: SGD, SGD with momentum, and Adam, which is differentiated by us and by
plain autograd.

    python recipes/paper/inner_optimizers.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/inner_optimizers.py --dataset ptb --data_dir FOLDER
    python recipes/paper/inner_optimizers.py --dataset sample                          # embedded: text, or sample_interactions

Each row has one distillation, all with as many outer steps. `recipes/benchmark/benchmark.py`
measures time and memory of a meta-gradient:

    python recipes/benchmark/benchmark.py --num_sequences 5 --latent_dim 16 --vocab_size 1683 --batch_size 128 --hidden_size 16
        --methods autograd higher Tape Checkpoint Reversible --output_dir model_cards/inner_optimizers_ml-100k/cost
"""  # noqa: E501

import statistics
from collections.abc import Mapping, Sequence

from cells import FULL, LONG, Cell, compared, full_cells
from evidence import Claim
from experiment import Experiment
from objectives import sgd

from farzi_hf import FarziTrainer
from farzi_hf.cli.program import run
from farzi_hf.report import Comparison

OURS = "Farzi, Adam"
AUTOGRAD = "Farzi, Adam by autograd"
SGD = "Farzi, SGD"
MOMENTUM = "Farzi, SGD with momentum"
CLAIMS = (
    Claim("Adam inside makes better data than SGD", OURS, SGD),
    Claim("Adam inside makes better data than SGD with momentum", OURS, MOMENTUM),
    Claim("Reverse-mode Adam makes at least 95 % as good data as autograd's", OURS, AUTOGRAD, 0.95),
)


def main(argv: Sequence[str] | None = None) -> None:
    """The tables and figures of one data set."""
    e, evidence = compared("inner_optimizers", "Inner optimizers", argv, cells, ("quality.png",))
    rows = list(evidence.rows.values())
    findings = [
        *evidence.verdicts(CLAIMS),
        *(evidence.finding(OURS, name) for name in (LONG, FULL)),
    ]
    e.write(rows, findings, columns={"seconds_per_step": "s per outer step"})
    e.plot(rows, "quality.png")


def cells(e: Experiment) -> list[Cell]:
    """All have the same number of outer steps and kind of start. Both SGD have the best settings of
    a grid (recipes/LOG.md), Adam the recipe's.
    """
    return [
        Cell(SGD, sgd(e.settings.sgd_learning_rate, 0.0), facts=seconds_per_step),
        Cell(
            MOMENTUM,
            sgd(e.settings.momentum_learning_rate, e.settings.sgd_momentum),
            facts=seconds_per_step,
        ),
        Cell(OURS, facts=seconds_per_step),
        Cell(AUTOGRAD, {"adjoint": "direct"}, facts=seconds_per_step),
        *full_cells(),
    ]


def seconds_per_step(trainer: FarziTrainer, c: Comparison) -> Mapping[str, float]:
    """The median of the logged means. If nothing was logged, an empty dict."""
    logged = [
        entry["seconds_per_step"]
        for entry in trainer.state.log_history
        if "seconds_per_step" in entry
    ]
    return {"seconds_per_step": statistics.median(logged)} if logged else {}


if __name__ == "__main__":
    run(main)
