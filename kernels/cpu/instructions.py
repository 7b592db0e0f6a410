"""Which of this CPU's instructions the kernels use: all that it has, or fewer, as `FLEETCTL_CPU_KERNELS` says.

So every path can be tested and measured on any machine that can run it. It is read once, before anything is compiled.
"""

from __future__ import annotations

import ctypes
import os
import platform
from enum import IntEnum
from functools import lru_cache

__all__ = [
    "OPTION",
    "ByteDots",
    "Instructions",
    "allowed",
    "byte_dots",
    "has_avx512",
    "has_avx512_words",
    "has_dot",
    "has_neon_dot",
    "limit_compiler",
    "read",
]

OPTION = "FLEETCTL_CPU_KERNELS"


class Instructions(IntEnum):
    """What kernels may use at most; each has all of those before it, where the CPU has them."""

    AVX2 = 1  # vectors of eight
    VECTORS = 2  # the longest vectors that there are
    DOT = 3  # with products of bfloat16 pairs (`vdpbf16ps`, `bfdot`) and of four bytes (`vpdpbusd`, `usdot`)
    AMX = 4  # with matrix registers


class ByteDots(IntEnum):
    """How four bytes are multiplied with four others and added up. All give the same bits."""

    PLAIN = 1  # byte by byte, on any CPU
    WORDS = 2  # widened to 16 bits (`vpmaddwd`)
    VNNI_256 = 3  # vectors of eight (AVX-VNNI)
    VNNI = 4  # vectors of sixteen (AVX-512 VNNI)
    I8MM = 5  # vectors of four, on Arm


# A word of Linux's auxiliary vector, and bits of it.
_AT_HWCAP2, _ARM_FEATURES = 26, {"i8mm": 1 << 13, "bf16": 1 << 14}
_NAMES = {item.name.lower(): item for item in Instructions}


def read(said: str | None) -> Instructions:
    """The value of the option; everything where it is not set.

    Raises:
        ValueError: it is no name of these.
    """
    if not said:
        return Instructions.AMX
    if said.lower() not in _NAMES:
        raise ValueError(f"{OPTION}={said}: it takes {', '.join(_NAMES)}")
    return _NAMES[said.lower()]


@lru_cache(maxsize=1)
def allowed() -> Instructions:
    """What this process was told."""
    return read(os.environ.get(OPTION))


def limit_compiler() -> None:
    """Has numba compile for what is allowed; to be called before it compiles anything."""
    if allowed() is Instructions.AVX2 and _has("avx512f"):
        import numba

        numba.config.CPU_NAME, numba.config.CPU_FEATURES = "haswell", ""
    missing = [feature for feature in _ARM_FEATURES if allowed() >= Instructions.DOT and _has_on_arm(feature)]
    if missing:  # the compiler knows an Arm CPU by its model, and takes a new one for less than it is
        import numba
        from numba.core.codegen import get_host_cpu_features

        known = numba.config.CPU_FEATURES if numba.config.CPU_FEATURES is not None else get_host_cpu_features()
        numba.config.CPU_FEATURES = ",".join([*filter(None, [known]), *(f"+{feature}" for feature in missing)])


def _has(feature: str) -> bool:
    if feature in _ARM_FEATURES:
        return _has_on_arm(feature)
    from llvmlite.binding import get_host_cpu_features  # here: who only checks the option needs no compiler

    return bool(get_host_cpu_features().get(feature))


def _has_on_arm(feature: str) -> bool:
    return bool(_arm_capabilities() & _ARM_FEATURES[feature])


def _arm_capabilities() -> int:
    """Linux's bits of what an Arm CPU has beyond its first version; 0 elsewhere."""
    if platform.system() != "Linux" or platform.machine() not in ("aarch64", "arm64"):
        return 0
    read_vector = ctypes.CDLL(None).getauxval
    read_vector.argtypes, read_vector.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(read_vector(_AT_HWCAP2))


@lru_cache(maxsize=1)
def has_avx512() -> bool:
    """Whether compiled code has 32 registers of sixteen float32."""
    return _has("avx512f") and allowed() > Instructions.AVX2


@lru_cache(maxsize=1)
def has_dot() -> bool:
    """Whether pairs of bfloat16 are multiplied and added to float32 in one instruction: sixteen, or four on Arm."""
    return (_has("avx512bf16") and allowed() >= Instructions.DOT) or has_neon_dot()


@lru_cache(maxsize=1)
def has_neon_dot() -> bool:
    """Whether that instruction is Arm's."""
    return _has("bf16") and allowed() >= Instructions.DOT


@lru_cache(maxsize=1)
def has_avx512_words() -> bool:
    """Whether vectors of 32 numbers of 16 bits are multiplied."""
    return has_avx512() and _has("avx512bw")


@lru_cache(maxsize=1)
def byte_dots() -> ByteDots:
    """The fastest way that this CPU has and may take."""
    if allowed() >= Instructions.DOT and has_avx512() and _has("avx512vnni"):
        return ByteDots.VNNI
    if allowed() >= Instructions.DOT and _has("avxvnni"):
        return ByteDots.VNNI_256
    if allowed() >= Instructions.DOT and _has("i8mm"):
        return ByteDots.I8MM
    return ByteDots.WORDS if _has("avx2") else ByteDots.PLAIN
