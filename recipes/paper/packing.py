"""How few bytes a teacher can be packed into, and what that costs: training in few bits, rounding,
and product codes.

    python recipes/paper/packing.py farzi-Beauty/summary --teacher farzi-Beauty/trials/teacher-…

The summary says which data and split. A teacher is a trained model in a folder of transformers; of
several, each has its curves. Product codes (Jégou et al., 2011) cut each row of the largest matrix
into parts, and store the nearest of 256 vectors for each. The vectors, found by k-means, and all
else are then trained on, and the other matrices take a byte a number. Each way is kept in the
folder of the card, and a later start does not repeat it.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from curves import Panel, plot_curves
from experiment import CARDS
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.distillation import Learner
from farzi_hf.distillation.packing import Packing
from farzi_hf.distillation.rows import RealData, real_loss
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerAdam
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.rendering import commit_of
from farzi_hf.report.trials import width_of
from farzi_hf.summary.store.tensor_file import STORAGES

FIGURE = "quality_over_bytes.png"
ROUNDED = ("int8", "int6", "int5", "int4")
CODED = (("coded5", 0.15), ("coded4", 0.6), ("coded4", 1.2), ("coded3", 0.6), ("coded2", 0.6))
"""Ways to store it, with the penalty on its numbers."""
PARTS = (32, 16, 8)
VECTORS = 256
ROUNDS = 15
WAYS = (
    "rounded after the training",
    "trained in few bits, coded by their entropy",
    "product codes, trained on",
)
Parameters = Mapping[str, Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    """The table and the figure of one teacher."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summary", help="folder or dataset repository: whose data")
    parser.add_argument(
        "--teacher",
        required=True,
        nargs="+",
        help="folder of a trained model, or several of different widths",
    )
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument(
        "--steps", type=int, default=600, help="steps in few bits, or with product codes"
    )
    parser.add_argument("--learning_rate", type=float, default=0.003, help="of these steps")
    parser.add_argument("--batch_size", type=int, default=128, help="rows of these steps")
    parser.add_argument("--card_dir", help="folder of the table and the figure")
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("packing.py", OSError):
        farzi = FarziData.from_pretrained(args.summary)
        data = TaskData.of_summary(farzi, args.data_dir)
        folder = Path(
            args.card_dir
            or CARDS / f"{Path(data.settings.dataset).name.split('.')[0].lower()}_packing"
        )
        check_outputs(folder, ("table.json", "table.md", "table.csv", FIGURE))
        load = partial(
            AutoModelForCausalLM.from_pretrained,
            trust_remote_code=False,
            attn_implementation="eager",
        )
        models = [load(teacher).eval() for teacher in args.teacher]
    rows = []
    for model in models:
        c = Comparison.of_summary(farzi, data, model.config, num_students=1)
        kind = (
            f", {model.config.model_type} {width_of(model.config.to_dict())}"
            if len(models) > 1
            else ""
        )
        rows += [
            {**row, "curve": row["curve"] and row["curve"] + kind}
            for row in rows_of(c, data, model, kind, folder, args)
        ]
    table = markdown([{**c.task.readable(row), "seconds": f"{row['seconds']:.0f}"} for row in rows])
    save_text(
        f"# A teacher on {data.description}: quality over bytes\n\n{table}\n", folder / "table.md"
    )
    save_csv(rows, folder / "table.csv")
    save_json({"findings": [], "rows": rows, **commit_of(Path(__file__))}, folder / "table.json")
    draw(rows, (c.task.compared or (c.task.metric,))[:3], c.task.percent, folder)


def draw(rows: Sequence[Mapping], metrics: Sequence[str], percent: bool, folder: Path) -> None:
    """Each metric over the bytes of the packed teacher; one that is not packed is a line."""
    scale = 100.0 if percent else 1.0
    unit = ", %" if percent else ""
    size = "kB of the packed teacher"
    points = [
        {**row, "method": row["curve"], "kB": row["bytes"] / 1000} for row in rows if row["curve"]
    ]
    exact = [row for row in rows if not row["curve"]]
    panels = [
        Panel(
            points,
            "kB",
            metric,
            size,
            metric.upper() + unit,
            "x",
            scale,
            {row["method"]: scale * row[metric] for row in exact},
            from_zero=False,
        )
        for metric in metrics
    ]
    plot_curves(folder / FIGURE, *panels)


def rows_of(
    c: Comparison, data: TaskData, model: PreTrainedModel, kind: str, folder: Path, args: Namespace
) -> list[dict]:
    """A row for each way to pack one teacher, with the name of its curve."""
    learner = Learner(model).to(c.device)
    params = {name: x.detach().to(c.device) for name, x in model.named_parameters()}
    held_out = c.task.evaluation_rows(c.splits["validation"], c.length)
    real = replace(c.real_data(c.splits["train"]), held_out=held_out)
    optimizer = InnerAdam(args.learning_rate, (0.5, 0.999), 1e-4).without_decay(learner.no_decay)
    training = TeacherTraining(optimizer, args.steps, args.batch_size)
    settings = {
        "data": data.fingerprint(data.seeds(42)[0]),
        "teacher": float(sum(x.double().sum() for x in params.values())),
    }
    settings |= {
        "steps": args.steps,
        "learning_rate": args.learning_rate,
        "batch_size": args.batch_size,
    }
    rows = []
    for way, curve, make in ways(learner, params, real, training):
        name = way + kind

        def measured(name: str = name, make: Callable = make) -> dict:
            started = time.perf_counter()
            found, nbytes = make()
            statistics = c.statistics(partial(learner.logits, found), c.splits["test"])
            return Measured(
                name, [statistics], nbytes, 0, round(time.perf_counter() - started, 2)
            ).to_json()

        found = kept(
            folder / f"{name.replace(', ', '_').replace(' ', '_')}.json",
            {**settings, "way": name},
            measured,
        )
        rows.append({**c.row(Measured.from_json(found)), "curve": curve})
        print(f"{name}: {rows[-1]['bytes']:,} bytes, {c.task.headline(rows[-1])}", flush=True)
    return rows


def ways(
    learner: Learner, params: Parameters, real: RealData, training: TeacherTraining
) -> list[tuple[str, str | None, Callable[[], tuple[Parameters, int]]]]:
    """Each way to pack the teacher: its name, its curve, and what makes the parameters that are
    left and their bytes.
    """
    loss = real_loss(learner, real, training.batch_size, training.steps, 0)
    validation = training.validation(learner, real)
    largest = max(
        (name for name, x in params.items() if x.dim() == 2), key=lambda name: params[name].numel()
    )

    def exact() -> tuple[Parameters, int]:
        return params, STORAGES["exact"].nbytes(params)

    def rounded(storage: str) -> tuple[Parameters, int]:
        return STORAGES[storage].rounded(params), STORAGES[storage].nbytes(params)

    def coded(storage: str, penalty: float) -> tuple[Parameters, int]:
        way = STORAGES[storage]
        found = (
            Packing(penalty)
            .in_few_bits(training, loss, params, way.largest, True, validation)
            .params
        )
        return found, way.nbytes(found)

    def product(parts: int) -> tuple[Parameters, int]:
        vectors, codes = product_codes(params[largest], parts)
        others = {name: x for name, x in params.items() if name != largest}

        def whole(found: Parameters) -> Parameters:
            table = [part[code] for part, code in zip(found["vectors"], codes, strict=True)]
            return {
                **{name: x for name, x in found.items() if name != "vectors"},
                largest: torch.cat(table, dim=1),
            }

        found = training.run(
            "Product codes",
            lambda p, step: loss(whole(p), step),
            {**others, "vectors": vectors},
            True,
            lambda p: validation(whole(p)),
        ).params
        rest = STORAGES["int8"].rounded({name: found[name] for name in others})
        return whole({**rest, "vectors": found["vectors"].half().float()}), (
            codes.numel() + 2 * vectors.numel() + STORAGES["int8"].nbytes(rest)
        )

    return [
        ("not packed", None, exact),
        *((f"{way}, rounded", WAYS[0], partial(rounded, way)) for way in ROUNDED),
        *(
            (f"{way}, penalty {penalty}", WAYS[1], partial(coded, way, penalty))
            for way, penalty in CODED
        ),
        *(
            (f"{parts} product codes a row", WAYS[2], partial(product, parts))
            for parts in PARTS
            if params[largest].shape[1] % parts == 0
        ),
    ]


def product_codes(matrix: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Of a matrix (V, h): the vectors of each part (parts, 256, h / parts), and the number of each
    row's nearest one (parts, V), by k-means.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = []
    codes = []
    for x in matrix.cpu().unflatten(1, (parts, -1)).unbind(1):
        centres = x[torch.randperm(len(x), generator=generator)[:VECTORS]].clone()
        for _ in range(ROUNDS):
            nearest = torch.cdist(x, centres).argmin(1)
            counts = torch.bincount(nearest, minlength=len(centres))[:, None]
            sums = torch.zeros_like(centres).index_add_(0, nearest, x)
            centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
        vectors.append(centres)
        codes.append(torch.cdist(x, centres).argmin(1))
    return torch.stack(vectors).to(matrix), torch.stack(codes).to(matrix.device)


if __name__ == "__main__":
    run(main)
