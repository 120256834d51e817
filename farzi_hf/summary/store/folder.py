"""The folder of an artefact: which files it may have, reading them without trust, and replacing
them all at once.

The metadata of the artefact's tensors list its files. That list is not trusted: only files whose
names are also in the closed list here are read, pushed, moved or removed. No link is followed. A
size limit holds for each file that is read into memory.

A save takes a folder through three states. A process that dies leaves one of them, and the next
save goes on from there.

- *whole*: beside the artefact's files, the folder holds nothing of ours. A reader reads the files.
- *writing*: it also holds `.farzi-writing`, a new artefact that is not complete. A reader still
  reads the files.
- *committed*: it holds `.farzi-committed`, those files of a complete new artefact that are not in
  place yet. A reader reads each file of the new artefact where it lies.

One rename turns `writing` into `committed`. Then each file is moved into place. The tensors, which
list the files, are moved last. Renaming the whole folder would be simpler, but a run's checkpoints
in it are not ours to move.
"""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, TypeVar

from torch import Tensor

from farzi_hf.common.files import exclusive, find_file, flush, opened_plain, status_of
from farzi_hf.common.text import YAML_BYTES
from farzi_hf.data.tokenizer_file import TOKENIZER_LIMITS
from farzi_hf.data.vocabulary import ITEMS_BYTES, ITEMS_FILE
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.summary.store.tensor_file import listed_files, write_tensors

T = TypeVar("T")

# -- the files -------------------------------------------------------------------------------------

TENSORS = "farzi.safetensors"
CONFIG = "config.json"
CARD = "README.md"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
VIEWER = "viewer.html"
PLOTS = "plots"
VOCABULARY = ITEMS_FILE

_MIB = 2**20
PLOTS_LIMIT = 64 * _MIB  # of all plots together
LOADED_FILES: dict[str, int | None] = {
    TENSORS: None,
    CONFIG: _MIB,
    RECIPE: YAML_BYTES,
    METRICS: 2 * _MIB,
    VOCABULARY: ITEMS_BYTES,
    **{
        f"{PLOTS}/*.{kind}": 32 * _MIB
        for kind in ("png", "jpg", "jpeg", "svg", "webp", "gif", "pdf")
    },
    **TOKENIZER_LIMITS,
}
"""The files that `FarziData.from_pretrained` reads: patterns of names, and the most bytes of each.
None: the file is not read at once.
"""
# Such a name is a plain one on every system: it has no drive, no stream and no `..`, and is not
# hidden.
_PLAIN = re.compile(r"(?!\.)[^/\\:*?\"<>|\x00-\x1f]+")


def _limits() -> dict[str, int | None]:
    """The files that an artefact can have, as `LOADED_FILES` lists those that are loaded. Of the
    folders of tables, those that a form names, and no others, are ever replaced or removed.
    """
    forms = (*INPUTS.values(), *LABELS.values())
    tables = (f"{name}/train-*.parquet" for form in forms for name in form.table_names)
    return {**LOADED_FILES, **dict.fromkeys((CARD, VIEWER, *tables))}


def pattern_of(name: str) -> str | None:
    """The pattern that `name`, a path relative to the folder with slashes, matches; None: an
    artefact has no place for such a file.
    """
    if not all(map(_PLAIN.fullmatch, name.split("/"))):
        return None
    for pattern in _limits():
        if pattern.count("/") == name.count("/") and fnmatchcase(name, pattern):
            return pattern
    return None


# -- reading them ----------------------------------------------------------------------------------

_WRITING = ".farzi-writing"
_COMMITTED = ".farzi-committed"


class ArtefactFolder:
    """The files of the artefact in `folder`, as they are now.

    Attributes:
        names: relative paths of the artefact's files: those that its tensors list and that have a
            place here, and the tensors.

    Raises:
        FileNotFoundError: there is no artefact.
        ValueError: there is a link or a device where a file should be, or the tensors are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [TENSORS, CONFIG]
        self._committed = find_file(folder, f"{_COMMITTED}/{TENSORS}") is not None
        listed = filter(pattern_of, listed_files(self.path(TENSORS)))
        self.names = list(dict.fromkeys([*listed, CONFIG, TENSORS]))
        self.path(CONFIG)

    def find(self, name: str) -> Path | None:
        """Where the file `name` lies; None if it does not exist, or if the tensors do
        not list it.
        """
        if name not in self.names:
            return None
        moving = find_file(self.folder, f"{_COMMITTED}/{name}") if self._committed else None
        return moving or find_file(self.folder, name)

    def path(self, name: str) -> Path:
        """Where the file `name` lies."""
        path = self.find(name)
        if path is None:
            raise FileNotFoundError(
                f"{str(self.folder)!r} has no {name}, so it is not a Farzi summary; name one that"
                " save_pretrained has written"
            )
        return path

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """The file `name`. It is refused where it is too large, or a link or a pipe has taken its
        place since it was found.
        """
        with opened_plain(self.path(name), _limits()[pattern_of(name)]) as file:
            yield file

    def read(self, name: str) -> bytes:
        """The content of the file `name`, one with a limit."""
        with self.opened(name) as file:
            return file.read(_limits()[pattern_of(name)])


def read_artefact(folder: Path, read: Callable[[ArtefactFolder], T]) -> T:
    """`read(artefact)`: never a mix of two artefacts. Raises ValueError if another process has
    saved in `folder` meanwhile.
    """
    before = _state(folder)
    try:
        result = read(ArtefactFolder(folder))
    except (ValueError, FileNotFoundError):
        if _state(folder) == before:
            raise
    else:
        if _state(folder) == before:
            return result
    raise ValueError(f"{str(folder)!r} was saved while it was read; load it again")


def _state(folder: Path) -> list[tuple[int, int] | None]:
    """What changes with each step of a save that others could notice."""
    paths = (folder / _COMMITTED / TENSORS, folder / TENSORS)
    return [facts and (facts.st_ino, facts.st_mtime_ns) for facts in map(status_of, paths)]


# -- replacing them --------------------------------------------------------------------------------


def replace_files(folder: Path, write: Callable[[Path], None], tensors: dict[str, Tensor]) -> None:
    """Replaces the artefact in `folder` by the files that `write(empty_folder)` writes, and by
    `tensors`. Other files stay. It raises ValueError if it must not: see `check_destination` and
    `exclusive`. After any error the old artefact is unchanged.
    """
    check_destination(folder)
    with exclusive(folder):
        writing = folder / _WRITING
        _remove(writing)
        _move_into_place(folder)
        try:
            writing.mkdir()
            write(writing)
            names = [path.relative_to(writing).as_posix() for path in _files(writing)]
            for name in names:
                pattern = pattern_of(name)
                if pattern is None:
                    raise ValueError(
                        f"an artefact has no place for {name}; a form names its tables in"
                        " table_names"
                    )
                size = (writing / name).stat().st_size
                limit = _limits()[pattern]
                if limit is not None and size > limit:
                    raise ValueError(
                        f"{name} would have {size:,} bytes, of which {limit:,} are read; make it"
                        " smaller"
                    )
            check_destination(folder, names)
            write_tensors(writing / TENSORS, tensors, names)
            for path in [*_files(writing), writing]:
                flush(path)
            writing.rename(folder / _COMMITTED)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        _move_into_place(folder)


def _move_into_place(folder: Path) -> None:
    """Ends the state `committed`, if the folder is in it. It can be interrupted and repeated."""
    new = _listed(folder, f"{_COMMITTED}/{TENSORS}")
    if new:
        check_destination(folder, new)
        for name in _listed(folder, TENSORS) - new:
            (folder / name).unlink(missing_ok=True)
        for name in [*new, TENSORS]:
            source = find_file(folder, f"{_COMMITTED}/{name}")
            if source is not None:  # else it was moved before
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, folder / name)
    _remove(folder / _COMMITTED)


def check_destination(folder: Path, names: Collection[str] = (CONFIG, CARD, VIEWER)) -> None:
    """Raises ValueError if writing an artefact with the files `names` to `folder` would overwrite
    files of something else.
    """
    if folder.is_symlink():
        raise ValueError(
            f"folder={str(folder)!r} is a link, which is not followed; name"
            f" {str(folder.resolve())!r}"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder to save the summary in")
    name = _foreign(folder, names)
    if name is not None:
        raise ValueError(
            f"folder={str(folder)!r} has a {name} but no {TENSORS} that claims it; choose"
            " another folder"
        )


def _foreign(folder: Path, names: Collection[str]) -> str | None:
    """A file of one of these names, or of the old artefact's, that is not the artefact's; None
    without one. A save of another process, which may go on meanwhile, moves files; then it looks
    again.
    """
    while True:
        before = _state(folder)
        try:
            owned = _listed(folder, TENSORS) | _listed(folder, f"{_COMMITTED}/{TENSORS}")
            # The old files too: none is replaced or removed through a link.
            there = (n for n in sorted({*names, *owned}) if find_file(folder, n) is not None)
            foreign = next((name for name in there if name not in owned), None)
        except FileNotFoundError:
            if _state(folder) == before:
                raise
            continue
        if foreign is None or _state(folder) == before:
            return foreign


def _listed(folder: Path, tensors: str) -> set[str]:
    """The files that those tensors list, and those that every artefact has; none
    without tensors.
    """
    path = find_file(folder, tensors)
    return set() if path is None else {CONFIG, CARD, *filter(pattern_of, listed_files(path))}


def _remove(folder: Path) -> None:
    """Removes a folder that only a save makes, with the files that an artefact can have. ValueError
    if it holds others, or is not a folder.
    """
    if folder.is_dir() and not folder.is_symlink():
        for path in _files(folder):
            if pattern_of(path.relative_to(folder).as_posix()):
                path.unlink()
        inside = {pattern.split("/")[0] for pattern in _limits() if "/" in pattern}
        for path in (*(folder / name for name in sorted(inside)), folder):
            with suppress(OSError):  # it is not empty, or not there
                path.rmdir()
    if status_of(folder) is not None:
        raise ValueError(
            f"{folder} holds what no save of this library leaves; remove it, and do not trust this"
            " folder"
        )


def _files(folder: Path) -> list[Path]:
    """The plain files under `folder`, without those behind links."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())
