"""How much memory do interactions of Netflix's size need, from arrays to the first outer step of a distillation?

python recipes/benchmark/large_interactions.py                  # 480,189 users, 17,770 items, 100,480,507 interactions; minutes
python recipes/benchmark/large_interactions.py --share 0.1      # a tenth of the users and of the interactions

The interactions are made up: activity of users and popularity of items are skewed as in the prize's data, and an item does not depend on
the items before it. The script prints one line for each stage with the process's resident and peak memory in MiB, and its seconds.
"""

import time
from argparse import ArgumentParser
from collections.abc import Sequence
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pyarrow as pa
import torch

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, return_freed_memory
from farzi_hf.data import load_interactions
from farzi_hf.distillation.callbacks import peak_memory
from farzi_hf.models import SASRecConfig
from farzi_hf.tasks import Recommendation

USERS, ITEMS, INTERACTIONS = 480_189, 17_770, 100_480_507
MIB = 2**20
LIMIT_MIB = 4096
_BLOCK = 1 << 20
_DAYS = 2243  # of the prize's data, from 1999-11-11 to 2005-12-31


class Stages:
    """Prints what each stage costs: its seconds, the memory at its end, and the largest memory of the process so far."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def end(self, stage: str) -> int:
        """Ends the stage that began with the end of the one before. Returns the largest memory so far, in MiB."""
        now, resident = time.perf_counter(), psutil.Process().memory_info().rss // MIB
        peak = peak_memory(torch.device("cpu")) // MIB
        print(f"{stage}: {now - self._since:.1f} s, {resident} MiB, at most {peak} MiB", flush=True)
        self._since = now
        return peak


def generated(users: int, items: int, interactions: int, seed: int = 0) -> pa.Table:
    """Columns user (int32), item (int16) and timestamp (int16) in random order; 8 bytes per interaction."""
    generator = np.random.default_rng(seed)
    activity = np.cumsum(generator.lognormal(sigma=1.2, size=users))
    popularity = np.cumsum(1 / np.arange(20, items + 20))
    kinds = {"user": np.int32, "item": np.int16, "timestamp": np.int16}
    columns = {name: np.empty(interactions, kind) for name, kind in kinds.items()}
    for first in range(0, interactions, _BLOCK):
        block = slice(first, first + _BLOCK)
        size = len(columns["user"][block])
        columns["user"][block] = np.searchsorted(activity, generator.random(size) * activity[-1])
        columns["item"][block] = np.searchsorted(popularity, generator.random(size) * popularity[-1])
        columns["timestamp"][block] = generator.integers(_DAYS, size=size)
    return pa.table(columns)


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the users and of the interactions")
    share = parser.parse_args(argv).share
    return_freed_memory()
    stages = Stages()
    stages.end("libraries")
    table = generated(int(share * USERS), ITEMS, int(share * INTERACTIONS))
    stages.end("arrays")
    with ends_in_one_line("large_interactions.py"), TemporaryDirectory() as folder:
        interactions = load_interactions(table)
        stages.end("histories")
        splits = interactions.strong_generalization_split(seed=0)
        stages.end("split")
        args = FarziConfig(
            folder, num_sequences=50, sequence_length=100, inner_steps=10, synthetic_batch_size=5, teacher_steps=10, max_steps=1,
            per_device_train_batch_size=16, teacher_batch_size=16, eval_students=1, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True, inputs="soft", labels="own", initialization="spectral",
        )  # fmt: skip
        learner = SASRecConfig(num_items=interactions.num_items, hidden_size=32, max_length=args.sequence_length)
        trainer = FarziTrainer(learner, args, splits["train"], task=Recommendation(interactions.vocabulary))
        stages.end("trainer: windows, checks, start")
        trainer.train()
        peak = stages.end("teacher and first outer step")
    print(f"Peak {peak} MiB; the limit at the full size is {LIMIT_MIB} MiB.")


if __name__ == "__main__":
    main()
