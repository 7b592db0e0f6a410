"""The tensors of a GGUF file, as they lie or dequantised, in the order of rows that Hugging Face has."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.gguf.header import TYPES, GgufTensor
from engine.gguf.tensor_map import Place, row_order
from engine.model.gguf_model import open_gguf, read_bytes
from kernels.block_weight import GROUP, BlockWeight, Kind

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_KINDS: dict[str, Kind] = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4 with offsets"}
_CODE_OF = {name: code for code, (name, _, _) in TYPES.items()}


class GgufTensors:
    """Opened as safetensors' files are: `with GgufTensors(path) as file: file.get_tensor(name)`."""

    def __init__(self, path: Any) -> None:
        self._path, self._model = path, open_gguf(path)

    def __enter__(self) -> GgufTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def block_kind(self, name: str) -> Kind | None:
        """What blocks a matrix lies in, if there are kernels for them."""
        place = self._model.places[name]
        return None if place.expert is not None else _KINDS.get(self._model.header.tensors[place.tensor].type)

    def get_tensor(self, name: str) -> Tensor:
        """By Hugging Face's name: as stored where the numbers are plain, else float32."""
        place, stored = self._stored(name)
        found = dequantised(read_bytes(self._path, stored), stored.type, stored.shape)
        return found if place.rotated is None else found[self._order(place, found.shape[0])]

    def get_blocks(self, name: str, kind: Kind) -> BlockWeight:
        """A matrix of a kind that `block_kind` said, as it lies."""
        place, stored = self._stored(name)
        found = _blocks(read_bytes(self._path, stored), stored)
        return found if place.rotated is None else found.rows(torch.tensor(self._order(place, found.shape[0])))

    def _stored(self, name: str) -> tuple[Place, GgufTensor]:
        place = self._model.places[name]
        stored = self._model.header.tensors[place.tensor]
        return place, stored if place.expert is None else _expert(stored, place.expert)

    def _order(self, place: Place, rows: int) -> list[int]:
        config = self._model.config
        return row_order(rows, config.num_heads if place.rotated == "q" else config.num_kv_heads)


def dequantised(data: bytearray, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Blocks of a type as numbers: [rows, width]."""
    if kind in _PLAIN:
        return torch.frombuffer(data, dtype=_PLAIN[kind]).view(shape)
    if kind in _KINDS and len(shape) == 2:
        return _blocks(data, GgufTensor(kind, shape, 0, len(data))).dequantised()
    gguf: Any = import_module("gguf")  # pulls in an HTTP client: only where a file has such blocks
    blocks = np.frombuffer(data, np.uint8).reshape(*shape[:-1], -1)
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(_CODE_OF[kind]))).view(shape)


def _expert(tensor: GgufTensor, expert: int) -> GgufTensor:
    """One expert's part of a tensor of all: whole rows, one expert after the other."""
    part = tensor.num_bytes // tensor.shape[0]
    return GgufTensor(tensor.type, tensor.shape[1:], tensor.offset + expert * part, part)


def _blocks(data: bytearray, tensor: GgufTensor) -> BlockWeight:
    rows, width = tensor.shape
    kind = _KINDS[tensor.type]
    raw = torch.frombuffer(data, dtype=torch.uint8).view(rows, width // GROUP, -1)
    scales, at, offsets = raw[..., :2].contiguous().view(torch.float16).squeeze(-1), 2, None
    if kind == "int8":
        return BlockWeight(kind, raw[..., 2:].contiguous().view(torch.int8).view(rows, width), scales)
    if kind == "int4 with offsets":
        offsets, at = raw[..., 2:4].contiguous().view(torch.float16).squeeze(-1), 4
    pairs = raw[..., at:]  # the first sixteen weights in the lower halves, the others in the upper ones
    codes = torch.cat([pairs & 15, pairs >> 4], dim=-1).view(rows, width)
    return BlockWeight(kind, codes, scales, offsets)
