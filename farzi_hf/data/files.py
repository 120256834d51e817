"""The files that a path, a folder or a pattern means, and their rows as streams of `datasets`; also those of a data set of the Hub."""

import codecs
import glob
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import IterableDataset, config, load_dataset

BUILDERS = {
    ".txt": "text", ".md": "text", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".data": "csv",
    ".inter": "csv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""The reader of `datasets` by a file's ending, before that of a compression (.txt.gz)."""
_COMPRESSED = (".gz", ".bz2", ".zst")
_WORDS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one line for a user."""


def reason(error: BaseException) -> str:
    """The first line of an error, in which text of a file cannot control a terminal."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return repr(line)[1:-1]


def unreadable(source: str | Path, error: Exception) -> ValueError:
    """What is raised where a file cannot be read."""
    why = "it is damaged, not UTF-8, or not what its ending says"
    return ValueError(f"{str(source)!r} cannot be read ({reason(error)}): {why}")


def utf8(path: Path, size: int | None = None) -> bytes:
    """The text of a file in UTF-8 without byte order marks, or its first `size` bytes. A file with the mark of UTF-16 is converted.

    What .gz, .bz2 and .zst hold is read.
    """
    with pa.input_stream(str(path)) as file:
        text = file.read(size)
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = text.decode("utf-16", "ignore" if len(text) == size else "strict").encode()
    while text.startswith(codecs.BOM_UTF8):
        text = text.removeprefix(codecs.BOM_UTF8)
    return text


def ending(path: Path) -> str:
    """The ending of a file's name, in small letters, before that of a compression."""
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path).suffix.lower()


def delimiter_of(text: bytes) -> str:
    """What divides the first line that is not empty: tabs, commas or semicolons, whichever there are most of."""
    line = re.search(rb"[^\r\n]*", text.lstrip(b"\r\n")).group()
    return max(",\t;", key=lambda mark: line.count(mark.encode()))


def split_named(name: str) -> str | None:
    """The split that a name such as ptb.valid.txt or train/part-0 says; None if it says none, or more than one."""
    said = {_WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _WORDS}
    return said.pop() if len(said) == 1 else None


def files_of(source: str | Path, data_dir: str | Path | None = None) -> dict[str, list[Path]] | None:
    """The files of a path, a folder, or a pattern such as `notes/*.md`, by split; None if there is none, and it may be a name of the Hub. Raises
    ValueError if it can only be a path, and there is nothing to read.

    In a folder those files count whose ending has most of the bytes. They are "train", "validation" and "test" if their names say so and
    one of them says train; otherwise all are "train".
    """
    path = Path(data_dir or "", source).expanduser()
    if path.is_file():
        return {"train": [path]}
    root = path if path.is_dir() else Path(re.split(r"[*?\[]", str(path), maxsplit=1)[0] + "x").parent
    found = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))
    visible = (x for x in sorted(found) if not any(part.startswith(".") for part in x.relative_to(root).parts))
    files = [x for x in visible if x.is_file() and (ending(x) in BUILDERS or not path.is_dir())]
    sizes, splits = Counter(), {}
    for file in files:
        sizes[ending(file)] += file.stat().st_size
    for file in files:
        if ending(file) == sizes.most_common(1)[0][0]:
            splits.setdefault(split_named(str(file.relative_to(root))) or "train", []).append(file)
    if splits:
        return splits if "train" in splits else {"train": [file for part in splits.values() for file in part]}
    of_hub = data_dir is None and isinstance(source, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)
    if not of_hub or path.is_dir() or ending(path) in BUILDERS:
        kinds = ", ".join(BUILDERS)
        raise ValueError(f"{str(path)!r} is no file, and no folder or pattern that finds one that ends in {kinds}")
    return None


def kind_of(files: Mapping[str, list[Path]] | None) -> str | None:
    """The reader of files, an entry of `BUILDERS`; None if there are no files."""
    return BUILDERS.get(ending(files["train"][0]), "text") if files else None


@contextmanager
def _telling_nobody() -> Iterator[None]:
    """`datasets` counts each use of a reader at the Hub, also where the files are the user's own. Here it does not."""
    before, config.HF_UPDATE_DOWNLOAD_COUNTS = config.HF_UPDATE_DOWNLOAD_COUNTS, False
    try:
        yield
    finally:
        config.HF_UPDATE_DOWNLOAD_COUNTS = before


def stream_of(
    source: str | Path, data_dir: str | Path | None = None, *, name: str | None = None, split: str | None = None,
    revision: str | None = None, **builder: Any,
) -> Mapping[str, IterableDataset]:  # fmt: skip
    """The rows of files or of a data set of the Hub, by split, as they are read. `builder` has settings of the reader of `datasets`.

    Raises:
        ValueError: as `files_of`.
        DataUnavailableError: there is no such data set within reach.
    """
    files = files_of(source, data_dir)
    if files is None:
        try:
            found = load_dataset(source, name, split=split, revision=revision, streaming=True)
        except Exception as error:  # each cause has an error of its own, which says what is missing
            raise DataUnavailableError(f"{source!r} is no file, and not on the Hub: {reason(error)}") from error
        return {"train": found} if isinstance(found, IterableDataset) else found
    given = {part: [str(path) for path in paths] for part, paths in files.items()}
    try:
        if kind_of(files) == "csv":
            builder = {"sep": delimiter_of(utf8(files["train"][0], 1 << 16))}
        with _telling_nobody():
            return load_dataset(kind_of(files), data_files=given, streaming=True, **builder)
    except Exception as error:  # each reader has errors of its own
        raise unreadable(source, error) from error
