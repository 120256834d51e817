"""The trials of a search: a teacher, a teacher in few bits, a student. Each is made once and kept
on the disk with its result. `suggestion.Search` says which are made, and takes one.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, PreTrainedModel

from farzi_hf.common.text import json_text
from farzi_hf.distillation import FarziConfig, FarziTrainer, Learner
from farzi_hf.distillation.learner import Parameters
from farzi_hf.distillation.nested_dropout import widths_of
from farzi_hf.distillation.rows import validation_loss
from farzi_hf.distillation.teacher import TeacherTraining, Trained
from farzi_hf.distillation.training_progress import numbers_of_cuts, seconds_of
from farzi_hf.engine.devices import portions
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.rows import TriedStudent
from farzi_hf.report.trial_folder import TrialFolder
from farzi_hf.report.trials import Trial, width_of, words_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import DrawnInputs, TeacherLabels
from farzi_hf.tasks import Task

PACKINGS = (
    ("coded6", 0.05, 5.5),
    ("coded5", 0.15, 4.4),
    ("coded5", 0.3, 4.2),
    ("coded4", 0.6, 2.8),
    ("coded3", 0.6, 2.7),
    ("coded2", 0.6, 1.5),
)
"""Ways to store a teacher, with the penalty on its numbers, and the bits that a number then took
where it was measured: largest first.
"""
_DIVERGED = 1e9
"""The error of a model whose loss is not finite."""
_TIMED = 10
"""Steps of which the time is taken."""
_FIRST = 100
"""Steps of the student of the first answer."""
_OF_FIRST = 0.05
"""Of the time, for that student. Where that is less than its steps take, it has fewer."""
SHORTEST = 10
"""Steps of a student in any case."""
_VALIDATION = 1 / 6
"""Of the time of a teacher's steps, that it takes to evaluate it meanwhile."""
_FILES = 25.0
"""Seconds of a processor, for the summary's files, card and figures (recipes/LOG.md)."""
_OF_FILES = 0.15
"""Of the time, for the same at most: what is learnt in a minute is small."""
_FEWEST_FILES = 5.0
"""Seconds of a processor for the same, of the smallest summary."""
_FILES_OF_MEASURING = 18.0
"""Times the seconds of measuring a student that the same takes beside these: it goes through rows
of all parts with the teacher (recipes/LOG.md).
"""
_KNOWN = 5.0
"""Seconds of a processor after which one knows how others share it."""
_MORE_STEPS = 1.25
"""Times the steps that fit into the seconds of a teacher, that are planned."""
_FEWEST = 100
"""Steps of a teacher, however little time there is."""
_FEW_STEPS = 2500
"""Planned steps up to which a teacher is better with n-grams beside the next token."""
_MANY_READS = 5
"""Of each row, from which on it is, too; and from which on a teacher needs dropout."""
_MOST = 20_000
_EPOCHS = 10
"""Steps of a teacher: at most 20,000, or ten times all rows, whichever is more."""


@dataclass
class SearchTrials:
    """Makes the trials of one data set, and measures them on its validation part."""

    splits: DatasetDict
    """Train and validation. Models train on the first, and stop early by the second."""
    validation: Dataset
    """The rows of the validation part on which trials are measured."""
    task: Task
    """Of the data."""
    length: int
    """ξ: ids of a row of the summary."""
    mean: float
    """Ids of a row of the data, where none has more than ξ."""
    wider: int
    """How many times the rows of a CPU's step a step takes."""
    most: int
    """Bytes of the summary."""
    minutes: float
    """Of the search."""
    began: float
    """`time.perf_counter()` when the minutes began."""
    seed: int
    """Of all trials."""
    fixed: Mapping[str, Any]
    """Settings of a `FarziConfig` that trials do not change."""
    kept: TrialFolder
    """What is on the disk."""
    show: Callable[[str], None]
    """Is called with each line for the reader."""
    made: list[Trial] = field(default_factory=list)
    """In their order, those of earlier starts too."""
    slower: float = 1.0
    """How many times as long a step takes now as when the first answer was made; `SearchThreads`
    measures it.
    """
    watch: Callable[[], Callable[[float], None]] | None = None
    """Makes what is called with the seconds of each step of one training of a teacher; none where
    the number of threads is no choice.
    """
    students: dict[str, TriedStudent] = field(init=False, default_factory=dict)
    """Those of this start's trials, by the names of the trials."""

    def __post_init__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    @property
    def folder(self) -> Path:
        """Where models are kept."""
        return self.kept.path

    def trial(
        self,
        name: str,
        make: Callable[[], Mapping[str, Any]],
        key: str = "",
        quiet: bool = False,
    ) -> Trial:
        """The trial of that name: `make()`, or what an earlier start has kept of it under `key`, by
        default the name. A line says what it has found, unless it is quiet.
        """
        trial = self.kept.trial(name, make, key or name)
        if trial in self.made:  # two stages have asked for it
            return trial
        self.made.append(trial)
        if quiet:
            return trial
        said = "; ".join(part for part in (trial.figure, trial.why) if part)
        gone = self.spent / 60
        self.show(f"[{gone:4.1f} min, {self.left / 60:4.1f} left] {name}: {said}")
        return trial

    # -- time --------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Seconds of all trials, of earlier starts too, and of what is between them."""
        between = time.perf_counter() - self.began - self.kept.seconds_of_trials
        return sum(trial.seconds for trial in self.made) + between

    @property
    def left(self) -> float:
        """Seconds until the verdict is due."""
        return max(0.0, 60 * self.minutes - self.spent)

    @property
    def first_student(self) -> Trial | None:
        """The trial of the first answer; None before there is one."""
        return next((trial for trial in self.made if "first_steps" in trial.found), None)

    @property
    def pace(self) -> tuple[float, float]:
        """Seconds of a step of a student, and of measuring it, by the first answer and by how much
        slower the machine has become; 0 before there is one.
        """
        first = self.first_student
        if first is None:
            return 0.0, 0.0
        each = first.training_seconds / first.found["first_steps"]
        measuring = first.seconds - first.training_seconds
        return self.slower * each, self.slower * measuring

    @property
    def seconds_of_files(self) -> float:
        """The seconds of files, card and figures, if others share the processor as they have shared
        it since the search began. The first answer tells how much there is to go through.
        """
        seconds = time.perf_counter() - self._began[0]
        processor = time.process_time() - self._began[1]
        slower = max(1.0, seconds / processor) if processor > _KNOWN else 1.0
        most = slower * min(_FILES, _OF_FILES * 60 * self.minutes)
        _, measuring = self.pace
        if not measuring:
            return most
        return min(most, slower * _FEWEST_FILES + _FILES_OF_MEASURING * measuring)

    def decided(self, question: str, answer: Any) -> Any:
        """The answer, which the clock has given; or that of an earlier start, however late the
        search is now.
        """
        trial = self.kept.trial(question, lambda: {"found": {"answer": answer}}, question)
        return trial.found["answer"]

    def planned(
        self, training: str, learner: Mapping[str, Any], seconds: float
    ) -> tuple[int, float]:
        """The steps of a training of this teacher, and the seconds in which it has to end.

        Args:
            training: its name.
            learner: the architecture.
            seconds: that it has at this start.
        """
        steps = self.steps_in(learner, seconds)
        steps, seconds = self.decided(f"steps and seconds of {training}", [steps, seconds])
        return steps, seconds

    def step_seconds(self, learner: Mapping[str, Any], steps: int | None = None) -> float:
        """Seconds of a step of a teacher, from so many steps that are timed; by default a few."""
        steps = steps or _TIMED
        share = self.counted_share(steps)
        trainer = self.trainer(learner, teacher_steps=steps, teacher_counted_share=share)
        training = trainer.args.make_teacher_training()
        return training.step_seconds(trainer.learner, trainer.real_data, self.seed)

    def steps_in(self, learner: Mapping[str, Any], seconds: float) -> int:
        """As many steps of a teacher as fit into these seconds at the fastest pace that was seen,
        of a teacher of this kind or of a few steps that are timed, and a quarter more: a training
        is cut by the clock, but it takes no more steps than are planned.
        """

        def make() -> dict[str, Any]:
            each = self.step_seconds(learner)
            return {"figure": f"{1000 * each:.0f} ms a training step", "found": {"seconds": each}}

        paces = [
            trial.found["step_seconds"]
            for trial in self.made
            if "step_seconds" in trial.found and trial.found["learner"] == dict(learner)
        ]
        timed = self.trial(f"speed of {words_of(learner)}", make).found["seconds"]
        each = min([*paces, (1 + _VALIDATION) * timed]) / _MORE_STEPS
        most = max(_MOST, _EPOCHS * len(self.splits["train"]) / self._rows_a_step)
        return int(rounded(max(_FEWEST, min(most, seconds / each))))

    # -- settings and figures of a trial -----------------------------------------------------------

    def config(self, learner: Mapping[str, Any], output_dir: str, **changes: Any) -> FarziConfig:
        """The settings of a trial, or of the choice. What a trial changes it has asked `asked`
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
            "teacher_learning_rate": rate_for(learner, {"soap": 0.015}.get(optimizer, 0.01)),
            "seed": self.seed,
            "teacher_batch_size": self._rows_a_step,
            "report_to": "none",
            "eval_students": 1,
            "disable_tqdm": not sys.stderr.isatty(),
        }
        settings = {**settings, **self.fixed, **changes}
        # Of the architectures that are tried, some may be no wider than a student that is asked for.
        name = "teacher_nested_widths"
        widths = widths_of(name, settings.get(name, ()))
        narrower = [width for width in widths if width < width_of(learner)]
        return FarziConfig(output_dir, **{**settings, name: narrower})

    def asked(self, **settings: Any) -> dict[str, Any]:
        """These settings, with the fixed ones in place."""
        return {name: self.fixed.get(name, value) for name, value in settings.items()}

    def counted_share(self, steps: int) -> float:
        """α, the share of a teacher's labels that n-grams predict, for a training of so many steps:
        the one that is given; or that of the task where steps are few, so that what counts know is
        learnt sooner, and where rows are read so often that they would be learnt by heart; else 0,
        because a teacher comes as close to n-grams as α asks (recipes/LOG.md). 0 on a GPU, too,
        whose many rows a step would wait for the processor that counts, and for data that take long
        to count.
        """
        if "teacher_counted_share" in self.fixed:
            return self.fixed["teacher_counted_share"]
        is_worth_it = self.wider == 1 and (steps <= _FEW_STEPS or self.reads_often(steps))
        ids = len(self.splits["train"]) * self.mean
        return self.task.share_of_counts(ids) if is_worth_it else 0.0

    def reads_often(self, steps: float) -> bool:
        """Whether a teacher of so many steps reads each row so often that it would be learnt by
        heart.
        """
        return steps * self._rows_a_step >= _MANY_READS * len(self.splits["train"])

    @property
    def _rows_a_step(self) -> int:
        """Real rows in a step of a teacher: about 800 ids on a CPU, and no more than a thirtieth of
        all rows.
        """
        rows = self.wider * int(np.clip(800 / self.mean, 16, 128))
        return max(8, min(rows, len(self.splits["train"]) // 30))

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

    # -- kinds of trials ---------------------------------------------------------------------------

    def teacher(self, learner: Mapping[str, Any], seconds: float) -> Trial:
        """A teacher that trains for so long, or until the validation part says stop; it is kept.
        Steps that are given are all taken.
        """
        which = hashlib.sha256(json_text(dict(learner)).encode()).hexdigest()[:8]
        name = f"teacher-{learner['model_type']}-{which}"
        earlier = [trial for trial in self.made if trial.found.get("learner") == dict(learner)]
        steps = self.fixed.get("teacher_steps")
        within = math.inf
        if not steps:
            steps, within = self.planned(f"{name}, {len(earlier)}", learner, seconds)
        share = self.counted_share(steps)
        # One of as many steps that was cut is not this one, which has more time.
        cut = [trial for trial in earlier if trial.found.get("teacher_cuts")]
        again = any(trial.found["teacher_steps"] == steps for trial in cut)
        folder = self.folder / (f"{name}-{steps}-{len(earlier)}" if again else f"{name}-{steps}")

        def make() -> dict[str, Any]:
            began = time.perf_counter()
            trainer = self.trainer(learner, teacher_steps=steps, teacher_counted_share=share)
            state = self.kept.state(folder.name)
            training = self._in_time(trainer, state, within)
            [teacher] = trainer.labelling.teachers(trainer.real_data, training, self.seed)
            config = self.task.learner_config(learner, self.length)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            # Buffers and tied heads are not among the parameters.
            model.load_state_dict(teacher.params, strict=False)
            model.save_pretrained(folder)
            trained = teacher.trained
            taken = max(seconds_of(state), time.perf_counter() - began)
            has_stopped = not trained.still_learning or trained.steps < 0.9 * trained.end
            is_short = has_stopped and trained.steps < trained.end
            stopped = ", and not better later" if is_short else ""
            cut = f", cut from {steps:,} by the clock" if _is_cut(trained, steps) else ""
            beside = ", n-grams beside the next token" if share else ""
            numbers = sum(x.numel() for x in teacher.params.values())
            return {
                **self.judged(trainer, teacher.learner, teacher.params),
                "nbytes": int(PACKINGS[0][2] * numbers / 8),
                "why": f"best after {trained.steps:,} steps{stopped}{cut}{beside}",
                "found": {
                    "learner": dict(learner),
                    "teacher_steps": steps,
                    "teacher_counted_share": share,
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

    def _in_time(self, trainer: FarziTrainer, state: Path, within: float) -> TeacherTraining:
        """The training of a teacher, or of its packing, that keeps its state in this file, and ends
        within so many seconds.
        """
        return replace(
            trainer.args.make_teacher_training(),
            kept=state,
            within=within,
            on_step=None if self.watch is None else self.watch(),
        )

    def model_of(self, teacher: Trial) -> PreTrainedModel:
        """The teacher of that trial."""
        return AutoModelForCausalLM.from_pretrained(
            self.folder / teacher.found["folder"], trust_remote_code=False
        )

    def first_answer(
        self, teacher: Trial, settings: Mapping[str, Any], counted: Callable[[], str]
    ) -> Trial:
        """A student of the first teacher, rounded and no more, beside what counting gives: an
        answer for those who will not wait. It tells what the students of trials will take.

        Args:
            teacher: the trial of it.
            settings: of the shortest students of trials.
            counted: what counting gives, in words. It is called where the trial is not kept.
        """
        ids = settings["synthetic_batch_size"] * self.length / (self._rows_a_step * self.mean)
        in_time = _OF_FIRST * 60 * self.minutes / (ids * teacher.found["step_seconds"])
        shortest = settings["inner_steps"]
        steps = min(_FIRST, shortest, max(SHORTEST, int(in_time)))
        own = {**settings, "inner_steps": steps, "storage": "coded6", "packing_steps": 0}

        def make() -> dict[str, Any]:
            trainer = self.trainer(teacher.found["learner"], self.model_of(teacher), **own)
            trainer.tune_initialization()
            trainer.model.store_as("coded6")
            began = time.perf_counter()
            student = trainer.students.on_summary(0)
            taken = time.perf_counter() - began
            return {
                **self.judged(trainer, trainer.learner, student),
                "nbytes": trainer.model.nbytes,
                "training_seconds": round(taken, 3),
                "why": f"its teacher so far: {teacher.figure}; {counted()}",
                "found": {"first_steps": steps, "shortest": shortest},
            }

        return self.trial(f"first answer: a student after {steps} steps", make)

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
            share = teacher.found["teacher_counted_share"]
            given = {**settings, "teacher_counted_share": share}
            trainer = self.trainer(learner, self.model_of(teacher), **given)
            training = self._in_time(trainer, self.kept.state(folder.name), within)
            farzi = trainer.model
            _, trained = trainer.labelling.pack(farzi, trainer.real_data, trainer.args, training)
            cuts = [] if trained is None else numbers_of_cuts(trained.cuts)
            farzi.store_as(settings["storage"])
            params = {name: x.detach() for name, x in farzi.teacher.named_parameters()}
            judged = self.judged(trainer, Learner(farzi.teacher), params)
            farzi.save_pretrained(folder)
            is_too_large = farzi.nbytes > self.most
            is_cut = trained is not None and _is_cut(trained, settings["packing_steps"])
            cut = ", cut by the clock" if is_cut else ""
            lost = f"{self._apart(judged['error'] - teacher.error)} than before packing{cut}"
            return {
                **judged,
                "nbytes": farzi.nbytes,
                "why": f"too large, more than {self.most:,} bytes" if is_too_large else lost,
                "found": {
                    **settings,
                    "packing_cuts": cuts,
                    "is_cut": is_cut,
                    "folder": folder.name,
                },
            }

        penalty = settings["packing_penalty"]
        name = f"packed teacher, {settings['storage']} with packing_penalty {penalty}"
        return self.trial(name, make, key=folder.name)

    def student(
        self, learner: Mapping[str, Any], packed: Trial, settings: Mapping[str, Any]
    ) -> Trial:
        """One student of the packed teacher."""
        steps = settings["inner_steps"]
        rows = f"{settings['synthetic_batch_size']} {settings['inputs']} rows"
        rate = settings["inner_learning_rate"]
        name = f"student, {steps:,} steps of {rows}, learning rate {rate}"

        def make() -> dict[str, Any]:
            farzi = FarziData.from_pretrained(self.folder / packed.found["folder"])
            farzi = farzi.with_inputs(settings["inputs"])
            trainer = self.trainer(learner, farzi_data=farzi, **settings)
            began = time.perf_counter()
            student = trainer.students.on_summary(0)
            taken = time.perf_counter() - began
            self.students[name] = TriedStudent(student, round(taken, 2))
            judged = self.judged(trainer, trainer.learner, student)
            return {
                **judged,
                "nbytes": packed.nbytes,
                "training_seconds": round(taken, 3),
                "why": f"{self._apart(judged['error'] - packed.error)} than the packed teacher",
                "found": dict(settings),
            }

        return self.trial(name, make, key=f"student, {steps} steps of {rows}, learning rate {rate}")

    def _apart(self, difference: float) -> str:
        """How much one loss is above another, in words."""
        direction = "better" if difference < 0 else "worse"
        return f"{direction} by {abs(difference):.3f} {self.task.unit_of_loss}"

    def seconds_of_row(self, packed: Trial, inputs: str) -> float:
        """Seconds that it takes to make a row of these inputs. Trials count with it; no line says
        it.
        """

        def make() -> dict[str, Any]:
            farzi = FarziData.from_pretrained(self.folder / packed.found["folder"])
            source = farzi.with_inputs(inputs).endless(self.seed)
            began = time.perf_counter()
            made = source.block(0)
            each = (time.perf_counter() - began) / len(made)
            return {"figure": f"{1000 * each:.1f} ms", "found": {"seconds": each}}

        key = f"a row of {inputs} inputs, {packed.found['folder']}"
        return self.trial(f"a row of {inputs} inputs", make, key, quiet=True).found["seconds"]


def _is_cut(trained: Trained, steps: int) -> bool:
    """Whether a training of so many planned steps had clearly less time than was planned."""
    return bool(trained.cuts) and trained.end < 0.9 * steps / _MORE_STEPS


def without_values(task: Task, learner: Mapping[str, Any], length: int) -> PreTrainedModel:
    """A model of this architecture whose parameters have no values, on the meta device."""
    config = task.learner_config(learner, length)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def numbers_of(task: Task, learner: Mapping[str, Any], length: int) -> int:
    """How many parameters a model of this architecture has."""
    return sum(x.numel() for x in without_values(task, learner, length).parameters())


def times_the_rows(fixed: Mapping[str, Any]) -> int:
    """How many times the rows of a CPU's step a step takes on the device of these settings."""
    device = FarziConfig("trial", use_cpu=fixed.get("use_cpu", False)).device
    return portions(torch.empty(0, device=device)).rows


def rate_for(learner: Mapping[str, Any], rate: float) -> float:
    """The rate of this learner, of a rate at a width of 16: wider models need smaller ones. The
    root is what served from 16 to 64.
    """
    return rounded(rate * math.sqrt(16 / width_of(learner)))


def rounded(value: float) -> float:
    """Two digits, which are easier to read."""
    return float(f"{value:.2g}")
