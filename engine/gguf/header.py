"""What a GGUF file says of itself: its metadata, and where each tensor lies. Free of torch and of the weights.

The `gguf` package has a reader too; it makes numpy arrays of every string, so that the 100,000 of a vocabulary take
12 seconds where this takes a fifth of one, and a file that is cut off reads there as one with empty strings. A node
reads a header four times at its start. Blocks of types that we have no kernel for are left to that package.

    BadGgufError   ValueError: the file is damaged, or of a kind that can't be read
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = 32
MAX_ENTRIES, MAX_TENSORS, MAX_DIMENSIONS = 1 << 16, 1 << 20, 8
_STRING, _ARRAY = 8, 9
# Codes of values as struct and numpy name them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Number in the file to name, weights in a block, bytes of a block. Others have no dequantisation anywhere, or no user.
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}


class BadGgufError(ValueError):
    """The file can't be read as GGUF; the message says what is wrong with it, not which file it is."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape` is as torch has it: rows first."""

    type: str
    shape: tuple[int, ...]
    offset: int  # from the beginning of the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are numbers, strings, and tuples of them."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    num_bytes: int  # of the header itself


def read_gguf(path: Path) -> GgufHeader:
    """The header of a file whose data is all there. Raises BadGgufError, OSError."""
    with _mapped(path) as data:
        reader = _Reader(data)
        if reader.take(4) != MAGIC:
            raise BadGgufError("not a GGUF file: it does not begin with GGUF")
        version = reader.number("I")
        if version not in VERSIONS:
            raise BadGgufError(f"GGUF version {version} is not supported; {' and '.join(map(str, VERSIONS))} are")
        num_tensors, num_entries = reader.number("Q"), reader.number("Q")
        if num_tensors > MAX_TENSORS or num_entries > MAX_ENTRIES:
            raise BadGgufError(f"damaged: {num_tensors} tensors and {num_entries} entries of metadata promised")
        metadata = {reader.string(): reader.value(reader.number("I")) for _ in range(num_entries)}
        listed = [_entry(reader) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise BadGgufError(f"general.alignment: {alignment!r} is no alignment")
        begin, size = -(-reader.at // alignment) * alignment, len(data)
        return GgufHeader(metadata, _placed(listed, begin, size), reader.at)


def is_gguf(path: Path) -> bool:
    """Whether this is such a file by its name."""
    return path.suffix == SUFFIX and path.is_file()


def find_gguf(path: Path) -> Path | None:
    """The file itself, or the only one in a directory that is no Hugging Face one; None if it is one, or has none.

    Raises BadGgufError if there are several.
    """
    if not path.is_dir():
        return path if is_gguf(path) else None
    if (path / "config.json").exists():
        return None
    found = sorted(p for p in path.glob(f"*{SUFFIX}") if p.is_file())
    if len(found) > 1:
        raise BadGgufError(f"holds {len(found)} GGUF files: {', '.join(p.name for p in found[:4])}")
    return found[0] if found else None


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise BadGgufError("not a GGUF file: it is too short")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


class _Reader:
    """Reads forward; every step is checked against the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise BadGgufError(f"cut off: {count} bytes wanted at byte {self.at}, the file has {len(self._data)}")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise BadGgufError(f"damaged: a value of kind {kind} at byte {self.at}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _NUMBERS:
            kind_of = np.dtype(_NUMBERS[inner]).newbyteorder("<")
            return tuple(np.frombuffer(self.take(count * kind_of.itemsize), kind_of).tolist())
        if inner != _STRING:
            raise BadGgufError(f"damaged: an array of kind {inner} at byte {self.at}")
        return tuple(self.string() for _ in range(count))


def _entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = reader.string(), reader.number("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadGgufError(f"tensor {name}: {dimensions} dimensions")
    shape = tuple(reversed([reader.number("Q") for _ in range(dimensions)]))
    return name, shape, reader.number("I"), reader.number("Q")


def _placed(listed: list[tuple[str, tuple[int, ...], int, int]], begin: int, size: int) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in listed:
        if kind not in TYPES:
            named = ", ".join(entry[0] for entry in TYPES.values())
            raise BadGgufError(f"tensor {name}: type {kind} is not supported; supported are {named}")
        type_name, block, block_bytes = TYPES[kind]
        if shape[-1] % block:
            raise BadGgufError(f"tensor {name}: rows of {shape[-1]} are no whole blocks of {type_name}")
        if name in tensors:
            raise BadGgufError(f"tensor {name} is listed twice")
        num_bytes = prod(shape) // block * block_bytes
        if begin + offset + num_bytes > size:
            raise BadGgufError(f"cut off: tensor {name} ends at byte {begin + offset + num_bytes} of {size}")
        tensors[name] = GgufTensor(type_name, shape, begin + offset, num_bytes)
    return tensors
