"""The blocks of a GGUF file as codes, scales and offsets that there are kernels for: the same numbers, nothing lost.

A K-quant's super-block of 256 weights has two float16 numbers, of which each run of 32 or 16 takes a whole number of
times: as a scale and an offset these are float32. `Q2_K` is not here: in eight bits it is hardly smaller than bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_weight import GROUP, BlockWeight, Kind

KINDS: dict[str, Kind] = {
    "Q8_0": "int8",
    "Q4_0": "int4",
    "Q4_1": "int4 with offsets",
    "Q5_0": "int8",
    "Q5_1": "int8 with wide offsets",
    "Q3_K": "int8 by sixteens",
    "Q4_K": "int4 with wide offsets",
    "Q5_K": "int8 with wide offsets",
    "Q6_K": "int8 by sixteens",
}
_SUPER = 256  # weights of a super-block


def blocks_of(data: bytearray, kind: str, rows: int, width: int) -> BlockWeight:
    """A matrix of one of `KINDS`."""
    size = _SUPER if kind.endswith("_K") else GROUP
    raw = torch.frombuffer(data, dtype=torch.uint8).view(rows, width // size, -1)
    codes, scales, offsets = _READERS[kind](raw)
    codes = codes.reshape(rows, width)
    return BlockWeight(
        KINDS[kind], codes, scales.reshape(rows, -1), None if offsets is None else offsets.reshape(rows, -1)
    )


_Parts = tuple[Tensor, Tensor, Tensor | None]  # codes, scales, offsets of [rows, blocks, bytes]


def _half(raw: Tensor, at: int) -> Tensor:
    """A float16 of each block."""
    return raw[..., at : at + 2].contiguous().view(torch.float16)


def _nibbles(raw: Tensor, run: int) -> Tensor:
    """Of each run of bytes first all lower halves, then all upper ones."""
    runs = raw.unflatten(-1, (-1, run))
    return torch.stack([runs & 15, runs >> 4], dim=-2).flatten(-3)


def _bits(raw: Tensor, width: int) -> Tensor:
    """Of all bytes first the lowest `width` bits, then the next."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return ((raw.unsqueeze(-2) >> shifts) & ((1 << width) - 1)).flatten(-2)


def _q8_0(raw: Tensor) -> _Parts:
    return raw[..., 2:].contiguous().view(torch.int8), _half(raw, 0), None


def _q4_0(raw: Tensor) -> _Parts:
    return _nibbles(raw[..., 2:], 16), _half(raw, 0), None


def _q4_1(raw: Tensor) -> _Parts:
    return _nibbles(raw[..., 4:], 16), _half(raw, 0), _half(raw, 2)


def _fifth_bits(raw: Tensor) -> Tensor:
    """Sixteen times what 32 bits of four bytes say, in their order."""
    return ((raw.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2) << 4


def _q5_0(raw: Tensor) -> _Parts:
    codes = _nibbles(raw[..., 6:], 16) | _fifth_bits(raw[..., 2:6])
    return codes.to(torch.int8) - 16, _half(raw, 0), None


def _q5_1(raw: Tensor) -> _Parts:
    codes = _nibbles(raw[..., 8:], 16) | _fifth_bits(raw[..., 4:8])
    return codes.to(torch.int8), _half(raw, 0).float(), _half(raw, 2).float()


def _scales_and_offsets(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Of eight runs of a super-block: its two numbers times what twelve bytes of six bits say."""
    low, high, mixed = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    times = torch.cat([low & 63, (mixed & 15) | ((low >> 6) << 4)], dim=-1)
    least = torch.cat([high & 63, (mixed >> 4) | ((high >> 6) << 4)], dim=-1)
    return _half(raw, 0).float() * times, -(_half(raw, 2).float() * least)


def _q4_k(raw: Tensor) -> _Parts:
    return _nibbles(raw[..., 16:], 32), *_scales_and_offsets(raw)


def _q5_k(raw: Tensor) -> _Parts:
    codes = _nibbles(raw[..., 48:], 32) | (_bits(raw[..., 16:48], 1) << 4)
    return codes.to(torch.int8), *_scales_and_offsets(raw)


def _q6_k(raw: Tensor) -> _Parts:
    # Of each half of the super-block 64 bytes of lower halves and 32 of two bits more.
    low = _nibbles(raw[..., :128], 64)
    high = _bits(raw[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(-2)
    scales = raw[..., 192:208].contiguous().view(torch.int8)
    return (low | (high << 4)).to(torch.int8) - 32, _half(raw, 208).float() * scales, None


def _q3_k(raw: Tensor) -> _Parts:
    # Of each half of the super-block 32 bytes of two bits; the third, where it is not set, takes four away.
    low = _bits(raw[..., 32:96].unflatten(-1, (2, 32)), 2).flatten(-2)
    third = _bits(raw[..., :32], 1)
    codes = low.to(torch.int8) - ((third ^ 1) << 2).to(torch.int8)
    lower, upper = raw[..., 96:104], raw[..., 104:108]
    times = torch.cat([lower & 15, lower >> 4], dim=-1) | (_bits(upper, 2) << 4)
    return codes, _half(raw, 108).float() * (times.to(torch.int8) - 32), None


_READERS = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
