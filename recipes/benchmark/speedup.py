"""Measures the speed-up of two CPU processes on two cores over one process that does the same work, with one thread each.

    python recipes/benchmark/speedup.py --data_dir FOLDER

The work is an outer step of two micro-batches: PTB [50×50], T = 100, w = 20, no pool. One process accumulates both; of two processes each
takes one. The runs alternate, so that other load on the machine hits both. The load average is printed with each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziConfig
from farzi_hf.cli.distil import trainer_of
from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.evaluation import RunSettings

TWO = Path(__file__).resolve().parents[1] / "accelerate" / "two_cpu_processes.yaml"
SETTINGS = {
    "inputs": "soft", "initialization": "clusters", "latent_dim": 18, "inner_steps": 100, "window": 20, "synthetic_batch_size": 10,
    "per_device_train_batch_size": 128, "teacher_steps": 20, "logging_steps": 1, "save_strategy": "no", "use_cpu": True,
    "disable_tqdm": True, "report_to": "none",
}  # fmt: skip


class Seconds(TrainerCallback):
    """Prints one line per outer step."""

    def on_log(self, args, state, control, logs, **kwargs):
        if args.process_index == 0 and "seconds_per_step" in logs:
            print(json.dumps({"world_size": args.world_size, "seconds": logs["seconds_per_step"]}), flush=True)


def work(data_dir: str, steps: int, micro_batches: int) -> None:
    """The distillation that is timed, in each process."""
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        args = FarziConfig(folder, max_steps=steps, gradient_accumulation_steps=micro_batches, **SETTINGS)
        trainer = trainer_of(RunSettings(dataset="ptb", data_dir=data_dir).load(), args, seed=args.seed)
        trainer.add_callback(Seconds())
        trainer.train()


def timed(processes: int, data_dir: str, steps: int) -> float:
    """Median seconds of an outer step, without the first one."""
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(TWO)]
    command = [*(accelerate if processes > 1 else [sys.executable]), __file__, "--data_dir", data_dir]
    command += ["--steps", str(steps), "--micro_batches", str(2 // processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"world_size"')]
    if {entry["world_size"] for entry in found} != {processes}:
        raise RuntimeError(f"{processes} processes were asked for, the world had {found[0]['world_size']}")
    return median(entry["seconds"] for entry in found[1:])


def main(argv: Sequence[str] | None = None) -> None:
    """Alternates both, and prints the ratio of the medians."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder with the files of PTB")
    parser.add_argument("--steps", type=int, default=6, help="outer steps of a run; the first one is not counted")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    parser.add_argument(
        "--micro_batches", type=int, help="only do the work, with so many micro-batches in this process"
    )
    args = parser.parse_args(argv)
    if args.micro_batches:
        return work(args.data_dir, args.steps, args.micro_batches)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(args.runs):
        for processes in (1, 2) if number % 2 == 0 else (2, 1):
            seconds[processes].append(timed(processes, args.data_dir, args.steps))
            load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
            print(f"{processes} process(es): {seconds[processes][-1]:.2f} s per outer step, load {load}", flush=True)
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    print(
        f"medians: {median(seconds[1]):.2f} s and {median(seconds[2]):.2f} s, speed-up {median(ratios):.2f} ({len(ratios)} pairs)"
    )
    return None


if __name__ == "__main__":
    main()
