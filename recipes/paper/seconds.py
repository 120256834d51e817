"""Quality over seconds: students of summaries, and students on all data that were tuned for as many
seconds.

    python recipes/paper/seconds.py SUMMARY … --data_dir FOLDER --seconds 3 10 30 100
    python recipes/paper/seconds.py SUMMARY --data_dir FOLDER --student "Llama 64" --steps 100 300

The summaries carry their teachers. They are of the same data set, each of another split of it, and
the rows are those of all splits together. For every number of seconds the way to train on all data
is chosen by trials on the validation part of the first split: all ways for the shortest training,
and for each longer one the best one before, with its rate and half of it, and the best one of the
other optimizer, each with and without dropout where the student has any (our recommenders).
Students of a summary have its own settings, but for their number of steps.

Whatever was measured is kept in the folder of the card, and a later start does not repeat it.
Seconds are those of the clock, so give the program a core of its own.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import curves
import numpy as np
from experiment import CARDS
from warm import STUDENTS

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.distillation import SyntheticTraining
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.comparison import pooled_row
from farzi_hf.report.full_data import FULL, WAYS, FullData, RealTraining
from farzi_hf.report.rendering import commit_of
from farzi_hf.report.rows import BASELINES
from farzi_hf.report.trials import words_of
from farzi_hf.tasks import Task

FIGURE = "seconds.png"


def main(argv: Sequence[str] | None = None) -> None:
    """The table and the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summaries", nargs="+", help="folders, each of another split")
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument("--student", help=f"one of {', '.join(STUDENTS)}; by default the recipe's")
    parser.add_argument("--inputs", help="by default those of the summary")
    parser.add_argument("--rows", type=int, help="of a step on the summary; by default its own")
    parser.add_argument("--rate", type=float, help="of students; by default the summary's")
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--random_steps", type=int, nargs="*", default=[100, 300])
    parser.add_argument("--seconds", type=float, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--num_students", type=int, default=5, help="of a summary")
    parser.add_argument("--num_real", type=int, default=2, help="students on all data, a split")
    parser.add_argument("--card_dir", help="folder of the table")
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("seconds.py", OSError):
        summaries = [FarziData.from_pretrained(name) for name in args.summaries]
        data = [TaskData.of_summary(farzi, args.data_dir) for farzi in summaries]
        name = data[0].settings.dataset.split(".")[0]
        learner = summaries[0].results.recipe["learner"]
        kind = args.student or learner["model_type"]
        student = args.student or words_of(learner)
        default = CARDS / re.sub(r"[^\w-]+", "_", f"{name} seconds {kind}").lower()
        folder = Path(args.card_dir or default)
        check_outputs(folder, ("table.md", "table.csv", "table.json", FIGURE))
    pairs = zip(summaries, data, strict=True)
    splits = [Split.of(farzi, of_split, args, folder) for farzi, of_split in pairs]
    task = splits[0].comparison.task
    rows = Rows(task, splits)
    for split in splits:
        for found in split.comparison.counted():
            rows.add(found)
        rows.add(BASELINES["teacher"](split.comparison, None))
    for inner_start, lengths in (("teacher", args.steps), ("random", args.random_steps)):
        for steps in lengths:
            for split in splits:
                rows.add(split.on_summary(inner_start, steps))
    ways: Sequence[RealTraining] = WAYS
    for seconds in sorted(args.seconds):
        ways = splits[0].best_ways(ways, seconds)
        for split in splits:
            rows.add(split.on_all_data(ways[0], seconds, args.num_real))
        ways = for_longer(ways)
    table = rows.table()
    words = f"{name}, {student}"
    text = "\n".join(
        [
            f"# {words}",
            "",
            data[0].description,
            "",
            markdown([task.readable(row) for row in table]),
            "",
        ]
    )
    save_text("\n".join([text, *rows.shares(), ""]), folder / "table.md")
    save_csv(table, folder / "table.csv")
    facts = {"splits": len(splits), "findings": rows.shares(), **commit_of(Path(__file__))}
    save_json({"rows": table, **facts}, folder / "table.json")
    plot(rows, folder / FIGURE, words)
    print(text)
    print("\n".join(rows.shares()))


# -- trainings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """The trainings of one split; each is kept in the folder.

    Attributes:
        comparison: of its summary.
        given: settings of students in place of those of the summary.
        folder: of what is kept.
        name: of the files.
        data: the fingerprint of the rows.
    """

    comparison: Comparison
    given: Mapping[str, Any]
    folder: Path
    name: str
    data: str

    @classmethod
    def of(cls, farzi: FarziData, data: TaskData, args: Any, folder: Path) -> Split:
        """That of a summary, with the settings of the command line."""
        if args.inputs and args.inputs != farzi.config.inputs:
            farzi = farzi.with_inputs(args.inputs)
        length = farzi.config.sequence_length
        settings = STUDENTS[args.student] if args.student else data.settings.learner
        config = data.task.learner_config(settings, length)
        comparison = Comparison.of_summary(farzi, data, config, num_students=args.num_students)
        given = {"synthetic_batch_size": args.rows, "lr": args.rate}
        given = {name: value for name, value in given.items() if value is not None}
        fingerprint = data.fingerprint(data.seeds(42)[0])
        name = "_".join(map(str, data.settings.splits))
        return cls(comparison, given, folder, name, fingerprint)

    def on_summary(self, start: str, steps: int) -> Measured:
        """Students of the summary that begin so and take so many steps."""
        c = self.comparison
        inner = {**c.farzi.config.inner, **self.given, "steps": steps, "student_start": start}
        training = SyntheticTraining.of(inner, c.farzi.forms)
        training = replace(training, lowers_rate="lr" not in self.given)
        students = replace(c, training=training, steps=steps)
        name = f"{c.farzi.config.inputs} ids, {START_NAMES[start]} start, T = {steps}"
        numbers = range(c.num_students)

        def make() -> Measured:
            return c.trained(name, students.summary_student, numbers, c.farzi.nbytes, steps)

        summary = {"summary": c.farzi.fingerprint(), "inner": inner}
        return self._kept(name, summary, make)

    def on_all_data(self, way: RealTraining, seconds: float, count: int) -> Measured:
        """Students on all data for so many seconds."""
        full = FullData(replace(self.comparison, num_students=count))
        name = f"{FULL}, {seconds:g} s"

        def make() -> Measured:
            return full.row(name, way, seconds, full.step_seconds(way))

        return self._kept(name, {"way": asdict(way), "count": count}, make)

    def best_ways(self, ways: Sequence[RealTraining], seconds: float) -> list[RealTraining]:
        """The ways to train for so many seconds, the best first."""
        full = FullData(self.comparison)
        if not full.has_dropout:
            ways = list(dict.fromkeys(replace(way, dropout=False) for way in ways))

        def make() -> list[dict[str, Any]]:
            tried = []
            for way in ways:
                tried.append(full.tried(way, seconds))
                print(f"{seconds:g} s: {tried[-1].error:.4f} {way}", flush=True)
            tried.sort(key=lambda each: each.error)
            return [asdict(each.way) for each in tried]

        settings = {**self._settings(), "ways": [asdict(way) for way in ways]}
        path = self.folder / "kept" / f"ways_{seconds:g}.json"
        return [RealTraining(**way) for way in kept(path, settings, make)]

    def _kept(
        self, name: str, settings: Mapping[str, Any], make: Callable[[], Measured]
    ) -> Measured:
        path = (
            self.folder / "kept" / f"{re.sub(r'[^a-z0-9.]+', '_', name.lower())}_{self.name}.json"
        )
        found = kept(path, {**self._settings(), **settings}, lambda: make().to_json())
        return Measured.from_json(found)

    def _settings(self) -> dict[str, Any]:
        """On what all trainings depend; those on all data do not depend on the summary."""
        c = self.comparison
        learner = c.learner.model.config.to_diff_dict()
        return {"data": self.data, "students": c.num_students, "learner": learner}


START_NAMES = {"teacher": "warm", "random": "random"}


def for_longer(ways: Sequence[RealTraining]) -> list[RealTraining]:
    """The ways to try for a longer training, after these were tried, the best first: more steps
    want smaller ones, dropout, and maybe the other optimizer. A few seconds do not tell which
    optimizer is the better one with dropout.
    """
    best = ways[0]
    others = [way for way in ways if way.optimizer != best.optimizer]
    found = [best, replace(best, rate=best.rate / 2), *others[:1]]
    return [replace(way, dropout=drops) for way in found for drops in (False, True)]


# -- rows ------------------------------------------------------------------------------------------


class Rows:
    """The rows of all splits, by method.

    Args:
        task: of the students.
        splits: as many as each method has to have.
    """

    def __init__(self, task: Task, splits: Sequence[Split]) -> None:
        self.task = task
        self.count = len(splits)
        self.of_method: dict[str, list[Measured]] = {}

    def add(self, found: Measured) -> None:
        """The row of a method on the next split."""
        self.of_method.setdefault(found.method, []).append(found)
        if len(self.of_method[found.method]) == self.count:
            print(self.task.headline(self.row(found.method)), found.method, flush=True)

    def row(self, method: str) -> dict[str, Any]:
        """The row of all splits."""
        return pooled_row(self.task, self.of_method[method])

    def table(self) -> list[dict[str, Any]]:
        """All rows."""
        return [self.row(method) for method in self.of_method]

    @property
    def best_counted(self) -> str:
        """The method that is the best of those that only count."""
        counted = [name for name, parts in self.of_method.items() if parts[0].steps is None]
        models = [name for name in counted if not self.of_method[name][0].is_model]
        of_first = self._students(models[0])
        return max(models, key=lambda method: self.task.share(self._students(method), of_first))

    def shares(self) -> list[str]:
        """A line for each row of students: its quality beside the best one of all data, with the
        interval of this share over test rows.
        """
        full = [method for method in self.of_method if method.startswith(FULL)]
        of_first = self._students(full[0])
        best = max(full, key=lambda method: self.task.share(self._students(method), of_first))
        theirs = self._students(best)
        lines = []
        for method, parts in self.of_method.items():
            if method == best or parts[0].steps is None:
                continue
            share, (low, high) = self.task.ratio(self._students(method), theirs)
            seconds = [self.row(each)["seconds"] for each in (method, best)]
            lines.append(
                f"- {method}, {seconds[0]:,.1f} s: {100 * share:.1f} %"
                f" ({100 * low:.1f}–{100 * high:.1f}) of {best} ({self.task.ratio_label}),"
                f" which took {seconds[1]:,.1f} s"
            )
        return lines

    def _students(self, method: str) -> list[list[np.ndarray]]:
        return [part.students for part in self.of_method[method]]


def plot(rows: Rows, path: Path, title: str) -> None:
    """Quality over seconds, and a line for each model that is not trained; of those that only
    count, the best one.
    """
    draw(rows.table(), rows.best_counted, rows.task, path, title)


def draw(
    table: Sequence[Mapping[str, Any]],
    best_counted: str,
    task: Task | type[Task],
    path: Path,
    title: str,
) -> None:
    """The same of a table.

    Args:
        best_counted: the method that is the best of those that only count.
        task: of the students, or its class.
    """
    scale = 100.0 if task.ranked else 1.0
    points = []
    lines = {}
    for row in table:
        kind, _, length = row["method"].partition(", T = ")
        if row["method"].startswith(FULL):
            points.append({**row, "method": "full data, tuned for the seconds"})
        elif length:
            points.append({**row, "method": f"students, {kind}"})
        elif row["method"] in (best_counted, "teacher"):
            lines[row["method"]] = scale * row[task.metric]
    panel = curves.Panel(
        points,
        "seconds",
        task.metric,
        "seconds of a training",
        f"{task.metric_label}, %" if task.ranked else task.metric_label,
        logarithmic="x" if task.ranked else "xy",
        scale=scale,
        lines=lines,
        title=title,
        from_zero=False,
    )
    curves.plot_curves(path, panel)


if __name__ == "__main__":
    run(main)
