"""The tensors of a GGUF file, as they lie or dequantised, in the order of rows that Hugging Face has."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.gguf.header import TYPES, GgufTensor
from engine.gguf.tensor_map import Place, row_order
from engine.model.gguf_blocks import KINDS, blocks_of
from engine.model.gguf_model import open_gguf, read_bytes
from kernels.block_weight import BlockLayout, BlockWeight, Kind

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_MIXED: Kind = "int8 by sixteens with wide offsets"  # what matrices of several kinds are together
_CODE_OF = {name: code for code, (name, _, _) in TYPES.items()}


class GgufTensors:
    """Opened as safetensors' files are: `with GgufTensors(path) as file: file.get_tensor(name)`."""

    def __init__(self, path: Any) -> None:
        self._path, self._model = path, open_gguf(path)

    def __enter__(self) -> GgufTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def block_layout(self, names: Iterable[str]) -> BlockLayout | None:
        """What blocks all of these matrices are kept in, if there are kernels for those of each."""
        kinds = {KINDS.get(self.type_of(name)) for name in names}
        if None in kinds:
            return None
        return BlockLayout(_MIXED if len(kinds) > 1 else next(kind for kind in kinds if kind is not None))

    def type_of(self, name: str) -> str:
        """What its numbers are stored as."""
        return self._model.header.tensors[self._model.places[name].tensor].type

    def quantised(self, names: Iterable[str]) -> list[str]:
        """Those of these that lie in blocks."""
        return [name for name in names if self.type_of(name) not in _PLAIN]

    def get_tensor(self, name: str) -> Tensor:
        """By Hugging Face's name: as stored where the numbers are plain, else float32."""
        place, stored = self._stored(name)
        found = dequantised(read_bytes(self._path, stored), stored.type, stored.shape)
        return found if place.rotated is None else found[self._order(place, found.shape[0])]

    def get_blocks(self, name: str, kind: Kind) -> BlockWeight:
        """A matrix of a kind that `block_layout` said, with the numbers that it has."""
        place, stored = self._stored(name)
        found = blocks_of(read_bytes(self._path, stored), stored.type, *stored.shape)
        if found.kind != kind:
            found = found.by_sixteens()
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
    if kind in KINDS and len(shape) == 2:
        return blocks_of(data, kind, *shape).dequantised()
    gguf: Any = import_module("gguf")  # pulls in an HTTP client: only where a file has such blocks
    blocks = np.frombuffer(data, np.uint8).reshape(*shape[:-1], -1)
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(_CODE_OF[kind]))).view(shape)


def _expert(tensor: GgufTensor, expert: int) -> GgufTensor:
    """One expert's part of a tensor of all: whole rows, one expert after the other."""
    part = tensor.num_bytes // tensor.shape[0]
    return GgufTensor(tensor.type, tensor.shape[1:], tensor.offset + expert * part, part)
