"""Runs functions of `kernels.gpu` on CPU tensors: in Triton's interpreter, or on the GPU where there is one.

Triton decides when it is imported whether it interprets, so the interpreter has a process of its own.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

Run = Callable[..., Any]

# The interpreter cuts bfloat16 off where the GPU rounds to nearest: up to one unit in the last place.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2**-7 * 1.01}

ON_DEVICES = ["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)]


def runner(device: str) -> Run:
    """`run("module:function", *args, **kwargs)`: its result; tensors that it changes are changed here too."""
    if device == "interpreter":
        return _interpret
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    return _on_cuda


def _interpret(path: str, *args: Any, **kwargs: Any) -> Any:
    result, after = _unpack(_interpreter().submit(_call, path, _pack((args, kwargs))).result(timeout=170))
    _copy_back(args, after)
    return result


def _on_cuda(path: str, *args: Any, **kwargs: Any) -> Any:
    moved = [a.cuda() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    moved = [a.cuda() if isinstance(a, torch.Tensor) and a.dtype == torch.int64 else a for a in moved]
    result = _function(path)(*moved, **kwargs)
    _copy_back(args, moved)
    if isinstance(result, tuple):
        return tuple(part.cpu() for part in result)
    return result.cpu() if isinstance(result, torch.Tensor) else result


@cache
def _interpreter() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_become_interpreter)


def _become_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def _call(path: str, packed: bytes) -> bytes:
    args, kwargs = _unpack(packed)
    result = _function(path)(*args, **kwargs)
    return _pack((result, args))


def _function(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def _copy_back(args: Sequence[Any], after: Sequence[Any]) -> None:
    for before, changed in zip(args, after, strict=True):
        if isinstance(before, torch.Tensor):
            before.copy_(changed)


def _pack(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), weights_only=False)
