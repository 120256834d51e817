"""Compares objectives of the outer loop: DC, MM, MTT and Farzi, each with SGD and with Adam in the
inner loop.

    python recipes/paper/objectives.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/objectives.py --dataset ptb --data_dir FOLDER
    python recipes/paper/objectives.py --dataset sample                                # embedded
    python recipes/paper/objectives.py --dataset ptb --form paper                      # the paper's form of a summary
    python recipes/paper/objectives.py --dataset ptb --form paper --scale paper        # for a GPU

All rows have the same start of the summary and the same number of outer steps, and all students
take the same number of steps.
"""

from collections.abc import Sequence
from typing import Any

from cells import LONG, Cell, compared, on_everything, on_everything_long, on_random, on_start
from evidence import Claim
from experiment import Experiment, Forms, full_data_claim

from farzi_hf.cli.program import run
from farzi_hf.common.checks import check_different
from farzi_hf.tasks import Task

FORMS: Forms = {"own": "objectives_own", "paper": "objectives"}
OBJECTIVES: dict[str, dict[str, Any]] = {  # only meta-matching can use a pool of learners
    "DC": {"objective": "gradient_matching", "learner_pool": None},
    "MM": {"objective": "meta_matching"},
    "MTT": {"objective": "trajectory_matching", "learner_pool": None},
    "Farzi": {"objective": "meta_matching"},
}
FROM_TRAJECTORIES = ("MTT", "Farzi")
UNDISTILLED = {"no outer step": on_start, "random sampling": on_random, "full data": on_everything}
DISTILLED = [f"{name}, Adam" for name in OBJECTIVES]
START = "no outer step, Adam"
METHODS = (*OBJECTIVES, *UNDISTILLED, LONG)


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one data set."""
    e, evidence = compared("objectives", "Objectives", argv, cells, ("comparison.png",), FORMS)
    rows, names = list(evidence.rows.values()), set(evidence.rows)
    findings = evidence.verdicts(
        [claim for claim in claims(e.task) if {claim.ours, claim.other} <= names]
    )
    findings += [evidence.finding(name, START) for name in DISTILLED if {name, START} <= names]
    matched = (
        f"{e.args.synthetic_steps or e.args.inner_steps} synthetic against {e.args.expert_steps}"
        " real steps"
    )
    adam = (
        f"α {e.args.inner_learning_rate}, β {tuple(e.args.inner_betas)}, ε {e.args.inner_epsilon}"
    )
    inner = {
        "inner Adam": adam,
        "inner SGD": f"α {e.settings.sgd_learning_rate}, momentum {e.settings.sgd_momentum}",
    }
    facts = {**e.omega(), **inner, "MTT": matched}
    e.write(rows, findings, e.of_paper("objectives"), facts=facts)
    e.plot(rows, "comparison.png")


def cells(e: Experiment) -> list[Cell]:
    """The cells in the order of the table. Ω is recorded once per optimizer and seed, with that
    optimizer.
    """
    momentum = sgd(e.settings.sgd_learning_rate, e.settings.sgd_momentum)
    inner = {"SGD": momentum, "Adam": {"inner_optimizer": "adam"}}
    rows = []
    check_different("methods", methods := e.settings.methods or METHODS)
    if unknown := [method for method in methods if method not in METHODS]:
        raise ValueError(f"methods: {unknown[0]!r} is unknown; choose from {'; '.join(METHODS)}")
    for method in methods:
        if method == LONG:  # the best that this learner can reach; the row has its own settings
            rows.append(Cell(LONG, students=on_everything_long, distils=False))
            continue
        for optimizer, settings in inner.items():
            name = f"{method}, {optimizer}"
            omega = f"{e.args.output_dir}/trajectories/{optimizer.lower()}"
            if method in UNDISTILLED:
                rows.append(Cell(name, settings, UNDISTILLED[method], distils=False))
            else:
                starts = {"trajectories": omega} if method in FROM_TRAJECTORIES else {}
                rows.append(Cell(name, {**settings, **starts, **OBJECTIVES[method]}))
    return rows


def sgd(learning_rate: float, momentum: float) -> dict[str, Any]:
    """Settings of an inner loop with SGD."""
    return {
        "inner_optimizer": "sgd",
        "inner_learning_rate": learning_rate,
        "inner_momentum": momentum,
    }


def claims(task: Task) -> list[Claim]:
    """The paper's claims: Adam in the inner loop is better for every objective, Ω helps, and only
    recommendation reaches full data.
    """
    adam = {name: f"{name}, Adam" for name in OBJECTIVES}
    found = [
        Claim(f"{name} is better with Adam inside than with SGD", ours, f"{name}, SGD")
        for name, ours in adam.items()
    ]
    farzi = adam.pop("Farzi")
    found += [
        Claim(f"With Adam inside, Farzi is better than {name}", farzi, other)
        for name, other in adam.items()
    ]
    found.append(Claim("Farzi is better than random sampling", farzi, "random sampling, Adam"))
    return [*found, full_data_claim(task, "Farzi", farzi, LONG)]


if __name__ == "__main__":
    run(main)
