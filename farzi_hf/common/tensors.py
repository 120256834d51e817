"""Files of tensors that somebody goes on from: safetensors with a checksum, which is compared when
they are read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from farzi_hf.common.files import CHECKSUM, DamagedError, replace_file, warn_unchecked
from farzi_hf.common.text import one_line


def checksum(tensor: Tensor) -> str:
    """SHA-256 over type, shape and numbers."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
    """Replaces the file `path` by these tensors, contiguous ones on the CPU, and `facts` about
    them, with a checksum of all.
    """
    whole = _digest(((name, checksum(tensor)) for name, tensor in tensors.items()), facts)
    metadata = {**facts, CHECKSUM: whole}
    replace_file(path, lambda new: save_file(dict(tensors), new, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the facts that `save_tensors` has written to the file `path`. A file without
    a checksum, as older versions wrote it, is used with a warning.

    Raises:
        ValueError: the file cannot be read; DamagedError: it is not as it was written.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = dict(file.metadata() or {})
    _compare(path, [(name, checksum(tensor)) for name, tensor in tensors.items()], facts)
    return tensors, facts


def check_tensors(path: Path) -> None:
    """The errors of `load_tensors`, with one tensor in memory at a time."""
    with _opened(path) as file:
        names = file.keys()
        checksums = [(name, checksum(file.get_tensor(name))) for name in names]
        facts = dict(file.metadata() or {})
    _compare(path, checksums, facts)


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(f"it cannot be read: {one_line(str(error))}") from None


def _compare(path: Path, checksums: Iterable[tuple[str, str]], facts: dict[str, str]) -> None:
    """Takes the checksum from `facts`, and compares it."""
    expected = facts.pop(CHECKSUM, None)
    if expected is None:
        warn_unchecked(path)
    elif expected != _digest(checksums, facts):
        raise DamagedError("its content has another checksum than it was written with")


def _digest(checksums: Iterable[tuple[str, str]], facts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr((sorted(checksums), sorted(facts.items()))).encode()).hexdigest()
