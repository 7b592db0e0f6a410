"""What a safetensors file says it holds, read from its first bytes: names, types, shapes and where the data lies.

The format: 8 bytes little-endian header length, a JSON header, then the data. Free of torch and of the library, so
that a truncated file is found without mapping it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}


class BadHeaderError(ValueError):
    """The file is no whole safetensors file; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `dtype` as in "BF16", and its size in the file."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors by name. Raises BadHeaderError when the header is malformed or the file is shorter than it promises."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise BadHeaderError("not a safetensors file, or cut off inside its header")
        raw = file.read(length)
    try:
        tree = json.loads(raw)
    except ValueError as exc:
        raise BadHeaderError(f"header is not JSON: {exc}") from exc
    if not isinstance(tree, dict):
        raise BadHeaderError("header is not a JSON object")
    tree.pop("__metadata__", None)
    spans: list[tuple[int, int]] = []
    tensors = {name: _tensor(name, entry, spans) for name, entry in tree.items()}
    _check_spans(spans, size - 8 - length)
    return tensors


def _tensor(name: str, entry: Any, spans: list[tuple[int, int]]) -> TensorInfo:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, start, end))
    except (KeyError, TypeError, ValueError) as exc:
        raise BadHeaderError(f"tensor {name}: header entry is malformed") from exc
    if not whole or not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise BadHeaderError(f"tensor {name}: dtype {dtype!r} or shape {shape!r} is not supported")
    num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - start != num_bytes:
        raise BadHeaderError(
            f"tensor {name}: {end - start} bytes stored, {num_bytes} expected of {dtype} {list(shape)}"
        )
    spans.append((start, end))
    return TensorInfo(dtype, shape, num_bytes)


def _check_spans(spans: list[tuple[int, int]], available: int) -> None:
    """The data must be gapless and exactly as long as the file is."""
    reached = 0
    for start, end in sorted(spans):
        if start != reached:
            raise BadHeaderError(f"data has a gap or an overlap at byte {reached}")
        reached = end
    if reached > available:
        raise BadHeaderError(f"cut off: {reached} bytes of data promised, {available} there")
    if reached < available:
        raise BadHeaderError(f"{available - reached} bytes too many after the last tensor")
