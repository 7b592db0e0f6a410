"""Compiles every kernel for sm_90 on any machine and shows what it takes: `python -m kernels.compile_report`.

No GPU is needed: Triton's wheel holds ptxas and cuobjdump. Exits with 1 when a kernel spills registers or asks for
more shared memory than a program may have.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu import block_copy, kv_codes, kv_store, paged_attention, rms_norm, rope, sampling, silu_mul
from kernels.gpu.launch import Variant

TARGET = GPUTarget("cuda", 90, 32)
SHARED_LIMIT_BYTES = 227 * 1024  # of one program on sm_90
MODULES = (rms_norm, rope, silu_mul, kv_store, kv_codes, paged_attention, block_copy, sampling)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled variant takes. Registers are per thread, shared memory per program."""

    kernel: str
    label: str
    num_warps: int
    registers: int
    shared_bytes: int
    stack_bytes: int  # per thread; above 0 registers were spilled
    local_bytes: int

    @property
    def has_spills(self) -> bool:
        """Whether registers were spilled to local memory."""
        return self.stack_bytes + self.local_bytes > 0

    @property
    def is_too_large(self) -> bool:
        """Whether it asks for more shared memory than a program may have."""
        return self.shared_bytes > SHARED_LIMIT_BYTES


def all_variants() -> Iterator[Variant]:
    """Of every module that is named in `MODULES`."""
    for module in MODULES:
        yield from module.variants()


def compile_variant(variant: Variant) -> Resources:
    """Compiles for sm_90 and asks cuobjdump. Raises Triton's error when it does not compile."""
    names = variant.kernel.arg_names
    types = {name: variant.types.get(name, "constexpr") for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if types[name].startswith("*") or types[name].endswith(":16")
    }
    source = ASTSource(
        variant.kernel,
        {name: kind.removesuffix(":16") for name, kind in types.items()},
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs=aligned,
    )
    compiled = triton.compile(source, target=TARGET, options=dict(variant.options))
    registers, stack, _, local = _usage(compiled.asm["cubin"])
    return Resources(
        kernel=variant.kernel.__name__.strip("_").removesuffix("_kernel"),
        label=variant.label,
        num_warps=compiled.metadata.num_warps,
        registers=registers,
        shared_bytes=compiled.metadata.shared,  # asked for at launch, so the binary itself does not say
        stack_bytes=stack,
        local_bytes=local,
    )


def _usage(cubin: bytes) -> tuple[int, ...]:
    """Registers, stack, static shared and local bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _USAGE.findall(said)
    if len(found) != 1:
        raise RuntimeError(f"cuobjdump --dump-resource-usage: expected one kernel, got: {said!r}")
    return tuple(int(number) for number in found[0])


def main() -> int:
    """Prints one row per variant; 1 when one spills or is too large."""
    say = sys.stdout.write
    say(f"Triton {triton.__version__}, sm_{TARGET.arch}; registers per thread, shared memory per program\n\n")
    say("| kernel | variant | warps | registers | shared memory, KiB | spills, bytes |\n|---|---|---|---|---|---|\n")
    bad = 0
    for variant in all_variants():
        r = compile_variant(variant)
        bad += r.has_spills or r.is_too_large
        spills, shared = r.stack_bytes + r.local_bytes, r.shared_bytes / 1024
        say(f"| {r.kernel} | {r.label} | {r.num_warps} | {r.registers} | {shared:.1f} | {spills} |\n")
    if bad:
        limit = f"more than {SHARED_LIMIT_BYTES} bytes of shared memory"
        sys.stderr.write(f"error: {bad} variants spill registers or take {limit}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
