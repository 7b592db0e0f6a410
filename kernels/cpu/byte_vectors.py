"""Dot products of four bytes with four others, added to 32-bit sums: vector code for whole numbers of eight bits.

The left ones are from 0 to 255, the right ones from -128 to 127. Nothing saturates and sums wrap around, so each way
has the same bits. AVX2's own instruction for such bytes, `vpmaddubsw`, saturates at 16 bits and is not used.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.instructions import ByteDots, has_avx512_words
from kernels.cpu.neon_dots import add_four_bytes

__all__ = ["QUADS", "add_dots", "splat_parts", "split_weights", "unsigned_parts"]

# For compiled code's arguments `like`: four bytes in a word. Numbers of axes tell the ways to multiply them apart.
QUADS = {way: np.empty((0,) * way, np.int32) for way in ByteDots}
_LANES = 16
_WORD = ir.IntType(32)
_WORDS, _HALVES = ir.VectorType(_WORD, _LANES), ir.VectorType(ir.IntType(16), 2 * _LANES)
_LOW_BYTES = 0x00FF00FF


def _all(word: int) -> ir.Constant:
    return ir.Constant(_WORDS, [word] * _LANES)


def splat_parts(builder: ir.IRBuilder, word: ir.Value, way: int) -> list[ir.Value]:
    """Four left bytes in every lane, as `add_dots` takes them."""
    if way == ByteDots.WORDS:  # two of them, as 16 bits each, and the two between
        parts = [builder.and_(word, _WORD(_LOW_BYTES)), builder.and_(builder.lshr(word, _WORD(8)), _WORD(_LOW_BYTES))]
    elif way == ByteDots.PLAIN:
        parts = [builder.and_(builder.lshr(word, _WORD(8 * i)), _WORD(0xFF)) for i in range(4)]
    else:
        parts = [word]
    singles = [builder.insert_element(ir.Constant(_WORDS, ir.Undefined), part, _WORD(0)) for part in parts]
    return [builder.shuffle_vector(single, single, _all(0)) for single in singles]


def unsigned_parts(builder: ir.IRBuilder, words: ir.Value, way: int) -> list[ir.Value]:
    """Each lane's four left bytes, where every lane has its own."""
    if way == ByteDots.WORDS:
        return [builder.and_(part, _all(_LOW_BYTES)) for part in (words, builder.lshr(words, _all(8)))]
    if way == ByteDots.PLAIN:
        return [builder.and_(builder.lshr(words, _all(8 * i)), _all(0xFF)) for i in range(4)]
    return [words]


def split_weights(builder: ir.IRBuilder, words: ir.Value, way: int) -> list[ir.Value]:
    """Each lane's four right bytes, likewise."""
    if way == ByteDots.WORDS:
        eight = ir.Constant(_HALVES, [8] * 2 * _LANES)
        halves = builder.bitcast(words, _HALVES)
        return [builder.ashr(builder.shl(halves, eight), eight), builder.ashr(halves, eight)]
    if way == ByteDots.PLAIN:
        return [builder.ashr(builder.shl(words, _all(24 - 8 * i)), _all(24)) for i in range(4)]
    return [words]


def add_dots(builder: ir.IRBuilder, left: list[ir.Value], right: list[ir.Value], added: ir.Value, way: int) -> ir.Value:
    """`added` and each lane's four products."""
    if way == ByteDots.VNNI:
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _WORDS, added, left[0], right[0])
    if way == ByteDots.VNNI_256:
        parts = zip(*(_halved(builder, part) for part in (added, left[0], right[0])), strict=True)
        name = "llvm.x86.avx512.vpdpbusd.256"  # of AVX-VNNI too
        return _joined(builder, [_call(builder, name, ir.VectorType(_WORD, 8), *part) for part in parts])
    if way == ByteDots.I8MM:
        return add_four_bytes(builder, left[0], right[0], added)
    for own, weights in zip(left, right, strict=True):
        found = builder.mul(own, weights) if way == ByteDots.PLAIN else _add_pairs(builder, own, weights)
        added = builder.add(added, found)
    return added


def _add_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Products of 16 bits and 16 bits, two added to one of 32: `vpmaddwd`."""
    left = builder.bitcast(left, _HALVES)
    if has_avx512_words():
        return _call(builder, "llvm.x86.avx512.pmaddw.d.512", _WORDS, left, right)
    parts = zip(*(_halved(builder, part) for part in (left, right)), strict=True)
    return _joined(builder, [_call(builder, "llvm.x86.avx2.pmadd.wd", ir.VectorType(_WORD, 8), *p) for p in parts])


def _halved(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    half = vector.type.count // 2
    places = [list(range(i * half, (i + 1) * half)) for i in range(2)]
    return [builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_WORD, half), p)) for p in places]


def _joined(builder: ir.IRBuilder, halves: list[ir.Value]) -> ir.Value:
    return builder.shuffle_vector(*halves, ir.Constant(_WORDS, list(range(_LANES))))


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)
