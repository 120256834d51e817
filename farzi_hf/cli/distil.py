"""Distils the data set that a config names, compares the summary with real data, and saves an
artefact that anyone can load.

A run that is started again goes on from its last checkpoint. Each seed has a folder with `summary/`
and `plots/`. The run's folder gets `table.md` and `table.csv`.
"""

import copy
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from farzi_hf.cli.arguments import example_configs, parse_arguments
from farzi_hf.cli.front_door import USAGE, FrontDoor, Options, check_data
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.cli.run_folder import (
    Left,
    begin_run,
    check_outputs,
    find_checkpoint,
    kept,
    stored,
    write_recipe,
)
from farzi_hf.common.text import for_reader
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.rows import check_rows, run_check
from farzi_hf.distillation.run import locked
from farzi_hf.distillation.trainer import FarziTrainer
from farzi_hf.report import BASELINES, Comparison, Measured, RunSettings, TaskData, pooled_rows
from farzi_hf.report.full_data import FULL, LONG, SAME_SECONDS
from farzi_hf.report.plots import plot_comparison, plot_distillation, plot_tokens
from farzi_hf.report.rendering import cost, distillation_seconds, environment, provenance, ratios
from farzi_hf.report.rows import NewRow, carrier_of, on_summary, under_stock_trainer
from farzi_hf.report.tables import fitted, listed, markdown, save_csv, save_text
from farzi_hf.report.trials import Suggestion
from farzi_hf.report.verdict import Verdict, first_rows
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.tasks import ResultRow, Task

RESULTS = "results.json"
START = "start.json"
FIGURES = ("distillation", "comparison", "tokens")


def trainer_of(
    data: TaskData,
    args: FarziConfig,
    seed: int,
    learner: Mapping[str, Any] | None = None,
    farzi_data: FarziData | None = None,
) -> FarziTrainer:
    """The trainer of one seed. It uses the learner of the settings, unless `learner` gives another
    one; it goes on with `farzi_data`.
    """
    if args.trajectories is not None:  # other splits have seen the test users of this one
        args = args.with_fields(trajectories=f"{args.trajectories}/seed-{seed}")
    splits = data.splits(seed)
    settings = data.settings
    teachers = [
        data.task.learner_config(teacher, args.sequence_length) for teacher in settings.teachers
    ]
    trainer = FarziTrainer(
        learner_init=data.task.learner_config(learner or settings.learner, args.sequence_length),
        args=args,
        task=data.task,
        teacher=None if settings.teacher is None else teachers,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        farzi_data=farzi_data,
    )
    # Its students are measured on this split after hours, so an error in it should come now.
    test = run_check("test split", data.task.evaluation_rows, splits["test"], args.sequence_length)
    run_check("test split", check_rows, test, trainer.learner, trainer.data_collator)
    return trainer


def comparison_of(trainer: FarziTrainer, data: TaskData, seed: int) -> Comparison:
    """The comparison of a trainer's summary with real data. The arguments are as in
    `trainer_of`.
    """
    settings = data.settings
    teacher = trainer.args.make_teacher_training()
    # Several processes would train the teacher of a carrier together.
    has_carrier = trainer.args.world_size == 1
    return Comparison.of_trainer(
        trainer,
        data.splits(seed),
        replace(
            teacher,
            steps=settings.long_steps or teacher.steps,
            batch_size=settings.long_batch_size or teacher.batch_size,
        ),
        num_students=settings.num_students,
        carrier=cache(partial(carrier_of, trainer)) if has_carrier else None,
    )


class Distillation:
    """One distillation in its folder: its earlier checkpoints, and the files that it writes.

    Args:
        data: the data set and its task.
        args: settings of the distillation; `output_dir` is the folder.
        seed: seed of the splits.
        whole: whether there is a row for each baseline; otherwise what a verdict needs and no more.
        chosen: trials of these settings, whose summary is taken.

    Raises:
        ValueError: the folder holds files that no run of this package has written, or results or
            checkpoints of other settings.
    """

    def __init__(
        self,
        data: TaskData,
        args: FarziConfig,
        seed: int,
        whole: bool = True,
        chosen: Suggestion | None = None,
    ):
        self.data = data
        self.args = args
        self.seed = seed
        self.whole = whole
        self.chosen = chosen
        self._stale = False  # whether there are results of a summary that is not there any more
        self.folder = Path(args.output_dir)
        self.summary_folder = self.folder / "summary"
        self.recipe = {**data.recipe([seed]), **args.to_recipe()}
        files = [
            RESULTS,
            START,
            "table.md",
            "table.csv",
            *(f"plots/{name}.png" for name in FIGURES),
        ]
        self.checkpoint = find_checkpoint(args, files, self.recipe)

    def begin(self) -> FarziTrainer:
        """Makes the trainer. From now on, the folder belongs to this run."""
        # Read now: later, another process may have written it, and all have to decide alike.
        self._start = stored(self.folder / START, self.settings)
        farzi = None if self.chosen is None else self.chosen.summary
        self.trainer = trainer_of(self.data, self.args, self.seed, farzi_data=farzi)
        begin_run(self.trainer, {**self.recipe, **self.data.of_the_run}, self.checkpoint)
        if self.is_first:
            if self._stale:
                print(f"{self.summary_folder} is gone: it is made again", file=sys.stderr)
                (self.folder / RESULTS).unlink(missing_ok=True)
            start = f"going on from {self.checkpoint}" if self.checkpoint else "a new run"
            number = self.args.world_size
            processes = "one process" if number == 1 else f"{number} processes"
            print(
                f"Results go to {self.folder}: {start}, {processes} on {self.args.device.type}",
                flush=True,
            )
        return self.trainer

    @property
    def is_first(self) -> bool:
        """Whether this is the first process. All processes distil, but only the first one compares,
        prints and writes.
        """
        return self.args.process_index == 0

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison of the summary with real data."""
        return comparison_of(self.trainer, self.data, self.seed)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts about the distillation."""
        trainer = self.trainer
        args = self.args
        stored = self.comparison.stored_bytes(self.comparison.splits["train"])
        return {
            "dataset": self.data.settings.dataset,
            "vocabulary": trainer.learner.vocab_size,
            "learner_parameters": sum(p.numel() for p in trainer.learner.model.parameters()),
            "summary_parameters": sum(p.numel() for p in trainer.model.parameters()),
            "tokens_per_inner_step": self.comparison.tokens_per_step,
            "data_bytes": stored.least,
            "data_bytes_flat": stored.flat,
            "data_bytes_after_xz": stored.xz,
            "inner_steps": args.inner_steps,
            "outer_steps": trainer.state.global_step,
            "distillation_seconds": self.seconds,
            "seed": args.seed,
            **trainer.taught,
            **trainer.memory(),
            **environment(args),
        }

    @property
    def seconds(self) -> float:
        """Seconds that it took to make the summary, with all trials."""
        trials = 0.0 if self.chosen is None else self.chosen.seconds
        return round(trials + distillation_seconds(self.trainer.state.log_history), 2)

    def save(self) -> None:
        """Saves the artefact as soon as the training is over, because the measurements that follow
        take long.
        """
        given = {
            "metrics": {**self.facts, **provenance(self.comparison, self.data, self.seed)},
            "recipe": self.recipe,
            "show_rows": self.data.settings.show_rows,
        }
        self.trainer.model.save_pretrained(
            self.summary_folder, self.data.task.processing_class, **given
        )

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings on which kept results depend."""
        return {
            **vars(self.data.settings),
            **self.recipe,
            "data": self.data.fingerprint(self.seed),
            "whole": self.whole,
        }

    def finished(self) -> dict[str, Any] | None:
        """The results of an earlier start, if it came to its end with these settings and its
        summary is there. All processes call this.

        Raises:
            ValueError: the summary is not the one that it has left.
        """
        with self.args.main_process_first(desc="results"):
            found = stored(self.folder / RESULTS, self.settings)
            if found is None:
                return None
            if Left(**found.get("left", {})).is_there(self.folder):
                return found
            self._stale = True
            return None

    def keep(self, name: str, measured: Sequence[Measured], **facts: Any) -> dict[str, Any]:
        """Writes measurements into the run's folder, where `finished` and a later `begin` find
        them.
        """
        done = {"measured": [part.to_json() for part in measured], **facts}
        return kept(self.folder / name, self.settings, lambda: done)

    def at_start(self) -> list[Measured]:
        """The row of students on the start of the summary. Without outer steps it would be that of
        the summary itself, and is left out. All processes call this, because they share the work of
        the start. A run that goes on has the row from before.
        """
        if not self.args.max_steps or not self.whole:
            return []
        if self._start:
            return [Measured.from_json(part) for part in self._start["measured"]]
        with self.trainer.run.in_folder():
            self.trainer.tune_initialization()
        if not self.is_first:
            return []
        start = copy.deepcopy(self.trainer.model)
        start.store_as(self.args.storage)
        measured = [
            on_summary(
                replace(self.comparison, farzi=start),
                self._named(LABELS[self.args.labels].row_of_start),
            )
        ]
        self.keep(START, measured)
        return measured

    def measure(self, before: Sequence[Measured]) -> list[Measured]:
        """All rows, the summary's first."""
        if not self.whole:
            name = "".join(self._name)
            if self.chosen is None:
                return first_rows(self.comparison, NewRow(name))
            long = self.chosen.long_row(self.comparison)
            ours = self.chosen.first_row(name)
            return first_rows(self.comparison, ours, long, self.chosen.due)
        students = self.students(before)
        return [*students, *self.baselines(students[0])]

    @property
    def _name(self) -> tuple[str, str]:
        """The name of the summary's rows, and its size."""
        args = self.args
        without_steps = LABELS[args.labels].row_without_steps if not args.max_steps else None
        size = "" if without_steps else f" [{args.num_sequences}×{args.sequence_length}]"
        return self._named(without_steps or "Farzi"), size

    def students(self, before: Sequence[Measured]) -> list[Measured]:
        """Rows of students on the summary: distilled, at the start, and under the stock Trainer."""
        name, size = self._name
        measured = [on_summary(self.comparison, f"{name}{size}"), *before]
        # One Trainer of several processes would wait for the others.
        is_alone = self.args.world_size == 1
        if is_alone and self.trainer.training.optimizer.stock_settings() is not None:
            stock = under_stock_trainer(
                self.comparison, self.summary_folder, f"{name}, stock Trainer"
            )
            return [*measured, stock]
        left_out = "under the stock Trainer"
        if not is_alone:
            left_out += " and of a packed teacher"
        optimizer = self.args.inner_optimizer
        print(f"no rows {left_out}: inner_optimizer={optimizer}, or several processes")
        return measured

    def _named(self, row: str) -> str:
        """The name of a row, with that of its inputs and of how its students begin."""
        return row.format(
            inputs=INPUTS[self.args.inputs].result_words,
            start=self.trainer.training.student_start.word,
        )

    def baselines(self, ours: Measured) -> list[Measured]:
        """Rows to compare the summary's students with, as far as they mean something for it, and
        rows of count models.
        """
        names = self.data.settings.baselines
        rows = [BASELINES[name](self.comparison, ours) for name in names]
        return [*(row for row in rows if row is not None), *self.comparison.counted()]

    def verdict(self, measured: Sequence[Measured]) -> Verdict | None:
        """The verdict on the summary; None where the rows have none of all data."""
        methods = {part.method for part in measured}
        if not methods & {FULL, LONG}:
            return None
        is_late = not self.whole and SAME_SECONDS not in methods
        return Verdict.of(self.comparison, measured, self.seconds, is_late)

    def finish(self, measured: Sequence[Measured], verdict: Verdict | None) -> dict[str, Any]:
        """Saves the artefact, with its results and figures, and returns what `report` needs.

        Args:
            measured: all rows.
            verdict: on them.
        """
        c = self.comparison
        rows = [c.row(part) for part in measured]
        show_rows = self.data.settings.show_rows
        history = self.trainer.state.log_history
        plots = draw(c, history, rows, self.folder / "plots", self.whole, show_rows)
        costs = cost(c) if self.whole else {"student_seconds": verdict.facts["student_seconds"]}
        words = {} if verdict is None else {"verdict": str(verdict)}
        self.trainer.model.save_pretrained(
            self.summary_folder,
            metrics={
                "table": rows,
                **self.facts,
                **provenance(c, self.data, self.seed),
                **costs,
                **words,
            },
            recipe=self.recipe,
            plots=plots,
            show_rows=show_rows,
        )
        self.trainer.run.kept_start.discard()
        left = vars(Left.by(self.folder, self.trainer.model, plots))
        return self.keep(RESULTS, measured, facts=self.facts, **words, left=left)


def draw(
    c: Comparison,
    history: Sequence[Mapping[str, Any]],
    rows: Sequence[ResultRow],
    folder: Path,
    whole: bool = True,
    show_rows: bool = False,
) -> list[Path]:
    """Draws the figures of a distillation into a folder, and returns their files.

    Args:
        history: what the trainer has logged.
        whole: whether the curve is compared with a student of real data, which trains for it.
        show_rows: whether a figure shows the first row even if it is not made up.
    """
    task = c.task
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.png" for name in FIGURES}
    if any(entry.keys() & {"loss", f"eval_{task.metric}"} for entry in history):
        # The curve of the outer loop, with horizontal lines to compare with, all on the validation
        # split.
        full = None
        if whole:
            student = c.real_student(c.splits["train"], c.steps, c.seeds[0])
            full = task.metrics(c.statistics(student, c.splits["validation"]))[task.metric]
        plot_distillation(
            history,
            paths["distillation"],
            metric=f"eval_{task.metric}",
            full_data_same_steps=full,
            metric_label=f"Validation {task.metric_label.removeprefix('Test ')} of fresh students",
        )
    else:  # the run was so short that nothing was logged
        del paths["distillation"]
    plot_comparison(rows, paths["comparison"], task.metric, metric_label=task.metric_label)
    if c.farzi.origin.is_made_up or show_rows:
        decoded = c.farzi.contents().decoded
        readable = replace(decoded, vocabulary=decoded.vocabulary.readable)
        title = c.farzi.forms.inputs.words(decoded.vocabulary).first_row
        plot_tokens(readable, paths["tokens"], title)
    else:
        paths.pop("tokens").unlink(missing_ok=True)  # of an earlier start, which showed rows
    return list(paths.values())


def distil(
    data: TaskData, args: FarziConfig, whole: bool = True, chosen: Suggestion | None = None
) -> None:
    """Runs a whole config: distils and compares every seed, and makes one table. Finished seeds are
    not run again.

    Args:
        whole, chosen: as for `Distillation`.
    """
    figures = [f"comparison_{metric.replace('@', '_')}.png" for metric in data.task_class.compared]
    with args.main_process_first(desc="folders"):
        recipe = {**data.recipe([]), **args.to_recipe()}
        files = ["recipe.yaml", "table.md", "table.csv", *figures]
        check_outputs(Path(args.output_dir), files, recipe)
        runs = []
        for seed in data.seeds(args.seed):
            own = args.with_fields(output_dir=data.run_folder(args.output_dir, seed))
            runs.append(Distillation(data, own, seed, whole, chosen))
    done = []
    is_said = False
    for run in runs:
        if results := run.finished():
            done.append(results)
            continue
        with locked(run.args):
            trainer = run.begin()
            before = run.at_start()
            trainer.train(resume_from_checkpoint=run.checkpoint)
            if not run.is_first:
                continue
            # Trials have kept their summary, and the verdict is due.
            if whole or chosen is None:
                run.save()
            measured = run.measure(before)
            verdict = run.verdict(measured)
            if len(runs) == 1:  # there is no other split to wait for
                rows = [run.comparison.row(part) for part in measured]
                say(data.task, [run.seed], rows, [verdict])
                is_said = True
            done.append(run.finish(measured, verdict))
    if args.process_index == 0:
        report(data, args, done, is_said)


def say(
    task: Task, seeds: Sequence[int], rows: Sequence[ResultRow], verdicts: Sequence[Any]
) -> None:
    """Prints the table, and the verdict on each seed. Files and figures may follow: where other
    programs take most of the processor, they take minutes.

    Args:
        task: of the data.
        seeds: of the splits.
        rows: of all seeds.
        verdicts: of each seed; None where there is none.
    """
    # The facts are for those who look them up; a reader of the terminal waits for the verdict.
    shown = [task.readable(row) for row in rows]
    is_terminal = sys.stdout.isatty()
    table = fitted(shown, get_terminal_size().columns) if is_terminal else markdown(shown)
    print(f"\n{table}\n")
    for seed, verdict in zip(seeds, verdicts, strict=True):
        if verdict is not None:
            of_split = f", split {seed}" if len(seeds) > 1 else ""
            print(for_reader(f"Verdict{of_split}: {verdict}", sys.stdout) + "\n", flush=True)


def report(
    data: TaskData, args: FarziConfig, done: Sequence[Mapping[str, Any]], is_said: bool = False
) -> None:
    """One table of all seeds.

    Args:
        done: the results of each seed.
        is_said: whether the reader has seen the table and the verdict already.
    """
    output = Path(args.output_dir)
    task = data.task
    seeds = data.seeds(args.seed)
    write_recipe(output, {**data.recipe(seeds), **data.of_the_run, **args.to_recipe()})
    of_seeds = [part["measured"] for part in done]
    rows = pooled_rows(task, of_seeds)
    seconds = sum(part["facts"]["distillation_seconds"] for part in done)
    facts = {**done[0]["facts"], "distillation_seconds": round(seconds, 2)}
    if len(seeds) > 1:
        facts["splits"] = seeds
    if task.percent:
        # The second row is that of the start, if there are outer steps.
        ours, start = (row["method"] for row in rows[:2])
        for other in (LONG, start) if args.max_steps else (LONG,):
            facts |= ratios(task, of_seeds, ours, other)
    table = markdown([task.readable(row) for row in rows])
    save_text(f"{table}\n\n{listed(facts)}\n", output / "table.md")
    save_csv(rows, output / "table.csv")
    for metric in task.compared:
        path = output / f"comparison_{metric.replace('@', '_')}.png"
        plot_comparison(rows, path, metric, metric_label=f"Test {metric.upper()}")
    if not is_said:
        say(task, seeds, rows, [part.get("verdict") for part in done])
    print(f"Table and facts: {output / 'table.md'}")
    folder = Path(data.run_folder(args.output_dir, seeds[0]), "summary")
    shown = shlex.quote(str(folder.parent))
    print(f"The SUMMARY is {shown}. Next: farzi show {shown}, farzi train {shown}")
    print(f"In Python: FarziData.from_pretrained({str(folder)!r})")


def command(argv: Sequence[str], began: float | None = None) -> None:
    """`farzi distil DATA` chooses settings for data of one's own; `farzi distil CONFIG` takes those
    of a YAML file. For `began` see `FrontDoor`.
    """
    keep_freed_memory()
    examples = example_configs()
    with ends_in_one_line("farzi distil", FileExistsError, NotADirectoryError, PermissionError):
        if "--help_all" in argv:
            parse_arguments((Options, RunSettings, FarziConfig), None, ["--help"], USAGE)
        check_data(
            argv,
            "a file, a folder, a data set of the Hub, a YAML config, or an example:"
            f" {', '.join(examples)}",
        )
        name = argv[0]
        is_config = name.endswith((".yaml", ".yml"))
        if is_config and Path(name).is_file():
            config = Path(name)
        else:
            config = examples.get(name.removesuffix(".yaml"))
        if config is not None:
            flags = {"--compare", "--dry_run"} & set(argv)
            rest = [word for word in argv[1:] if word not in flags]
            settings, args = parse_arguments((RunSettings, FarziConfig), config, rest, USAGE)
            data = settings.load()
            if "--dry_run" in flags:
                print(f"{data.description}\nThe run of {config} would go to {args.output_dir}")
            else:
                distil(data, args, whole="--compare" in flags)
        elif is_config:
            raise ValueError(
                f"{name!r} is neither a file nor an example: give one of {', '.join(examples)}, or"
                " data"
            )
        else:
            of_data(FrontDoor(argv, began=began))


def of_data(door: FrontDoor) -> None:
    """`farzi distil DATA`: trials, then the run that they have chosen; or what is better."""
    if door.options.dry_run:
        print(door.plan())
        return
    chosen = door.choose()
    if not isinstance(chosen, Suggestion):
        print(f"\n{chosen}")
        return
    distil(door.data, chosen.config, door.options.compare, chosen)
