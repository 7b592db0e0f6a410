"""Dot products on the vector registers of an Arm CPU: of pairs of bfloat16 (`bfdot`) and of four bytes (`usdot`).

Vectors of sixteen lanes, as everywhere in this folder, are four registers there. Both instructions take a lane's words
as x86's do (`vdpbf16ps`, `vpdpbusd`), so that what is packed and how it is multiplied is the same.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

__all__ = ["PAIRS", "add_four_bytes", "add_pairs"]

_LANES, _PARTS = 16, 4
_WORD, _FLOAT = ir.IntType(32), ir.FloatType()


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


PAIRS, _BYTES = ir.VectorType(_BFloat(), 8), ir.VectorType(ir.IntType(8), 16)


def add_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
    """`added`, float32, and the product of each lane's two bfloat16: [16] each, left and right as words.

    As the instruction has it without FEAT_EBF16: both products and their sum are rounded to odd, the sum with `added`
    too, and numbers below 2^-126 count as 0.
    """
    return _in_parts(builder, "llvm.aarch64.neon.bfdot.v4f32.v8bf16", _FLOAT, PAIRS, (added, left, right))


def add_four_bytes(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
    """`added` and the product of each lane's four bytes, the left ones from 0 to 255, the right ones from -128 on."""
    return _in_parts(builder, "llvm.aarch64.neon.usdot.v4i32.v16i8", _WORD, _BYTES, (added, left, right))


def _in_parts(
    builder: ir.IRBuilder, name: str, summed: ir.Type, multiplied: ir.Type, vectors: tuple[ir.Value, ...]
) -> ir.Value:
    """The instruction on each quarter of a sum, a left and a right operand."""
    result = ir.VectorType(summed, _LANES // _PARTS)
    signature = ir.FunctionType(result, [result, multiplied, multiplied])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    found = []
    for i in range(_PARTS):
        sums, left, right = (_quarter(builder, vector, i) for vector in vectors)
        operands = [sums, *(builder.bitcast(part, multiplied) for part in (left, right))]
        found.append(builder.call(function, operands))
    while len(found) > 1:
        found = [_joined(builder, *found[i : i + 2]) for i in range(0, len(found), 2)]
    return found[0]


def _quarter(builder: ir.IRBuilder, vector: ir.Value, index: int) -> ir.Value:
    size = _LANES // _PARTS
    lanes = ir.Constant(ir.VectorType(_WORD, size), list(range(index * size, (index + 1) * size)))
    return builder.shuffle_vector(vector, vector, lanes)


def _joined(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    count = 2 * first.type.count
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_WORD, count), list(range(count))))
