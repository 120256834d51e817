"""Measures the speed-up of two CPU processes on two cores over one process that does the same work, with one thread each.

    python recipes/benchmark/speedup.py --data_dir FOLDER

The work is an outer step of two micro-batches: PTB [50×50], T = 100, w = 20, no pool. One process accumulates both; of two processes each
takes one. The runs alternate, so that other load on the machine hits both. The load average is printed with each run. The seconds in which
a process computes have no waiting in them, neither for other programs nor for the other process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziConfig
from farzi_hf.cli.distil import trainer_of
from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.report import RunSettings

TWO = Path(__file__).resolve().parents[1] / "accelerate" / "two_cpu_processes.yaml"
SETTINGS = {
    "inputs": "soft", "initialization": "clusters", "latent_dim": 18, "inner_steps": 100, "window": 20, "synthetic_batch_size": 10,
    "per_device_train_batch_size": 64, "teacher_steps": 10, "logging_steps": 1, "save_strategy": "no", "use_cpu": True,
    "disable_tqdm": True, "report_to": "none",
}  # fmt: skip


class Seconds(TrainerCallback):
    """Prints one line per outer step and process: its seconds, and those in which the process computed."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        wall, cpu = time.perf_counter() - self.started[0], time.process_time() - self.started[1]
        entry = {"world_size": args.world_size, "step": state.global_step, "wall": wall, "cpu": cpu}
        os.write(1, f"\n{json.dumps(entry)}\n".encode())  # at once: processes share the pipe


def work(data_dir: str, steps: int, micro_batches: int) -> None:
    """The distillation that is timed, in each process."""
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        args = FarziConfig(folder, max_steps=steps, gradient_accumulation_steps=micro_batches, **SETTINGS)
        trainer = trainer_of(RunSettings(dataset="ptb", data_dir=data_dir).load(), args, seed=args.seed)
        trainer.add_callback(Seconds())
        trainer.train()


def timed(processes: int, data_dir: str, steps: int) -> tuple[float, float]:
    """Median seconds of an outer step, without the first one, and those of the process that computes most."""
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(TWO)] if processes > 1 else []
    command = [sys.executable, *launcher, __file__, "--data_dir", data_dir, "--steps", str(steps)]
    command += ["--micro_batches", str(2 // processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"world_size"')]
    if {entry["world_size"] for entry in found} != {processes}:
        raise RuntimeError(f"{processes} processes were asked for, the world had {found[0]['world_size']}")
    of_steps = [[entry for entry in found if entry["step"] == step] for step in range(2, steps + 1)]
    wall, cpu = (median(max(entry[kind] for entry in step) for step in of_steps) for kind in ("wall", "cpu"))
    return wall, cpu


def main() -> None:
    """Alternates both, and prints the ratio of the medians."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder with the files of PTB")
    parser.add_argument("--steps", type=int, default=6, help="outer steps of a run; the first one is not counted")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--micro_batches", type=int, help="only do the work, with so many of them in this process")
    args = parser.parse_args()
    if args.micro_batches:
        work(args.data_dir, args.steps, args.micro_batches)
        return
    seconds: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for number in range(args.runs):
        for processes in (1, 2) if number % 2 == 0 else (2, 1):
            wall, cpu = timed(processes, args.data_dir, args.steps)
            seconds[processes].append((wall, cpu))
            load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
            print(
                f"{processes} process(es): {wall:.2f} s per outer step, {cpu:.2f} s of them computing, load {load}",
                flush=True,
            )
    for kind, what in enumerate(("time", "computing alone, which other load disturbs less")):
        one, two = ([run[kind] for run in seconds[processes]] for processes in (1, 2))
        ratio = median(a / b for a, b in zip(one, two, strict=True))
        print(f"{what}: medians {median(one):.2f} s and {median(two):.2f} s, speed-up {ratio:.2f} ({len(one)} pairs)")


if __name__ == "__main__":
    main()
