"""The files that a path, a folder or a pattern means, and their rows as streams of `datasets`; also
those of a data set of the Hub.
"""

import codecs
import glob
import io
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TextIO

import pandas
import pyarrow as pa
from datasets import IterableDataset, load_dataset
from datasets.iterable_dataset import ExamplesIterable
from pyarrow.parquet import ParquetFile

from farzi_hf.common.text import reason

BUILDERS = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".data": "csv",
    ".inter": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""The kind of a file by its ending, before that of a compression (.txt.gz)."""
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one
    line for a user.
    """


def unreadable(source: str | Path, error: Exception) -> ValueError:
    """What is raised where a file cannot be read, or lacks something."""
    if type(error) is LookupError:  # of `_rows`
        return ValueError(f"{str(source)!r}: {reason(error)}")
    return ValueError(
        f"{str(source)!r} cannot be read ({reason(error)}): it is damaged, not UTF-8, or not what"
        " its ending says"
    )


def utf8(path: Path) -> pa.NativeFile:
    """A file as bytes in UTF-8, also where its mark says UTF-16, or .gz, .bz2 or .zst hold it."""
    packed = _COMPRESSED.get(path.suffix.lower())
    with pa.input_stream(str(path), packed) as file:
        utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file = pa.input_stream(str(path), packed)
    return pa.transcoding_input_stream(file, "utf-16", "utf-8") if utf16 else file


def opened(path: Path, **how: str) -> TextIO:
    """The text of `utf8`; `how` is as for `open`."""
    return io.TextIOWrapper(utf8(path), "utf-8-sig", **how)


def ending(path: Path) -> str:
    """The ending of a file's name, in small letters, before that of a compression."""
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path).suffix.lower()


def delimiter_of(path: Path) -> str:
    """What divides the first line that is not empty: a tab in .tsv and .inter; else tabs, commas or
    semicolons, the most there are; else nothing.
    """
    with opened(path, errors="surrogateescape") as file:
        line = file.read(1 << 16).lstrip("\n").partition("\n")[0]
    return (
        "\t"
        if ending(path) in (".tsv", ".inter") and "\t" in line
        else max("\x1f,\t;", key=line.count)
    )


def split_named(name: str) -> str | None:
    """The split that a name such as ptb.valid.txt or train/part-0 says; None if it says none, or
    more than one.
    """
    said = {_WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _WORDS}
    return said.pop() if len(said) == 1 else None


def own_splits(streams: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """Those of train, validation and test that there are; names such as dev mean one of them."""
    if len(streams) == 1:
        return {"train": next(iter(streams.values()))}
    found = {part: streams[part] for part in _WORDS.values() if part in streams}
    for name, stream in streams.items():
        if part := split_named(name):
            found.setdefault(part, stream)
    if "train" not in found:
        raise ValueError(
            f"{source} has the splits {', '.join(streams)}, and no train: choose one with split"
        )
    return found


def files_of(
    source: str | Path, data_dir: str | Path | None = None
) -> dict[str, list[Path]] | None:
    """The files of a path, a folder, or a pattern such as `notes/*.md`, by split; None if there is
    none, and it may be a name of the Hub. Raises ValueError if it can only be a path, and there is
    nothing to read.

    In a folder those files count whose ending has most of the bytes, without folders in it that
    this library has written. They are "train", "validation" and "test" if their names say so and
    one of them says train; otherwise all are "train".
    """
    path = Path(data_dir or "", source).expanduser()
    if path.is_file():
        return {"train": [path]}
    root = next(
        folder for folder in (path, *path.parents) if folder.is_dir()
    )  # what exists is no pattern, whatever its name is
    named = glob.glob(str(path.relative_to(root)), root_dir=root, recursive=True)
    found = sorted(root.rglob("*") if root == path else map(root.joinpath, named))
    ours = {
        x.parents[1]
        for x in found
        if x.match("trials/trials.json") and x.read_bytes().startswith(b'{\n "settings"')
    }
    ours |= {x.parent for x in found if x.name == "farzi.safetensors"}
    ours |= {
        x.parent for x in found if x.name == "recipe.yaml" and x.with_name("table.md").exists()
    }
    ours.discard(root)
    visible = [
        x for x in found if not any(part.startswith(".") for part in x.relative_to(root).parts)
    ]
    files = [
        x
        for x in visible
        if x.is_file() and (ending(x) in BUILDERS or root != path) and ours.isdisjoint(x.parents)
    ]
    sizes, splits = Counter(), {}
    for file in files:
        sizes[ending(file)] += file.stat().st_size
    files = [file for file in files if ending(file) == sizes.most_common(1)[0][0]]
    parts = [split_named(str(file.relative_to(root))) for file in files]
    for file, part in zip(files, parts if "train" in parts else [None] * len(parts), strict=True):
        splits.setdefault(part or "train", []).append(file)
    if splits:
        return splits
    of_hub = (
        data_dir is None and isinstance(source, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)
    )
    if not of_hub or path.is_dir() or ending(path) in BUILDERS:
        raise ValueError(
            f"{str(path)!r} is no file, and no folder or pattern that finds one that ends in"
            f" {', '.join(BUILDERS)}"
        )
    return None


def kind_of(files: Mapping[str, list[Path]] | None) -> str | None:
    """The kind of files, an entry of `BUILDERS`; None if there are no files."""
    return BUILDERS.get(ending(files["train"][0]), "text") if files else None


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """What an Arrow file holds: a stream, as `datasets` saves it, or a file with an index."""
    with pa.memory_map(str(path)) as source:
        indexed = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = pa.ipc.open_file(source) if indexed else pa.ipc.open_stream(source)
        yield from map(reader.get_batch, range(reader.num_record_batches)) if indexed else reader


def _dicts(batches: Iterable[pa.RecordBatch], column: str | None) -> Iterator[dict[str, Any]]:
    return (
        row
        for batch in batches
        for row in (batch if column is None else batch.select([column])).to_pylist()
    )


def of_json(file: TextIO) -> Iterator[Any]:
    """The values of lines, or of as many lines as each takes; of an array, its own."""
    first = next(filter(str.strip, file), "").lstrip()
    try:
        json.loads(first)
        values = map(json.loads, filter(str.strip, chain([first], file)))
    except ValueError:
        values, text, place = [], (first + file.read()).rstrip(), 0
        while place < len(text):
            value, place = json.JSONDecoder().raw_decode(
                text, re.compile(r"\s*").match(text, place).end()
            )
            values.append(value)
    return (one for value in values for one in (value if isinstance(value, list) else [value]))


def _csv_rows(file: TextIO, path: Path, column: str | None) -> Iterable[dict[str, str]]:
    parts = pandas.read_csv(
        file, sep=delimiter_of(path), dtype=object, na_filter=False, index_col=False, chunksize=1000
    )
    while (part := _part(parts)) is not None:
        yield from part.to_dict("records")


def _part(parts: Iterator[pandas.DataFrame]) -> pandas.DataFrame | None:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", pandas.errors.ParserWarning
        )  # of lines that would lose what the header has no name for
        return next(parts, None)


_READ: Mapping[str, Callable[[TextIO, Path, str | None], Iterable[Any]]] = {
    "json": lambda file, path, column: of_json(file),
    "csv": _csv_rows,
    "line": lambda file, path, column: file,
    "paragraph": lambda file, path, column: (
        "".join(lines) for blank, lines in groupby(file, str.isspace) if not blank
    ),
    "parquet": lambda file, path, column: _dicts(
        ParquetFile(path).iter_batches(1000, columns=column and [column]), column
    ),
    "arrow": lambda file, path, column: _dicts(arrow_batches(path), column),
}
"""The rows of a file. `datasets` would fix the columns of a text file, and their types, by the
first rows, and count each use at the Hub.
"""


def _rows(
    paths: Sequence[Path], several: bool, kind: str, column: str | None
) -> Iterator[dict[str, Any]]:
    for path in paths:
        count, lacks = 0, column is not None
        try:
            with opened(path) as file:
                for count, row in enumerate(_READ[kind](file, path, column), 1):  # noqa: B007
                    values = row if isinstance(row, dict) else {"text": row}
                    lacks = lacks and column not in values
                    yield values if column is None else {column: values.get(column)}
        except Exception as error:  # each reader has errors of its own
            raise ValueError(f"{path.name}, after {count} rows: {reason(error)}") from error
        if count and lacks and several:  # of JSON; the others know their columns
            raise LookupError(
                f"no row of {path.name} has {column!r}: leave that file out, or give it this column"
            )


def stream_of(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    name: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    rows: str = "line",
    column: str | None = None,
) -> Mapping[str, IterableDataset]:
    """The rows of files or of a data set of the Hub, by split, as they are read; of files only that
    column, if one is given. Plain text has `rows`: each a "line" or a "paragraph".

    Raises:
        ValueError: as `files_of`.
        DataUnavailableError: there is no such data set within reach.
    """
    files = files_of(source, data_dir)
    if files is None:
        try:
            found = load_dataset(source, name, split=split, revision=revision, streaming=True)
        except Exception as error:  # each cause has an error of its own, which says what is missing
            raise DataUnavailableError(
                f"{source!r} is no file, and not on the Hub: {reason(error)}"
            ) from error
        return {"train": found} if isinstance(found, IterableDataset) else found
    kind = rows if kind_of(files) == "text" else kind_of(files)
    several = sum(map(len, files.values())) > 1
    given = {
        part: {"paths": x, "several": several, "kind": kind, "column": column}
        for part, x in files.items()
    }
    # `IterableDataset.from_generator` would make a folder in the cache, which may not be writable.
    return {part: IterableDataset(ExamplesIterable(_numbered, x)) for part, x in given.items()}


def _numbered(**given: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from enumerate(_rows(**given))
