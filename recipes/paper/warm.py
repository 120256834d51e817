"""Students that begin with what a carried teacher knows: which start, which rate and which length.
`seconds.py` compares such students with real data.

    python recipes/paper/warm.py SUMMARY --data_dir FOLDER --part wider
    python recipes/paper/warm.py SUMMARY --data_dir FOLDER --part rates --test --num_students 5

The summary carries its teacher. A part of the experiment is a list of cells: a student, a start,
the inputs and the settings of its training. Every cell is measured on validation rows, or with
`--test` on the whole test part. Each student is kept in the folder of the card, and a later start
does not repeat it. Seconds are those of the process, so other work on the machine does not count.
"""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from experiment import CARDS
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.comparison import pooled_row
from farzi_hf.report.rendering import commit_of
from farzi_hf.summary.start import start_values, tables_of
from farzi_hf.tasks import LanguageModeling, Recommendation

VALIDATION = 1024
"""Rows of the validation part that a cell is measured on."""
Values = dict[str, Tensor]
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Cell:
    """One row of a table.

    Attributes:
        student: a name of `STUDENTS`.
        start: a name of `STARTS`.
        inputs: "drawn" or "written".
        steps: T.
        rows: of a step.
        rate: the learning rate.
        schedule: of the rate.
        matched: the weight of the teacher's last hidden states in the loss.
    """

    student: str
    start: str = "warm"
    inputs: str = "drawn"
    steps: int = 100
    rows: int = 40
    rate: float = 0.015
    schedule: str = "warmup_stable_decay"
    matched: float = 0.0

    @property
    def name(self) -> str:
        """Of the row."""
        matched = f", states × {self.matched:g}" if self.matched else ""
        falls = "" if self.schedule == "warmup_stable_decay" else f", {self.schedule}"
        return (
            f"{self.student}, {self.start}, {self.inputs}, T = {self.steps}, {self.rows} rows,"
            f" rate {self.rate:g}{falls}{matched}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one part."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summary", help="folder or dataset repository; it carries a teacher")
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument("--part", required=True, help=f"one of {', '.join(parts())}")
    parser.add_argument("--num_students", type=int, default=2, help="of each cell")
    parser.add_argument("--test", action="store_true", help="measure on the test part")
    parser.add_argument("--card_dir", help="folder of the table")
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("warm.py", OSError):
        farzi = FarziData.from_pretrained(args.summary)
        data = TaskData.of_summary(farzi, args.data_dir)
        if args.part not in PARTS[data.task_class]:
            names = ", ".join(PARTS[data.task_class])
            raise ValueError(f"--part {args.part!r} is unknown: choose one of {names}")
        cards = Path(args.card_dir or CARDS / f"{data.settings.dataset.split('.')[0]}_warm")
        name = f"{args.part}_test" if args.test else args.part
        folder = cards / name
        check_outputs(folder, ("table.md", "table.csv", "table.json"))
    bench = Bench(farzi, data, args.num_students, args.test, folder)
    rows = []
    for cell in PARTS[data.task_class][args.part]:
        rows.append(bench.row(cell))
        print(f"{bench.task.headline(rows[-1])}, {rows[-1]['seconds']} s: {cell.name}", flush=True)
    table = [{**bench.task.readable(row), "seconds": row["seconds"]} for row in rows]
    save_text(f"# {data.description}: {name}\n\n{markdown(table)}\n", folder / "table.md")
    save_csv(rows, folder / "table.csv")
    save_json({"findings": [], "rows": rows, **commit_of(Path(__file__))}, folder / "table.json")
    print(markdown(table))


def parts() -> list[str]:
    """The names of all parts."""
    return sorted({name for of_task in PARTS.values() for name in of_task})


class Bench:
    """Trains and measures students of one summary.

    Args:
        farzi: the summary.
        data: its real data.
        num_students: of each cell; student k has the seed k.
        of_test: whether the test part measures them, and not the validation part.
        folder: of what is kept.
    """

    def __init__(
        self, farzi: FarziData, data: TaskData, num_students: int, of_test: bool, folder: Path
    ) -> None:
        self.farzi = farzi
        self.task = data.task
        self.num_students = num_students
        self.folder = folder
        self.comparison = Comparison.of_summary(farzi, data)
        rows = self.comparison.splits["test" if of_test else "validation"]
        self.rows = rows if of_test else rows.select(range(min(len(rows), VALIDATION)))
        self.of_all = {
            "summary": farzi.fingerprint(),
            "data": data.fingerprint(data.seeds(42)[0]),
            "of_test": of_test,
        }
        self.learner = cache(self._learner)

    def row(self, cell: Cell) -> dict[str, Any]:
        """The row of a cell, with the mean seconds of a student."""
        found = [Measured.from_json(self._kept(cell, seed)) for seed in range(self.num_students)]
        seconds = sum(each.seconds for each in found) / len(found)
        students = [each.students[0] for each in found]
        row = pooled_row(self.task, [replace(found[0], students=students)])
        return {**row, "seconds": round(seconds, 1)}

    def _kept(self, cell: Cell, seed: int) -> dict[str, Any]:
        settings = {**self.of_all, **asdict(cell), "seed": seed}
        name = re.sub(r"[^\w.]+", "_", cell.name)
        return kept(self.folder / f"{name}_{seed}.json", settings, lambda: self._made(cell, seed))

    def _made(self, cell: Cell, seed: int) -> dict[str, Any]:
        """One student, trained and measured."""
        learner = self.learner(cell.student)
        inputs = self.farzi.config.inputs
        farzi = self.farzi if cell.inputs == inputs else self.farzi.with_inputs(cell.inputs)
        inner = {
            **farzi.config.inner,
            "steps": cell.steps,
            "lr": cell.rate,
            "synthetic_batch_size": cell.rows,
            "lr_scheduler_type": cell.schedule,
        }
        training = SyntheticTraining.of(inner, farzi.forms)
        if cell.matched:
            training = matched(training, self.farzi, learner, cell, seed)
        fresh = learner.initial_parameters(seed)
        began = time.process_time()
        values = STARTS[cell.start](self.farzi, learner.model, seed)
        with torch.no_grad():
            theta = training(
                learner,
                farzi.tensors,
                start={**fresh, **values},
                steps=cell.steps,
                seed=seed,
            )
        seconds = round(time.process_time() - began, 1)
        c = self.comparison
        statistics = c.statistics(partial(learner.logits, theta), self.rows)
        return Measured(cell.name, [statistics], farzi.nbytes, cell.steps, seconds).to_json()

    def _learner(self, name: str) -> Learner:
        settings = STUDENTS[name]
        length = self.farzi.config.sequence_length
        of_task = {"vocab_size": self.farzi.config.vocab_size}
        if isinstance(self.task, Recommendation):
            of_task = {"num_items": self.farzi.config.vocab_size - 1, "max_length": length}
        else:
            tokenizer = self.task.processing_class
            names = ("bos_token_id", "eos_token_id", "pad_token_id")
            of_task |= {name: getattr(tokenizer, name) for name in names}
        return Learner(AutoConfig.for_model(**{**settings, **of_task}))


# -- students --------------------------------------------------------------------------------------


def gpt2(width: int, layers: int = 1) -> dict[str, Any]:
    """A GPT-2 as `recipes/configs/ptb_teacher_64.yaml` has it."""
    return {
        "model_type": "gpt2",
        "n_embd": width,
        "n_layer": layers,
        "n_head": 4,
        "n_positions": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def llama(width: int, kind: str = "llama", layers: int = 1) -> dict[str, Any]:
    """A Llama, or another model with the same settings."""
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
    }


def items(kind: str, width: int) -> dict[str, Any]:
    """A recommender of one layer. Its dropout is for real data; on a summary nothing is dropped."""
    heads = {"num_attention_heads": 1} if kind == "sasrec" else {}
    spread = 0.1 if kind == "gru4rec" else 0.02
    return {
        "model_type": kind,
        "hidden_size": width,
        "num_hidden_layers": 1,
        "dropout": 0.3,
        "tie_word_embeddings": True,
        "initializer_range": spread,
        **heads,
    }


STUDENTS: dict[str, dict[str, Any]] = {
    "GPT-2 32": gpt2(32),
    "GPT-2 64": gpt2(64),
    "GPT-2 96": gpt2(96),
    "GPT-2 128": gpt2(128),
    "GPT-2 64, two layers": gpt2(64, 2),
    "GPT-2 96, two layers": gpt2(96, 2),
    "GPT-2 96, three layers": gpt2(96, 3),
    "GPT-2 96, four layers": gpt2(96, 4),
    "GPT-2 192, two layers": gpt2(192, 2),
    "Llama 32": llama(32),
    "Llama 64": llama(64),
    "Llama 128": llama(128),
    "Llama 128, two layers": llama(128, layers=2),
    "NeoX 64": llama(64, "gpt_neox"),
    "RNN 64": {"model_type": "farzi_rnn", "hidden_size": 64, "initializer_range": 0.1},
    "SASRec 32": items("sasrec", 32),
    "SASRec 64": items("sasrec", 64),
    "GRU4Rec 32": items("gru4rec", 32),
    "FMLP 16": items("fmlp", 16),
    "FMLP 32": items("fmlp", 32),
    "FMLP 64": items("fmlp", 64),
}


# -- starts ----------------------------------------------------------------------------------------


def wider(widened: Callable[[FarziData, int, int], tuple[Map, Map]]) -> Callable[..., Values]:
    """The start of a student that is wider than the teacher.

    Args:
        widened: makes of the summary, the width and a seed the maps of the rows of both tables.
    """

    def values(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
        tables = tables_of(farzi.teacher)
        width = model.get_input_embeddings().weight.shape[1]
        of_inputs, of_head = widened(farzi, width, seed)
        found = start_values(farzi.teacher, model)
        for name, value in found.items():
            if value.shape == (len(tables.inputs), width):
                is_head = name == head_name(model)
                found[name] = of_head(tables.head) if is_head else of_inputs(tables.inputs)
        return found

    return values


def head_name(model: PreTrainedModel) -> str | None:
    """The name of the head's weight; None where it is the input embedding."""
    weight = model.get_output_embeddings().weight
    is_tied = weight is model.get_input_embeddings().weight
    names = [name for name, x in model.named_parameters() if x is weight]
    return None if is_tied else names[0]


def zeros(farzi: FarziData, width: int, seed: int) -> tuple[Map, Map]:
    """New dimensions that nothing uses."""

    def padded(rows: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))

    return padded, padded


def random_inputs(farzi: FarziData, width: int, seed: int) -> tuple[Map, Map]:
    """New dimensions that tell entries apart, and that the head does not use: the inputs have
    random numbers there, half as large as the others.
    """
    pad = zeros(farzi, width, seed)[1]

    def noisy(rows: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (*rows.shape[:-1], width - rows.shape[1])
        noise = torch.randn(shape, generator=generator) * rows.std() / 2
        return torch.cat([rows, noise], dim=1)

    return noisy, pad


def rotation(farzi: FarziData, width: int, seed: int) -> tuple[Map, Map]:
    """What is known is spread over all dimensions."""
    own = farzi.teacher.get_input_embeddings().weight.shape[1]
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(width, own, generator=generator))
    return lambda rows: rows @ basis.T, lambda rows: rows @ basis.T


def repeated(farzi: FarziData, width: int, seed: int) -> tuple[Map, Map]:
    """Columns stand there twice, and the head has half of each, as in Net2Net."""
    own = farzi.teacher.get_input_embeddings().weight.shape[1]
    columns = torch.arange(width) % own
    copies = torch.bincount(columns)[columns]
    return lambda rows: rows[:, columns], lambda rows: rows[:, columns] / copies


def warm(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
    """What `FarziData.start` sets."""
    rows = farzi.forms.rows_of_start(farzi.tensors, seed)
    return start_values(farzi.teacher, model, rows)


def weights_alone(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
    """The same without rows on which a narrower student's start looks at the teacher's states."""
    return start_values(farzi.teacher, model)


_LAYER = re.compile(r"\.(?:h|layers)\.(\d+)\.")


def with_layers(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
    """The teacher's layers, too, in a student of its kind and width."""
    theirs = dict(farzi.teacher.named_parameters())
    found = warm(farzi, model, seed)
    for name, x in model.named_parameters():
        if _LAYER.search(name) and name in theirs and theirs[name].shape == x.shape:
            found[name] = theirs[name].detach().clone()
    return found


def with_silent_layers(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
    """The same, and the layers that the teacher does not have add nothing to begin with."""
    theirs = dict(farzi.teacher.named_parameters())
    found = with_layers(farzi, model, seed)
    for name, x in model.named_parameters():
        if _LAYER.search(name) and name not in theirs and "c_proj" in name:
            found[name] = torch.zeros_like(x)
    return found


def with_repeated_layers(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
    """The same, and the layers that the teacher does not have are its last one again."""
    theirs = dict(farzi.teacher.named_parameters())
    last = max(int(found[1]) for name in theirs if (found := _LAYER.search(name)))
    found = with_layers(farzi, model, seed)
    for name, _ in model.named_parameters():
        place = _LAYER.search(name)
        if place and name not in theirs:
            start, end = place.span(1)
            found[name] = theirs[f"{name[:start]}{last}{name[end:]}"].detach().clone()
    return found


def part_of(kept_name: str) -> Callable[..., Values]:
    """One of the two tables alone: "inputs" or "head"."""

    def values(farzi: FarziData, model: PreTrainedModel, seed: int) -> Values:
        found = warm(farzi, model, seed)
        head = head_name(model)
        return {name: x for name, x in found.items() if (name == head) is (kept_name == "head")}

    return values


STARTS: dict[str, Callable[[FarziData, PreTrainedModel, int], Values]] = {
    "random": lambda farzi, model, seed: {},
    "warm": warm,
    "weights alone": weights_alone,
    "inputs alone": part_of("inputs"),
    "head alone": part_of("head"),
    "zeros": wider(zeros),
    "random inputs": wider(random_inputs),
    "rotation": wider(rotation),
    "repeated": wider(repeated),
    "with layers": with_layers,
    "with layers, others silent": with_silent_layers,
    "with layers, others repeated": with_repeated_layers,
}
"""What a start sets in a new model; the rest is as the model has drawn it."""


# -- more of the teacher ---------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchedTraining(SyntheticTraining):
    """Training whose loss has a second part: the mean square of what the student's last hidden
    states miss of the teacher's.

    Attributes:
        weight: of that part.
        wanted: from what the labels hold, the teacher's states, to what the student's should be.
    """

    weight: float = 1.0
    wanted: Map | None = None

    def _loss(self, learner: Learner, summary: Mapping[str, Tensor], rows: Any) -> Callable:
        names = tuple(summary)

        def loss(params: Values, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            tensors = dict(zip(names, inputs, strict=True))
            read, labels = self.forms.batch(tensors, self._read(rows, step))
            states = learner.states(params, learner.arguments(params, read))
            of_labels = learner.loss_of_states(params, states.flatten(0, 1), labels.flat())
            missed = states - self.wanted(labels.latents)
            return of_labels + self.weight * missed.square().mean()

        return loss


def matched(
    training: SyntheticTraining, farzi: FarziData, learner: Learner, cell: Cell, seed: int
) -> MatchedTraining:
    """The training with the states of a GPT-2 matched, in the student's width and by the map of its
    start: that which has made its input embedding of the teacher's.
    """
    tables = tables_of(farzi.teacher)
    found = warm(farzi, learner.model, seed)
    embedding = next(iter(found.values())).double()
    centred = tables.inputs - tables.inputs.mean(1, keepdim=True)
    to_width = torch.linalg.lstsq(centred.double(), embedding).solution.float()
    to_width = to_width * (to_width.shape[1] / to_width.shape[0]) ** 0.5
    own_shift = found.get("transformer.ln_f.bias", torch.zeros(to_width.shape[1]))
    weight = farzi.teacher.get_output_embeddings().weight.detach().float()
    used = weight.square().sum(0) > 0
    gain = torch.where(used, (tables.head * weight).sum(0) / weight.square().sum(0), 1.0)
    shift = dict(farzi.teacher.named_parameters())["transformer.ln_f.bias"].detach()
    values = {name: getattr(training, name) for name in training.__dataclass_fields__}
    own = len(gain)
    return MatchedTraining(
        **values,
        weight=cell.matched,
        wanted=lambda states: ((states[..., :own] - shift) / gain) @ to_width + own_shift,
    )


# -- parts -----------------------------------------------------------------------------------------


def wider_students() -> Iterator[Cell]:
    """Ways to a wider student."""
    ways = ("random", "zeros", "random inputs", "rotation", "repeated")
    for student, start in product(("GPT-2 128", "GPT-2 96"), ways):
        yield Cell(student, start)
    for start in ("zeros", "rotation", "repeated"):
        yield Cell("GPT-2 128", start, steps=300)


WITH_LAYERS = ("with layers", "with layers, others silent", "with layers, others repeated")


def pieces() -> Iterator[Cell]:
    """What else is in the carrier."""
    for student in ("Llama 64", "RNN 64"):
        for start in ("random", "inputs alone", "head alone", "warm"):
            yield Cell(student, start)
        for weight in (0.3, 1.0, 3.0):
            yield Cell(student, matched=weight)
    deeper = "GPT-2 64, two layers"
    for start in ("random", "warm", *WITH_LAYERS):
        yield Cell(deeper, start)


def states() -> Iterator[Cell]:
    """How much the teacher's last hidden states should weigh."""
    for weight in (10.0, 30.0):
        yield Cell("Llama 64", matched=weight)
    for weight in (3.0, 10.0):
        yield Cell("Llama 64", "warm", "written", matched=weight)
    yield Cell("Llama 64", "warm", "written", 300, matched=3.0)
    yield Cell("Llama 64", "warm", "written", 300, 10, 0.0075, matched=3.0)
    yield Cell("Llama 64", "warm", "written", 300, 10, 0.015, matched=3.0)
    for student, weight in product(("GPT-2 32", "NeoX 64", "GPT-2 128"), (0.0, 3.0)):
        yield Cell(student, "warm", "written", matched=weight)


def matched_states() -> Iterator[Cell]:
    """The same for students of four kinds, beside what they have without."""
    students = {"Llama 64": 0.015, "NeoX 64": 0.015, "RNN 64": 0.015, "GPT-2 32": 0.021}
    for steps in (100, 30, 300):
        for (student, rate), weight in product(students.items(), (0.0, 1.0)):
            yield Cell(student, "warm", "written", steps, 40, rate, matched=weight)


def narrower_students() -> Iterator[Cell]:
    """Starts and rates of a narrower student of the teacher's kind."""
    starts = ("weights alone", "warm")
    for start in starts:
        yield Cell("GPT-2 32", start, "written", 1, 40, 1e-9)
    for steps, rate, start in product((30, 100, 300), (0.021, 0.0106, 0.005), starts):
        yield Cell("GPT-2 32", start, "written", steps, 40, rate)


def rotary_students() -> Iterator[Cell]:
    """Starts, rates and rows of a Llama, whose teacher is a GPT-2; rows on which the two are looked
    at give it layers, and weights alone tables.
    """
    for start in ("weights alone", "warm"):
        yield Cell("Llama 64", start, "written", 1, 40, 1e-9)
    ways = ((40, 0.015), (40, 0.004), (10, 0.015), (10, 0.004), (10, 0.001))
    for steps, (rows, rate) in product((30, 100), ways):
        yield Cell("Llama 64", "warm", "written", steps, rows, rate)
    yield Cell("Llama 64", "warm", "written", 300, 10, 0.004)
    for student, rate in (("Llama 32", 0.005), ("Llama 128", 0.002)):
        for start in ("weights alone", "warm"):
            yield Cell(student, start, "written", 100, 10, rate)


def rates_of_layers() -> Iterator[Cell]:
    """Rates of students that begin with the teacher's layers: shares of the summary's rate."""
    students = ("Llama 64", "GPT-2 128", "GPT-2 32", "Llama 32", "GPT-2 64, two layers")
    rates = (0.015, 0.0075, 0.00375)
    for (steps, rows), student in product(((100, 10), (100, 40), (30, 10)), students):
        for rate in rates:
            yield Cell(student, "warm", "written", steps, rows, rate)


def neox_students() -> Iterator[Cell]:
    """Starts, rates and rows of a GPT-NeoX, whose teacher is a GPT-2; rows on which the two are
    looked at give it layers, and weights alone tables.
    """
    for start in ("weights alone", "warm"):
        yield Cell("NeoX 64", start, "written", 1, 40, 1e-9)
    ways = ((40, 0.015), (40, 0.0075), (40, 0.00375), (10, 0.0075), (10, 0.00375))
    for steps, (rows, rate) in product((30, 100), ways):
        yield Cell("NeoX 64", "warm", "written", steps, rows, rate)
    for steps in (30, 100):
        yield Cell("NeoX 64", "weights alone", "written", steps, 40, 0.015)
    yield Cell("NeoX 64", "warm", "written", 300, 10, 0.0075)
    yield Cell("NeoX 64", "warm", "written", 300, 10, 0.00375)


def wider_and_deeper() -> Iterator[Cell]:
    """Students that do just what their teacher does before their first step, at the rate that they
    take where nobody gives them one.
    """
    for student, steps in product(("GPT-2 128", "GPT-2 64, two layers"), (10, 100)):
        yield Cell(student, "warm", "written", steps, 10, 0.00375)


def narrower_and_deeper() -> Iterator[Cell]:
    """A student that is narrower than its teacher and has more layers, of a large text."""
    yield Cell("GPT-2 96, four layers", "warm", "written", 1750, 10, 0.003)


RATES = ((40, 0.0075), (40, 0.015), (40, 0.03), (10, 0.0075), (10, 0.015))
"""Rows of a step and the rate."""


def rates() -> Iterator[Cell]:
    """Rates, rows and schedules of a warm student, and of one that begins at random."""
    for inputs, (rows, rate) in product(("drawn", "written"), RATES):
        yield Cell("Llama 64", "warm", inputs, 100, rows, rate)
    for schedule in ("linear", "cosine"):
        yield Cell("Llama 64", "warm", "written", 100, 40, 0.015, schedule)
    for rate in (0.015, 0.03):
        yield Cell("Llama 64", "random", "written", 100, 40, rate)


def lengths() -> Iterator[Cell]:
    """The same for longer and shorter trainings."""
    yield Cell("Llama 64", "warm", "written", 30, 40, 0.015)
    for rows, rate in product((40, 10), (0.0075, 0.015)):
        yield Cell("Llama 64", "warm", "written", 300, rows, rate)
    yield Cell("Llama 64", "warm", "drawn", 300, 40, 0.015)
    yield Cell("Llama 64", "warm", "written", 1000, 10, 0.0075)


def item_rates() -> Iterator[Cell]:
    """Rates, rows and lengths of warm recommenders."""
    for student in ("SASRec 32", "GRU4Rec 32", "FMLP 16"):
        for start, rate in product(("random", "warm"), (0.01, 0.02, 0.04)):
            yield Cell(student, start, "drawn", 100, 40, rate)
        yield Cell(student, "warm", "written", 100, 40, 0.02)
        yield Cell(student, "warm", "drawn", 300, 40, 0.02)
        yield Cell(student, "warm", "drawn", 300, 10, 0.01)


PARTS: dict[type, dict[str, list[Cell]]] = {
    LanguageModeling: {
        "wider": list(wider_students()),
        "pieces": list(pieces()),
        "states": list(states()),
        "matched": list(matched_states()),
        "narrower": list(narrower_students()),
        "rotary": list(rotary_students()),
        "rates_of_layers": list(rates_of_layers()),
        "neox": list(neox_students()),
        "exact": list(wider_and_deeper()),
        "deeper": list(narrower_and_deeper()),
        "rates": list(rates()),
        "lengths": list(lengths()),
    },
    Recommendation: {
        "rates": list(item_rates()),
    },
}

if __name__ == "__main__":
    run(main)
