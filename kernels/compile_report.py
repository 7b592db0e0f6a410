"""Compiles every kernel for GPUs that are not there and shows what it takes: `python -m kernels.compile_report`.

No GPU is needed: Triton's wheel holds ptxas and cuobjdump. Exits with 1 when a kernel spills registers or asks for
more shared memory than a program may have there: on an A100 (sm_80), H100 (sm_90) and B200 (sm_100).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu import (
    block_copy,
    block_product,
    kv_codes,
    kv_store,
    paged_attention,
    rms_norm,
    rope,
    sampling,
    silu_mul,
)
from kernels.gpu.launch import Variant

SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # of one program, by architecture
MODULES = (rms_norm, rope, silu_mul, kv_store, kv_codes, paged_attention, block_copy, sampling, block_product)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled variant takes. Registers are per thread, shared memory per program."""

    arch: int  # 90: sm_90
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
        return self.shared_bytes > SHARED_LIMIT_BYTES[self.arch]


def all_variants(arch: int) -> Iterator[Variant]:
    """As launchers would have them there, of every module that is named in `MODULES`."""
    for module in MODULES:
        yield from module.variants(arch)


def last_variants(arch: int) -> list[Variant]:
    """One of each kernel, the last that its module names: that which takes most."""
    return list({variant.kernel.__name__: variant for variant in all_variants(arch)}.values())


def compile_variant(variant: Variant, arch: int) -> Resources:
    """Compiles for one architecture and asks cuobjdump. Raises Triton's error when it does not compile."""
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
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(variant.options))
    registers, stack, _, local = _usage(compiled.asm["cubin"])
    return Resources(
        arch=arch,
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


def main(argv: Sequence[str]) -> int:
    """Prints one row per architecture and variant; 1 when one spills or is too large."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_report", description="Compile without a GPU.")
    known = list(SHARED_LIMIT_BYTES)
    parser.add_argument("--arch", type=int, nargs="+", choices=known, default=known, help="like 90; default: all")
    parser.add_argument("--last", action="store_true", help="one variant of each kernel, the last; default: every one")
    args = parser.parse_args(argv)
    variants_of = last_variants if args.last else all_variants
    say = sys.stdout.write
    say(f"Triton {triton.__version__}; registers per thread, shared memory per program\n\n")
    say("| sm | kernel | variant | warps | registers | shared memory, KiB | spills, bytes |\n")
    say("|---|---|---|---|---|---|---|\n")
    bad = 0
    for arch in args.arch:
        for r in (compile_variant(variant, arch) for variant in variants_of(arch)):
            bad += r.has_spills or r.is_too_large
            spills, shared = r.stack_bytes + r.local_bytes, r.shared_bytes / 1024
            say(f"| {r.arch} | {r.kernel} | {r.label} | {r.num_warps} | {r.registers} | {shared:.1f} | {spills} |\n")
    if bad:
        sys.stderr.write(f"error: {bad} variants spill registers, or take more shared memory than there is\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
