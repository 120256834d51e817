"""The files that an artefact may have, and reading them from a folder that is not trusted: no link is followed, and nothing is changed there.

The metadata of an artefact's tensors list its files. That list is not trusted: only files whose names are also in the closed list here
are read, pushed, moved or removed. A size limit holds for each file that is read into memory.

A save that was interrupted after its commit (see `atomic_folder`) is read from where it lies. The next save moves it into place.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, TypeVar

from farzi_hf.data.vocabulary import ITEMS_FILE
from farzi_hf.summary.store.tensor_file import read_header

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

_MIB = 2**20
PLOTS_LIMIT = 64 * _MIB
"""The most bytes of all plots together."""
_TABLES = ("latents", "decoder", "tokens", "labels", "label_decoder")
_IMAGES = ("png", "jpg", "jpeg", "svg", "webp", "gif", "pdf")
CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates/*.jinja")
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, *CHAT_TEMPLATES)
OTHER_TOKENIZER_FILES = (
    "tokenizer.model", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "sentencepiece.model", "spm.model", "tiktoken.model", "tekken.json", "normalizer.json",
)  # fmt: skip
"""Files that a tokenizer writes beside tokenizer.json, or wrote under earlier versions. They are replaced as all others, and never read."""

_RESULT_FILES = {RECIPE: _MIB // 8, METRICS: 2 * _MIB, **{f"{PLOTS}/*.{kind}": 32 * _MIB for kind in _IMAGES}}
LOADED_FILES: dict[str, int | None] = {
    TENSORS: None, CONFIG: _MIB, **_RESULT_FILES, VOCABULARY: 64 * _MIB, **dict.fromkeys(TOKENIZER_FILES, 4 * _MIB),
    TOKENIZER: 64 * _MIB,
}  # fmt: skip
"""The files that `FarziData.from_pretrained` reads: patterns of names, and the most bytes of each. None: the file is not read at once."""
SHOWN_FILES: dict[str, int | None] = dict.fromkeys(
    (CARD, VIEWER, *(f"{name}/train-*.parquet" for name in _TABLES), *OTHER_TOKENIZER_FILES)
)
"""The files for people and for `datasets`, and those that are not read."""

FOLDERS = tuple(sorted({pattern.split("/")[0] for pattern in (*LOADED_FILES, *SHOWN_FILES) if "/" in pattern}))
# Such a name is a plain one on every system: it has no drive, no stream and no `..`, and is not hidden.
_PLAIN = re.compile(r"(?!\.)[^/\\:*?\"<>|\x00-\x1f]+")


def is_known(name: str) -> bool:
    """Whether an artefact has a place for the file `name`, a path relative to its folder with slashes."""
    return pattern_of(name) is not None


def size_limit(name: str) -> int | None:
    """The most bytes that the known file `name` may have; None where there is no limit."""
    return {**LOADED_FILES, **SHOWN_FILES}[pattern_of(name)]


def pattern_of(name: str) -> str | None:
    """The pattern of LOADED_FILES or SHOWN_FILES that `name` matches; None if there is none."""
    parts = name.split("/")
    if not all(_PLAIN.fullmatch(part) for part in parts):
        return None
    found = (p for p in (*LOADED_FILES, *SHOWN_FILES) if p.count("/") == name.count("/") and fnmatchcase(name, p))
    return next(found, None)


# -- reading them ----------------------------------------------------------------------------------------------------

COMMITTED = ".farzi-committed"
"""A folder inside the artefact's folder. It holds a saved artefact until its files are moved into place."""

_ATTEMPTS, _SECONDS, _PAUSE = 10, 1.0, 0.02
_BLOB = re.compile(r"[0-9a-f]{32,128}")
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class ArtefactFolder:
    """The files of the artefact in `folder`, as they are now.

    Raises:
        FileNotFoundError: there is no artefact.
        ValueError: there is a link or a device where a file should be, or the tensors are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._committed = committed_folder(folder)
        before = find_file(folder, TENSORS)
        old = () if before is None else read_header(before).files or ()
        self._names, self._removed = old, frozenset()
        if self._committed is not None:
            self._names = read_header(self._committed / TENSORS).files or ()
            self._removed = frozenset(old) - set(self._names)
        for name in (TENSORS, CONFIG):
            if self.find(name) is None:
                raise FileNotFoundError(
                    f"{str(folder)!r} has no {name}, so it is not a Farzi summary; "
                    "name a folder or repository written by FarziData.save_pretrained or push_to_hub"
                )

    @property
    def names(self) -> list[str]:
        """Relative paths of the artefact's files: the tensors, and those that their metadata list and `is_known` accepts."""
        return [*(name for name in self._names if is_known(name)), TENSORS]

    def find(self, name: str) -> Path | None:
        """Where the file `name` lies, None if it does not exist."""
        if self._committed is not None and (name in self._names or name == TENSORS):
            return find_file(self._committed, name) or find_file(self.folder, name)  # moved already, or not yet
        return None if name in self._removed else find_file(self.folder, name)

    def present(self, patterns: Collection[str]) -> list[str]:
        """Names of the files that exist and match one of `patterns` of the layout. A wildcard finds only files that the artefact lists."""
        candidates = dict.fromkeys((*patterns, *self._names))
        return [name for name in candidates if pattern_of(name) in patterns and self.find(name) is not None]

    def path(self, name: str) -> Path:
        """Where the file `name` lies."""
        if (path := self.find(name)) is None:
            raise FileNotFoundError(f"{self.folder / name} is missing; save the summary or fetch it again")
        return path

    def read(self, name: str) -> bytes:
        """The content of the file `name`, one of `LOADED_FILES` with a limit."""
        path, limit = self.path(name), size_limit(name)
        with _opened(path) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise ValueError(
                    f"{path} is larger than the {limit:,} bytes that are read of such a file; remove or shrink it"
                )
            return file.read(limit)

    def copy(self, target: Path, names: list[str]) -> None:
        """Copies the files `names` into the folder `target`. A file that is larger than its limit is refused."""
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if size_limit(name) is not None:
                (target / name).write_bytes(self.read(name))
                continue
            with _opened(self.path(name)) as source, (target / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)


def read_artefact(folder: Path, read: Callable[[ArtefactFolder], T]) -> T:
    """`read(artefact)`, read again if another process has saved in `folder` meanwhile: never a mix of two artefacts."""
    error: Exception = ValueError(
        f"{str(folder)!r} is written to again and again; wait until that ends, or read a copy"
    )
    end = time.monotonic() + _SECONDS
    for attempt in range(_ATTEMPTS):
        if attempt > 1 and time.monotonic() > end:
            break
        state, pending = _state(folder)
        try:
            result = read(ArtefactFolder(folder))
        except (ValueError, FileNotFoundError) as problem:
            if not pending and (state, pending) == _state(folder):
                raise
            error = problem
            time.sleep(_PAUSE)  # files are being moved into place
        else:
            if state == _state(folder)[0]:
                return result
    raise error


def _state(folder: Path) -> tuple[tuple[int, ...] | None, bool]:
    """Identifies the artefact's tensors, and says whether their save is still to be finished. Finishing keeps the same file."""
    for path in (folder / COMMITTED / TENSORS, folder / TENSORS):
        with suppress(OSError):
            found = os.lstat(path)
            return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns), path.parent != folder
    return None, False


def committed_folder(folder: Path) -> Path | None:
    """The folder of a save that is committed but not finished, None if there is none.

    Raises:
        ValueError: something else has its name.
    """
    committed = folder / COMMITTED
    mode = mode_of(committed)
    if mode is None:
        return None
    if not stat.S_ISDIR(mode):
        raise ValueError(
            f"{committed} is a link or a file, which no save leaves; remove it, and do not trust this folder"
        )
    return None if find_file(committed, TENSORS) is None else committed


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
        mode = mode_of(path)
        if mode is None:
            return None
        if not stat.S_ISDIR(mode):
            raise ValueError(
                f"{path} is a link or a file where a folder is due; put the folder itself there, or remove it"
            )
    path = path / last
    mode = mode_of(path)
    if mode is None:
        return None
    if stat.S_ISREG(mode):
        if os.lstat(path).st_nlink > 1:
            raise ValueError(
                f"{path} is a hard link: its other name may be that of a private file; put a copy in its place"
            )
        return path
    if not stat.S_ISLNK(mode):
        raise ValueError(f"{path} is no plain file but a folder or a device; put the file there, or remove it")
    if (blob := _blob(root, path)) is None:
        raise ValueError(
            f"{path} is a link, which is not followed because it may lead anywhere; put the file itself in its place, or load the "
            "repository by its name"
        )
    return blob


def mode_of(path: Path) -> int | None:
    """The mode of `path` itself, even if it is a link; None if there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _blob(root: Path, link: Path) -> Path | None:
    """The file that `link` leads to, if `root` is a snapshot of a dataset in the Hub's cache and the file is one of its blobs."""
    snapshot = root.resolve()
    blobs = snapshot.parent.parent / "blobs"
    if snapshot.parent.name != "snapshots" or not blobs.parent.name.startswith("datasets--"):
        return None
    target = Path(os.path.normpath(snapshot / link.relative_to(root).parent / os.readlink(link)))
    inside = target.parent.resolve() == blobs and stat.S_ISDIR(mode_of(blobs) or 0)
    return target if inside and _BLOB.fullmatch(target.name) and stat.S_ISREG(mode_of(target) or 0) else None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Opens the plain file `path`. If a link or a pipe has taken its place since it was found, that is refused."""
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no plain file; put the file there, or remove it")
        yield file
