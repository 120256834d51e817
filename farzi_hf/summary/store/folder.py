"""The folder of an artefact: which files it may have, reading them without trust, and replacing them all at once.

The metadata of the artefact's tensors list its files. That list is not trusted: only files whose names are also in the closed list here
are read, pushed, moved or removed. No link is followed. A size limit holds for each file that is read into memory.

A save takes a folder through three states. A process that dies leaves one of them, and the next save goes on from there.

| state | beside the artefact's files, the folder holds | a reader reads |
|---|---|---|
| whole | nothing of ours | the files |
| writing | `.farzi-writing`, a new artefact that is not complete | the files |
| committed | `.farzi-committed`, those files of a complete new artefact that are not in place yet | each file of the new artefact where it lies |

One rename turns `writing` into `committed`. Then each file is moved into place. The tensors, which list the files, are moved last.
Renaming the whole folder would be simpler, but a run's checkpoints in it are not ours to move.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import BinaryIO, TypeVar

from torch import Tensor

from farzi_hf.data.vocabulary import ITEMS_FILE
from farzi_hf.summary.store.atomic_folder import exclusive, flush, names_the_disk
from farzi_hf.summary.store.tensor_file import FILES_LIMIT, listed_files, write_tensors

T = TypeVar("T")

# -- the files -------------------------------------------------------------------------------------------------------

TENSORS = "farzi.safetensors"
CONFIG = "config.json"
CARD = "README.md"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
VIEWER = "viewer.html"
PLOTS = "plots"
VOCABULARY = ITEMS_FILE
TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates/*.jinja")
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, *CHAT_TEMPLATES)
OTHER_TOKENIZER_FILES = (
    "tokenizer.model", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "sentencepiece.model", "spm.model", "tiktoken.model", "tekken.json", "normalizer.json",
)  # fmt: skip
"""Files that a tokenizer writes beside tokenizer.json, or wrote under earlier versions. They are replaced as all others, and never read."""

_MIB = 2**20
PLOTS_LIMIT = 64 * _MIB
"""The most bytes of all plots together."""
LOADED_FILES: dict[str, int | None] = {
    TENSORS: None, CONFIG: _MIB, RECIPE: _MIB // 8, METRICS: 2 * _MIB, VOCABULARY: 64 * _MIB,
    **{f"{PLOTS}/*.{kind}": 32 * _MIB for kind in ("png", "jpg", "jpeg", "svg", "webp", "gif", "pdf")},
    **dict.fromkeys(TOKENIZER_FILES, 4 * _MIB), TOKENIZER: 64 * _MIB,
}  # fmt: skip
"""The files that `FarziData.from_pretrained` reads: patterns of names, and the most bytes of each. None: the file is not read at once."""
_TABLES = [f"{name}/train-*.parquet" for name in ("latents", "decoder", "tokens", "labels", "label_decoder")]
_FILES = {**LOADED_FILES, **dict.fromkeys((CARD, VIEWER, *_TABLES, *OTHER_TOKENIZER_FILES))}
_FOLDERS = sorted({pattern.split("/")[0] for pattern in _FILES if "/" in pattern})
# Such a name is a plain one on every system: it has no drive, no stream and no `..`, and is not hidden.
_PLAIN = re.compile(r"(?!\.)[^/\\:*?\"<>|\x00-\x1f]+")


def pattern_of(name: str) -> str | None:
    """The pattern that `name`, a path relative to the folder with slashes, matches; None: an artefact has no place for such a file."""
    if not all(map(_PLAIN.fullmatch, name.split("/"))):
        return None
    return next((p for p in _FILES if p.count("/") == name.count("/") and fnmatchcase(name, p)), None)


def size_limit(name: str) -> int | None:
    """The most bytes that the known file `name` may have; None where there is no limit."""
    return _FILES[pattern_of(name)]


# -- reading them ----------------------------------------------------------------------------------------------------

_WRITING, _COMMITTED = ".farzi-writing", ".farzi-committed"
_SECONDS, _PAUSE = 1.0, 0.02
_BLOB = re.compile(r"[0-9a-f]{32,128}")
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class ArtefactFolder:
    """The files of the artefact in `folder`, as they are now.

    Attributes:
        names: relative paths of the artefact's files: those that its tensors list and that have a place here, and the tensors.

    Raises:
        FileNotFoundError: there is no artefact.
        ValueError: there is a link or a device where a file should be, or the tensors are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, [TENSORS]
        self._committed = find_file(folder, f"{_COMMITTED}/{TENSORS}") is not None
        if (tensors := self.find(TENSORS)) is not None:
            self.names = [*filter(pattern_of, listed_files(tensors)), TENSORS]
        for name in (TENSORS, CONFIG):
            if self.find(name) is None:
                raise FileNotFoundError(
                    f"{str(folder)!r} has no {name}, so it is not a Farzi summary; "
                    "name a folder or repository written by FarziData.save_pretrained or push_to_hub"
                )

    def find(self, name: str) -> Path | None:
        """Where the file `name` lies, None if it does not exist."""
        if not self._committed:
            return find_file(self.folder, name)
        if name not in self.names:  # it is of the old artefact
            return None
        return find_file(self.folder, f"{_COMMITTED}/{name}") or find_file(self.folder, name)

    def present(self, patterns: Collection[str]) -> list[str]:
        """Names of the files that exist and match one of `patterns` of the layout. A wildcard finds only files that the artefact lists."""
        candidates = dict.fromkeys((*patterns, *self.names))
        return [name for name in candidates if pattern_of(name) in patterns and self.find(name) is not None]

    def path(self, name: str) -> Path:
        """Where the file `name` lies."""
        if (path := self.find(name)) is None:
            raise FileNotFoundError(f"{self.folder / name} is missing; save the summary or fetch it again")
        return path

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """The file `name`. It is refused where it is too large, or a link or a pipe has taken its place since it was found."""
        path, limit = self.path(name), size_limit(name)
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path} is no plain file; put the file there, or remove it")
            if limit is not None and found.st_size > limit:
                raise ValueError(f"{path} is larger than the {limit:,} bytes that are read; remove or shrink it")
            yield file

    def read(self, name: str) -> bytes:
        """The content of the file `name`, one with a limit."""
        with self.opened(name) as file:
            return file.read(size_limit(name))


def read_artefact(folder: Path, read: Callable[[ArtefactFolder], T]) -> T:
    """`read(artefact)`, read again if another process has saved in `folder` meanwhile: never a mix of two artefacts."""
    end = time.monotonic() + _SECONDS
    for attempt in count():
        before = _state(folder)
        error = f"{str(folder)!r} is written to again and again; wait until that ends, or read a copy"
        try:
            result = read(ArtefactFolder(folder))
            if before[1:] == _state(folder)[1:]:
                return result
        except (ValueError, FileNotFoundError) as problem:
            moving, error = before[0], problem  # files of a committed save may move while they are read
            if not moving and before == _state(folder):
                raise
        if attempt > 1 and time.monotonic() > end:
            raise error if isinstance(error, Exception) else ValueError(error)
        time.sleep(_PAUSE)


def _state(folder: Path) -> tuple[bool | int, ...]:
    """Whether the state is `committed`; and what identifies the artefact's tensors, which moving a file does not change."""
    for path in (folder / _COMMITTED / TENSORS, folder / TENSORS):
        with suppress(OSError):
            found = os.lstat(path)
            return path.parent != folder, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return (False,)


def find_file(root: Path, name: str) -> Path | None:
    """The plain file `name` under the folder `root`; None if it does not exist.

    Only one kind of link is followed: huggingface_hub's own, from a snapshot in its cache to a file of the same repository.

    Raises:
        ValueError: there is a link, a device or a folder where the file should be.
    """
    path = root
    *parents, last = name.split("/")
    for part in parents:
        path = path / part
        if (mode := _mode_of(path)) is None:
            return None
        if not stat.S_ISDIR(mode):
            raise ValueError(f"{path} is a link or a file where a folder is due; put the folder there, or remove it")
    path = path / last
    if (mode := _mode_of(path)) is None:
        return None
    if stat.S_ISLNK(mode):
        if (blob := _blob(root, path)) is not None:
            return blob
        raise ValueError(
            f"{path} is a link, which is not followed because it may lead anywhere; put the file itself in its place, or load the "
            "repository by its name"
        )
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is no plain file but a folder or a device; put the file there, or remove it")
    if os.lstat(path).st_nlink > 1:
        raise ValueError(f"{path} is a hard link, whose other name may be a private file's; put a copy in its place")
    return path


def _mode_of(path: Path) -> int | None:
    """The mode of `path` itself, even if it is a link; None if there is nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path).st_mode
    return None


def _blob(root: Path, link: Path) -> Path | None:
    """The file that `link` leads to, if `root` is a snapshot of a dataset in the Hub's cache and the file is one of its blobs."""
    snapshot = root.resolve()
    blobs = snapshot.parent.parent / "blobs"
    if snapshot.parent.name != "snapshots" or not blobs.parent.name.startswith("datasets--"):
        return None
    target = Path(os.path.normpath(snapshot / link.relative_to(root).parent / os.readlink(link)))
    inside = target.parent.resolve() == blobs and stat.S_ISDIR(_mode_of(blobs) or 0)
    return target if inside and _BLOB.fullmatch(target.name) and stat.S_ISREG(_mode_of(target) or 0) else None


# -- replacing them --------------------------------------------------------------------------------------------------


def replace_files(folder: Path, write: Callable[[Path], None], tensors: dict[str, Tensor]) -> None:
    """Replaces the artefact in `folder` by the files that `write(empty_folder)` writes, and by `tensors`. Other files stay.

    Raises:
        ValueError: see `check_destination`; a file that an artefact has no place for; somebody else writes to `folder`.
        OSError: for instance a full disk. The old artefact is then unchanged.
    """
    with names_the_disk(folder), exclusive(folder):
        check_destination(folder)
        writing = folder / _WRITING
        _remove(writing)
        _move_into_place(folder)
        try:
            writing.mkdir()
            write(writing)
            names = [path.relative_to(writing).as_posix() for path in _files(writing)]
            _check_names(writing, names)
            there = [name for name in names if find_file(folder, name) is not None]
            same = filecmp.cmpfiles(writing, folder, there, shallow=False)[0]
            check_destination(folder, {*names} - {*same})
            write_tensors(writing / TENSORS, tensors, names)
            for path in [*_files(writing), writing]:
                flush(path)
            writing.rename(folder / _COMMITTED)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        _move_into_place(folder)


def _move_into_place(folder: Path) -> None:
    """Ends the state `committed`, if the folder is in it. It can be interrupted and repeated."""
    if new := _listed(folder, f"{_COMMITTED}/{TENSORS}"):
        check_destination(folder, new)
        for name in _listed(folder, TENSORS) - new:
            (folder / name).unlink(missing_ok=True)
        for name in [*new, TENSORS]:
            if (source := find_file(folder, f"{_COMMITTED}/{name}")) is not None:  # else it was moved before
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, folder / name)
    _remove(folder / _COMMITTED)


def check_destination(folder: Path, names: Collection[str] = (CONFIG, CARD, VIEWER)) -> None:
    """Raises ValueError if writing an artefact with the files `names` to `folder` would overwrite files of something else.

    By default `names` are the files that every artefact has. Call it before a long distillation rather than at its end.
    """
    if folder.is_symlink():
        raise ValueError(
            f"folder={str(folder)!r} is a link, which is not written through; name the folder {str(folder.resolve())!r} itself"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder to save the summary in")
    owned = _listed(folder, TENSORS) | _listed(folder, f"{_COMMITTED}/{TENSORS}")
    for name in sorted({*names, *owned}):  # the old files too: none is replaced or removed through a link
        if find_file(folder, name) is not None and name not in owned:
            raise ValueError(
                f"folder={str(folder)!r} has a {name} but no {TENSORS} that claims it: it holds something else, which saving would "
                "overwrite; choose another folder"
            )


def _listed(folder: Path, tensors: str) -> set[str]:
    """The files that those tensors list, and those that every artefact has; none without tensors."""
    path = find_file(folder, tensors)
    return set() if path is None else {CONFIG, CARD, VIEWER, *filter(pattern_of, listed_files(path))}


def _check_names(writing: Path, names: list[str]) -> None:
    """Raises ValueError for files that `from_pretrained` would refuse."""
    if len(names) > FILES_LIMIT:
        raise ValueError(
            f"an artefact would have {len(names):,} files, more than the {FILES_LIMIT:,} that it can have; give fewer plots"
        )
    for name in names:
        if not pattern_of(name):
            raise ValueError(
                f"an artefact has no place for {name!r}: give plots as images, and as processing_class a fast tokenizer, which saves "
                "itself as tokenizer.json"
            )
        size, limit = (writing / name).stat().st_size, size_limit(name)
        if limit is not None and size > limit:
            raise ValueError(f"{name} would have {size:,} bytes, of which {limit:,} are read; make it smaller")


def _remove(folder: Path) -> None:
    """Removes a folder that only a save makes, with the files in it that an artefact can have. The caller holds the lock.

    Raises:
        ValueError: it holds others, or it is no folder.
    """
    if stat.S_ISDIR(_mode_of(folder) or 0):
        for path in _files(folder):
            if pattern_of(path.relative_to(folder).as_posix()):
                path.unlink()
        for path in (*(folder / name for name in _FOLDERS), folder):
            with suppress(OSError):  # it is not empty, or not there
                path.rmdir()
    if _mode_of(folder) is not None:
        raise ValueError(f"{folder} holds what no save of this library leaves; remove it, and do not trust this folder")


def _files(folder: Path) -> list[Path]:
    """The plain files under `folder`, without those behind links."""
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if stat.S_ISREG(_mode_of(path) or 0))
