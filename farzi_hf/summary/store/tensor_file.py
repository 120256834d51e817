"""`farzi.safetensors`: the tensors of a summary, their checksums, and the list of the artefact's files.

Checksums and list are JSON in one entry of the metadata, `farzi`: `{"files": [names], "sha256": {tensor: hexadecimal digits}}`. It is
one entry because safetensors writes several in any order, and equal summaries should have equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from farzi_hf.summary.store.layout import FILES_LIMIT
from farzi_hf.summary.store.storage import FLOATS, Stored
from farzi_hf.summary.store.text import as_mapping, parse_json

_HEADER_LIMIT, _TENSORS_LIMIT = 2**20, 10_000
"""The most bytes of a header, and the most tensors: an honest summary has a hundredth, and each of many names costs time."""
_ENTRY, _OLD_ENTRY = "farzi", "files"  # the old entry is a list of names, without checksums


@dataclass(frozen=True)
class Header:
    """The header of a tensor file.

    Attributes:
        files: relative paths of the artefact's other files, None where the file has no list.
        checksums: `checksum` of each tensor; empty in files of older versions.
        shapes, dtypes: of each tensor; types by their names in safetensors, as "F32".
    """

    files: tuple[str, ...] | None
    checksums: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], files: list[str]) -> None:
    """Writes contiguous CPU tensors and the names of the artefact's other files to `path`."""
    facts = {"files": files, "sha256": {name: checksum(tensor) for name, tensor in tensors.items()}}
    path.touch()
    mode = path.stat().st_mode  # as the umask says; safetensors makes files that only their owner may read
    save_file(dict(tensors), path, metadata={_ENTRY: json.dumps(facts)})
    path.chmod(mode)


def read_header(path: Path) -> Header:
    """The header of the file `path`, which is not trusted.

    Raises:
        ValueError: the file is damaged, or it lists files outside its folder, which no honest artefact does.
    """
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 — it is no mapping
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        dtypes = {name: part.get_dtype() for name, part in slices.items()}
        metadata = file.metadata() or {}
    files, checksums = read_metadata(metadata, path)
    return Header(files, checksums, shapes, dtypes)


def read_metadata(metadata: Mapping[str, str], path: Path) -> tuple[tuple[str, ...] | None, Mapping[str, str]]:
    """`files` and `checksums` of a `Header`, from the metadata of the file `path`, which are not trusted.

    Raises:
        ValueError: as `read_header`.
    """
    facts = {}
    if _ENTRY in metadata:
        facts = as_mapping(parse_json(metadata[_ENTRY].encode(), path), path)
    elif _OLD_ENTRY in metadata:
        facts = {"files": parse_json(metadata[_OLD_ENTRY].encode(), path)}
    files, checksums = facts.get("files"), as_mapping(facts.get("sha256", {}), path)
    if files is not None and not (isinstance(files, list) and all(isinstance(name, str) for name in files)):
        raise ValueError(f"{path} lists its artefact's files as {files!r:.80}, not by their names; fetch it again")
    if len(files or ()) > FILES_LIMIT:
        raise ValueError(
            f"{path} lists {len(files):,} files, more than the {FILES_LIMIT:,} of an artefact; do not trust this folder"
        )
    for name in files or []:
        if _leads_out(name):
            raise ValueError(f"{path} claims the file {name!r} outside its folder; do not trust this folder")
    return None if files is None else tuple(files), checksums


def load_tensors(path: Path, layout: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors in the file `path`, which have to be those of `layout`. All floating-point tensors have the same type.

    Raises:
        ValueError: the file is damaged, has other tensors, shapes or types than a summary, or its numbers do not match the checksum.
    """
    header = read_header(path)
    for name, expected in layout.items():
        found = header.shapes.get(name, "missing")
        if found != expected.shape:
            raise ValueError(
                f"{name} in {path} is {found}, but config.json says {expected.shape}; the two files belong to different "
                "summaries, fetch it again"
            )
    if extra := sorted(set(header.shapes) - set(layout)):
        raise ValueError(
            f"{path} holds {', '.join(map(repr, extra)):.200} beside {', '.join(layout)}, which config.json does not mention; "
            "fetch it again, or load it with the version of farzi_hf that wrote it"
        )
    wrong = [name for name, expected in layout.items() if header.dtypes[name] not in expected.dtypes]
    if wrong or len(FLOATS.intersection(header.dtypes.values())) > 1:
        types = ", ".join(f"{name} {dtype}" for name, dtype in sorted(header.dtypes.items()))
        allowed = ", ".join(f"{name} {' or '.join(sorted(expected.dtypes))}" for name, expected in layout.items())
        raise ValueError(f"{path} holds {types}; a summary has {allowed}, and one type of floats; fetch it again")
    with _opened(path) as file:
        tensors = {
            name: file.get_tensor(name).clone() for name in layout
        }  # copied, because the file may be replaced or truncated
    for name, tensor in tensors.items():
        if header.checksums.get(name, expected := checksum(tensor)) != expected:
            raise ValueError(
                f"{name} in {path} has another checksum than it was saved with; it is damaged, fetch it again"
            )
    return tensors


def checksum(tensor: Tensor) -> str:
    """SHA-256 over type, shape and numbers."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of all tensors, in their order."""
    return " ".join(map(checksum, tensors.values()))


def _leads_out(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or name.startswith(("/", "\\")) or ":" in parts[0]


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > _HEADER_LIMIT:
        raise ValueError(
            f"{path} has a header of {size:,} bytes, more than the {_HEADER_LIMIT:,} that are read; it is damaged, fetch it again"
        )
    try:
        with safe_open(path, framework="pt") as file:
            if (count := len(file.keys())) > _TENSORS_LIMIT:
                raise ValueError(
                    f"{path} has {count:,} tensors, more than the {_TENSORS_LIMIT:,} that are read; do not trust this folder"
                )
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is no readable safetensors file ({error}); it is damaged, fetch it again") from None
