"""Records Ω, trainings of the learner on the real data, for a recipe's config.

    python recipes/trajectories.py ptb --config recipes/configs/ptb_quick.yaml --trajectories outputs/omega/ptb
    python recipes/trajectories.py recsys --config recipes/configs/ml-100k_50x50.yaml --trajectories outputs/omega/ml-100k --num_recorded 20

The first word is the recipe whose config it is. Started again, it records what is missing; with a larger `--num_recorded` it adds.
A distillation uses Ω when it is given the same folder: `recipes/ptb.py --trajectories …/seed-42` (the seed in the config),
`recipes/recsys.py --trajectories …` (each split has its own).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

import ptb
import recsys
from _common import ends_in_one_line, keep_freed_memory, run
from _tasks import TASKS, TrajectoryArguments, changed, described, parse_task, record

DEFAULT_CONFIGS = {"ptb": ptb.QUICK, "recsys": recsys.QUICK}


def main(argv: Sequence[str] | None = None) -> None:
    """One folder of trajectories per split (recommendation) or seed (text)."""
    keep_freed_memory()
    argv = list(sys.argv[1:] if argv is None else argv)
    script = argv.pop(0) if argv else ""
    if script not in TASKS:
        sys.exit(f"trajectories.py: {script!r} is no recipe; begin with one of {', '.join(TASKS)}, then its arguments")
    with ends_in_one_line("trajectories.py"):
        task, (how,) = parse_task(script, (TrajectoryArguments,), DEFAULT_CONFIGS[script], argv)
        args = task.args
        folder = args.trajectories or f"{args.output_dir}/trajectories"
        for seed in task.seeds:
            bank = record(task, changed(args, trajectories=folder), seed, how)
            gibibytes = sum(os.stat(path).st_size for path in bank.folder.iterdir()) / 2**30
            print(
                f"{bank.folder}: {len(bank)} trajectories ({described(asdict(how))}), {gibibytes:.3f} GiB", flush=True
            )


if __name__ == "__main__":
    run(main)
