"""How numba compiles the kernels of this folder."""

from __future__ import annotations

from kernels.cpu.helper_compiler import HelperCompiler
from kernels.cpu.instructions import limit_compiler

__all__ = ["EXACT"]

limit_compiler()

# Every operation is rounded as IEEE 754 says and in the order that the source says, so a result's bits depend neither
# on how LLVM inlines and vectorises nor on what was compiled before. Where a sum is grouped, or a product and a sum are
# one instruction, the source says how (`kernels.cpu.sums`, `kernels.cpu.exp.fused`). `fastmath` is always said: a
# function without it takes its first caller's.
EXACT = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "no_cpython_wrapper": True,  # kernels are called from kernels, and bodies by their address
    "no_cfunc_wrapper": True,
    "pipeline_class": HelperCompiler,
}
