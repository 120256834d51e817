"""`farzi.safetensors`: the tensors of a summary, as they are or rounded to fewer bytes, their checksums, and the list of the artefact's files.

Checksums and list are JSON in one entry of the metadata, `farzi`: `{"files": [names], "sha256": {tensor: hexadecimal digits}}`. It is
one entry because safetensors writes several in any order, and equal summaries should have equal bytes.

Students hardly notice it when labels of their own are rounded to a byte for each number, or, where inputs are ids, to five or six bits
(recipes/LOG.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from farzi_hf.summary.store.text import parse_mapping

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})  # as safetensors names them


class Stored(NamedTuple):
    """A tensor of the file: its shape, and the types that it may have."""

    shape: tuple[int, ...]
    dtypes: frozenset[str]

    def __str__(self) -> str:
        return f"{' or '.join(sorted(self.dtypes))} {self.shape}"


class Storage:
    """One way to store the tensors of a summary. This one keeps all numbers as they are, usually float32, and ids in four bytes.

    Attributes:
        name: that of `FarziDataConfig.storage`.
        description: what a card says about it; None for the way that needs no words.
    """

    name: str = "exact"
    description: str | None = None

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        """The tensors of the file, of a summary's tensors with `shapes`. Those that are not `learnt` are ids."""
        return {n: Stored(tuple(shape), FLOATS if n in learnt else frozenset({"I32"})) for n, shape in shapes.items()}

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        """What the file holds of a summary's tensors."""
        return dict(tensors)

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        """The summary's tensors. What is stored of them again is `stored`, bit for bit."""
        return dict(stored)

    def rounded(self, tensors: Tensors) -> dict[str, Tensor]:
        """What is left of a summary's tensors after they were stored and loaded; a ValueError where a type comes back as another."""
        kept = self.loaded(self.stored(tensors))
        for name, tensor in tensors.items():
            if kept[name].dtype != tensor.dtype:
                raise ValueError(f"storage={self.name!r} is for float32, and {name} is {tensor.dtype}; call float()")
        return kept

    def nbytes(self, tensors: Tensors) -> int:
        """Bytes of all tensors in the file."""
        return sum(x.numel() * x.element_size() for x in self.stored(tensors).values())

    def id_bits(self, vocab_size: int) -> int:
        """Bits of an id of real data that are stored as economically: 16 for a vocabulary of 257 to 65,536 entries."""
        return 8 * np.min_scalar_type(vocab_size - 1).itemsize


class Whole(Storage):
    """A whole number n for each number x, and a scale s for each of the d or e dimensions: x = s n. Ids in two bytes where they fit.

    n has b bits, |n| < 2^(b−1). s is the largest |x| / (2^(b−1) − 1), rounded up to 12 bits, so that s n is exact in float32. The
    error is s / 2 at most. Here each n has a byte.

    Args:
        bits: b, at most 8.
    """

    types: ClassVar[frozenset[str]] = frozenset({"I8"})
    _SCALE, _SMALLEST = ".scale", 2.0**-100

    def __init__(self, bits: int) -> None:
        self.bits, self._largest = bits, 2 ** (bits - 1) - 1
        self.name, self.description = f"int{bits}", f"{bits} bits a number, and a scale for each dimension"

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        found = {}
        for name, shape in shapes.items():
            if name not in learnt:
                found[name] = Stored(tuple(shape), frozenset({"I16", "I32"}))
                continue
            found[name] = Stored(self._shape(name, shape), self.types)
            found[name + self._SCALE] = Stored((shape[_dimensions(name)],), frozenset({"F32"}))
        return found

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, x in tensors.items():
            if not x.is_floating_point():
                fits = x.numel() == 0 or int(x.max()) <= torch.iinfo(torch.int16).max
                found[name] = x.to(torch.int16 if fits else torch.int32)
                continue
            x = x.detach().float().movedim(_dimensions(name), -1)
            mantissa, exponent = torch.frexp(x.abs().amax(list(range(x.dim() - 1))) / self._largest)
            scale = torch.ldexp((mantissa * 2**12).ceil() / 2**12, exponent).clamp(min=self._SMALLEST)
            found[name] = self._packed(name, (x / scale).round().to(torch.int8))
            found[name + self._SCALE] = scale
        return found

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, x in stored.items():
            if (scale := stored.get(name + self._SCALE)) is not None:
                whole = self._unpacked(name, x, len(scale)).float() * scale
                found[name] = whole.movedim(-1, _dimensions(name)).contiguous()
            elif not name.endswith(self._SCALE):
                found[name] = x.to(torch.int32)
        return found

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the file's tensor, of a summary's tensor with `shape`."""
        return tuple(shape)

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        """The file's tensor, of whole numbers (…, e) in int8."""
        return whole.movedim(-1, _dimensions(name)).contiguous()

    def _unpacked(self, name: str, packed: Tensor, dimensions: int) -> Tensor:
        """The inverse of `_packed`."""
        return packed.movedim(_dimensions(name), -1)


class Packed(Whole):
    """As `Whole`, without the bits that no number needs: those of the e dimensions of a position or of an entry follow each other.

    The file holds n + 2^(b−1), the highest bit first, in ⌈e b / 8⌉ bytes, which are the last axis: latents (μ, ξ, ·), decoder (V, ·).
    """

    types = frozenset({"U8"})

    def id_bits(self, vocab_size: int) -> int:
        """The bits that tell the ids apart, and no others: 11 for 2,000 entries."""
        return max(1, (vocab_size - 1).bit_length())

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        others = shape[1:] if _dimensions(name) == 0 else shape[:-1]
        return (*others, -(-shape[_dimensions(name)] * self.bits // 8))

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        rows = (whole.cpu() + 2 ** (self.bits - 1)).to(torch.uint8).numpy()
        bits = np.unpackbits(rows[..., None], axis=-1)[..., 8 - self.bits :]
        return torch.from_numpy(np.packbits(bits.reshape(*rows.shape[:-1], -1), axis=-1)).to(whole.device)

    def _unpacked(self, name: str, packed: Tensor, dimensions: int) -> Tensor:
        bits = np.unpackbits(packed.cpu().numpy(), axis=-1, count=dimensions * self.bits)
        rows = np.packbits(bits.reshape(*packed.shape[:-1], dimensions, self.bits), axis=-1)[..., 0] >> (8 - self.bits)
        return torch.from_numpy(rows).to(packed.device, torch.int8) - 2 ** (self.bits - 1)


def _dimensions(name: str) -> int:
    """The axis of the d or e dimensions: the first of a decoder (e, V), the last of latents (μ, ξ, e)."""
    return 0 if name.endswith("decoder") else -1


STORAGES: dict[str, Storage] = {way.name: way for way in (Storage(), Whole(8), Packed(6), Packed(5), Packed(4))}


# -- the file --------------------------------------------------------------------------------------------------------

_FILES_LIMIT, _HEADER_LIMIT = 1000, 2**20
"""The most files of an artefact, and bytes of the header: an honest summary has a hundredth, and each of many names costs time."""
_ENTRY = "farzi"


def write_tensors(path: Path, tensors: Tensors, files: list[str]) -> None:
    """Writes contiguous CPU tensors and the names of the artefact's other files to `path`."""
    facts = {"files": files, "sha256": {name: checksum(tensor) for name, tensor in tensors.items()}}
    path.touch()
    mode = path.stat().st_mode  # as the umask says; safetensors makes files that only their owner may read
    save_file(dict(tensors), path, metadata={_ENTRY: json.dumps(facts)})
    path.chmod(mode)


def listed_files(path: Path) -> list[str]:
    """The artefact's other files, by their relative paths, as the tensor file `path` lists them. They are not trusted."""
    with _opened(path) as file:
        return read_metadata(file.metadata() or {}, path)[0]


def read_metadata(metadata: Mapping[str, str], path: Path) -> tuple[list[str], Mapping[str, str]]:
    """The listed files, and the `checksum` of each tensor, from the metadata of the file `path`; nothing where there is no entry."""
    facts = parse_mapping(metadata.get(_ENTRY, "{}").encode(), path)
    files, checksums = facts.get("files", []), facts.get("sha256", {})
    if not (isinstance(files, list) and all(isinstance(name, str) for name in files) and isinstance(checksums, dict)):
        raise ValueError(f"{path} says of itself {facts!r:.80}, which no summary does; fetch it again")
    if len(files) > _FILES_LIMIT:
        raise ValueError(
            f"{path} lists {len(files):,} files, more than the {_FILES_LIMIT:,} of an artefact; do not trust it"
        )
    return files, checksums


def load_tensors(path: Path, layout: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors in the file `path`, or a ValueError: they have to be those of `layout`, as they were saved, with floats of one type."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 — it is no mapping
        found = {name: Stored(tuple(x.get_shape()), frozenset({x.get_dtype()})) for name, x in slices.items()}
        for name in dict.fromkeys((*layout, *found)):
            has, wants = found.get(name), layout.get(name)
            if not (has and wants and has.shape == wants.shape and has.dtypes <= wants.dtypes):
                raise ValueError(
                    f"{path} has {name!r:.200} {has or 'missing'}, where config.json says {wants or 'nothing'}; the two files belong to "
                    "different summaries, fetch it again, or load it with the version of farzi_hf that wrote it"
                )
        if len(types := FLOATS & {x.get_dtype() for x in slices.values()}) > 1:
            raise ValueError(f"{path} holds floats of several types, {', '.join(sorted(types))}; fetch it again")
        tensors = {name: file.get_tensor(name).clone() for name in layout}  # the file may be replaced or truncated
        checksums = read_metadata(file.metadata() or {}, path)[1]
    for name, tensor in tensors.items():
        if name in checksums and checksums[name] != checksum(tensor):
            raise ValueError(f"{name} in {path} has another checksum than it was saved with; fetch it again")
    return tensors


def checksum(tensor: Tensor) -> str:
    """SHA-256 over type, shape and numbers."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def fingerprint(tensors: Tensors) -> str:
    """A hash of all tensors, in their order."""
    return " ".join(map(checksum, tensors.values()))


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > _HEADER_LIMIT:
        raise ValueError(f"{path} has a header of {size:,} bytes, of which {_HEADER_LIMIT:,} are read; fetch it again")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is no readable safetensors file ({error}); it is damaged, fetch it again") from None
