"""Products with weights in blocks: codes of four or eight bits are read as they lie and become numbers in registers.

A weight is `scale x (code - middle) + offset`, or of E4M3 `scale x code`. Codes are whole numbers that the inputs'
type says exactly (E4M3's are too), so they are multiplied as they are, and the sum of a group is scaled: no weight is
rounded to 16 bits, and scaling costs one operation for each output and group instead of one for each weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.kv_codes import FP8 as KV_FP8
from kernels.gpu.kv_codes import as_numbers
from kernels.gpu.launch import HOPPER, IS_INTERPRETED, POINTERS, Variant, arch_of, dot_type, type_name

INT4, INT8, FP8 = 0, 1, 2  # what a kernel's KIND says of the codes
TILE = 64  # outputs whose codes lie together
FEW_ROWS = 16  # of inputs: decoding
PROGRAMS = 1056  # eight for each SM of a H100: with fewer the columns are shared out
MAX_SPLITS, MIN_SPLIT_STEPS = 8, 4
MERGE_BLOCK = 1024
_INT4, _FP8 = tl.constexpr(INT4), tl.constexpr(FP8)
_KV_FP8 = tl.constexpr(KV_FP8)
_TILE = tl.constexpr(TILE)
_MERGE_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
_EXPAND_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
# Of more rows a weight is expanded once and multiplied by cuBLAS: an H100 expands 28,672 x 4,096 in 110 to 130 us, and
# a product of its codes takes 90 us up to 64 rows, 140 up to 128 and 230 up to 192, where expanded it takes 210; with
# offsets, or with a scale for 32 codes of eight bits, 64 rows take 90 to 220 and 96 take 240 to 390.
MOST_ROWS, MOST_ROWS_OF_LATE_SCALES = 128, 64


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight `[out_width, width]` on a device, its outputs padded to whole tiles."""

    kind: int  # INT4, INT8 or FP8
    # [tiles, steps, TILE, bytes of a step], uint8: eight bits, whole numbers plus 128; or four, of a step's first half
    # of columns in the lower halves of its bytes, of the second in the upper ones.
    codes: Tensor
    scales: Tensor  # [groups, padded outputs], float16 or float32
    offsets: Tensor | None  # as the scales: added to a weight; or uint8: zeros, subtracted from its code
    out_width: int
    width: int
    group: int  # columns with one scale; 0: all of them
    step: int  # columns that are multiplied at a time

    @property
    def num_bytes(self) -> int:
        """Of what is kept, and of what a product reads of it."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes)


@triton.jit
def _as_whole(codes, middle):
    """`code - middle` as float32, without a conversion, which a GPU does at a quarter of its rate: both exact, with
    2^23 added, whose last digit is 1.
    """
    return (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - middle


# Bytes of two codes each, four to a register: first to lanes of 16 bits, then each code to the last digits of a number
# whose last digit is 1, and that number is subtracted. No conversion, and no operation on one code alone.
_HALVES = """{{
    .reg .b32 first, second, one, minus;
    mov.b32 one, {one};
    mov.b32 minus, {minus};
    prmt.b32 first, $4, 0, 0x4140;
    prmt.b32 second, $4, 0, 0x4342;
    lop3.b32 $0, first, 0x000F000F, {number}, 0xEA;
    lop3.b32 $1, second, 0x000F000F, {number}, 0xEA;
    shr.b32 first, first, 4;
    shr.b32 second, second, 4;
    lop3.b32 $2, first, 0x000F000F, {number}, 0xEA;
    lop3.b32 $3, second, 0x000F000F, {number}, 0xEA;
    fma.rn.{type} $0, $0, one, minus;
    fma.rn.{type} $1, $1, one, minus;
    fma.rn.{type} $2, $2, one, minus;
    fma.rn.{type} $3, $3, one, minus;
}}"""
_AS_BFLOAT16 = {"type": "bf16x2", "number": "0x43004300", "one": "0x3F803F80"}  # 128
_AS_FLOAT16 = {"type": "f16x2", "number": "0x64006400", "one": "0x3C003C00"}  # 1,024
_BFLOAT16, _BFLOAT16_LESS_8 = (
    tl.constexpr(_HALVES.format(**_AS_BFLOAT16, minus=minus)) for minus in ("0xC300C300", "0xC308C308")
)
_FLOAT16, _FLOAT16_LESS_8 = (
    tl.constexpr(_HALVES.format(**_AS_FLOAT16, minus=minus)) for minus in ("0xE400E400", "0xE408E408")
)


@triton.jit
def _as_halves(codes, LESS_8: tl.constexpr, DOT: tl.constexpr):
    """Of each byte the lower and the upper code, perhaps minus 8, exact in `DOT`, of 16 bits: 1.5 operations a code."""
    if tl.bfloat16 == DOT:
        text: tl.constexpr = _BFLOAT16_LESS_8 if LESS_8 else _BFLOAT16
        low, high = tl.inline_asm_elementwise(
            text, "=r,=r,=r,=r,r", [codes], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        text: tl.constexpr = _FLOAT16_LESS_8 if LESS_8 else _FLOAT16
        low, high = tl.inline_asm_elementwise(
            text, "=r,=r,=r,=r,r", [codes], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
    return low, high


@triton.jit
def _of_group(ptr, outs, mask, step, padded_width, GROUP: tl.constexpr, STEP: tl.constexpr):
    """Scales or offsets of the outputs in a step, as float32: of its first and of its second half of columns."""
    place = ptr + outs
    if GROUP != 0:
        place += (step * STEP) // GROUP * padded_width
    found = tl.load(place, mask=mask, other=0).to(tl.float32)
    other = found
    if GROUP != 0 and GROUP < STEP:
        other = tl.load(place + padded_width, mask=mask, other=0).to(tl.float32)
    return found, other


@triton.jit(do_not_specialize=["num_rows", "num_steps", "split_steps"])
def _block_product_kernel(
    x_ptr,
    code_ptr,
    scale_ptr,
    offset_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    width,
    out_width,
    padded_width,
    num_steps,
    split_steps,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    DOT: tl.constexpr,
):
    """Of (rows, outputs, split): out[row, o] = sum over groups of scale[o] x sum of x[row, k] (code[o, k] - middle)
    + offset[o] x sum of x[row, k], and + bias[o], rounded once; of a split its own groups, in float32, without a bias.

    The codes are the product's left side: they need not leave the registers in which they become numbers.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUT + tl.arange(0, OUT)
    split = tl.program_id(2)
    first = split * split_steps
    last = tl.minimum(first + split_steps, num_steps)
    HALF: tl.constexpr = STEP // 2
    BYTES: tl.constexpr = HALF if KIND == _INT4 else STEP
    # Two groups of a step: the halves of its bytes.
    HAS_TWO: tl.constexpr = GROUP != 0 and GROUP < STEP
    byte, column = tl.arange(0, BYTES), tl.arange(0, BYTES)
    row_of_codes = ((outs // _TILE).to(tl.int64) * num_steps * _TILE + outs % _TILE) * BYTES
    # Outputs behind the last tile are computed in vain and not written.
    is_there = outs < padded_width
    code_place = code_ptr + row_of_codes[:, None] + byte[None, :]
    x_place = x_ptr + rows.to(tl.int64)[None, :] * width + column[:, None]
    x_mask = (rows < num_rows)[None, :]
    middle = tl.full([OUT], 8388608.0, dtype=tl.float32)
    if KIND == _INT4:
        if not (HAS_OFFSETS or HAS_ZEROS):
            middle += 8.0
    elif KIND != _FP8:
        middle += 128.0
    if GROUP == 0 and HAS_ZEROS:
        middle += tl.load(offset_ptr + outs, mask=is_there, other=0).to(tl.float32)
    # Scales are too small to be copied ahead as codes are: those of the next step are loaded while this one computes.
    scale, other_scale = _of_group(scale_ptr, outs, is_there, first, padded_width, GROUP, STEP)
    offset, other_offset = scale, other_scale
    if HAS_OFFSETS or HAS_ZEROS:
        offset, other_offset = _of_group(offset_ptr, outs, is_there, first, padded_width, GROUP, STEP)
    total = tl.zeros([OUT, ROWS], dtype=tl.float32)
    for step in range(first, last):
        codes = tl.load(code_place + step * (_TILE * BYTES), mask=is_there[:, None], other=0)
        x = tl.load(x_place + step * STEP, mask=x_mask, other=0.0)
        next_scale, next_other_scale, next_offset, next_other_offset = scale, other_scale, offset, other_offset
        if GROUP != 0:
            following = tl.minimum(step + 1, num_steps - 1)
            next_scale, next_other_scale = _of_group(scale_ptr, outs, is_there, following, padded_width, GROUP, STEP)
            if HAS_OFFSETS or HAS_ZEROS:
                next_offset, next_other_offset = _of_group(
                    offset_ptr, outs, is_there, following, padded_width, GROUP, STEP
                )
        if KIND == _INT4:
            other = tl.load(x_place + (step * STEP + HALF), mask=x_mask, other=0.0)
            if IN_PAIRS:
                low, high = _as_halves(codes, not (HAS_OFFSETS or HAS_ZEROS), DOT)
                if HAS_ZEROS:
                    low_zero, high_zero = (middle - 8388608.0).to(DOT), (middle - 8388608.0).to(DOT)
                    if GROUP != 0:
                        low_zero, high_zero = offset.to(DOT), other_offset.to(DOT)
                    low, high = low - low_zero[:, None], high - high_zero[:, None]
            else:
                low_middle, high_middle = middle, middle
                if GROUP != 0 and HAS_ZEROS:
                    low_middle, high_middle = middle + offset, middle + other_offset
                low = _as_whole(codes & 15, low_middle[:, None]).to(DOT)
                high = _as_whole(codes >> 4, high_middle[:, None]).to(DOT)
            if GROUP == 0:
                total = tl.dot(low, x.to(DOT), total, input_precision="ieee")
                total = tl.dot(high, other.to(DOT), total, input_precision="ieee")
            else:
                part = tl.dot(low, x.to(DOT), input_precision="ieee")
                if HAS_TWO:
                    total += part * scale[:, None]
                    total += tl.dot(high, other.to(DOT), input_precision="ieee") * other_scale[:, None]
                else:
                    total += tl.dot(high, other.to(DOT), part, input_precision="ieee") * scale[:, None]
            if HAS_OFFSETS:
                total += offset[:, None] * tl.sum(x.to(tl.float32), axis=0)[None, :]
                total += other_offset[:, None] * tl.sum(other.to(tl.float32), axis=0)[None, :]
        else:
            numbers = as_numbers(codes, _KV_FP8) if KIND == _FP8 else _as_whole(codes, middle[:, None])
            if GROUP == 0:
                total = tl.dot(numbers.to(DOT), x.to(DOT), total, input_precision="ieee")
            else:
                total += tl.dot(numbers.to(DOT), x.to(DOT), input_precision="ieee") * scale[:, None]
            if HAS_OFFSETS:
                total += offset[:, None] * tl.sum(x.to(tl.float32), axis=0)[None, :]
        scale, other_scale, offset, other_offset = next_scale, next_other_scale, next_offset, next_other_offset
    if GROUP == 0:
        total *= scale[:, None]
    place = (split * num_rows + rows).to(tl.int64)[None, :] * out_width + outs[:, None]
    if HAS_BIAS and not IS_SPLIT:
        total += tl.load(bias_ptr + outs, mask=outs < out_width, other=0.0).to(tl.float32)[:, None]
    mask = (rows < num_rows)[None, :] & (outs < out_width)[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _expand_kernel(
    code_ptr,
    scale_ptr,
    offset_ptr,
    out_ptr,
    out_width,
    padded_width,
    width,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """Of (step, tile): out[o, k] = scale[o] x (code[o, k] - middle) + offset[o], in float32 and rounded once."""
    step, tile = tl.program_id(0), tl.program_id(1)
    outs = tile * _TILE + tl.arange(0, _TILE)
    HALF: tl.constexpr = STEP // 2
    BYTES: tl.constexpr = HALF if KIND == _INT4 else STEP
    byte = tl.arange(0, BYTES)
    first = (tile.to(tl.int64) * (width // STEP) + step) * (_TILE * BYTES)
    codes = tl.load(code_ptr + first + tl.arange(0, _TILE)[:, None] * BYTES + byte[None, :])
    is_there = outs < padded_width
    scale, other_scale = _of_group(scale_ptr, outs, is_there, step, padded_width, GROUP, STEP)
    offset, other_offset = tl.zeros([_TILE], tl.float32), tl.zeros([_TILE], tl.float32)
    if HAS_OFFSETS or HAS_ZEROS:
        offset, other_offset = _of_group(offset_ptr, outs, is_there, step, padded_width, GROUP, STEP)
    place = out_ptr + outs.to(tl.int64)[:, None] * width + step * STEP + byte[None, :]
    mask = (outs < out_width)[:, None]
    middle = 8388608.0
    if KIND == _INT4:
        if not (HAS_OFFSETS or HAS_ZEROS):
            middle = 8388616.0
        low, high = _as_whole(codes & 15, middle), _as_whole(codes >> 4, middle)
        if HAS_ZEROS:
            low, high = (low - offset[:, None]) * scale[:, None], (high - other_offset[:, None]) * other_scale[:, None]
        else:
            low, high = low * scale[:, None] + offset[:, None], high * other_scale[:, None] + other_offset[:, None]
        tl.store(place, low.to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(place + HALF, high.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        numbers = as_numbers(codes, _KV_FP8) if KIND == _FP8 else _as_whole(codes, middle + 128.0)
        if HAS_ZEROS:
            numbers = (numbers - offset[:, None]) * scale[:, None]
        else:
            numbers = numbers * scale[:, None] + offset[:, None]
        tl.store(place, numbers.to(out_ptr.dtype.element_ty), mask=mask)


def expanded(weight: Blocks, dtype: torch.dtype) -> Tensor:
    """The weight's numbers, rounded to `dtype`: [out_width, width], a new tensor.

    Bytes moved: of the weight `num_bytes`, and the result once.
    """
    out = torch.empty((weight.out_width, weight.width), dtype=dtype, device=weight.codes.device)
    padded_width = weight.scales.shape[1]
    _expand_kernel[(weight.width // weight.step, padded_width // TILE)](
        weight.codes,
        weight.scales,
        weight.scales if weight.offsets is None else weight.offsets,
        out,
        weight.out_width,
        padded_width,
        weight.width,
        **_constants(weight.kind, weight.group, weight.step, None if weight.offsets is None else weight.offsets.dtype),
        **_EXPAND_OPTIONS,
    )
    return out


@triton.jit(do_not_specialize=["num_splits"])
def _merge_splits_kernel(
    part_ptr, bias_ptr, out_ptr, count, width, num_splits, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """out = sum of the splits' results, in their order, (+ bias): `count` elements, rows of `width`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for _ in range(num_splits):
        total += tl.load(part_ptr + at, mask=mask, other=0.0)
        part_ptr += count
    if HAS_BIAS:
        total += tl.load(bias_ptr + at % width, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=mask)


def block_product(x: Tensor, weight: Blocks, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`. A new tensor.

    With few tiles the columns are shared out among programs, whose results are added up in their order by a launch of
    its own. Where they are cut depends on the number of tiles: a row has the same bits in every batch of up to 16.

    Shapes: x: [num_rows, width], float32, bfloat16 or float16; bias: [out_width]; result: [num_rows, out_width].
    Of more rows than `most_rows` the weight is expanded for the call, each of its numbers rounded to x's type.
    Bytes moved: of the weight `num_bytes`, once for each tile of rows, x and the result once; of s splits 8 x s x
    num_rows x out_width for their results, most of them in the L2 cache; what is expanded is written and read once.
    Sources: Frantar et al. 2022, "GPTQ"; Lin et al. 2023, "AWQ"; Micikevicius et al. 2022, "FP8 Formats".
    """
    x = x.contiguous()
    num_rows, out_width = x.shape[0], weight.out_width
    if num_rows > most_rows(weight):
        return torch.nn.functional.linear(x, expanded(weight, x.dtype), bias)
    out = torch.empty((num_rows, out_width), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    padded_width = weight.scales.shape[1]
    offsets = None if weight.offsets is None else weight.offsets.dtype
    tile = tile_of(x.dtype, num_rows, _are_added(offsets), arch_of(x))
    num_steps = weight.width // weight.step
    grid = triton.cdiv(num_rows, tile.rows), triton.cdiv(padded_width, tile.outs)
    splits, split_steps = _splits(grid[0] * grid[1], num_steps)
    target = out if splits == 1 else torch.empty((splits, *out.shape), dtype=torch.float32, device=x.device)
    _block_product_kernel[(*grid, splits)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if weight.offsets is None else weight.offsets,
        x if bias is None else bias,
        target,
        num_rows,
        weight.width,
        out_width,
        padded_width,
        num_steps,
        split_steps,
        **_constants(weight.kind, weight.group, weight.step, offsets),
        HAS_BIAS=bias is not None,
        IS_SPLIT=splits > 1,
        IN_PAIRS=_in_pairs(weight.kind, x.dtype, tile.rows, offsets),
        OUT=tile.outs,
        ROWS=tile.rows,
        DOT=dot_type(x.dtype),
        **tile.options,
    )
    if splits > 1:
        _merge_splits_kernel[(triton.cdiv(out.numel(), MERGE_BLOCK),)](
            target,
            x if bias is None else bias,
            out,
            out.numel(),
            out_width,
            splits,
            HAS_BIAS=bias is not None,
            BLOCK=MERGE_BLOCK,
            **_MERGE_OPTIONS,
        )
    return out


def most_rows(weight: Blocks) -> int:
    """How many rows are multiplied with the codes as they lie."""
    has_offsets = weight.offsets is not None and _are_added(weight.offsets.dtype)
    has_short_groups = weight.kind == INT8 and 0 < weight.group < TILE
    return MOST_ROWS_OF_LATE_SCALES if has_offsets or has_short_groups else MOST_ROWS


def _splits(num_tiles: int, num_steps: int) -> tuple[int, int]:
    """Into how many parts the columns are cut, and the steps of each."""
    wanted = min(PROGRAMS // num_tiles, MAX_SPLITS, num_steps // MIN_SPLIT_STEPS)
    steps = -(-num_steps // max(wanted, 1))
    return -(-num_steps // steps), steps


class Tile(NamedTuple):
    """How a program is cut: outputs, rows of inputs, warps, depth of the pipeline."""

    outs: int
    rows: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, object]:
        """For the launch."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


def tile_of(dtype: torch.dtype, num_rows: int, has_offsets: bool, arch: int) -> Tile:
    """Decoding reads the weight and little else: deep pipelines. Prompts multiply: large tiles."""
    if dtype == torch.float32:  # no tensor cores in full precision
        return Tile(TILE, FEW_ROWS, 4, 3) if num_rows <= FEW_ROWS else Tile(TILE, 64, 8, 3)
    if num_rows <= FEW_ROWS:
        # By a sweep on a H100: 7 to 24 % faster than tiles of 64 outputs, and four stages as fast as three to six.
        return Tile(TILE, FEW_ROWS, 4, 4) if has_offsets or arch < HOPPER else Tile(2 * TILE, FEW_ROWS, 4, 4)
    is_older = arch < HOPPER  # both operands of its products are in registers
    if has_offsets or (num_rows <= 64 and not is_older):
        return Tile(TILE, 64, 4, 4)  # offsets take registers: a third and a fourth sum for each output
    return Tile(2 * TILE, 64 if is_older else 128, 8, 3)


def _in_pairs(kind: int, dtype: torch.dtype, rows: int, offsets: torch.dtype | None) -> bool:
    """Whether codes become numbers two at a time: not in the interpreter, which knows no assembly.

    Zeros are subtracted one by one, which for many rows costs more than is won: 99 us in place of 91 for 64 of them.
    """
    is_won = rows <= FEW_ROWS or offsets != torch.uint8
    return kind == INT4 and dtype.itemsize == 2 and is_won and not IS_INTERPRETED


def _are_added(offsets: torch.dtype | None) -> bool:
    return offsets is not None and offsets.is_floating_point


def _constants(kind: int, group: int, step: int, offsets: torch.dtype | None) -> dict[str, object]:
    return {
        "KIND": kind,
        "GROUP": group,
        "STEP": step,
        "HAS_OFFSETS": _are_added(offsets),
        "HAS_ZEROS": offsets == torch.uint8,
    }


def variants(arch: int) -> Iterator[Variant]:
    """Every kind of blocks in decoding and for prompts, the types of inputs, and the sum of splits."""
    wide, narrow = torch.float32, torch.float16
    for name, kind, dtype, num_rows, group, step, scales, offsets in [
        ("int4", INT4, torch.bfloat16, 1, 32, 64, narrow, None),
        ("int4", INT4, torch.bfloat16, 64, 32, 64, narrow, None),
        ("int4", INT4, torch.bfloat16, 512, 32, 64, narrow, None),
        ("int4", INT4, torch.float16, 512, 128, 128, narrow, None),
        ("int4", INT4, torch.float32, 1, 32, 32, narrow, None),
        ("int4", INT4, torch.float32, 64, 32, 32, narrow, None),
        ("int4 with offsets", INT4, torch.bfloat16, 1, 32, 64, narrow, torch.float16),
        ("int4 with offsets", INT4, torch.bfloat16, 512, 32, 64, narrow, torch.float16),
        ("int4 with offsets", INT4, torch.float16, 512, 32, 64, narrow, torch.float16),
        ("int4 with offsets", INT4, torch.bfloat16, 512, 32, 32, narrow, torch.float16),
        ("int4 with offsets", INT4, torch.float32, 64, 32, 32, narrow, torch.float16),
        ("int4 with zeros", INT4, torch.bfloat16, 1, 128, 128, narrow, torch.uint8),
        ("int4 with zeros", INT4, torch.bfloat16, 512, 128, 128, narrow, torch.uint8),
        ("int4 with zeros", INT4, torch.float16, 1, 0, 128, narrow, torch.uint8),
        ("int4 with zeros", INT4, torch.float16, 512, 32, 64, narrow, torch.uint8),
        ("int4 with wide offsets", INT4, torch.bfloat16, 512, 32, 64, wide, wide),
        ("int8 with wide offsets", INT8, torch.bfloat16, 512, 32, 32, wide, wide),
        ("int8 by sixteens", INT8, torch.bfloat16, 1, 16, 16, wide, None),
        ("int8 by sixteens", INT8, torch.bfloat16, 512, 16, 16, wide, None),
        ("int8 by sixteens with wide offsets", INT8, torch.bfloat16, 1, 16, 16, wide, wide),
        ("int8 by sixteens with wide offsets", INT8, torch.float32, 512, 16, 16, wide, wide),
        ("int8", INT8, torch.bfloat16, 1, 32, 32, narrow, None),
        ("int8", INT8, torch.bfloat16, 64, 32, 32, narrow, None),
        ("int8", INT8, torch.bfloat16, 512, 32, 32, narrow, None),
        ("int8", INT8, torch.float16, 512, 128, 128, wide, None),
        ("int8", INT8, torch.bfloat16, 1, 0, 128, wide, None),
        ("int8", INT8, torch.bfloat16, 512, 0, 128, wide, None),
        ("int8", INT8, torch.float32, 1, 0, 32, wide, None),
        ("int8", INT8, torch.float32, 64, 32, 32, narrow, None),
        ("fp8", FP8, torch.float32, 64, 0, 32, wide, None),
        ("fp8", FP8, torch.bfloat16, 1, 128, 64, wide, None),
        ("fp8", FP8, torch.float16, 1, 0, 64, wide, None),
        ("fp8", FP8, torch.bfloat16, 512, 0, 64, wide, None),
        ("fp8", FP8, torch.bfloat16, 512, 128, 64, wide, None),
    ]:
        tile = tile_of(dtype, num_rows, _are_added(offsets), arch)
        for is_split in (True, False) if num_rows == 1 and dtype != wide else (False,):
            columns = f"group={group or 'row'} step={step}"
            yield Variant(
                f"{name} by {type_name(dtype)} {columns} outputs={tile.outs} rows={tile.rows}"
                f"{' split' if is_split else ''}",
                _block_product_kernel,
                {
                    **dict.fromkeys(("x_ptr", "bias_ptr"), POINTERS[dtype]),
                    "code_ptr": "*u8",
                    "scale_ptr": POINTERS[scales],
                    "offset_ptr": POINTERS[offsets or scales],
                    "out_ptr": "*fp32" if is_split else POINTERS[dtype],
                    **dict.fromkeys(("num_rows", "num_steps", "split_steps"), "i32"),
                    **dict.fromkeys(("width", "out_width", "padded_width"), "i32:16"),
                },
                {
                    **_constants(kind, group, step, offsets),
                    "HAS_BIAS": not is_split,
                    "IS_SPLIT": is_split,
                    "IN_PAIRS": _in_pairs(kind, dtype, tile.rows, offsets),
                    "OUT": tile.outs,
                    "ROWS": tile.rows,
                    "DOT": dot_type(dtype),
                },
                tile.options,
            )
    yield Variant(
        "bfloat16",
        _merge_splits_kernel,
        {
            "part_ptr": "*fp32",
            **dict.fromkeys(("bias_ptr", "out_ptr"), "*bf16"),
            **dict.fromkeys(("count", "width"), "i32:16"),
            "num_splits": "i32",
        },
        {"HAS_BIAS": True, "BLOCK": MERGE_BLOCK},
        _MERGE_OPTIONS,
    )
    for name, kind, group, step, scales, offsets in [
        ("int4", INT4, 32, 64, narrow, None),
        ("int4 with offsets", INT4, 32, 64, narrow, narrow),
        ("int4 with zeros", INT4, 128, 128, narrow, torch.uint8),
        ("int8", INT8, 32, 32, narrow, None),
        ("int8", INT8, 0, 128, wide, None),
        ("fp8", FP8, 128, 64, wide, None),
    ]:
        yield Variant(
            f"{name} to bfloat16 group={group or 'row'} step={step}",
            _expand_kernel,
            {
                "code_ptr": "*u8",
                "scale_ptr": POINTERS[scales],
                "offset_ptr": POINTERS[offsets or scales],
                "out_ptr": "*bf16",
                **dict.fromkeys(("out_width", "padded_width", "width"), "i32:16"),
            },
            _constants(kind, group, step, offsets),
            _EXPAND_OPTIONS,
        )
