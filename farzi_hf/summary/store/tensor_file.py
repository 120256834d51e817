"""`farzi.safetensors`: the tensors of a summary, as they are or rounded to fewer bytes, their
checksums, and the list of the artefact's files.

Checksums and list are JSON in one entry of the metadata, `farzi`: `{"files": [names], "sha256":
{tensor: hexadecimal digits}}`. It is one entry because safetensors writes several in any order, and
equal summaries should have equal bytes.

Students hardly notice it when labels of their own are rounded to a byte for each number, or, where
inputs are ids, to five or six bits (recipes/LOG.md).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from farzi_hf.common.tensors import checksum
from farzi_hf.common.text import parse_mapping

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})  # as safetensors names them
SHARES = "frequencies"
"""The tensor (V,) with the shares of the vocabulary's entries, from which ids are drawn."""
TEACHER = "teacher."
"""What the names of a carried teacher's parameters begin with, among the tensors of a summary."""
_FREE = 2**22
"""The numbers that coded bytes may hold, however few they are."""
_RATIO = 32
"""The numbers more that they may hold for each byte. Zeros alone would be a thousand."""
_SEARCHED = 2**20
"""Numbers whose scales are searched at the same time."""
_STEPS = 16
"""Steps of a share for each factor of e."""
_NEVER = 255
"""The step of an entry that is never drawn."""


class Stored(NamedTuple):
    """What a tensor of the file is, or has to be."""

    shape: tuple[int, ...] | None
    """None for coded bytes of any number."""

    dtypes: frozenset[str]
    """The types that it may have, as safetensors names them."""

    def __str__(self) -> str:
        return f"{' or '.join(sorted(self.dtypes))} {self.shape}"

    def takes(self, other: Stored) -> bool:
        """Whether a tensor of that shape and type can stand here."""
        is_coded = self.shape is None and len(other.shape) == 1
        return (is_coded or other.shape == self.shape) and other.dtypes <= self.dtypes


class Storage:
    """One way to store the tensors of a summary. This one keeps all numbers as they are, usually
    float32, and ids in four bytes.

    Attributes:
        name: that of `FarziDataConfig.storage`.
        description: what a card says about it; None for the way that needs no words.
    """

    name: str = "exact"
    description: str | None = None

    def layout(self, shapes: Shapes, floats: Collection[str]) -> dict[str, Stored]:
        """The tensors of the file, of a summary's tensors with `shapes`.

        Args:
            floats: the names of those that hold floats. The others hold ids.
        """
        return {
            name: Stored(tuple(shape), FLOATS if name in floats else frozenset({"I32"}))
            for name, shape in shapes.items()
        }

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        """What the file holds of a summary's tensors."""
        return dict(tensors)

    def loaded(self, stored: Tensors, shapes: Shapes) -> dict[str, Tensor]:
        """The summary's tensors, of these shapes; stored again they are `stored`, bit for bit.
        Raises ValueError if coded numbers are damaged.
        """
        return dict(stored)

    def scales(self, tensors: Tensors) -> dict[str, Tensor]:
        """The scale s of each dimension, (k,), of the tensors (…, k) that are stored as whole
        multiples of it, by their names.
        """
        return {}

    def rounded(self, tensors: Tensors) -> dict[str, Tensor]:
        """What is left of a summary's tensors after they were stored and loaded; a ValueError where
        a type comes back as another.
        """
        kept = self.loaded(self.stored(tensors), {name: x.shape for name, x in tensors.items()})
        for name, tensor in tensors.items():
            if kept[name].dtype != tensor.dtype:
                raise ValueError(
                    f"storage={self.name!r} is for float32, and {name} is {tensor.dtype}; call"
                    " float()"
                )
        return kept

    def nbytes(self, tensors: Tensors) -> int:
        """Bytes of all tensors in the file."""
        return sum(x.numel() * x.element_size() for x in self.stored(tensors).values())


class Whole(Storage):
    """A whole number n for each number x, and a scale s for each of the k dimensions: x = s n. Ids
    in two bytes where they fit.

    n has b bits, |n| < 2^(b−1). s is the largest |x| / (2^(b−1) − 1), rounded up to 12 bits, so
    that s n is exact in float32. The error is s / 2 at most. Where the numbers are whole multiples
    of another scale already, it is kept, and nothing is lost. Here each n has a byte. Vectors,
    which are few, are stored in float16, and the shares of `SHARES` in steps of 6 %, a byte each.

    Args:
        bits: b, at most 8.
    """

    types: ClassVar[frozenset[str]] = frozenset({"I8"})
    _SCALE = ".scale"  # the end of a scale's name
    _SMALLEST = 2.0**-100
    _BITS = 12
    _TYPE = torch.float32

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.largest = 2 ** (bits - 1) - 1
        self.name = f"int{bits}"
        self.description = f"{bits} bits a number, and a scale for each dimension"

    def layout(self, shapes: Shapes, floats: Collection[str]) -> dict[str, Stored]:
        layout = {}
        for name, shape in shapes.items():
            if name == SHARES:
                layout[name] = Stored(self._shape(name, shape), frozenset({"U8"}))
            elif name not in floats:
                layout[name] = Stored(tuple(shape), frozenset({"I16", "I32"}))
            elif len(shape) <= 1:
                layout[name] = Stored(tuple(shape), frozenset({"F16"}))
            else:
                layout[name] = Stored(self._shape(name, shape), self.types)
                kind = frozenset({"F32" if torch.float32 == self._TYPE else "F16"})
                layout[name + self._SCALE] = Stored((shape[_dimensions(name)],), kind)
        return layout

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        stored = {}
        scales = self.scales(tensors)
        for name, x in tensors.items():
            if name in scales:
                rows = x.detach().float().movedim(_dimensions(name), -1)
                whole = (rows / scales[name]).round().to(torch.int8)
                stored[name] = self._packed(name, whole)
                stored[name + self._SCALE] = scales[name].to(self._TYPE)
            elif name == SHARES:
                steps = (_STEPS * (x.max() / x).log()).round().clamp(max=_NEVER - 1)
                steps = torch.where(x > 0, steps, _NEVER).to(torch.uint8)
                stored[name] = self._packed(name, steps)
            elif x.is_floating_point():
                stored[name] = x.detach().half()
            else:
                fits = x.numel() == 0 or int(x.max()) <= torch.iinfo(torch.int16).max
                stored[name] = x.to(torch.int16 if fits else torch.int32)
        return stored

    def scales(self, tensors: Tensors) -> dict[str, Tensor]:
        matrices = {
            name: x.detach().float()
            for name, x in tensors.items()
            if x.is_floating_point() and x.dim() > 1
        }
        scales = {}
        for name, x in matrices.items():
            rows = x.movedim(_dimensions(name), -1).flatten(0, -2)
            # Some dimensions at a time: the search takes forty bytes a number.
            parts = rows.split(max(1, _SEARCHED // max(1, len(rows))), dim=1)
            scales[name] = torch.cat([self._scale(part) for part in parts])
        return scales

    def _scale(self, x: Tensor) -> Tensor:
        """s (k,) of numbers (n, k)."""
        peak = x.abs().amax(0)
        mantissa, exponent = torch.frexp(peak / self.largest)
        mantissa = (mantissa * 2**self._BITS).ceil() / 2**self._BITS
        best = torch.ldexp(mantissa, exponent).clamp(min=self._SMALLEST)
        loses_nothing = ((x / best).round() * best == x).all(0)
        divisor = _common_divisor(x)
        for part in range(1, self.largest + 1):  # a fraction of it may fit into the type of scales
            scale = (divisor / part).to(self._TYPE).float().clamp(min=self._SMALLEST)
            exact = (scale * part == divisor) & (peak <= scale * self.largest) & (divisor > 0)
            best = torch.where(exact & ~loses_nothing, scale, best)
            loses_nothing = loses_nothing | exact
            if loses_nothing.all():
                break
        return best

    def loaded(self, stored: Tensors, shapes: Shapes) -> dict[str, Tensor]:
        tensors = {}
        for name, shape in shapes.items():
            x = stored[name]
            scale = stored.get(name + self._SCALE)
            if scale is not None:
                rows = self._unpacked(name, x, shape).float() * scale.float()
                tensors[name] = rows.movedim(-1, _dimensions(name)).contiguous()
            elif name == SHARES:
                steps = self._unpacked(name, x, shape)
                shares = torch.where(steps < _NEVER, (-steps.float() / _STEPS).exp(), 0.0)
                tensors[name] = shares / shares.sum()
            else:
                tensors[name] = x.float() if x.is_floating_point() else x.to(torch.int32)
        return tensors

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The shape of the file's tensor, of a summary's tensor with `shape`."""
        return tuple(shape)

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        """The file's tensor, of whole numbers (…, k) in int8, or of the steps (V,) of shares in
        uint8.
        """
        return whole.movedim(-1, _dimensions(name)).contiguous()

    def _unpacked(self, name: str, packed: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `_packed`, for a summary's tensor with `shape`."""
        return packed.movedim(_dimensions(name), -1)


class Packed(Whole):
    """As `Whole`, without the bits that no number needs: those of the e dimensions of a position or
    of an entry follow each other.

    The file holds n + 2^(b−1), the highest bit first, in ⌈e b / 8⌉ bytes, which are the last axis:
    latents (μ, ξ, ·), decoder (V, ·).
    """

    types = frozenset({"U8"})

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        if name == SHARES:
            return tuple(shape)
        others = shape[1:] if _dimensions(name) == 0 else shape[:-1]
        return (*others, -(-shape[_dimensions(name)] * self.bits // 8))

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        if name == SHARES:
            return whole
        rows = (whole.cpu() + 2 ** (self.bits - 1)).to(torch.uint8).numpy()
        bits = np.unpackbits(rows[..., None], axis=-1)[..., 8 - self.bits :]
        packed = np.packbits(bits.reshape(*rows.shape[:-1], -1), axis=-1)
        return torch.from_numpy(packed).to(whole.device)

    def _unpacked(self, name: str, packed: Tensor, shape: Sequence[int]) -> Tensor:
        if name == SHARES:
            return packed
        dimensions = shape[_dimensions(name)]
        bits = np.unpackbits(packed.cpu().numpy(), axis=-1, count=dimensions * self.bits)
        bits = bits.reshape(*packed.shape[:-1], dimensions, self.bits)
        rows = np.packbits(bits, axis=-1)[..., 0] >> (8 - self.bits)
        return torch.from_numpy(rows).to(packed.device, torch.int8) - 2 ** (self.bits - 1)


class Coded(Packed):
    """As `Whole`, with the n of a dimension one after the other, in about as many bits as their
    entropy: zlib codes them by Huffman's method.

    A training with a penalty on |n| (`farzi_hf.distillation.packing`) makes them small, so that
    they need few bits. Scales are in float16.
    """

    _SMALLEST = 2.0**-14
    _BITS = 11
    _TYPE = torch.float16

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.name = f"coded{bits}"
        self.description = (
            f"at most {bits} bits a number, coded by their entropy, and a scale for each dimension"
        )

    def loaded(self, stored: Tensors, shapes: Shapes) -> dict[str, Tensor]:
        size = sum(x.numel() for x in stored.values())
        count = sum(map(math.prod, shapes.values()))
        if count > _FREE + _RATIO * size:
            raise ValueError(
                f"{size:,} bytes cannot hold {count:,} numbers of a training; fetch it again"
            )
        return super().loaded(stored, shapes)

    def _shape(self, name: str, shape: Sequence[int]) -> None:
        return None

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        return _deflated(whole.movedim(-1, 0))

    def _unpacked(self, name: str, packed: Tensor, shape: Sequence[int]) -> Tensor:
        rows = list(shape)
        dimension = rows.pop(_dimensions(name))
        kind = np.uint8 if name == SHARES else np.int8
        whole = _inflated(name, packed, kind, dimension * math.prod(rows))
        has_bits = name != SHARES and whole.numel() > 0
        if has_bits and not -self.largest <= whole.min() <= whole.max() <= self.largest:
            raise ValueError(f"{name} holds numbers of more than {self.bits} bits; fetch it again")
        return whole.view(dimension, *rows).movedim(0, -1)


def _deflated(numbers: Tensor) -> Tensor:
    """The bytes of integers of one byte, coded: by frequency alone, or with repetitions too,
    whichever is less.
    """
    content = numbers.cpu().contiguous().numpy().tobytes()
    codings = []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY):
        # 7: code words for some thousands of numbers
        coder = zlib.compressobj(9, zlib.DEFLATED, -15, 7, strategy)
        codings.append(coder.compress(content) + coder.flush())
    shortest = bytearray(min(codings, key=len))
    return torch.frombuffer(shortest, dtype=torch.uint8).to(numbers.device)


def _inflated(name: str, coded: Tensor, kind: Any, count: int) -> Tensor:
    """The inverse of `_deflated`: `count` integers."""
    coder = zlib.decompressobj(-15)
    try:
        content = coder.decompress(coded.cpu().numpy().tobytes(), count + 1)
    except zlib.error as error:
        raise ValueError(
            f"{name} cannot be decoded ({error}); the file is damaged, fetch it again"
        ) from None
    if len(content) != count or not coder.eof or coder.unused_data:
        raise ValueError(
            f"{name} does not hold the {count:,} numbers that config.json says; fetch it again"
        )
    return torch.from_numpy(np.frombuffer(content, kind).copy()).to(coded.device)


def _common_divisor(x: Tensor) -> Tensor:
    """(k,): the largest number of which all numbers (n, k) of a column are whole multiples; 0 where
    there is none in 60 bits.
    """
    mantissa, exponent = np.frexp(x.cpu().numpy().astype(np.float64))
    exponents = np.where(mantissa == 0, 10**4, exponent)
    last = exponents.min(axis=0, initial=10**4)  # of the smallest number
    shift = np.where(mantissa == 0, 0, exponent - last)
    whole = np.round(mantissa * 2**24).astype(np.int64) << np.minimum(shift, 36)
    divisor = np.ldexp(np.gcd.reduce(whole, axis=0).astype(float), last - 24)
    none = (shift.max(axis=0, initial=0) > 36) | (last == 10**4)
    return torch.from_numpy(np.where(none, 0.0, divisor)).to(x)


def _dimensions(name: str) -> int:
    """The axis of the d, e or k dimensions: the first of a decoder (e, V), the last of latents (μ,
    ξ, e) and of a teacher's matrices.
    """
    return 0 if name in ("decoder", "label_decoder") else -1


STORAGES: dict[str, Storage] = {
    x.name: x for x in (Storage(), Whole(8), *map(Packed, (6, 5, 4)), *map(Coded, (6, 5, 4, 3, 2)))
}
"""By the name that `FarziDataConfig.storage` gives them."""


# -- the file --------------------------------------------------------------------------------------

_FILES_LIMIT = 1000
"""The most files of an artefact. An honest summary has a hundredth, and each name costs time."""
_HEADER_LIMIT = 2**20
"""The most bytes of the header; the same holds for it."""
_ENTRY = "farzi"


def write_tensors(path: Path, tensors: Tensors, files: list[str]) -> None:
    """Writes contiguous CPU tensors and the names of the artefact's other files to `path`."""
    facts = {"files": files, "sha256": {name: checksum(tensor) for name, tensor in tensors.items()}}
    path.touch()
    # As the umask says: safetensors makes files that only their owner may read.
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={_ENTRY: json.dumps(facts)})
    path.chmod(mode)


def listed_files(path: Path) -> list[str]:
    """The artefact's other files, by their relative paths, as the tensor file `path` lists them.
    They are not trusted.
    """
    with _opened(path) as file:
        return read_metadata(file.metadata() or {}, path)[0]


def read_metadata(metadata: Mapping[str, str], path: Path) -> tuple[list[str], Mapping[str, str]]:
    """The listed files, and the `checksum` of each tensor, from the metadata of the file `path`;
    nothing where there is no entry.
    """
    facts = parse_mapping(metadata.get(_ENTRY, "{}").encode(), path)
    files = facts.get("files", [])
    checksums = facts.get("sha256", {})
    are_names = isinstance(files, list) and all(isinstance(name, str) for name in files)
    if not are_names or not isinstance(checksums, dict):
        raise ValueError(
            f"{path} says of itself {facts!r:.80}, which no summary does; fetch it again"
        )
    if len(files) > _FILES_LIMIT:
        raise ValueError(
            f"{path} lists {len(files):,} files, more than {_FILES_LIMIT:,}; do not trust it"
        )
    return files, checksums


def load_tensors(path: Path, layout: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors in the file `path`, or a ValueError: they have to be those of `layout`, as they
    were saved, with floats of one type.
    """
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        present = {
            name: Stored(tuple(x.get_shape()), frozenset({x.get_dtype()}))
            for name, x in slices.items()
        }
        for name in dict.fromkeys((*layout, *present)):
            has = present.get(name)
            wants = layout.get(name)
            if has is None or wants is None or not wants.takes(has):
                told = f"where config.json says {wants or 'nothing'}"
                raise ValueError(
                    f"{path} has {name!r:.200} {has or 'missing'}, {told}; fetch both again"
                )
        types = {slices[name].get_dtype() for name, part in layout.items() if part.dtypes == FLOATS}
        if len(types) > 1:
            raise ValueError(
                f"{path} holds floats of several types, {', '.join(sorted(types))}; fetch it again"
            )
        # Copies, because the file may be replaced or truncated.
        tensors = {name: file.get_tensor(name).clone() for name in layout}
        checksums = read_metadata(file.metadata() or {}, path)[1]
    for name, tensor in tensors.items():
        if name in checksums and checksums[name] != checksum(tensor):
            raise ValueError(
                f"{name} in {path} has another checksum than it was saved with; fetch it again"
            )
    return tensors


def fingerprint(tensors: Tensors) -> str:
    """A hash of all tensors, in their order."""
    return " ".join(map(checksum, tensors.values()))


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > _HEADER_LIMIT:
        raise ValueError(
            f"{path} has a header of {size:,} bytes, of which {_HEADER_LIMIT:,} are read; fetch it"
            " again"
        )
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}); it is damaged, fetch it again"
        ) from None
    except RuntimeError as error:
        # safetensors lets torch open the file once more, by its name: a writer may have moved it.
        if "No such file" not in str(error):
            raise
        raise FileNotFoundError(f"{path} has gone while it was read; load it again") from error
