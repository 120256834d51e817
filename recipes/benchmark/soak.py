"""Does a long distillation use more and more memory? Resident memory and open files over an hour of
one process.

python recipes/benchmark/soak.py                  # an hour on the embedded corpus, with evaluations
and checkpoints python recipes/benchmark/soak.py --minutes 2 --output_dir outputs/soak

A run that Ctrl-C ends has no report, and that of an earlier run stays.
"""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from farzi_hf import FarziConfig
from farzi_hf.cli.distil import trainer_of
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_files
from farzi_hf.report import RunSettings, markdown, save_csv, save_text

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
from curves import Panel, plot_curves

MIB = 2**20
FILES = ("memory.csv", "memory.png", "table.md")
COLUMNS = ("step", "minutes", "resident_mib", "open_files", "threads")
SETTINGS = {
    "num_sequences": 20,
    "sequence_length": 20,
    "latent_dim": 16,
    "concentration": 8.0,
    "inner_steps": 30,
    "window": 20,
    "synthetic_batch_size": 5,
    "max_steps": 1_000_000,
    "lr_scheduler_type": "constant",
    "learning_rate": 0.003,
    "eval_strategy": "steps",
    "eval_steps": 100,
    "eval_students": 1,
    "save_strategy": "steps",
    "save_steps": 50,
    "save_total_limit": 2,
    "logging_steps": 50,
    "use_cpu": True,
    "report_to": "none",
}
FACTS = {
    "summary": "[20×20], T = 30, window 20, adjoint chosen by itself",
    "evaluations, checkpoints": "every 100, every 50 outer steps",
}
# equal parts of the run, to whose medians the line is fitted: evaluations and checkpoints are short
# peaks
BLOCKS = 20
FEWEST = 4  # measurements that a line with a standard error needs
# share of the steps that the line leaves out: first, libraries are loaded and the heap grows to its
# size
SETTLING = 0.1


class Watch(TrainerCallback):
    """Measures this process every few outer steps, and ends the training after some minutes."""

    def __init__(self, minutes: float, every: int) -> None:
        self.minutes = minutes
        self.every = every
        self.rows: list[dict[str, Any]] = []
        self._process = psutil.Process()
        self._start = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        minutes = (time.monotonic() - self._start) / 60
        control.should_training_stop |= minutes >= self.minutes
        if state.global_step % self.every and not control.should_training_stop:
            return
        with self._process.oneshot():
            resident = self._process.memory_info().rss / MIB
        files = self._process.num_fds() if psutil.POSIX else self._process.num_handles()
        row = (
            state.global_step,
            round(minutes, 3),
            round(resident, 2),
            files,
            self._process.num_threads(),
        )
        self.rows.append(dict(zip(COLUMNS, row, strict=True)))


def straight_line(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Slope in MiB per outer step, value at step 0 in MiB, and standard error of the slope, after
    `SETTLING`.
    """
    settled = [row for row in rows if row["step"] > SETTLING * rows[-1]["step"]]
    if len(settled) < FEWEST:
        raise ValueError(
            f"minutes is too short: it left time for {len(rows)} measurements, too few for a line;"
            " give more minutes, or a smaller every"
        )
    steps = np.array([row["step"] for row in settled], dtype=float)
    memory = np.array([row["resident_mib"] for row in settled])
    blocks = list(zip(np.array_split(steps, BLOCKS), np.array_split(memory, BLOCKS), strict=True))
    middles, medians = zip(
        *((part.mean(), np.median(values)) for part, values in blocks if len(part)), strict=True
    )
    (slope, origin), covariance = np.polyfit(middles, medians, deg=1, cov=True)
    return float(slope), float(origin), float(np.sqrt(covariance[0, 0]))


def report(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, str], folder: Path) -> str:
    """Writes memory.csv, memory.png and table.md, and returns the text of table.md."""
    folder.mkdir(parents=True, exist_ok=True)
    slope, origin, error = straight_line(rows)
    memory = [row["resident_mib"] for row in rows]
    ranges = {name: sorted(row[name] for row in rows) for name in ("open_files", "threads")}
    values = {
        "outer steps": f"{rows[-1]['step']:,}",
        "minutes": f"{rows[-1]['minutes']:.1f}",
        "resident memory, first and last measurement (MiB)": f"{memory[0]:.0f}, {memory[-1]:.0f}",
        "largest (MiB)": f"{max(memory):.0f}",
        "slope (MiB per 1,000 outer steps, ± 2 standard errors)": (
            f"{1000 * slope:+.2f} ± {2000 * error:.2f}"
        ),
        **{
            f"{n.replace('_', ' ')}, least and most": f"{found[0]}, {found[-1]}"
            for n, found in ranges.items()
        },
        **facts,
    }
    table = markdown([{"quantity": name, "value": value} for name, value in values.items()])
    note = (
        f"One process. The slope is that of a straight line through {BLOCKS} medians, without the"
        f" first {SETTLING:.0%} of the steps."
    )
    save_csv(rows, folder / "memory.csv")  # first: it shows that the folder is ours
    save_text(f"{table}\n\n{note}\n\n![memory](memory.png)\n", folder / "table.md")
    measured = [{**row, "method": "measured"} for row in rows]
    line = {
        "method": f"straight line: {1000 * slope:+.2f} MiB per 1,000 outer steps",
        "kind": "peer",
    }
    ends = [
        {**line, "step": step, "resident_mib": origin + slope * step}
        for step in (0, rows[-1]["step"])
    ]
    memory = Panel(
        [*measured, *ends], "step", "resident_mib", "Outer step", "Resident memory (MiB)"
    )
    plot_curves(
        folder / "memory.png",
        memory,
        Panel(measured, "step", "open_files", "Outer step", "Open files"),
    )
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Distils the embedded corpus with the default adjoint until the time is over, and then writes
    the report.
    """
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--every", type=int, default=5, help="outer steps between two measurements")
    parser.add_argument(
        "--output_dir", default="model_cards/soak", help="folder of table, figure and CSV"
    )
    settings = parser.parse_args(argv)
    folder = Path(settings.output_dir)
    first = folder / FILES[0]
    keep_freed_memory()
    with ends_in_one_line("soak.py"), TemporaryDirectory() as scratch:
        check_files(
            folder,
            FILES,
            first.is_file() and first.read_bytes().startswith(",".join(COLUMNS).encode()),
        )
        args = FarziConfig(scratch, **SETTINGS)
        trainer = trainer_of(RunSettings(dataset="sample").load(), args, args.seed)
        trainer.add_callback(watch := Watch(settings.minutes, settings.every))
        trainer.train()
        print(report(watch.rows, FACTS, folder))


if __name__ == "__main__":
    run(main)
