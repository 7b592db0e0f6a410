"""Compiling kernels ahead: `fleetctl-node compile`, and the helper that a core starts where they are missing."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Literal

import structlog

from engine.parent_death import die_with_parent
from kernels.quantization import Quantization

log = structlog.get_logger()

_MOST_DESCRIPTORS = 1024


def compile_kernels(args: argparse.Namespace) -> int:
    """Compiles what is not compiled; says on stderr how far it is, on stdout where it lies. Returns the exit code."""
    if args.with_parent:
        die_with_parent()
    from kernels.compile_ahead import cache_folder, compile_ahead, is_compiled

    started, folder = time.monotonic(), cache_folder()
    if folder is None:
        sys.stderr.write(
            "error: there is no folder to keep kernels in; set NUMBA_CACHE_DIR to one that can be written\n"
        )
        return 1
    for dtype in args.dtype:
        kinds = (args.quantization, args.kv_cache_dtype)
        if not is_compiled(dtype, *kinds, has_experts=not args.dense):
            jobs = max(args.jobs, 1)
            compile_ahead(dtype, *kinds, has_experts=not args.dense, jobs=jobs, report=partial(_say, dtype))
    _say("all", f"compiled, {time.monotonic() - started:.1f} s")
    sys.stdout.write(f"{folder}\n")
    return 0


def compile_beside(
    dtype: str,
    quantization: Quantization | None,
    kv_cache_dtype: Literal["auto", "int8", "fp8"],
    *,
    has_experts: bool,
) -> None:
    """Starts a process that compiles what this one will need, from the end, while this one begins at the beginning.

    Nobody waits for it: what it has compiled is found in the cache. It ends with this process.
    """
    from kernels.compile_ahead import is_compiled

    if len(os.sched_getaffinity(0)) < 2 or is_compiled(dtype, quantization, kv_cache_dtype, has_experts=has_experts):
        return
    log.info("kernels.compiling", dtype=dtype, remedy="`fleetctl-node compile` does it before the first start")
    if platform.system() == "Linux":
        _compile_in_fork(dtype, quantization, kv_cache_dtype, has_experts=has_experts)
        return
    command = [sys.executable, "-m", "engine", "compile", "--with-parent", "--jobs", "1", "--dtype", dtype]
    if quantization is not None:
        command += ["--quantization", quantization]
    command += ["--kv-cache-dtype", kv_cache_dtype, *([] if has_experts else ["--dense"])]
    try:
        nowhere = subprocess.DEVNULL
        helper = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    except OSError as error:
        log.warning("kernels.no_helper", reason=str(error))
        return
    threading.Thread(target=helper.wait, name="compile-helper", daemon=True).start()


def _compile_in_fork(
    dtype: str,
    quantization: Quantization | None,
    kv_cache_dtype: Literal["auto", "int8", "fp8"],
    *,
    has_experts: bool,
) -> None:
    """The helper as a copy of this process, which has imported all that it needs: two seconds sooner.

    It computes with one thread, and needs none of those that it lacks.
    """
    from kernels.compile_ahead import compile_ahead
    from kernels.cpu.progress import use_progress_memory

    pid = os.fork()
    if pid:
        threading.Thread(target=os.waitpid, args=(pid, 0), name="compile-helper", daemon=True).start()
        return
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for said in range(3):
            os.dup2(nowhere, said)
        os.closerange(3, _MOST_DESCRIPTORS)  # the core's end of its connection must be open in the core alone
        die_with_parent()
        use_progress_memory(memoryview(bytearray(8)))  # its progress is not the core's
        compile_ahead(dtype, quantization, kv_cache_dtype, has_experts=has_experts)
        code = 0
    finally:
        os._exit(code)  # nothing that the core has to do at its end


def _say(what: str, done: str) -> None:
    sys.stderr.write(f"kernels: {what}: {done}\n")
