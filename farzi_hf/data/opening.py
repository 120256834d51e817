"""Files of text as UTF-8.

Packed files are unpacked, other encodings are decoded, and what is no text is refused with the way
to make one of it.
"""

import codecs
import io
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa

PACKED = (".gz", ".bz2", ".zst", ".xz")
"""Endings of files that are unpacked as they are read."""
_ARROW_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_HEAD = 4096  # bytes by which the encoding is known
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnusableFileError(ValueError):
    """A file cannot be used as it is. The message names the file and the remedy."""


@dataclass(frozen=True)
class Foreign:
    """A kind of file that is not read."""

    what: str
    """What the file is, in words."""
    remedy: str
    """What the user can do."""
    endings: tuple[str, ...] = ()
    """How the names of such files end. A text is read whatever its name is."""
    start: bytes = rb"(?!)"
    """A pattern of the first bytes; by default one that nothing matches."""


FOREIGN = (
    Foreign(
        "a spreadsheet",
        "save its sheet as .csv",
        (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers"),
    ),
    Foreign(
        "a document",
        "save it as plain text, .txt",
        (".docx", ".doc", ".odt", ".rtf", ".pdf", ".epub", ".mobi"),
        rb"%PDF-\d|\{\\rtf\d|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    ),
    Foreign(
        "a database",
        "export its table as .csv or .parquet",
        (".db", ".sqlite", ".sqlite3", ".duckdb", ".mdb", ".accdb"),
        rb"SQLite format 3\0",
    ),
    Foreign(
        "a file of objects or arrays",
        "save its table as .parquet or .csv",
        (
            *(".pkl", ".pickle", ".joblib", ".pt", ".pth", ".npy", ".npz", ".mat", ".h5", ".hdf5"),
            *(".rds", ".rda", ".rdata", ".sav", ".dta", ".sas7bdat", ".orc", ".avro", ".tfrecord"),
            *(".safetensors", ".feather"),
        ),
        rb"\x93NUMPY|\x89HDF\r\n|Obj\x01|ORC[^ -~\s]",
    ),
    Foreign("Parquet", "give it the ending .parquet", (), rb"PAR1\x15"),
    Foreign("Arrow", "give it the ending .arrow", (), rb"ARROW1\0"),
    Foreign(
        "an archive, or of an office program",
        "unpack it and give the files in it, or save it as .csv or .txt",
        (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".lz", ".lz4", ".z", ".br"),
        rb"PK\x03\x04|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07",
    ),
    Foreign(
        "a packed file",
        f"give it the ending of its packing ({', '.join(PACKED)}), or unpack it",
        (),
        rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd",
    ),
)
"""The kinds of files that are not read."""


def ending(path: Path) -> str:
    """The ending of a file's name, in small letters, before that of a packing."""
    inner = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return inner.suffix.lower()


def utf8(path: Path) -> pa.NativeFile:
    """The text of a file as bytes in UTF-8, whatever its encoding and packing are, without the byte
    order marks at its start.

    Raises:
        UnusableFileError: here or while it is read: the file is not text.
        OSError: the file is missing, or damaged.
    """
    with unpacked(path) as file:
        head = file.read(_HEAD)
    encoding = _encoding(head)
    foreign = _foreign(ending(path), head, encoding)
    if foreign is not None:
        raise UnusableFileError(f"{path} is {foreign.what}: {foreign.remedy}")
    return pa.TransformInputStream(unpacked(path), _decoder(path, encoding))


def opened(path: Path, **how: str) -> TextIO:
    """The text of `utf8`; `how` is as for `open`."""
    return io.TextIOWrapper(utf8(path), "utf-8", **how)


def unpacked(path: Path) -> pa.NativeFile:
    """The bytes of a file, also of a packed one."""
    packing = path.suffix.lower()
    if packing == ".xz":
        return pa.PythonFile(_XzFile(path), mode="r")
    return pa.input_stream(str(path), _ARROW_CODECS.get(packing))


class _XzFile(lzma.LZMAFile):
    """Errors are those of other damaged files."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except (lzma.LZMAError, EOFError) as error:
            raise OSError(f"it is not a whole .xz file: {error}") from error


# -- what the first bytes say ----------------------------------------------------------------------


def _encoding(head: bytes) -> str:
    """The encoding of a text: by its mark, or by the zeros of letters in UTF-16 and UTF-32."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if len(head) < 2 or 0 not in head:
        return "utf-8"
    zeros = [_share_of_zeros(head[place::4]) for place in range(4)]
    even = _share_of_zeros(head[0::2])
    odd = _share_of_zeros(head[1::2])
    if zeros[0] == 0 and zeros[2] == zeros[3] == 1:
        return "utf-32-le"
    if zeros[3] == 0 and zeros[0] == zeros[1] == 1:
        return "utf-32-be"
    # Half of the letters have no zero where the text is of no Latin script.
    if even == 0 and odd >= 0.5:
        return "utf-16-le"
    if odd == 0 and even >= 0.5:
        return "utf-16-be"
    return "utf-8"


def _share_of_zeros(content: bytes) -> float:
    return content.count(0) / max(1, len(content))


def _foreign(name_ends: str, head: bytes, encoding: str) -> Foreign | None:
    """The kind of a file that is not text; None if it may be a text."""
    by_start = next((kind for kind in FOREIGN if re.match(kind.start, head)), None)
    has_zeros = encoding == "utf-8" and 0 in head
    if by_start is None and not has_zeros:
        return None
    by_name = next((kind for kind in FOREIGN if name_ends in kind.endings), None)
    return by_name or by_start  # many kinds of files are archives inside


def _decoder(path: Path, encoding: str) -> Callable[[pa.Buffer], bytes]:
    """What turns one part of a file after the other into UTF-8, without the byte order marks that
    it begins with: programs that add one to a file that has one leave two. The last part is empty.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    has_begun = False
    held = b""  # a part of a mark, as far as it was read

    def without_marks(content: bytes, is_last: bool) -> bytes:
        nonlocal has_begun, held
        content = held + content
        while content.startswith(codecs.BOM_UTF8):
            content = content.removeprefix(codecs.BOM_UTF8)
        has_begun = is_last or not codecs.BOM_UTF8.startswith(content)
        held = b"" if has_begun else content
        return content if has_begun else b""

    def decode(part: pa.Buffer) -> bytes:
        content = part.to_pybytes()
        is_last = not content
        if encoding != "utf-8":  # else readers decode it, and some columns not at all
            content = decoder.decode(content, final=is_last).encode()
        if 0 in content:
            raise UnusableFileError(
                f"{path} is not text, because it holds NUL bytes: give a text file, in UTF-8 best"
            )
        return content if has_begun else without_marks(content, is_last)

    return decode
