"""Intel's matrix registers (AMX) from numba code: eight tiles of 16 rows x 64 bytes, products of bfloat16 and of bytes.

Each function is one instruction. Addresses are integers (`array.ctypes.data`), strides are bytes. A row of a product
depends on that row of the left operand alone, whatever else is in the tile. Source: Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.instructions import Instructions, allowed

__all__ = ["TILES_OF_16", "byte_dot", "configure", "dot", "has_amx", "has_byte_amx", "load", "save", "store", "zero"]

_TILE = ir.IntType(8)
_ADDRESS = _TILE.as_pointer()
_BYTES = ir.IntType(64)


def _configuration() -> np.ndarray:
    """Palette 1, all eight tiles with 16 rows of 64 bytes."""
    config = np.zeros(64, dtype=np.uint8)
    config[0] = 1
    config[16:32].view(np.uint16)[:] = 64
    config[48:56] = 16
    return config


TILES_OF_16 = _configuration()


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """Whether this CPU has them, the compiler knows it, the system lends this process them and they are allowed."""
    if allowed() < Instructions.AMX:
        return False
    if not torch.cpu._is_amx_tile_supported() or not get_host_cpu_features().get("amx-bf16"):
        return False
    return torch.cpu._init_amx()


@lru_cache(maxsize=1)
def has_byte_amx() -> bool:
    """Whether they multiply bytes too."""
    return has_amx() and bool(get_host_cpu_features().get("amx-int8"))


def _emit(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> None:
    signature = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def _with_address(name: str) -> Callable[[int], None]:
    @intrinsic
    def instruction(context, address):
        def generate(context, builder, signature, arguments):
            _emit(builder, name, builder.inttoptr(arguments[0], _ADDRESS))
            return context.get_dummy_value()

        return types.void(types.intp), generate

    return instruction


def _with_tile(name: str, tile: int) -> Callable[[int, int], None]:
    @intrinsic
    def instruction(context, address, stride):
        def generate(context, builder, signature, arguments):
            _emit(builder, name, _TILE(tile), builder.inttoptr(arguments[0], _ADDRESS), arguments[1])
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return instruction


def _with_tiles(name: str, *tiles: int) -> Callable[[], None]:
    @intrinsic
    def instruction(context):
        def generate(context, builder, signature, arguments):
            _emit(builder, name, *(_TILE(tile) for tile in tiles))
            return context.get_dummy_value()

        return types.void(), generate

    return instruction


# Both take the address of 64 bytes: the shapes of all tiles.
configure = _with_address("llvm.x86.ldtilecfg")
save = _with_address("llvm.x86.sttilecfg")


def load(tile: int) -> Callable[[int, int], None]:
    """Sixteen rows from an address on."""
    return _with_tile("llvm.x86.tileloadd64", tile)


def store(tile: int) -> Callable[[int, int], None]:
    """Sixteen rows to an address on."""
    return _with_tile("llvm.x86.tilestored64", tile)


def zero(tile: int) -> Callable[[], None]:
    """All of a tile becomes 0."""
    return _with_tiles("llvm.x86.tilezero", tile)


def dot(into: int, left: int, right: int) -> Callable[[], None]:
    """`into += left @ right`: float32 [16, 16], bfloat16 [16, 32] and [32, 16] with rows 2i and 2i + 1 interleaved."""
    return _with_tiles("llvm.x86.tdpbf16ps", into, left, right)


def byte_dot(into: int, left: int, right: int) -> Callable[[], None]:
    """`into += left @ right`: int32 [16, 16], bytes [16, 64], from 0 to 255, and [64, 16], from -128 to 127, with four
    rows from 4i on interleaved.
    """
    return _with_tiles("llvm.x86.tdpbusd", into, left, right)
