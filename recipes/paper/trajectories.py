"""Records Ω for the config of a run. Ω is a set of trainings of the learner on the real data.

    python recipes/paper/trajectories.py --config recipes/configs/ptb_50x50.yaml --trajectories outputs/omega/ptb
    python recipes/paper/trajectories.py --config recipes/configs/ml-100k_50x50.yaml --trajectories outputs/omega/ml-100k --num_recorded 20

Several processes (`accelerate launch --config_file recipes/accelerate/many_gpus.yaml recipes/paper/trajectories.py …`) share the trajectories.
If you start the script again, it records only missing trajectories; a larger `--num_recorded` adds new ones. A distillation uses Ω if
it gets the same folder: `recipes/ptb.py --trajectories …`, `recipes/recsys.py --trajectories …`. Each seed or split has a subfolder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from experiment import TrajectoryArguments, changed, record

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import RunSettings

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "ptb_50x50.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """One folder of trajectories per split (recommendation) or seed (text)."""
    keep_freed_memory()
    with ends_in_one_line("trajectories.py"):
        kinds = (RunSettings, FarziConfig, TrajectoryArguments)
        run_settings, args, recording = parse_arguments(kinds, CONFIG, argv)
        data, folder = run_settings.load(), args.trajectories or f"{args.output_dir}/trajectories"
        for seed in data.seeds(args.seed):
            bank = record(data, changed(args, trajectories=folder), seed, recording)
            gibibytes = sum(os.stat(path).st_size for path in bank.folder.iterdir()) / 2**30
            if args.process_index == 0:
                settings = ", ".join(f"{name} {value}" for name, value in vars(recording).items())
                print(f"{bank.folder}: {len(bank)} trajectories ({settings}), {gibibytes:.3f} GiB", flush=True)


if __name__ == "__main__":
    run(main)
