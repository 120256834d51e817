"""`farzi export SUMMARY OUT`: what a summary teaches, in files that need nothing of this library.

`--teacher` writes the model that a summary carries, as transformers saves it. `--rows N` writes
rows for any trainer; the columns:

| column | of a row with ξ positions |
|---|---|
| `input_ids` | ξ ids, what a student reads |
| `labels` | ξ ids for a trainer that shifts labels by one: `labels[j + 1]` is drawn from what a student should predict after position j |
| `likeliest_ids`, `likeliest_probabilities` | the k likeliest ids after each position; the last has none where labels are shared |
| `text` | the inputs, where the vocabulary has names |
"""  # noqa: E501

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.checks import check_size
from farzi_hf.common.files import is_taken
from farzi_hf.data.seeds import Purpose, check_seed, derive
from farzi_hf.summary import FarziData
from farzi_hf.summary.reading import hardened

_PROBABILITIES = 2**24
"""The most that exist at the same time."""
_ROWS = 1000
"""The most that are made at the same time."""


def command(argv: Sequence[str]) -> None:
    """Writes the teacher, or rows, into a new or empty folder, and prints how to read it."""
    parser = CommandParser("farzi export", description=COMMANDS["export"])
    parser.add_argument("summary", help="folder, or dataset repository of the Hub, user/farzi-…")
    parser.add_argument("out", type=Path, help="folder to write, new or empty")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--teacher",
        action="store_true",
        help="the model that the summary carries, and its tokenizer",
    )
    what.add_argument(
        "--rows", type=int, metavar="N", help="N rows: ids, labels, likeliest next ids, text"
    )
    parser.add_argument(
        "--format", choices=WRITERS, default="parquet", help="of rows (default: parquet)"
    )
    parser.add_argument(
        "--top_k", type=int, default=16, help="likeliest next ids of a position (default: 16)"
    )
    parser.add_argument("--seed", type=int, help="of rows; by default the summary's own")
    args = parser.parse_args(argv)
    with ends_in_one_line(
        "farzi export", FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError
    ):
        out = args.out
        if (
            out.is_symlink() or is_taken(out) or out.resolve() == Path.cwd()
        ):  # a shell would stay in a folder that is replaced
            raise ValueError(
                f"OUT {str(out)!r} is not empty, a file or a link, or the working directory: choose"
                " a new or empty folder"
            )
        if not args.teacher:
            check_size("--rows", args.rows)
            check_size("--top_k", args.top_k)
        farzi = FarziData.from_pretrained(summary_at(args.summary), args.revision)
        if args.teacher and farzi.carried is None:
            raise ValueError(
                f"--teacher: {args.summary} has labels={farzi.config.labels!r} and no teacher; use"
                " --rows"
            )
        seed = farzi.config.seed if args.seed is None else check_seed(args.seed, "--seed")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".farzi-export-", dir=out.parent) as scratch:
            staging = Path(scratch) / "out"
            staging.mkdir()
            said = f"{args.rows} rows; read them with datasets.load_dataset({str(out)!r})"
            if args.teacher:
                said = save_teacher(farzi, staging)
            else:
                WRITERS[args.format](staging, rows_of(farzi, args.rows, args.top_k, seed))
            farzi.vocabulary.save(staging)
            if out.exists():
                out.rmdir()
            staging.rename(out)
    print(f"{out}: {said}")


def save_teacher(farzi: FarziData, folder: Path) -> str:
    """Saves the carried teacher as a folder of transformers, and says how to load it."""
    config = farzi.teacher.config
    config.use_cache = getattr(
        type(config), "use_cache", True
    )  # labels need no cache, but whoever generates does
    farzi.teacher.save_pretrained(folder)
    ours = (
        "import farzi_hf.models, and then "
        if type(config).__module__.startswith("farzi_hf.")
        else ""
    )
    return (
        f"the teacher, {config.model_type}; load it with {ours}AutoModelForCausalLM.from_pretrained"
    )


@torch.no_grad()
def rows_of(farzi: FarziData, count: int, top_k: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The rows as tables. Stored sequences come in turn, again and again; other rows are those of
    `FarziData.as_dataset(seed=seed)`.
    """
    config = farzi.config
    source = farzi.endless(seed)
    vocabulary = farzi.vocabulary
    names = vocabulary.names(config.vocab_size) if vocabulary.named else None
    step = max(1, min(_ROWS, _PROBABILITIES // (config.sequence_length * config.vocab_size)))
    for first in range(0, count, step):
        number = min(step, count - first)
        given = (
            source.rows(first, number)
            if source
            else torch.arange(first, first + number) % config.num_sequences
        )
        inputs, labels = farzi.forms.batch(farzi.tensors, given)
        generator = torch.Generator().manual_seed(derive(seed, Purpose.HARD_TOKENS, 2, first))
        ids, hard = hardened(inputs, labels, farzi.forms.labels.are_inputs, 1, generator)
        top = labels.probabilities().topk(min(top_k, config.vocab_size))
        columns = {"input_ids": ids, "labels": hard, "likeliest_ids": top.indices}
        table = {
            name: x.tolist()
            for name, x in {**columns, "likeliest_probabilities": top.values}.items()
        }
        if names:
            table["text"] = [vocabulary.text([names[i] for i in row]) for row in table["input_ids"]]
        yield pa.RecordBatch.from_pydict(table)


def _parquet(folder: Path, rows: Iterator[pa.RecordBatch]) -> None:
    first = next(rows)
    with pq.ParquetWriter(folder / "train.parquet", first.schema) as file:
        for batch in chain([first], rows):
            file.write_batch(batch)


def _jsonl(folder: Path, rows: Iterator[pa.RecordBatch]) -> None:
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for batch in rows:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


WRITERS: dict[str, Callable[[Path, Iterator[pa.RecordBatch]], None]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
}
