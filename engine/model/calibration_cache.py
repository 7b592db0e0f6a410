"""Calibrated matrices on disk, one file for each model and way of rounding: to calibrate anew takes tens of seconds.

A file begins with the digest of the rest; one that can't be read, or is damaged, is made again, and a folder that can't
be written to is done without. Its name holds a digest of all that decides what is in it: the model's own files, byte by
byte, the code that calibrates, and the CPU's path. It lies in systemd's CACHE_DIRECTORY or the user's cache folder. The
latest few files are kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from engine.model.directory import ModelDir, sha256_of
from kernels.block_weight import ROUNDED_INT4, BlockWeight, Kind
from kernels.cache_files import cache_homes, write_whole
from kernels.cpu.instructions import allowed
from kernels.quantization import CompensatedKind

KEPT_FILES = 4  # beside our own
_DIGEST_BYTES = hashlib.sha256().digest_size
_ENDING = ".calibrated"
_REMEDY = "the weights are calibrated at every start; set XDG_CACHE_HOME to a folder that this user can write"
Layers = Sequence[Mapping[str, BlockWeight]]  # of each layer its matrices, by what they are called

log = structlog.get_logger()


def calibration_path(model: ModelDir, dtype: torch.dtype, kind: CompensatedKind, code: Iterable[Path]) -> Path | None:
    """Where the matrices of this model are kept; None where there is no folder. Reads all of the model's files."""
    if (folder := _folder()) is None:
        return None
    parts = [str(dtype), kind, allowed().name, torch.__version__, str(sorted(model.files.items()))]
    files = sorted({*model.files.values(), *(model.path.glob("config.json") if model.path.is_dir() else ())})
    parts += [sha256_of(path) for path in (*files, *code, Path(__file__))]
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}{_ENDING}"


def to_bytes(layers: Layers) -> bytes:
    """Codes two in a byte, and scales, behind their digest."""
    tensors = {}
    for index, matrices in enumerate(layers):
        for name, matrix in matrices.items():
            low, high = matrix.codes.unflatten(1, (-1, 2)).unbind(-1)
            tensors[f"{index}.{name}.codes"] = low | high << 4
            tensors[f"{index}.{name}.scales"] = matrix.scales.contiguous()
    data = save(tensors)
    return hashlib.sha256(data).digest() + data


def digest_of(data: bytes) -> str:
    """Hex digits that tell what is in it from anything else."""
    return data[:_DIGEST_BYTES].hex()[:12]


def from_bytes(data: bytes, kind: CompensatedKind, num_layers: int) -> Layers:
    """Raises ValueError: it is not what `to_bytes` made."""
    if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("damaged")
    try:
        tensors = load(data[_DIGEST_BYTES:])
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    kept: Kind = ROUNDED_INT4 if kind == "w4a8" else kind
    layers: list[dict[str, BlockWeight]] = [{} for _ in range(num_layers)]
    for full in tensors:
        index, name, part = full.split(".")
        if part == "codes":
            codes = _unpacked(tensors[full])
            layers[int(index)][name] = BlockWeight(kept, codes, tensors[f"{index}.{name}.scales"])
    return layers


def read_calibration(path: Path | None) -> bytes | None:
    """What was kept; None where nothing is, or it can't be read."""
    if path is None:
        return None
    try:
        data = path.read_bytes()
        os.utime(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log.warning("calibration_cache.unreadable", path=str(path), reason=str(error), remedy="it is made again")
        return None
    return data


def keep_calibration(path: Path | None, data: bytes) -> None:
    """Puts it in place at once, and removes all but the latest others."""
    if path is None:
        log.warning("calibration_cache.unwritable", folder="none", reason="no home is known", remedy=_REMEDY)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        others = [other for other in path.parent.glob(f"*{_ENDING}") if other != path]
        for other in sorted(others, key=lambda other: other.stat().st_mtime, reverse=True)[KEPT_FILES:]:
            with suppress(FileNotFoundError):  # another process removes it too
                other.unlink()
    except OSError as error:
        log.warning("calibration_cache.unwritable", folder=str(path.parent), reason=str(error), remedy=_REMEDY)


def _unpacked(codes: Tensor) -> Tensor:
    wide = codes.to(torch.int16)  # whose bytes are two codes, the lower one first: in whole rows, not byte by byte
    return (wide & 15 | (wide >> 4) << 8).view(torch.uint8)


def _folder() -> Path | None:
    home = next(cache_homes(), None)
    return None if home is None else home / "calibrated"
