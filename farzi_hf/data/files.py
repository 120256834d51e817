"""The files that a path, a folder or a pattern means, and their rows as streams of `datasets`; also
those of a data set of the Hub.
"""

import glob
import json
import logging
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import IterableDataset, load_dataset
from datasets.iterable_dataset import ExamplesIterable

from farzi_hf.common.checks import check_place, did_you_mean
from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.opening import FOREIGN, UnusableFileError, ending
from farzi_hf.data.rows import rows_of

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
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SUMMARY = "farzi.safetensors"
"""The file by which the folder of a summary is known."""
_SHOWN = 5  # endings in a message


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one
    line for a user.
    """


def unreadable(source: str | Path, error: Exception) -> ValueError:
    """What is raised where a file cannot be read, or lacks something."""
    if isinstance(error, UnusableFileError):
        return ValueError(reason(error))
    if type(error) is LookupError:  # of `rows_of`
        return ValueError(f"{str(source)!r}: {reason(error)}")
    path = Path(source).expanduser()
    if path.is_file() and path.stat().st_size == 0:
        return ValueError(f"{str(source)!r} is an empty file: give one with rows")
    return ValueError(
        f"{str(source)!r} cannot be read ({reason(error)}): it is damaged, or not what its ending"
        " says, or a text in another encoding: save that as UTF-8"
    )


# -- the files of a path ---------------------------------------------------------------------------


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
            number = sum(self.others.values())
            files_are = "1 file is" if number == 1 else f"{number:,} files are"
            read = ending(self.splits["train"][0]) or "none"
            said.append(
                f"{files_are} left out ({_counted(self.others)}), because those of one ending are"
                f" read ({read})"
            )
        if self.links:
            said.append(_unfollowed(self.links))
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
        ValueError: it can only be a path, and there is nothing to read; or it is an address, a
            pipe or a device; or the folder of a summary, or of a run that has made one.
    """
    check_place("data", source, "a file, a folder, a pattern, or a data set of the Hub")
    path = Path(data_dir or "", source).expanduser()
    if path.is_file():
        return Files({"train": [path]})
    if "://" in str(source):
        raise ValueError(
            f"{str(source)!r} is an address, which is not fetched: download the file, or name a data"
            " set of the Hub as user/name"
        )
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"{str(path)!r} is a pipe or a device, and no file: save what it gives in a file"
        )
    # What exists is not a pattern, whatever its name is.
    root = next(folder for folder in (path, *path.parents) if folder.is_dir())
    if root == path:
        _check_no_summary(path, source)
    links, files = _plain_files(root, path)
    is_pattern = root != path
    may_be_read = [file for file in files if is_pattern or ending(file) in BUILDERS]
    others = Counter(ending(file) for file in files)
    if may_be_read:
        read = _ending_of_most_bytes(may_be_read)
        del others[read]
        chosen = [file for file in may_be_read if ending(file) == read]
        return Files(_by_split(chosen, root), others, links)
    for foreign in FOREIGN:
        if ending(path) in foreign.endings and not path.is_dir():
            raise ValueError(
                f"no file {str(path)!r}; nor would it be read, because {ending(path)} is"
                f" {foreign.what}: {foreign.remedy}"
            )
    is_name = data_dir is None and isinstance(source, str) and _HUB_NAME.fullmatch(source)
    if not is_name or path.is_dir() or ending(path) in BUILDERS:
        wanted = "" if ending(path) in BUILDERS else f" and ends in {', '.join(BUILDERS)}"
        near = did_you_mean(path.name, _names_beside(path))
        raise ValueError(
            f"no file, folder or pattern matches {str(path)!r}{wanted}{near}"
            f"{_what_is_there(others, links)}"
        )
    return None


def _check_no_summary(folder: Path, source: str | Path) -> None:
    """Raises ValueError if a folder is a summary that has no rows of anybody's data, the folder of
    a run that has made one, or a counted model.
    """
    places = [folder]
    if (folder / "recipe.yaml").is_file():
        places += [folder / "summary", folder / "split-0" / "summary"]
    shown = shlex.quote(str(source))
    for place in places:
        if not (place / _SUMMARY).is_file():
            continue
        config = _config_of(place)
        if config.get("model_type") == "farzi_counted":
            raise ValueError(
                f"{str(source)!r} is a counted model, and no data: farzi count {shown} with --score,"
                " --generate or --recommend uses it; give the data that are to be read"
            )
        if config.get("inputs") != "rows":  # real rows with weights are data
            raise ValueError(
                f"{str(source)!r} is a summary, and no data: farzi show {shown} shows it, farzi"
                f" train {shown} trains a model on it; give the data of which one is to be made"
            )


def _config_of(folder: Path) -> Mapping[str, Any]:
    """What its config.json says; nothing if it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _names_beside(path: Path) -> list[str]:
    """The names in the folder of a path that does not exist, without hidden ones: no names if
    the folder cannot be read.
    """
    names: list[str] = []
    if not path.exists():
        with suppress(OSError):
            names += sorted(os.listdir(path.parent))
    return [name for name in names if not name.startswith(".")]


def _ending_of_most_bytes(files: Iterable[Path]) -> str:
    sizes: Counter[str] = Counter()
    for file in files:
        sizes[ending(file)] += file.stat().st_size
    return sizes.most_common(1)[0][0]


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
        is_run = file.name == "recipe.yaml" and file.with_name("table.md").exists()
        if is_run or file.name == _SUMMARY:
            folders.add(file.parent)
        if file.match("trials/trials.json") and _starts_with(file, b'{\n "settings"'):
            folders.add(file.parents[1])
    return folders


def _starts_with(path: Path, start: bytes) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _what_is_there(others: Counter[str], links: int) -> str:
    """What a folder has in place of files that are read, and the remedy."""
    said = ""
    if others:
        said += f"; it has {_counted(others)}"
    remedies = [kind.remedy for kind in FOREIGN if not others.keys().isdisjoint(kind.endings)]
    if remedies:
        said += f": {remedies[0]}"
    if links:
        said += f"; {_unfollowed(links)}"
    return said


def _counted(endings: Counter[str]) -> str:
    said = [
        f"{count:,} {name or 'without an ending'}" for name, count in endings.most_common(_SHOWN)
    ]
    if len(endings) > _SHOWN:
        said.append("…")
    return terminal_text(", ".join(said))


def _unfollowed(links: int) -> str:
    return "1 link is not followed" if links == 1 else f"{links:,} links are not followed"


# -- splits ----------------------------------------------------------------------------------------


def split_named(name: str) -> str | None:
    """The split that a name such as ptb.valid.txt or train/part-0 says; None if it says none, or
    more than one.
    """
    words = re.split(r"[^a-z]+", name.lower())
    splits = {_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


def own_splits(streams: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """Those of train, validation and test that there are; names such as dev mean one of them."""
    if len(streams) == 1:
        return {"train": next(iter(streams.values()))}
    splits = {split: streams[split] for split in _SPLIT_WORDS.values() if split in streams}
    for name, stream in streams.items():
        split = split_named(name)
        if split is not None:
            splits.setdefault(split, stream)
    if "train" not in splits:
        raise ValueError(
            f"{source} has the splits {', '.join(streams)}, and no train: choose one with split"
        )
    return splits


def _by_split(files: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    named = [split_named(str(file.relative_to(root))) for file in files]
    splits: dict[str, list[Path]] = {}
    for file, split in zip(files, named, strict=True):
        part = split if split is not None and "train" in named else "train"
        splits.setdefault(part, []).append(file)
    return splits


# -- rows ------------------------------------------------------------------------------------------


def kind_of(files: Mapping[str, list[Path]] | None) -> str | None:
    """The kind of files, an entry of `BUILDERS`; None if there are no files."""
    if not files:
        return None
    return BUILDERS.get(ending(files["train"][0]), "text")


def stream_of(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    name: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    rows: str = "line",
    column: str | None = None,
    path_column: str | None = None,
) -> Mapping[str, IterableDataset]:
    """The rows of files or of a data set of the Hub, by split, as they are read.

    Args:
        name, split, revision: of a data set of the Hub, as in `datasets.load_dataset`.
        rows: what a row of plain text is, a "line" or a "paragraph".
        column: of files, the only column to read.
        path_column: of files, a column to add, with the path of the file that a row is of.

    Raises:
        ValueError: as `find_files`.
        DataUnavailableError: there is no such data set within reach.
    """
    files = files_of(source, data_dir)
    if files is None:
        return _stream_of_hub(source, name=name, split=split, revision=revision)
    kind = kind_of(files)
    how = {
        "kind": rows if kind == "text" else kind,
        "several": sum(map(len, files.values())) > 1,
        "column": column,
        "path_column": path_column,
    }
    # `IterableDataset.from_generator` would make a folder in the cache, which may not be writable.
    return {
        part: IterableDataset(ExamplesIterable(_numbered, {"paths": paths, **how}))
        for part, paths in files.items()
    }


def _numbered(**given: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from enumerate(rows_of(**given))


def _stream_of_hub(source: str | Path, **how: str | None) -> Mapping[str, IterableDataset]:
    try:
        streams = load_dataset(source, streaming=True, **how)
    except Exception as error:  # each cause has an error of its own, which says what is missing
        raise DataUnavailableError(
            f"{source!r} is neither a file nor on the Hub: {reason(error)}"
        ) from error
    return {"train": streams} if isinstance(streams, IterableDataset) else streams
