"""The automatic choice of a distillation: short trials on the validation part, cheapest first,
within bytes and minutes.

0. **Counting.** A model that only counts is measured first, in seconds. Students have to beat it.
1. **Learners.** Each architecture of `Task.learners` trains for some seconds on the real data.
   Where the best of them will not beat counting in its time, by its learning curve, the search says
   so and stops.
2. **The teacher.** The best of them trains on, until the validation part says stop or its share of
   the time is over.
3. **Packing.** The teacher trains on in few bits: in so few that it fits, and in fewer as long as
   it loses nothing.
4. **Students** train on the packed teacher, with some lengths, rates and numbers of rows.
5. **The comparison** with real data has the rest of the time.

Stages end by the clock. The steps of a teacher and of its packing are planned from a few steps that
are timed; if later ones take longer, the training is cut (`TeacherTraining`, `within`). A stage
leaves later ones what they need by the first answer, and what there is no time for does not begin.

One choice has no trial, because each set that was measured gave the same answer (recipes/LOG.md):
the summary carries its teacher, and makes the ids that students read. Fixed rows with labels of
their own need a table of the vocabulary too, and students learn them by heart.

Every trial is kept on the disk with its result, see `TrialFolder`. A search that is started again
takes what is there and goes on.
"""

from __future__ import annotations

import copy
import hashlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, PreTrainedModel

from farzi_hf.common.files import exclusive
from farzi_hf.common.text import as_written, json_text
from farzi_hf.data import flatten_sequences, random_sequences
from farzi_hf.data.coding import stored_bytes
from farzi_hf.data.streams import described
from farzi_hf.distillation import FarziConfig, FarziTrainer, Learner
from farzi_hf.distillation.learner import Parameters
from farzi_hf.distillation.rows import validation_loss
from farzi_hf.distillation.teacher import numbers_of_cuts, seconds_of
from farzi_hf.engine.devices import portions
from farzi_hf.report.comparison import Comparison, with_ids
from farzi_hf.report.trial_folder import TrialFolder
from farzi_hf.report.trials import CountingWins, Suggestion, Trial, width_of, words_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import LABELS, DrawnInputs, TeacherLabels
from farzi_hf.tasks import Task
from farzi_hf.tasks.counted import CountedRow

_SHARES = {"learners": 0.22, "teacher": 0.28, "packing": 0.08, "students": 0.15}
"""Of the time, for each stage; packing has it for each of two ways. The comparison has the rest."""
_ALONE = {"learners": 0.04, "teacher": 0.44}
"""The same where there is one learner: its first teacher needs to be good enough for a first answer
only.
"""
_AT_LEAST = 0.6
"""Of their shares, that later stages have if an earlier one is late."""
_FLOOR = 0.1
"""Of its share, that a stage has however late it is."""
_LONGER = 1.5
"""Times the seconds of the first teacher, that a second one has at least."""
_LATER = 0.5
"""Of the seconds of a stage with several trials, by which the last one may be late."""
_EQUAL = 0.01
"""Of the error, which is nats a token, or the mean ln r of ranks: of trials that differ by less,
the first is taken, which is the cheapest.
"""
_BEHIND = 0.1
"""Of teachers that still learn, the widest one that is not worse by more is taken: most of its
training is to come.
"""
_CLOSE = 0.03
"""Of students, the first that is as near to its teacher is taken."""
_CLOSE_RANKS = 0.05
"""The same of ranks, for 1 % of HR@100."""
_DIVERGED = 1e9
_IDS = 100_000
"""Of the validation part; more would tell little more, and take long."""
_TIMED = 10
"""Steps of which the time is taken."""
_FIRST = 100
"""Steps of the student of the first answer."""
_OF_FIRST = 0.05
"""Of the time, for that student. Where that is less than its steps take, it has fewer."""
_SHORTEST = 10
"""Steps of a student in any case."""
_FEWEST = 100
_MOST = 20_000
_EPOCHS = 10
"""Steps of a teacher: at most 20,000, or ten times all rows, whichever is more."""
_AGAIN = 3.0
"""How many trainings as long as a student's the comparison makes: the student once more, and all
data for as many seconds, with a few trials.
"""
_FILES = 25.0
"""Seconds of a processor, for the summary's files, card and figures; recipes/LOG.md has more."""
_OF_FILES = 0.15
"""Of the time, for the same at most: what is learnt in a minute is small."""
_KNOWN = 5.0
"""Seconds of a processor after which one knows how others share it."""
_AFTER_ROWS = 0.4
"""Of these seconds, those after the last row of the comparison."""
_STUDENTS_NEED = 3
"""Trainings of a student that there is time for in any case: a trial, and in the comparison one on
the summary and one on all data.
"""
_MEASURED = 4
"""Models that are measured from the first trial of a student on: it, and three of the comparison.
"""
_VALIDATION = 1 / 6
"""Of the time of a teacher's steps, that it takes to evaluate it meanwhile."""
_STUDENTS = (
    (100, 10, 0.03, "drawn"),
    (100, 10, 0.03, "written"),
    (300, 10, 0.03, "written"),
    (300, 10, 0.03, "drawn"),
    (1000, 10, 0.02, None),
    (3000, 10, 0.015, None),
)
"""Steps, rows a step (few: of as many seconds, small steps teach more; a GPU takes more, see
`Portions`), rate at a width of 16, inputs. None: those that left less to learn, times their
seconds, because what is left was about halved by twice the steps (recipes/LOG.md). Cheapest first.
"""
_PACKINGS = (
    ("coded6", 0.05, 4.3),
    ("coded5", 0.15, 3.6),
    ("coded5", 0.3, 3.1),
    ("coded4", 0.6, 2.8),
    ("coded3", 0.6, 2.7),
    ("coded2", 0.6, 1.5),
)
"""Ways to store a teacher, with the penalty on its numbers, and the bits that a number then took
where it was measured: largest first.
"""
_SMALLEST = _PACKINGS[-3][2]
"""Bits for which the width of a teacher still pays."""
_SLACK = 1.15
"""How much fewer bits a number may need than was measured."""


def to_stderr(line: str) -> None:
    """Shows a line to the reader at once, beside what goes to stdout."""
    print(line, file=sys.stderr, flush=True)


def suggest(
    dataset: DatasetDict | Dataset,
    task: Task,
    *,
    bytes: int | None = None,
    minutes: float | None = None,
    learner: Mapping[str, Any] | None = None,
    output_dir: str = "farzi",
    folder: str | Path | None = None,
    seed: int = 42,
    show: Callable[[str], None] = to_stderr,
) -> FarziConfig:
    """Chooses the settings of a distillation by short trials on the validation part.

    Args:
        dataset: whole rows in `input_ids`, or in `text` for the task's tokenizer, with the splits
            train and validation. A tenth of a single `Dataset` is held out.
        task: `LanguageModeling(tokenizer)` or `Recommendation(vocabulary)`.
        bytes: the most that the summary may have; by default as many as the data: ids in ⌈log₂ V⌉
            bits each.
        minutes: for all of it; by default 10, or 30 for a vocabulary of more than 5,000 entries.
        learner: the architecture, as arguments of `AutoConfig.for_model`; by default the best of
            `task.learners`.
        output_dir: of the config.
        folder: where trials are kept; by default they are lost.
        seed: of all trials, and of the config.
        show: is called with each line for the reader.

    Returns:
        The config. It has two attributes more: `learner`, the architecture as a dict, and
        `leaderboard`, a list of what was tried.

    Raises:
        ValueError: an argument cannot be used, or there are too few rows.
    """
    if isinstance(dataset, Dataset) and len(dataset) > 1:
        held_out = dataset.train_test_split(0.1, seed=seed)
        dataset = DatasetDict(train=held_out["train"], validation=held_out["test"])
    elif isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset has {len(dataset)} rows, of which a tenth is held out: give more"
        )
    dataset = DatasetDict({name: with_ids(task, rows) for name, rows in dataset.items()})
    with tempfile.TemporaryDirectory() as scratch:
        search = Search(
            splits=dataset,
            task=task,
            folder=Path(folder or scratch),
            output_dir=output_dir,
            seed=seed,
            most=bytes,
            minutes=minutes,
            learner=learner,
            show=show,
            goes_on=True,
        )
        threads = torch.get_num_threads()
        try:
            suggestion = search.run()
        finally:
            torch.set_num_threads(threads)
    suggestion.config.learner = suggestion.learner
    suggestion.config.leaderboard = suggestion.trials
    return suggestion.config


@dataclass
class Search:
    """The trials of one data set. Each method is a stage, or a part of a trial. For arguments see
    `suggest`.

    Args:
        splits: train and validation, and test if there is one.
        folder: where trials are kept.
        most: bytes of the summary.
        fixed: settings of a `FarziConfig` that trials do not change.
        goes_on: whether the search goes on where counting will win.
        began: `time.perf_counter()` when the minutes began.
    """

    splits: DatasetDict
    task: Task
    folder: Path
    output_dir: str
    seed: int = 42
    most: int | None = None
    minutes: float | None = None
    learner: Mapping[str, Any] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    show: Callable[[str], None] = to_stderr
    goes_on: bool = False
    began: float = field(default_factory=time.perf_counter)
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._check()
        self._began_at = (time.perf_counter(), time.process_time())
        lengths = flatten_sequences(self.splits["train"])[1]
        self.vocab_size = self.task.learner_config(self.task.learners[0], 8).vocab_size
        self.length = self.fixed.get("sequence_length") or self._long_enough(lengths)
        self.mean = float(min(lengths.mean(), self.length))
        if self.most is None:
            self.most = stored_bytes(self.splits["train"], self.vocab_size).least
        self.most = int(self.most)
        if self.minutes is None:
            self.minutes = 10.0 if self.vocab_size <= 5000 else 30.0
        if self.learner is not None:
            self.learners = [dict(self.learner)]
        else:
            tried = self.task.tried_in(self.minutes * self._wider, self._fits)
            self.learners = [dict(learner) for learner in tried]
        self.shares = _SHARES if len(self.learners) > 1 else {**_SHARES, **_ALONE}
        held_out = self.splits["validation"]
        some = max(20, int(_IDS / self.mean))
        is_large = len(held_out) > some
        self.validation = random_sequences(held_out, some, self.seed) if is_large else held_out

    def _check(self) -> None:
        for name, value in (("bytes", self.most), ("minutes", self.minutes)):
            if value is not None and not value > 0:
                raise ValueError(
                    f"{name}={value} leaves no room: give a positive number, or leave it out"
                )
        present = {name for name, rows in self.splits.items() if len(rows)}
        if missing := {"train", "validation"} - present:
            raise ValueError(
                f"dataset has splits {list(self.splits)}: {', '.join(sorted(missing))} is missing,"
                " or has no row"
            )
        if not LABELS[self.fixed.get("labels", TeacherLabels.name)].carries_teacher:
            raise ValueError(
                f"labels={self.fixed['labels']!r}: trials choose summaries that carry a teacher;"
                " leave labels out"
            )

    def _long_enough(self, lengths: np.ndarray) -> int:
        """How many ids a row of the summary has. Of items, so many that nineteen users of twenty
        have no more, and 100 at most. Text is tested at all positions, so students read all but
        those of two ids in a thousand.
        """
        share = 0.05 if self.task.ranked else 0.002 * lengths.mean()
        most = 100 if self.task.ranked else int(lengths.max())
        for length in range(10, most, 10):
            beyond = np.maximum(lengths - length, 0)
            left_out = beyond > 0 if self.task.ranked else beyond
            if left_out.mean() <= share:
                return length
        return max(10, most)

    def _fits(self, learner: Mapping[str, Any]) -> bool:
        """Whether a teacher of this architecture has room in the summary."""
        return _SMALLEST * self._numbers(learner) / 8 <= self.most

    def in_folder(self, folder: Path, output_dir: Path) -> Search:
        """The same search, whose trials are kept there and whose choice is for that run."""
        other = copy.copy(self)
        other.folder = folder
        other.output_dir = str(output_dir)
        other.trials = []
        return other

    def run(self) -> Suggestion | CountingWins:
        """All stages. No other search writes to the folder meanwhile."""
        with exclusive(self.folder):
            return self._stages()

    def _stages(self) -> Suggestion | CountingWins:
        self.choose_threads()
        first = self.learner_stage()
        lost = None if self.goes_on else self.counting_wins(first)
        if lost is not None:
            return lost
        teacher = self.teacher_stage(first)
        packed = self.packing_stage(teacher)
        student = self.student_stage(teacher, packed)
        learner = teacher.found["learner"]
        names = ("storage", "packing_penalty", "packing_steps", "packing_cuts")
        of_packing = {name: packed.found[name] for name in names}
        of_teacher = {name: teacher.found[name] for name in ("teacher_steps", "teacher_cuts")}
        chosen = {**of_teacher, **of_packing, **student.found}
        config = self.config(learner, self.output_dir, **chosen)
        packed_summary = FarziData.from_pretrained(self.folder / packed.found["folder"])
        summary = packed_summary.with_inputs(config.inputs)
        summary.config.inner = config.inner_settings()
        return Suggestion(
            config=config,
            learner=learner,
            trials=self.trials,
            summary=summary,
            teacher=(self._model(teacher), teacher),
            packed=packed,
            due=time.perf_counter() + self.left - _AFTER_ROWS * self.seconds_of_files,
            is_tried=student.error is not None,
        )

    # -- time --------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Seconds of all trials, of earlier starts too, and of what is between them."""
        between = time.perf_counter() - self.began - self.kept.seconds_of_trials
        return sum(trial.seconds for trial in self.trials) + between

    @property
    def left(self) -> float:
        """Seconds until the verdict is due."""
        return max(0.0, 60 * self.minutes - self.spent)

    def seconds_of_stage(self, name: str) -> float:
        """The seconds that a stage may take: its share; less if the search is late."""
        share = 60 * self.minutes * self.shares[name]
        return max(_FLOOR * share, min(share, self.left - self.seconds_after(name)))

    def seconds_after(self, name: str) -> float:
        """The seconds that the stages after this one have at least: a part of their shares, or what
        they need by the first answer, if that is more.
        """
        stages = list(self.shares)
        later = stages[stages.index(name) + 1 :]
        of_comparison = 1 - sum(self.shares.values())
        of_students = of_comparison + self.shares["students"] * ("students" in later)
        of_others = sum(self.shares[stage] for stage in later if stage != "students")
        least = max(_AT_LEAST * 60 * self.minutes * of_students, self.seconds_of_students(name))
        return _AT_LEAST * 60 * self.minutes * of_others + least

    @property
    def pace(self) -> tuple[float, float]:
        """Seconds of a step of a student, and of measuring it, by the first answer; 0 before there
        is one.
        """
        first = next((trial for trial in self.trials if "first_steps" in trial.found), None)
        if first is None:
            return 0.0, 0.0
        each = first.training_seconds / first.found["first_steps"]
        return each, first.seconds - first.training_seconds

    def seconds_of_students(self, name: str = "packing") -> float:
        """The seconds that students need after the stage of that name: trials and the comparison of
        the shortest ones, by the first answer.
        """
        each, measuring = self.pace
        steps = self.fixed.get("inner_steps", _STUDENTS[0][0])
        done = name == "students"  # one of each
        trainings = (_STUDENTS_NEED - done) * steps * each
        return trainings + (_MEASURED - done) * measuring + self.seconds_of_files

    @property
    def seconds_of_files(self) -> float:
        """The seconds of files, card and figures, if others share the processor as they have shared
        it since the search began.
        """
        processor = time.process_time() - self._began_at[1]
        seconds = time.perf_counter() - self._began_at[0]
        slower = max(1.0, seconds / processor) if processor > _KNOWN else 1.0
        return slower * min(_FILES, _OF_FILES * 60 * self.minutes)

    # -- what is kept ------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """On what the trials depend: the data and what was asked for."""
        parts = {name: rows for name, rows in self.splits.items() if name != "test"}
        return as_written(
            {
                "data": {name: described(rows)["fingerprint"] for name, rows in parts.items()},
                "bytes": self.most,
                "minutes": self.minutes,
                "learners": self.learners,
                "seed": self.seed,
                "fixed": {name: repr(value) for name, value in self.fixed.items()},
            }
        )

    @cached_property
    def kept(self) -> TrialFolder:
        """Trials on the disk."""
        return TrialFolder(self.folder, self.settings, self.show)

    def decided(self, question: str, answer: Any) -> Any:
        """The answer, which the clock has given; or that of an earlier start, however late the
        search is now.
        """
        trial = self.kept.trial(question, lambda: {"found": {"answer": answer}}, question)
        return trial.found["answer"]

    def trial(self, name: str, make: Callable[[], Mapping[str, Any]], key: str = "") -> Trial:
        """The trial of that name: `make()`, or what an earlier start has kept of it under `key`, by
        default the name. A line says what it has found.
        """
        trial = self.kept.trial(name, make, key or name)
        if trial in self.trials:  # two stages have asked for it
            return trial
        self.trials.append(trial)
        said = "; ".join(part for part in (trial.figure, trial.why) if part)
        gone = self.spent / 60
        self.show(f"[{gone:4.1f} min, {self.left / 60:4.1f} left] {name}: {said}")
        return trial

    # -- counting ----------------------------------------------------------------------------------

    @cached_property
    def counted(self) -> CountedRow:
        """The best model that only counts, on the validation part. The test part is measured in the
        same go, for the comparison.
        """
        rows = self.task.count(
            self.splits["train"],
            self.splits["validation"],
            self.validation,
            self.vocab_size,
            also=[part for name, part in self.splits.items() if name == "test" and len(part)],
        )
        return min(rows, key=lambda row: self.task.error(row.statistics))

    @property
    def counted_figure(self) -> str:
        """Its figure, in the words of the task."""
        return self.task.headline(self.task.metrics(self.counted.statistics))

    def counting_wins(self, teacher: Trial) -> CountingWins | None:
        """Why the search should stop: the teacher will not be as good as counting in its share of
        the time, by its learning curve. None where it will be, or where no curve tells.
        """
        counted = self.task.nats(self.counted.statistics)
        if counted is None:
            return None
        slope = 0.0 if teacher.found["stopped"] else teacher.found["slope"]
        if slope is None:
            return None
        own = teacher.found["seconds"]
        times = max(1.0, 60 * self.minutes * self.shares["teacher"] / max(own, 1e-9))
        expected = teacher.error + min(slope, 0.0) * math.log(times)
        if expected <= counted:
            return None
        minutes = None
        if slope < 0:
            needed = own * math.exp(min((teacher.error - counted) / -slope, 50.0))
            minutes = needed / self.shares["teacher"] / 60
        return CountingWins(
            method=self.counted.method,
            figure=self.counted_figure,
            seconds=self.counted.seconds,
            of_teacher=f"{words_of(teacher.found['learner'])}: {teacher.figure}",
            spent=self.spent,
            minutes=minutes,
        )

    # -- parts of a trial --------------------------------------------------------------------------

    def config(self, learner: Mapping[str, Any], output_dir: str, **changes: Any) -> FarziConfig:
        """The settings of a trial, or of the choice. What a trial changes it has asked `_asked`
        for, unless it measures no choice.
        """
        optimizer = self.fixed.get("teacher_optimizer", "adam" if self.task.ranked else "soap")
        settings = {
            "labels": TeacherLabels.name,
            "inputs": DrawnInputs.name,
            "num_sequences": 64,
            "sequence_length": self.length,
            "inner_epsilon": 1e-6,
            "max_steps": 0,
            "teacher_optimizer": optimizer,
            "teacher_learning_rate": _rate({"soap": 0.015}.get(optimizer, 0.01), learner),
            "seed": self.seed,
            "teacher_batch_size": self._rows_a_step,
            "report_to": "none",
            "eval_students": 1,
            "disable_tqdm": not sys.stderr.isatty(),
        }
        return FarziConfig(output_dir, **{**settings, **self.fixed, **changes})

    def _asked(self, **settings: Any) -> dict[str, Any]:
        """These settings, with the fixed ones in place."""
        return {name: self.fixed.get(name, value) for name, value in settings.items()}

    @property
    def _rows_a_step(self) -> int:
        """Real rows in a step of a teacher: about 800 ids on a CPU, and no more than a thirtieth of
        all rows.
        """
        rows = self._wider * int(np.clip(800 / self.mean, 16, 128))
        return max(8, min(rows, len(self.splits["train"]) // 30))

    @cached_property
    def _wider(self) -> int:
        """How many times the rows of a CPU's step a step takes."""
        device = FarziConfig(self.output_dir, use_cpu=self.fixed.get("use_cpu", False)).device
        return portions(torch.empty(0, device=device)).rows

    def trainer(
        self,
        learner: Mapping[str, Any],
        teacher: Any = None,
        farzi_data: FarziData | None = None,
        **changes: Any,
    ) -> FarziTrainer:
        """A trainer for one trial."""
        args = self.config(learner, str(self.folder / "trial"), **changes)
        return FarziTrainer(
            learner_init=self.task.learner_config(learner, self.length),
            args=args,
            task=self.task,
            teacher=teacher,
            farzi_data=farzi_data,
            train_dataset=self.splits["train"],
            eval_dataset=self.splits["validation"],
        )

    def judged(self, trainer: FarziTrainer, learner: Learner, params: Parameters) -> dict[str, Any]:
        """The loss of a model on the validation part, and its figure in the words of the task."""
        splits = DatasetDict(
            train=self.splits["train"], validation=self.validation, test=self.validation
        )
        c = Comparison.of_trainer(trainer, splits, num_students=1)
        statistics = c.statistics(partial(learner.logits, params), self.validation)
        figure = self.task.headline(self.task.metrics(statistics))
        rows = self.task.evaluation_rows(self.validation, self.length)
        data = replace(trainer.real_data, held_out=rows)
        error = validation_loss(learner, data, len(rows))(params)
        return {"error": error if math.isfinite(error) else _DIVERGED, "figure": figure}

    # -- stages ------------------------------------------------------------------------------------

    def choose_threads(self) -> None:
        """Sets torch's threads to one, or leaves them as many as they are: whichever is faster. Two
        threads wait for each other at each operation, so where other programs take a part of a
        core, one alone may be three times as fast.
        """
        given = torch.get_num_threads()
        learner = self.learners[0]
        is_on_cpu = self.config(learner, self.output_dir).device.type == "cpu"
        if given == 1 or not is_on_cpu:
            return

        def make() -> dict[str, Any]:
            seconds = {}
            for number in (given, 1):
                torch.set_num_threads(number)
                seconds[number] = self._step_seconds(learner)
            best = min(seconds, key=seconds.get)
            figures = (f"{1000 * each:.0f} ms of {number}" for number, each in seconds.items())
            return {"figure": f"a step takes {', '.join(figures)}", "found": {"threads": best}}

        trial = self.trial(f"threads of {given} cores", make)
        torch.set_num_threads(trial.found["threads"])

    def _step_seconds(self, learner: Mapping[str, Any]) -> float:
        """Seconds of a step of a teacher, from a few steps that are timed."""
        trainer = self.trainer(learner, teacher_steps=_TIMED)
        training = trainer.args.make_teacher_training()
        return training.step_seconds(trainer.learner, trainer.real_data, self.seed)

    def planned(
        self, training: str, learner: Mapping[str, Any], seconds: float
    ) -> tuple[int, float]:
        """The steps of a training of this teacher, and the seconds in which it has to end.

        Args:
            training: its name.
            seconds: that it has at this start.
        """
        steps = self.steps_in(learner, seconds)
        steps, seconds = self.decided(f"steps and seconds of {training}", [steps, seconds])
        return steps, seconds

    def steps_in(self, learner: Mapping[str, Any], seconds: float) -> int:
        """As many steps of a teacher as fit into these seconds, by the last teacher of this kind, or
        by a few steps that are timed.
        """

        def make() -> dict[str, Any]:
            each = self._step_seconds(learner)
            return {"figure": f"{1000 * each:.0f} ms", "found": {"seconds": each}}

        of_kind = [
            trial.found["step_seconds"]
            for trial in self.trials
            if "step_seconds" in trial.found and trial.found["learner"] == dict(learner)
        ]
        if of_kind:  # a whole training tells more than a few steps
            each = of_kind[-1]
        else:
            name = f"a step of the teacher, {words_of(learner)}"
            each = (1 + _VALIDATION) * self.trial(name, make).found["seconds"]
        most = max(_MOST, _EPOCHS * len(self.splits["train"]) / self._rows_a_step)
        return int(_rounded(max(_FEWEST, min(most, seconds / each))))

    def teacher(self, learner: Mapping[str, Any], seconds: float) -> Trial:
        """A teacher that trains for so long, or until the validation part says stop; it is kept.
        Steps that are given are all taken.
        """
        which = hashlib.sha256(json_text(dict(learner)).encode()).hexdigest()[:8]
        name = f"teacher-{learner['model_type']}-{which}"
        earlier = [trial for trial in self.trials if trial.found.get("learner") == dict(learner)]
        steps = self.fixed.get("teacher_steps")
        within = math.inf
        if not steps:
            steps, within = self.planned(f"{name}, {len(earlier)}", learner, seconds)
        # One of as many steps that was cut is not this one, which has more time.
        cut = [trial for trial in earlier if trial.found.get("teacher_cuts")]
        again = any(trial.found["teacher_steps"] == steps for trial in cut)
        folder = self.folder / (f"{name}-{steps}-{len(earlier)}" if again else f"{name}-{steps}")

        def make() -> dict[str, Any]:
            began = time.perf_counter()
            trainer = self.trainer(learner, teacher_steps=steps)
            state = self.kept.state(folder.name)
            training = trainer.args.make_teacher_training()
            training = replace(training, kept=state, within=within)
            [teacher] = trainer.labelling.teachers(trainer.real_data, training, self.seed)
            config = self.task.learner_config(learner, self.length)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            # Buffers and tied heads are not among the parameters.
            model.load_state_dict(teacher.params, strict=False)
            model.save_pretrained(folder)
            trained = teacher.trained
            taken = max(seconds_of(state), time.perf_counter() - began)
            has_stopped = not trained.still_learning or trained.steps < 0.9 * trained.end
            stopped = ", and not better later" if trained.steps < trained.end else ""
            cut = f", cut from {steps:,} by the clock" if trained.cuts else ""
            numbers = sum(x.numel() for x in teacher.params.values())
            return {
                **self.judged(trainer, teacher.learner, teacher.params),
                "nbytes": int(_PACKINGS[0][2] * numbers / 8),
                "why": f"best after {trained.steps:,} steps{stopped}{cut}",
                "found": {
                    "learner": dict(learner),
                    "teacher_steps": steps,
                    "teacher_cuts": numbers_of_cuts(trained.cuts),
                    "steps": trained.steps,
                    "seconds": round(taken, 2),
                    "step_seconds": taken / trained.all_steps,
                    "stopped": has_stopped,
                    "slope": trained.slope,
                    "numbers": numbers,
                    "folder": folder.name,
                },
            }

        return self.trial(f"teacher, {words_of(learner)}", make, key=folder.name)

    def learner_stage(self) -> Trial:
        """The teacher of the architecture that is best after as many seconds as each of them has."""
        of_stage = self.seconds_of_stage("learners")
        seconds = of_stage / len(self.learners)
        until = self.spent + (1 + _LATER) * of_stage
        tried: list[Trial] = []
        for learner in self.learners:
            reason = self._left_out(learner, tried)
            has_time = not tried or self.spent + seconds <= until
            if reason is None and not self.decided(f"time for a {words_of(learner)}", has_time):
                reason = "no time is left for it"
            if reason is not None:
                self.show(f"{words_of(learner)} is left out: {reason}")
                continue
            tried.append(self.teacher(learner, seconds))
            if len(tried) == 1:
                self.first_answer(tried[0])
        best = min(trial.error for trial in tried)
        # What still learns is the better for being wide; of what has learnt all there is, the
        # smallest is enough.
        near = [trial for trial in tried if trial.error <= best + _BEHIND]
        still_learning = [trial for trial in near if not trial.found["stopped"]]
        if still_learning:
            return still_learning[-1]
        return next(trial for trial in tried if trial.error <= best + _EQUAL)

    def _left_out(self, learner: Mapping[str, Any], tried: Sequence[Trial]) -> str | None:
        """Why this architecture is not tried after the others; None if it is."""
        if not tried:
            return None
        numbers = self._numbers(learner)
        best = min(trial.error for trial in tried)
        of_kind = [
            trial
            for trial in tried
            if trial.found["learner"]["model_type"] == learner["model_type"]
        ]
        if of_kind:
            last = of_kind[-1]
            if last.error > best + _BEHIND and numbers > last.found["numbers"]:
                return "a smaller one has too few steps in this time already"
            if min(trial.error for trial in of_kind) > best + _EQUAL:
                return "another kind of model is ahead of smaller ones"
        if not self._fits(learner):
            return f"its {numbers:,} numbers exceed {self.most:,} bytes"
        return None

    def first_answer(self, teacher: Trial) -> Trial:
        """A student of the first teacher, rounded and no more, beside what counting gives: an
        answer for those who will not wait. It is trained as the shortest students of trials are, so
        it tells what they will take.
        """
        learner = teacher.found["learner"]
        settings = self._of_student(_STUDENTS[0], learner, "coded6")
        ids = settings["synthetic_batch_size"] * self.length / (self._rows_a_step * self.mean)
        in_time = _OF_FIRST * 60 * self.minutes / (ids * teacher.found["step_seconds"])
        steps = min(_FIRST, max(_SHORTEST, int(in_time)))
        settings |= {"inner_steps": steps, "storage": "coded6", "packing_steps": 0}

        def make() -> dict[str, Any]:
            trainer = self.trainer(learner, self._model(teacher), **settings)
            trainer.tune_initialization()
            trainer.model.store_as("coded6")
            began = time.perf_counter()
            student = trainer.students.on_summary(0)
            taken = time.perf_counter() - began
            judged = self.judged(trainer, trainer.learner, student)
            counted = f"{self.counted.method}: {self.counted_figure}"
            why = f"its teacher so far: {teacher.figure}; {counted}"
            return {
                **judged,
                "nbytes": trainer.model.nbytes,
                "training_seconds": round(taken, 3),
                "why": why,
                "found": {"first_steps": steps},
            }

        return self.trial(f"first answer: a student after {steps} steps", make)

    def teacher_stage(self, first: Trial) -> Trial:
        """The chosen teacher after all the time that it may have, unless it has learnt all there
        is; or an earlier one that is as good.
        """
        if first.found["stopped"]:
            return first
        seconds = self.seconds_of_stage("teacher")
        is_longer = seconds >= _LONGER * first.found["seconds"]
        if not self.decided("time for a longer teacher", is_longer):
            self.show(f"no time is left for a longer teacher: {seconds:.0f} s")
            return first
        self.teacher(first.found["learner"], seconds)
        teachers = [trial for trial in self.trials if "stopped" in trial.found]
        best = min(trial.error for trial in teachers)
        return next(trial for trial in teachers if trial.error <= best + _EQUAL)

    def packing_stage(self, teacher: Trial) -> Trial:
        """The teacher in the fewest bits that lose nothing beside the first that fit."""
        learner = teacher.found["learner"]
        name = f"packing {teacher.found['folder']}"
        steps, seconds = self.planned(name, learner, self.seconds_of_stage("packing"))
        steps = min(steps, teacher.found["teacher_steps"])
        until = self.spent + (1 + _LATER) * seconds  # no third one, unless none fits
        given = self.fixed.get("storage")
        ways = [way for way in _PACKINGS if given in (None, way[0])]
        if not ways:
            ways = [(given, _PACKINGS[0][1], 0.0)]
        best: Trial | None = None
        larger: float | None = None  # bytes of the last one, for each bit of a number in the table
        for storage, penalty, bits in ways:
            is_last = storage == ways[-1][0]
            if bits * teacher.found["numbers"] / 8 > _SLACK * self.most and not is_last:
                continue
            has_time = self.left >= seconds + self.seconds_after("packing")
            if best is not None:
                has_time = has_time and self.spent <= until
            has_time = self.decided(f"time for {name} in {storage}, penalty {penalty}", has_time)
            if best is not None and not has_time:
                break
            will_fit = is_last or larger is None or larger * bits <= self.most
            if not has_time and not will_fit:
                self.show(f"no time is left for {storage}, penalty {penalty}")
                continue
            settings = self._asked(storage=storage, packing_penalty=penalty, packing_steps=steps)
            trial = self.packed(teacher, settings, seconds)
            larger = trial.nbytes / bits if bits else None
            if best is not None and trial.error > best.error + _EQUAL:
                break
            if trial.nbytes <= self.most or is_last:
                best = trial
        return best

    def packed(self, teacher: Trial, settings: Mapping[str, Any], seconds: float) -> Trial:
        """One way to pack the teacher, within so many seconds of training, unless its steps are
        given; the summary is kept.
        """
        within = math.inf if "packing_steps" in self.fixed else seconds
        learner = teacher.found["learner"]
        names = ("storage", "packing_penalty", "packing_steps")
        way = "-".join(str(settings[name]) for name in names)
        folder = self.folder / f"{teacher.found['folder']}-{way}"

        def make() -> dict[str, Any]:
            trainer = self.trainer(learner, self._model(teacher), **settings)
            training = replace(
                trainer.args.make_teacher_training(),
                kept=self.kept.state(folder.name),
                within=within,
            )
            farzi = trainer.model
            _, trained = trainer.labelling.pack(farzi, trainer.real_data, trainer.args, training)
            cuts = [] if trained is None else numbers_of_cuts(trained.cuts)
            farzi.store_as(settings["storage"])
            params = {name: x.detach() for name, x in farzi.teacher.named_parameters()}
            judged = self.judged(trainer, Learner(farzi.teacher), params)
            farzi.save_pretrained(folder)
            is_too_large = farzi.nbytes > self.most
            cut = ", cut by the clock" if cuts else ""
            lost = f"error {judged['error'] - teacher.error:+.3f} by packing{cut}"
            return {
                **judged,
                "nbytes": farzi.nbytes,
                "why": f"more than {self.most:,} bytes" if is_too_large else lost,
                "found": {**settings, "packing_cuts": cuts, "folder": folder.name},
            }

        name = f"packed, {settings['storage']}, penalty {settings['packing_penalty']}"
        return self.trial(name, make, key=folder.name)

    def student_stage(self, teacher: Trial, packed: Trial) -> Trial:
        """The settings with which a student learns most of the packed teacher: the cheapest that
        comes close, or else the best that leaves time for the comparison.
        """
        learner = teacher.found["learner"]
        tried: list[Trial] = []
        left_out: list[str] = []
        for student in _STUDENTS:
            settings = self._of_student(student, learner, packed.found["storage"])
            if settings["inputs"] is None:
                settings["inputs"] = self._better_inputs(tried, packed)
            if any(trial.found == settings for trial in tried):
                continue  # the same again
            has_time = self._has_time_for(settings, tried, packed)
            question = f"time for students of {json_text(settings)}, {packed.found['folder']}"
            has_time = self.decided(question, has_time)
            if not tried and not has_time:
                return self._not_tried(settings)
            if not has_time:
                left_out.append(f"{settings['inner_steps']:,} steps of {settings['inputs']} rows")
                continue  # rows that are drawn may take less than those that are written
            tried.append(self.student(learner, packed, settings))
            if tried[-1].error <= packed.error + (_CLOSE_RANKS if self.task.ranked else _CLOSE):
                break
        if left_out:
            self.show(f"no time is left for students of {', '.join(left_out)}")
        best = min(trial.error for trial in tried)
        return next(trial for trial in tried if trial.error <= best + _EQUAL)

    def _not_tried(self, settings: dict[str, Any]) -> Trial:
        """Students of these settings, for whose trial there is no time; of fewer steps where there
        is no time to compare them either.
        """
        each, measuring = self.pace
        left = self.left - (_MEASURED - 1) * measuring - self.seconds_of_files
        in_time = int(left / (_STUDENTS_NEED - 1) / max(each, 1e-9))
        steps = min(settings["inner_steps"], max(_SHORTEST, in_time))
        steps = self.decided("steps of students that are not tried", steps)
        found = {**settings, **self._asked(inner_steps=steps)}
        self.show(
            f"no time is left for a trial of students; they have {found['inner_steps']} steps"
        )
        return Trial("student, not tried", found=found)

    def _of_student(
        self,
        student: tuple[int, int, float, str | None],
        learner: Mapping[str, Any],
        storage: str,
    ) -> dict[str, Any]:
        """The settings of a line of `_STUDENTS`, as far as they are not given."""
        steps, rows, rate, inputs = student
        return self._asked(
            inner_steps=steps,
            synthetic_batch_size=rows * self._wider,
            inner_learning_rate=_rate(rate * self._wider**0.25, learner),
            storage=storage,
            inputs=inputs,
        )

    def _better_inputs(self, tried: Sequence[Trial], packed: Trial) -> str:
        """The inputs of those of the longest students that left less to learn, times their
        seconds.
        """
        longest = [
            trial for trial in tried if trial.found["inner_steps"] == tried[-1].found["inner_steps"]
        ]
        best = min(longest, key=lambda trial: (trial.error - packed.error) * trial.training_seconds)
        return best.found["inputs"]

    def _has_time_for(
        self, settings: Mapping[str, Any], tried: Sequence[Trial], packed: Trial
    ) -> bool:
        """Whether a student of these settings can be tried, and trained again in the comparison.
        Its time is that of the last one in the proportion of its steps, and that of writing rows,
        if the last one has not written any; that of the first one is known by the first answer.
        """
        if not tried:
            return self.left >= self.seconds_of_students()
        last = tried[-1]
        seconds = settings["inner_steps"] / last.found["inner_steps"] * last.training_seconds
        if settings["inputs"] != last.found["inputs"]:
            rows = settings["inner_steps"] * settings["synthetic_batch_size"]
            seconds += rows * self.seconds_of_row(packed, settings["inputs"])
        measuring = last.seconds - last.training_seconds
        return (1 + _AGAIN) * seconds + measuring + self.seconds_of_files <= self.left

    def seconds_of_row(self, packed: Trial, inputs: str) -> float:
        """Seconds that it takes to make a row of these inputs."""

        def make() -> dict[str, Any]:
            farzi = FarziData.from_pretrained(self.folder / packed.found["folder"])
            source = farzi.with_inputs(inputs).endless(self.seed)
            began = time.perf_counter()
            made = source.block(0)
            each = (time.perf_counter() - began) / len(made)
            return {"figure": f"{1000 * each:.1f} ms", "found": {"seconds": each}}

        key = f"a row of {inputs} inputs, {packed.found['folder']}"
        return self.trial(f"a row of {inputs} inputs", make, key).found["seconds"]

    def student(
        self, learner: Mapping[str, Any], packed: Trial, settings: Mapping[str, Any]
    ) -> Trial:
        """One student of the packed teacher."""

        def make() -> dict[str, Any]:
            farzi = FarziData.from_pretrained(self.folder / packed.found["folder"])
            farzi = farzi.with_inputs(settings["inputs"])
            trainer = self.trainer(learner, farzi_data=farzi, **settings)
            began = time.perf_counter()
            student = trainer.students.on_summary(0)
            taken = time.perf_counter() - began
            judged = self.judged(trainer, trainer.learner, student)
            return {
                **judged,
                "nbytes": packed.nbytes,
                "training_seconds": round(taken, 3),
                "why": f"error {judged['error'] - packed.error:+.3f} to its teacher",
                "found": dict(settings),
            }

        steps = settings["inner_steps"]
        rows = f"{settings['synthetic_batch_size']} {settings['inputs']} rows"
        rate = settings["inner_learning_rate"]
        return self.trial(f"student, {steps} steps of {rows}, rate {rate}", make)

    def _model(self, teacher: Trial) -> PreTrainedModel:
        """The teacher of that trial."""
        return AutoModelForCausalLM.from_pretrained(
            self.folder / teacher.found["folder"], trust_remote_code=False
        )

    def _numbers(self, learner: Mapping[str, Any]) -> int:
        """How many parameters a model of this architecture has."""
        config = self.task.learner_config(learner, self.length)
        with torch.device("meta"):  # it is made without numbers
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return sum(x.numel() for x in model.parameters())


def _rate(rate: float, learner: Mapping[str, Any]) -> float:
    """A rate at a width of 16 for this learner: wider models need smaller ones. The root is what
    served from 16 to 64.
    """
    return _rounded(rate * math.sqrt(16 / width_of(learner)))


def _rounded(value: float) -> float:
    """Two digits, which are easier to read."""
    return float(f"{value:.2g}")
