"""The files that a path, a folder or a pattern means, and their rows as streams of `datasets`; also
those of a data set of the Hub.
"""

import csv
import glob
import io
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TextIO

import pandas
import pyarrow as pa
from datasets import IterableDataset, load_dataset
from datasets.iterable_dataset import ExamplesIterable
from pyarrow.parquet import ParquetFile

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.layout import layout_of
from farzi_hf.data.opening import FOREIGN, UnusableFileError, ending, opened

logger = logging.getLogger(__name__)

BUILDERS = {
    ".txt": "text",
    ".md": "text",
    ".dat": "text",
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
"""The kind of a file by its ending, before that of a packing (.txt.gz)."""
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_SHOWN = 5  # endings in a message


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one
    line for a user.
    """


def unreadable(source: str | Path, error: Exception) -> ValueError:
    """What is raised where a file cannot be read, or lacks something."""
    if isinstance(error, UnusableFileError):
        return ValueError(reason(error))
    if type(error) is LookupError:  # of `_rows`
        return ValueError(f"{str(source)!r}: {reason(error)}")
    return ValueError(
        f"{str(source)!r} cannot be read ({reason(error)}): it is damaged, not what its ending says,"
        " or a text in another encoding: save that as UTF-8"
    )


# -- the files of a path ---------------------------------------------------------------------------


def split_named(name: str) -> str | None:
    """The split that a name such as ptb.valid.txt or train/part-0 says; None if it says none, or
    more than one.
    """
    said = {
        _SPLIT_WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _SPLIT_WORDS
    }
    return said.pop() if len(said) == 1 else None


def own_splits(streams: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """Those of train, validation and test that there are; names such as dev mean one of them."""
    if len(streams) == 1:
        return {"train": next(iter(streams.values()))}
    found = {part: streams[part] for part in _SPLIT_WORDS.values() if part in streams}
    for name, stream in streams.items():
        if part := split_named(name):
            found.setdefault(part, stream)
    if "train" not in found:
        raise ValueError(
            f"{source} has the splits {', '.join(streams)}, and no train: choose one with split"
        )
    return found


@dataclass(frozen=True)
class Files:
    """The files of a path, a folder or a pattern, and how many others there are."""

    splits: dict[str, list[Path]]
    """The files that are read, by split."""
    others: Counter[str] = field(default_factory=Counter)
    """The files with another ending, by ending."""
    links: int = 0
    """Links, which are not followed."""

    def say_left_out(self, source: str | Path) -> None:
        """Logs what is not read, and why, in one line."""
        said = []
        if self.others:
            read = ending(self.splits["train"][0]) or "none"
            number = sum(self.others.values())
            said.append(
                f"{number:,} {'file is' if number == 1 else 'files are'} left out"
                f" ({_counted(self.others)}), because those of one ending are read ({read})"
            )
        if self.links:
            said.append(f"{_number_of_links(self.links)} not followed")
        if said:
            logger.warning(
                "%s: %s; to read others, name them", terminal_text(source), "; ".join(said)
            )


def files_of(
    source: str | Path, data_dir: str | Path | None = None
) -> dict[str, list[Path]] | None:
    """The files of `find_files`, by split."""
    files = find_files(source, data_dir)
    return None if files is None else files.splits


def find_files(source: str | Path, data_dir: str | Path | None = None) -> Files | None:
    """The files of a path, a folder, or a pattern such as `notes/*.md`; None if there is none, and
    it may be a name of the Hub.

    In a folder those files count whose ending has most of the bytes, without folders in it that
    this library has written. They are "train", "validation" and "test" if their names say so and
    one of them says train; otherwise all are "train". Links in a folder are not followed, but for
    those of huggingface_hub's cache.

    Raises:
        ValueError: it can only be a path, and there is nothing to read.
    """
    path = Path(data_dir or "", source).expanduser()
    if path.is_file():
        return Files({"train": [path]})
    # What exists is no pattern, whatever its name is.
    root = next(folder for folder in (path, *path.parents) if folder.is_dir())
    links, files = _plain_files(root, path)
    may_be_read = [file for file in files if root != path or ending(file) in BUILDERS]
    sizes: Counter[str] = Counter()
    for file in may_be_read:
        sizes[ending(file)] += file.stat().st_size
    chosen = [file for file in may_be_read if ending(file) == sizes.most_common(1)[0][0]]
    others = Counter(ending(file) for file in files)
    if chosen:
        del others[ending(chosen[0])]
        return Files(_by_split(chosen, root), others, links)
    of_hub = (
        data_dir is None and isinstance(source, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)
    )
    if not of_hub or path.is_dir() or ending(path) in BUILDERS:
        raise ValueError(
            f"{str(path)!r} is no file, and no folder or pattern that finds one that ends in"
            f" {', '.join(BUILDERS)}{_what_is_there(others, links)}"
        )
    return None


def _plain_files(root: Path, path: Path) -> tuple[int, list[Path]]:
    """How many links a folder or a pattern has, and the files that are none: without hidden ones,
    and those that this library has written.
    """
    if root == path:
        everything = sorted(root.rglob("*"))
    else:
        named = glob.glob(str(path.relative_to(root)), root_dir=root, recursive=True)
        everything = sorted(map(root.joinpath, named))
    links = 0
    files = []
    ours = _written_by_us(everything) - {root}
    for file in everything:
        inner = file.relative_to(root)
        is_hidden = any(part.startswith(".") for part in inner.parts)
        if is_hidden or not ours.isdisjoint(file.parents):
            continue
        places = [root / parent for parent in (inner, *inner.parents[:-1])]
        if any(place.is_symlink() for place in places) and not _is_cached(root, file):
            links += 1
        elif file.is_file():
            files.append(file)
    return links, files


def _is_cached(root: Path, link: Path) -> bool:
    """Whether a link is huggingface_hub's own, from a snapshot of a data set in its cache to a file
    of the same data set.
    """
    folder = root.resolve()
    for snapshot in (folder, *folder.parents):
        repository = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and repository.name.startswith("datasets--"):
            return link.resolve().parent == repository / "blobs" and not link.parent.is_symlink()
    return False


def _written_by_us(files: Iterable[Path]) -> set[Path]:
    """The folders of runs, searches and summaries of this library."""
    folders = set()
    for file in files:
        is_search = file.match("trials/trials.json") and file.read_bytes().startswith(
            b'{\n "settings"'
        )
        is_run = file.name == "recipe.yaml" and file.with_name("table.md").exists()
        if is_search:
            folders.add(file.parents[1])
        if is_run or file.name == "farzi.safetensors":
            folders.add(file.parent)
    return folders


def _by_split(files: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    named = [split_named(str(file.relative_to(root))) for file in files]
    splits: dict[str, list[Path]] = {}
    for file, split in zip(files, named, strict=True):
        part = split if split is not None and "train" in named else "train"
        splits.setdefault(part, []).append(file)
    return splits


def _what_is_there(others: Counter[str], links: int) -> str:
    """What a folder has in place of files that are read, and the remedy."""
    said = ""
    if others:
        said += f"; it has {_counted(others)}"
        remedies = [kind.remedy for kind in FOREIGN if not others.keys().isdisjoint(kind.endings)]
        said += "".join(f": {remedy}" for remedy in remedies[:1])
    if links:
        said += f"; {_number_of_links(links)} not followed"
    return said


def _counted(endings: Counter[str]) -> str:
    said = [f"{count:,} {ends or 'without an ending'}" for ends, count in endings.most_common()]
    return terminal_text(", ".join(said[:_SHOWN]) + ", …" * (len(said) > _SHOWN))


def _number_of_links(number: int) -> str:
    return "1 link is" if number == 1 else f"{number:,} links are"


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


def _csv_rows(path: Path, column: str | None) -> Iterator[dict[str, str]]:
    layout = layout_of(path)
    with io.TextIOWrapper(layout.open(path), "utf-8-sig") as file:
        for _ in range(layout.skipped):
            file.readline()
        parts = pandas.read_csv(
            file,
            sep=layout.delimiter,
            quoting=csv.QUOTE_MINIMAL if layout.has_quotes else csv.QUOTE_NONE,
            dtype=object,
            na_filter=False,
            index_col=False,
            chunksize=1000,
        )
        while (part := _part(parts)) is not None:
            yield from part.to_dict("records")


def _part(parts: Iterator[pandas.DataFrame]) -> pandas.DataFrame | None:
    with warnings.catch_warnings():
        # Of lines that would lose what the header has no name for.
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        return next(parts, None)


def _json_values(path: Path, column: str | None) -> Iterator[Any]:
    with opened(path) as file:
        yield from of_json(file)


def _lines(path: Path, column: str | None) -> Iterator[str]:
    with opened(path) as file:
        yield from file


def _paragraphs(path: Path, column: str | None) -> Iterator[str]:
    with opened(path) as file:
        for is_blank, lines in groupby(file, str.isspace):
            if not is_blank:
                yield "".join(lines)


def _parquet_rows(path: Path, column: str | None) -> Iterator[dict[str, Any]]:
    columns = None if column is None else [column]
    yield from _dicts(ParquetFile(path).iter_batches(1000, columns=columns), column)


def _arrow_rows(path: Path, column: str | None) -> Iterator[dict[str, Any]]:
    yield from _dicts(arrow_batches(path), column)


_READ: Mapping[str, Callable[[Path, str | None], Iterator[Any]]] = {
    "json": _json_values,
    "csv": _csv_rows,
    "line": _lines,
    "paragraph": _paragraphs,
    "parquet": _parquet_rows,
    "arrow": _arrow_rows,
}
"""The rows of a file. `datasets` would fix the columns of a text file, and their types, by the
first rows, and count each use at the Hub.
"""


def _rows(
    paths: Sequence[Path], several: bool, kind: str, column: str | None
) -> Iterator[dict[str, Any]]:
    for path in paths:
        count = 0
        lacks_column = column is not None
        try:
            for row in _READ[kind](path, column):
                count += 1
                values = row if isinstance(row, dict) else {"text": row}
                lacks_column = lacks_column and column not in values
                yield values if column is None else {column: values.get(column)}
        except UnusableFileError:
            raise
        except Exception as error:  # each reader has errors of its own
            raise ValueError(f"{path.name}, after {count} rows: {reason(error)}") from error
        if count and lacks_column and several:  # of JSON; the others know their columns
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
