"""What a carried teacher gives away: canaries, sequences of random entries that only memory
predicts, before and after packing.

    python recipes/paper/canaries.py --data_dir FOLDER                                                     # Penn Treebank
    python recipes/paper/canaries.py --config recipes/configs/magazine_50x20.yaml --data_dir FOLDER        # users' histories

Exposure says how well a loss tells a canary from others (Carlini et al. 2019, arXiv 1802.08232).
"Completed" are canaries whose second half the teacher writes, greedily, after the first. The last
columns are of all rows, as on a card.
"""  # noqa: E501

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from experiment import changed

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.distillation.memory import row_losses
from farzi_hf.report import RunSettings, markdown

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "ptb_teacher.yaml"
# How often a canary is planted; their numbers; entries.
REPEATS, EACH, LENGTH, OTHERS = (
    (0, 1, 10, 100),
    5,
    10,
    4095,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains a teacher, packs it, and prints a row for each."""
    keep_freed_memory()
    with ends_in_one_line("canaries.py"):
        settings, args = parse_arguments((RunSettings, FarziConfig), CONFIG, argv)
        data = settings.load()
        seed = data.seeds(args.seed)[0]
        task = data.task
        real, held_out = (
            data.splits(seed)[name].select_columns("input_ids") for name in ("train", "validation")
        )
    ends = [getattr(task.processing_class, f"{name}_token_id", None) for name in ("bos", "eos")]
    entries = np.setdiff1d(
        np.concatenate(real["input_ids"]), [0 if end is None else end for end in ends]
    )
    drawn = np.random.default_rng(args.seed).choice(entries, (len(REPEATS) * EACH + OTHERS, LENGTH))
    drawn = drawn if None in ends else np.pad(drawn, ((0, 0), (1, 1)), constant_values=ends)
    canaries = dict(zip(REPEATS, np.split(drawn[:-OTHERS], len(REPEATS)), strict=True))
    others = drawn[-OTHERS:]
    planted = [
        row.tolist() for times, rows in canaries.items() for row in rows for _ in range(times)
    ]
    rows = concatenate_datasets([real, Dataset.from_dict({"input_ids": planted}, real.features)])
    table = []
    teacher = None
    for name, storage in (("teacher", "exact"), ("packed", "coded5")):
        with TemporaryDirectory() as folder:
            own = changed(
                args,
                output_dir=folder,
                inputs="drawn",
                labels="teacher",
                storage=storage,
                max_steps=0,
            )
            learner = task.learner_config(settings.learner, args.sequence_length)
            trainer = FarziTrainer(learner, own, rows, held_out, task=task, teacher=teacher)
            trainer.train()
        teacher = trainer.model.teacher
        row = {"": name}
        for times, some in canaries.items():
            bits = exposure(row_losses(teacher, some), row_losses(teacher, others)).mean()
            ids = torch.from_numpy(some)
            half = some.shape[1] // 2
            likeliest = (
                teacher(input_ids=ids, attention_mask=torch.ones_like(ids))
                .logits[:, half - 1 : -1]
                .argmax(-1)
            )
            completed = (likeliest == ids[:, half:]).all(1).sum()
            row[f"planted {times} times"] = f"{bits:.1f} bits, {completed} completed"
        found = trainer.memory()
        print(f"{name}: {found['memory']}", flush=True)
        table.append(
            {**row, **{key: found[f"memory_{key}"] for key in ("copied", "copied_held_out", "auc")}}
        )
    print(f"\nOf {EACH} canaries each; at most {np.log2(OTHERS + 1):.0f} bits\n\n{markdown(table)}")


def exposure(canaries: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Bits, from the losses of canaries and of m sequences drawn alike: log2(m + 1) less log2 of
    the rank, from 1. By chance 1.44 in the mean.
    """
    return np.log2(len(others) + 1) - np.log2(1 + np.searchsorted(np.sort(others), canaries))


if __name__ == "__main__":
    run(main)
