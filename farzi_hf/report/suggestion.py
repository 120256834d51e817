"""The automatic choice of a distillation: short trials on the validation part, cheapest first,
within bytes and minutes.

1. **Learners.** Each architecture of `Task.learners` trains for some seconds on the real data.
2. **The teacher.** The best of them trains on, until the validation part says stop or its share of
   the time is over.
3. **Packing.** The teacher trains on in few bits: in so few that it fits, and in fewer as long as
   it loses nothing.
4. **Students** train on the packed teacher, with some lengths, rates and numbers of rows.

One choice has no trial, because each set that was measured gave the same answer (recipes/LOG.md):
the summary carries its teacher, and makes the ids that students read. Fixed rows with labels of
their own need a table of the vocabulary too, and students learn them by heart.

Every trial is kept on the disk with its result, and with the checksums of the model that it has
made. A search that is started again takes what is there and goes on; a trial whose model is gone or
damaged is made again.
"""

import hashlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, PreTrainedModel

from farzi_hf.common.files import checksums, differences, exclusive, load_record, save_record
from farzi_hf.common.text import as_written, json_text, numbers_of
from farzi_hf.data import flatten_sequences, random_sequences
from farzi_hf.data.coding import stored_bytes
from farzi_hf.data.streams import described
from farzi_hf.distillation import FarziConfig, FarziTrainer, Learner
from farzi_hf.distillation.learner import Parameters
from farzi_hf.distillation.rows import validation_loss
from farzi_hf.distillation.teacher import seconds_of
from farzi_hf.engine.devices import portions
from farzi_hf.report.comparison import Comparison, with_ids
from farzi_hf.report.trials import Suggestion, Trial, width_of, words_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import LABELS, DrawnInputs, TeacherLabels
from farzi_hf.tasks import Task

KEPT = "trials.json"
_SHARES = {"learners": 0.22, "teacher": 0.25, "packing": 0.08, "students": 0.15}
_ALONE = {"learners": 0.05, "teacher": 0.42}
"""Of the time, for packing each of two times; where there is one learner, its first teacher needs
to be good enough for a first answer only. The rest is for the comparison that follows.
"""
_EQUAL = 0.01
"""Of the error, which is nats a token, or the mean ln r of ranks: of trials that differ by less,
the first is taken, which is the cheapest.
"""
# of teachers that still learn, the widest one that is not worse by more: most of its training is to
# come
_BEHIND = 0.1
_CLOSE, _CLOSE_RANKS = (
    0.03,
    0.05,
)  # of students, the first that is as near to its teacher (ranks: for 1 % of HR@100)
_DIVERGED = 1e9
_IDS = 100_000  # of the validation part; more would tell little more, and take long
_TIMED = 10  # steps
_FIRST = 100  # steps of the student of the first answer
_FEWEST, _MOST, _EPOCHS = (
    100,
    20_000,
    10,
)  # steps of a teacher: 20,000 or ten times all rows at most, whichever is more
_STUDENTS = (
    (200, 10, 0.02, "drawn"),
    (600, 10, 0.02, "drawn"),
    (600, 10, 0.02, "written"),
    (2000, 10, 0.015, None),
    (5000, 10, 0.015, None),
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
        minutes: for all trials; by default 10, or 30 for a vocabulary of more than 5,000 entries.
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
        place = Path(folder or scratch)
        found = Search(
            dataset, task, place, output_dir, seed, bytes, minutes, learner, show=show
        ).run()
    found.config.learner, found.config.leaderboard = found.learner, found.trials
    return found.config


@dataclass
class Search:
    """The trials of one data set. Each method is a stage, or a part of a trial. For arguments see
    `suggest`.

    Args:
        splits: train and validation.
        folder: where trials are kept.
        most: bytes of the summary.
        fixed: settings of a `FarziConfig` that trials do not change.
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
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, value in (("bytes", self.most), ("minutes", self.minutes)):
            if value is not None and not value > 0:
                raise ValueError(
                    f"{name}={value} leaves no room: give a positive number, or leave it out"
                )
        if missing := {"train", "validation"} - {
            name for name, rows in self.splits.items() if len(rows)
        }:
            raise ValueError(
                f"dataset has splits {list(self.splits)}: {', '.join(sorted(missing))} is missing,"
                " or has no row"
            )
        if not LABELS[self.fixed.get("labels", TeacherLabels.name)].carries_teacher:
            raise ValueError(
                f"labels={self.fixed['labels']!r}: trials choose summaries that carry a teacher;"
                " leave labels out"
            )
        self.learners = (
            [dict(self.learner)] if self.learner is not None else list(self.task.learners)
        )
        lengths = flatten_sequences(self.splits["train"])[1]
        self.vocab_size = self.task.learner_config(self.learners[0], 8).vocab_size
        # Of items, for nineteen users of twenty. Text is tested at all positions, so students read
        # all but those of two ids in a thousand.
        share, most = (
            (0.05, 100) if self.task.ranked else (0.002 * lengths.mean(), int(lengths.max()))
        )
        long_enough = (
            n
            for n in range(10, most, 10)
            if np.clip(lengths - n, 0, 1 if self.task.ranked else None).mean() <= share
        )
        self.length = self.fixed.get("sequence_length", next(long_enough, max(10, most)))
        self.mean = float(min(lengths.mean(), self.length))
        self.most = int(self.most or stored_bytes(self.splits["train"], self.vocab_size).least)
        self.minutes = self.minutes or (10.0 if self.vocab_size <= 5000 else 30.0)
        self.shares = _SHARES if len(self.learners) > 1 else {**_SHARES, **_ALONE}
        some, held_out = max(20, int(_IDS / self.mean)), self.splits["validation"]
        self.validation = (
            random_sequences(held_out, some, self.seed) if len(held_out) > some else held_out
        )

    def run(self) -> Suggestion:
        """All stages. No other search writes to the folder meanwhile."""
        with exclusive(self.folder):
            return self._stages()

    def _stages(self) -> Suggestion:
        teacher = self.teacher_stage(self.learner_stage())
        packed = self.packing_stage(teacher)
        student = self.student_stage(teacher, packed)
        learner, names = teacher.found["learner"], ("storage", "packing_penalty", "packing_steps")
        of_packing = {name: packed.found[name] for name in names}
        chosen = {"teacher_steps": teacher.found["teacher_steps"], **of_packing, **student.found}
        config = self.config(learner, self.output_dir, **chosen)
        packed_summary = FarziData.from_pretrained(self.folder / packed.found["folder"])
        summary = packed_summary.with_inputs(config.inputs)
        summary.config.inner = config.inner_settings()
        model = self._model(teacher)
        return Suggestion(config, learner, self.trials, summary, (model, teacher), packed)

    # -- what is kept ------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """On what the trials depend: the data and what was asked for."""
        data = {
            name: described(rows)["fingerprint"]
            for name, rows in self.splits.items()
            if name != "test"
        }
        asked = {"bytes": self.most, "minutes": self.minutes, "learners": self.learners}
        asked |= {
            "seed": self.seed,
            "fixed": {name: repr(value) for name, value in self.fixed.items()},
        }
        return as_written({"data": data, **asked})

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """Trials of an earlier start, by their keys."""
        path = self.folder / KEPT
        if not path.exists():
            return {}
        try:
            found = load_record(path)
            return numbers_of(found["trials"]) if found["settings"] == self.settings else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{str(path)!r} cannot be used ({error}): choose another folder, or move this one"
                " away"
            ) from None

    def trial(self, name: str, make: Callable[[], Mapping[str, Any]], key: str = "") -> Trial:
        """The trial of that name: `make()`, or what an earlier start has kept of it under `key`, by
        default the name. If the trial leaves a folder, the key is its name.
        """
        key = key or name
        if key in self._kept and not self._is_whole(key):
            del self._kept[key]
        if key not in self._kept:
            started, state = time.perf_counter(), self._state(key)
            values = make()
            seconds = max(
                time.perf_counter() - started, seconds_of(state)
            )  # a training may have gone on
            folder = self.folder / key
            files = checksums(folder) if folder.is_dir() else {}
            self._kept[key] = as_written(
                {**values, "name": name, "seconds": round(seconds, 2), "files": files}
            )
            save_record(self.folder / KEPT, {"settings": self.settings, "trials": self._kept})
            state.unlink(missing_ok=True)
        found = Trial(**numbers_of(self._kept[key]))
        if found in self.trials:  # two stages have asked for it
            return found
        self.trials.append(found)
        left = max(0.0, self.minutes - self.spent / 60)
        said = "; ".join(filter(None, [found.figure, found.why]))
        self.show(f"[{self.spent / 60:4.1f} min, {left:4.1f} left] {name}: {said}")
        return found

    def _is_whole(self, key: str) -> bool:
        """Whether the folder that a kept trial has left is as it was written. What is left of
        another one is removed. Raises ValueError if it holds files of others.
        """
        trial, folder = self._kept[key], self.folder / key
        if "folder" not in trial.get("found", {}):
            return True
        expected = trial.get("files")  # older versions have written none
        differ = differences(folder, expected) if expected else ""
        if folder.is_dir() and not differ:
            return True
        if not folder.exists():
            self.show(f"{folder} is gone: this trial is made again")
            return False
        if not expected or differ.added:
            raise ValueError(
                f"{str(folder)!r} is not as this search has left it ({differ}): move it away, and"
                " this trial is made again"
            )
        self.show(f"{folder} is damaged ({differ}): this trial is made again")
        shutil.rmtree(folder)
        return False

    def _state(self, key: str) -> Path:
        """Where the training of a trial keeps its state. Other settings have another file."""
        which = hashlib.sha256(json_text(self.settings).encode()).hexdigest()[:8]
        return self.folder / f"{key}.{which}.safetensors"

    @property
    def spent(self) -> float:
        """Seconds of all trials, of earlier starts too."""
        return sum(trial.seconds for trial in self.trials)

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
        rows = self.task.evaluation_rows(self.validation, self.length)
        error = validation_loss(learner, replace(trainer.real_data, held_out=rows), len(rows))(
            params
        )
        figure = self.task.headline(
            self.task.metrics(c.statistics(partial(learner.logits, params), self.validation))
        )
        return {"error": error if math.isfinite(error) else _DIVERGED, "figure": figure}

    # -- stages ------------------------------------------------------------------------------------

    def steps_in(self, learner: Mapping[str, Any], seconds: float) -> int:
        """As many steps of a teacher as fit into these seconds, from a few steps that are timed."""

        def make() -> dict[str, Any]:
            trainer, taken = self.trainer(learner, teacher_steps=_TIMED), []
            for _ in range(2):  # the first ones warm up
                started = time.perf_counter()
                training = trainer.args.make_teacher_training()
                data = replace(trainer.real_data, held_out=None, quiet=True)
                training.train(trainer.learner, data, self.seed)
                taken.append((time.perf_counter() - started) / _TIMED)
            return {"figure": f"{1000 * min(taken):.0f} ms", "found": {"seconds": min(taken)}}

        each = self.trial(f"a step of the teacher, {words_of(learner)}", make).found["seconds"]
        most = max(_MOST, _EPOCHS * len(self.splits["train"]) / self._rows_a_step)
        return int(_rounded(max(_FEWEST, min(most, seconds / each))))

    def teacher(self, learner: Mapping[str, Any], seconds: float) -> Trial:
        """A teacher that trains for so long, or until the validation part says stop; it is kept."""
        steps = self.fixed.get("teacher_steps") or self.steps_in(learner, seconds)
        which = hashlib.sha256(json_text(dict(learner)).encode()).hexdigest()[:8]
        folder = self.folder / f"teacher-{learner['model_type']}-{which}-{steps}"

        def make() -> dict[str, Any]:
            trainer, state = self.trainer(learner, teacher_steps=steps), self._state(folder.name)
            training = replace(trainer.args.make_teacher_training(), kept=state)
            [found] = trainer.labelling.teachers(trainer.real_data, training, self.seed)
            config = self.task.learner_config(learner, self.length)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            model.load_state_dict(
                found.params, strict=False
            )  # buffers and tied heads are not among the parameters
            model.save_pretrained(folder)
            taken = found.trained.steps
            why = f"best after {taken:,} steps" + (
                ", and not better later" if taken < steps else ""
            )
            numbers = sum(x.numel() for x in found.params.values())
            facts = {
                "learner": dict(learner),
                "teacher_steps": steps,
                "steps": taken,
                "seconds": round(seconds_of(state), 2),
            }
            facts |= {"stopped": taken < 0.9 * steps, "numbers": numbers, "folder": folder.name}
            judged = self.judged(trainer, found.learner, found.params)
            return {
                **judged,
                "nbytes": int(_PACKINGS[0][2] * numbers / 8),
                "why": why,
                "found": facts,
            }

        return self.trial(f"teacher, {words_of(learner)}", make, key=folder.name)

    def learner_stage(self) -> Trial:
        """The teacher of the architecture that is best after as many seconds as each
        of them has.
        """
        seconds, tried = 60 * self.minutes * self.shares["learners"] / len(self.learners), []
        for learner in self.learners:
            numbers = sum(x.numel() for x in self._untrained(learner).parameters())
            kind = [
                trial
                for trial in tried
                if trial.found["learner"]["model_type"] == learner["model_type"]
            ]
            behind = [trial.error - min(trial.error for trial in tried) for trial in kind]
            if kind and behind[-1] > _BEHIND and numbers > kind[-1].found["numbers"]:
                self.show(
                    f"{words_of(learner)} is left out: a smaller one has too few steps in this time"
                    " already"
                )
                continue
            if kind and min(behind) > _EQUAL:
                self.show(
                    f"{words_of(learner)} is left out: another kind of model is ahead of smaller"
                    " ones"
                )
                continue
            if tried and _SMALLEST * numbers / 8 > self.most:
                self.show(
                    f"{words_of(learner)} is left out: its {numbers:,} numbers exceed {self.most:,}"
                    " bytes"
                )
                continue
            tried.append(self.teacher(learner, seconds))
            if len(tried) == 1:
                self.first_answer(tried[0])
        best = min(trial.error for trial in tried)
        # What still learns is the better for being wide; of what has learnt all there is, the
        # smallest is enough.
        going_on = [
            trial for trial in tried if trial.error <= best + _BEHIND and not trial.found["stopped"]
        ]
        return (
            going_on[-1]
            if going_on
            else next(trial for trial in tried if trial.error <= best + _EQUAL)
        )

    def first_answer(self, teacher: Trial) -> Trial:
        """A student of the first teacher, rounded and no more, beside what counting gives: an
        answer for those who will not wait.
        """

        def make() -> dict[str, Any]:
            model = self._model(teacher)
            settings = {"storage": "coded6", "packing_steps": 0, "inner_steps": _FIRST}
            trainer = self.trainer(teacher.found["learner"], model, **settings)
            trainer.tune_initialization()
            trainer.model.store_as("coded6")
            counted = self.task.counted(
                self.splits["train"], self.validation, self.validation, self.vocab_size
            )
            name, best = min(counted.items(), key=lambda pair: self.task.error(pair[1]))
            by_counting = self.task.headline(self.task.metrics(best))
            why = f"its teacher so far: {teacher.figure}; {name}: {by_counting}"
            judged = self.judged(trainer, trainer.learner, trainer.students.on_summary(0))
            return {**judged, "nbytes": trainer.model.nbytes, "why": why}

        return self.trial(f"first answer: a student after {_FIRST} steps", make)

    def teacher_stage(self, found: Trial) -> Trial:
        """The chosen teacher after all the time that it may have, unless it has learnt all there
        is; or an earlier one that is as good.
        """
        if found.found["stopped"]:
            return found
        self.teacher(found.found["learner"], 60 * self.minutes * self.shares["teacher"])
        teachers = [trial for trial in self.trials if "stopped" in trial.found]
        best = min(trial.error for trial in teachers)
        return next(trial for trial in teachers if trial.error <= best + _EQUAL)

    def packing_stage(self, teacher: Trial) -> Trial:
        """The teacher in the fewest bits that lose nothing beside the first that fit."""
        learner, seconds = teacher.found["learner"], 60 * self.minutes * _SHARES["packing"]
        steps = min(self.steps_in(learner, seconds), teacher.found["teacher_steps"])
        until, best = self.spent + 1.5 * seconds, None  # no third one, unless none fits
        given = self.fixed.get("storage")
        ways = [way for way in _PACKINGS if given in (None, way[0])] or [
            (given, _PACKINGS[0][1], 0.0)
        ]
        for storage, penalty, bits in ways:
            last = storage == ways[-1][0]
            if bits * teacher.found["numbers"] / 8 > _SLACK * self.most and not last:
                continue
            if best is not None and self.spent > until:
                break
            found = self.packed(
                teacher, self._asked(storage=storage, packing_penalty=penalty, packing_steps=steps)
            )
            if best is not None and found.error > best.error + _EQUAL:
                break
            if found.nbytes <= self.most or last:
                best = found
        return best

    def packed(self, teacher: Trial, settings: Mapping[str, Any]) -> Trial:
        """One way to pack the teacher; the summary is kept."""
        learner = teacher.found["learner"]
        way = "-".join(
            str(settings[name]) for name in ("storage", "packing_penalty", "packing_steps")
        )
        folder = self.folder / f"{teacher.found['folder']}-{way}"

        def make() -> dict[str, Any]:
            model = self._model(teacher)
            trainer = self.trainer(learner, model, **settings)
            trainer.labelling = replace(trainer.labelling, kept=self._state(folder.name))
            trainer.tune_initialization()
            farzi = trainer.model
            farzi.store_as(settings["storage"])
            params = {name: x.detach() for name, x in farzi.teacher.named_parameters()}
            judged = self.judged(trainer, Learner(farzi.teacher), params)
            farzi.save_pretrained(folder)
            too_large = farzi.nbytes > self.most
            lost = f"error {judged['error'] - teacher.error:+.3f} by packing"
            why = f"more than {self.most:,} bytes" if too_large else lost
            return {
                **judged,
                "nbytes": farzi.nbytes,
                "why": why,
                "found": {**settings, "folder": folder.name},
            }

        name = f"packed, {settings['storage']}, penalty {settings['packing_penalty']}"
        return self.trial(name, make, key=folder.name)

    def student_stage(self, teacher: Trial, packed: Trial) -> Trial:
        """The settings with which a student learns most of the packed teacher: the cheapest that
        comes close, or else the best.
        """
        learner, tried = teacher.found["learner"], []
        until = 60 * self.minutes
        until = max(until, self.spent + _SHARES["students"] * until)
        for steps, rows, rate, inputs in _STUDENTS:
            rows, rate = rows * self._wider, rate * self._wider**0.25
            like = tried[-1] if tried else None
            if inputs is None:
                as_long = [
                    trial
                    for trial in tried
                    if trial.found["inner_steps"] == like.found["inner_steps"]
                ]
                like = min(as_long, key=lambda trial: (trial.error - packed.error) * trial.seconds)
            settings = self._asked(
                inner_steps=steps,
                synthetic_batch_size=rows,
                inner_learning_rate=_rate(rate, learner),
                storage=packed.found["storage"],
                inputs=inputs or like.found["inputs"],
            )
            if any(trial.found == settings for trial in tried):
                continue  # the same again
            steps, rows, rate = (
                settings[name]
                for name in ("inner_steps", "synthetic_batch_size", "inner_learning_rate")
            )
            if (
                len(tried) > 1
                and self.spent + steps / like.found["inner_steps"] * like.seconds > until
            ):
                break  # longer in the proportion of its steps

            def make(settings: Mapping[str, Any] = settings) -> dict[str, Any]:
                farzi = FarziData.from_pretrained(self.folder / packed.found["folder"])
                farzi = farzi.with_inputs(settings["inputs"])
                trainer = self.trainer(learner, farzi_data=farzi, **settings)
                judged = self.judged(trainer, trainer.learner, trainer.students.on_summary(0))
                why = f"error {judged['error'] - packed.error:+.3f} to its teacher"
                return {**judged, "nbytes": packed.nbytes, "why": why, "found": settings}

            name = f"student, {steps} steps of {rows} {settings['inputs']} rows, rate {rate}"
            tried.append(self.trial(name, make))
            if tried[-1].error <= packed.error + (_CLOSE_RANKS if self.task.ranked else _CLOSE):
                break
        best = min(trial.error for trial in tried)
        return next(trial for trial in tried if trial.error <= best + _EQUAL)

    def _model(self, teacher: Trial) -> PreTrainedModel:
        """The teacher of that trial."""
        return AutoModelForCausalLM.from_pretrained(
            self.folder / teacher.found["folder"], trust_remote_code=False
        )

    def _untrained(self, learner: Mapping[str, Any]) -> PreTrainedModel:
        """A model without numbers, to count them."""
        with torch.device("meta"):
            config = self.task.learner_config(learner, self.length)
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _rate(rate: float, learner: Mapping[str, Any]) -> float:
    """A rate at a width of 16 for this learner: wider models need smaller ones. The root is what
    served from 16 to 64.
    """
    return _rounded(rate * math.sqrt(16 / width_of(learner)))


def _rounded(value: float) -> float:
    """Two digits, which are easier to read."""
    return float(f"{value:.2g}")
