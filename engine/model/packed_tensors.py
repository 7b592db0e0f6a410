"""The matrices of a quantised checkpoint: as blocks that there are kernels for, where nothing is lost, else as numbers.

A checkpoint's scales stand for a matrix, a row, some columns of it, or a square; in blocks each 32 columns of a row
have a copy of theirs, as float16 if that can say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.directory import ModelDir
from engine.model.packed_weights import AWQ_ORDER, bits_in_words, scale_block
from engine.model.tensor_names import expected_tensors
from kernels.block_weight import GROUP, INT4_MID, MAX_BYTE_WIDTH, BlockLayout, BlockWeight, ByteKind, Kind


@dataclass(frozen=True, slots=True)
class _Scales:
    """A weight is `scale x (code - zero)`; codes and zeros lie around 0."""

    scales: Tensor  # [rows, groups], float32
    zeros: Tensor | None  # as the scales, int32
    columns: int  # of a group
    group_of: Tensor | None = None  # of each column, where groups are mixed (act-order)

    @property
    def has_even_groups(self) -> bool:
        """Whether as many columns are in each group: sorted, they lie in runs."""
        return self.group_of is None or bool((self.group_of.bincount() == self.columns).all())

    @property
    def order(self) -> Tensor | None:
        """The columns by their group, where groups are mixed."""
        return None if self.group_of is None else self.group_of.argsort(stable=True)

    def of_columns(self, part: Tensor, width: int, step: int = 1) -> Tensor:
        """`part` of each of the matrix's columns, or of every so many."""
        at = torch.arange(0, width, step) // self.columns if self.group_of is None else self.group_of
        return part[:, at]


class PackedTensors:
    """Of one checked directory, whose `parts` name them."""

    def __init__(self, model: ModelDir) -> None:
        assert model.packed is not None
        self._model, self._format = model, model.packed
        self._shapes = expected_tensors(model.config)

    def block_layout(self, names: Sequence[str]) -> BlockLayout | None:
        """The blocks that all of these matrices are kept in; None if one of them can't be, or is not packed."""
        kinds = {self._kind(name) for name in names}
        if None in kinds or (len(kinds) > 1 and "fp8" in kinds):
            return None
        orders = [self._order(name) for name in names]
        if any((one is None) is not (orders[0] is None) for one in orders):
            return None
        if any(one is not None and not torch.equal(one, orders[0]) for one in orders):  # the same inputs, two orders
            return None
        kind: Kind = "int8 with wide scales" if len(kinds) > 1 else next(one for one in kinds if one is not None)
        return BlockLayout(kind, has_order=orders[0] is not None)  # that kind takes in all whole numbers

    def get_tensor(self, name: str) -> Tensor:
        """The numbers of a matrix: [rows, width], float32."""
        codes, found = self._codes(name), self._scales(name)
        if found.zeros is not None:
            codes = codes - found.of_columns(found.zeros, codes.shape[1])
        return codes.float() * found.of_columns(found.scales, codes.shape[1])

    def get_blocks(self, name: str, kind: Kind) -> BlockWeight:
        """A matrix in blocks of a kind that `block_layout` said."""
        codes, found = self._codes(name), self._scales(name)
        order = found.order
        if order is not None:
            codes, found = codes[:, order], replace(found, group_of=None)
        return replace(self._blocks(name, kind, codes, found), order=order)

    def _blocks(self, name: str, kind: Kind, codes: Tensor, found: _Scales) -> BlockWeight:
        width, zeros = codes.shape[1], None
        scales = found.of_columns(found.scales, width, GROUP)
        if kind == "fp8":
            return BlockWeight(kind, codes.view(torch.uint8), scales)
        if kind in get_args(ByteKind):
            inputs = self._inputs(name, len(codes)) if kind == "w8a8 static" else None
            return BlockWeight(kind, codes.to(torch.int8), scales[:, :1], inputs=inputs)
        if kind == "int4 with zeros":
            zeros = torch.zeros_like(scales) if found.zeros is None else found.of_columns(found.zeros, width, GROUP)
            zeros = (zeros + INT4_MID).half()
        elif found.zeros is not None:
            codes = codes - found.of_columns(found.zeros, width)
        if kind in ("int4", "int4 with zeros"):
            return BlockWeight(kind, (codes + INT4_MID).to(torch.uint8), scales.half(), zeros)
        return BlockWeight(kind, codes.to(torch.int8), scales.half() if kind == "int8" else scales)

    def _order(self, name: str) -> Tensor | None:
        """Of a matrix's columns, where they are not in the order of their groups."""
        has_order = not {"g_idx", "weight_g_idx"}.isdisjoint(self._model.parts[name])
        return self._scales(name).order if has_order else None

    def _kind(self, name: str) -> Kind | None:
        if name not in self._model.parts:
            return None
        found, width = self._scales(name), self._shapes[name][1]
        if width % GROUP or (found.columns % GROUP and found.columns < width):
            return None
        if found.group_of is not None and (not found.has_even_groups or ".experts." in name):
            return None
        bits = self._bits(name)
        if bits is None:
            return "fp8"
        if bits == 8 and found.zeros is not None:
            return None  # nine bits
        if bits == 8 and found.columns >= width and width <= MAX_BYTE_WIDTH:
            wanted = self._format.inputs
            if wanted is not None and (wanted != "w8a8 static" or "input_scale" in self._model.parts[name]):
                return wanted
        if not (found.scales.half().float() == found.scales).all():
            return "int8 with wide scales"
        if bits == 8:
            return "int8"
        return "int4" if found.zeros is None else "int4 with zeros"

    def _bits(self, name: str) -> int | None:
        """Of a whole number; None where numbers are E4M3."""
        first, codes = next(iter(self._model.parts[name].items()))
        if first == "qweight":
            return self._format.bits[0]
        if first == "weight_packed":
            return bits_in_words(self._format, tuple(self._slice(codes).get_shape()), self._shapes[name])
        return None if self._slice(codes).get_dtype() == "F8_E4M3" else 8

    def _inputs(self, name: str, rows: int) -> Tensor:
        """Scale and zero of what the matrix is multiplied with, for each of its rows."""
        own = self._model.parts[name]
        found = [self._read(own["input_scale"]).float().reshape(-1)[:1]]
        zero = own.get("input_zero_point")
        found.append(torch.zeros(1) if zero is None else self._read(zero).float().reshape(-1)[:1])
        return torch.cat(found).expand(rows, 2)

    def _codes(self, name: str) -> Tensor:
        """[rows, width], int32 around 0, int8 or E4M3."""
        own, (_, width), bits = self._model.parts[name], self._shapes[name], self._bits(name) or 8
        stored = self._read(next(iter(own.values())))
        if "weight" in own:
            return stored
        if "weight_packed" in own:
            codes = _fields(stored, bits).flatten(1)[:, :width]
        elif self._format.method == "awq":
            codes = _in_order(_fields(stored, bits)).T
        else:
            codes = _fields(stored.T.contiguous(), bits).flatten(1)
        return codes - 2 ** (bits - 1)

    def _scales(self, name: str) -> _Scales:
        own, (rows, width), bits = self._model.parts[name], self._shapes[name], self._bits(name) or 8
        middle = 2 ** (bits - 1)
        if "qweight" in own:
            scales = self._read(own["scales"]).float().T
            zeros = _fields(self._read(own["qzeros"]), bits)
            zeros = (_in_order(zeros) if self._format.method == "awq" else zeros.flatten(1)).T[:rows]
            zeros = zeros + self._format.zero_shift - middle
            columns, order = width // scales.shape[1], own.get("g_idx")
        else:
            scales = self._read(next(part for ending, part in own.items() if "weight_scale" in ending)).float()
            block = scale_block(self._format, (rows, width), tuple(scales.shape))
            assert block is not None, "the directory was checked"
            scales = scales.reshape(-(-rows // block[0]), -1).repeat_interleave(block[0], dim=0)[:rows]
            columns, order = block[1], own.get("weight_g_idx")
            zeros = self._zeros_of_rows(own["weight_zero_point"], scales, bits) if "weight_zero_point" in own else None
        if zeros is not None and not zeros.any():
            zeros = None
        group_of = None if order is None else self._read(order).long()
        if group_of is not None and ((group_of < 0).any() or torch.equal(group_of, torch.arange(width) // columns)):
            group_of = None
        return _Scales(scales, zeros, columns, group_of)

    def _zeros_of_rows(self, name: str, scales: Tensor, bits: int) -> Tensor | None:
        stored = self._read(name)
        if not stored.dtype.is_floating_point and stored.numel() == scales.numel():
            return stored.reshape(scales.shape).int()
        if stored.dtype != torch.int32:  # of E4M3: there is none
            return None
        fields = _fields(stored.T.contiguous(), bits).flatten(1).T  # rows lie in words, as columns of the codes do
        return fields[: scales.shape[0]] - 2 ** (bits - 1)

    def _read(self, name: str) -> Tensor:
        with safe_open(self._model.files[name], framework="pt") as file:
            return file.get_tensor(name)

    def _slice(self, name: str):  # type: ignore[no-untyped-def] # the library's own
        with safe_open(self._model.files[name], framework="pt") as file:
            return file.get_slice(name)


def _fields(words: Tensor, bits: int) -> Tensor:
    """What each word of the last axis holds, lowest bits first: one axis more."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.to(torch.int32)[..., None] >> shifts) & ((1 << bits) - 1)


def _in_order(fields: Tensor) -> Tensor:
    """AWQ's eights as rows lie: [n, rows]."""
    order = torch.tensor([AWQ_ORDER.index(i) for i in range(len(AWQ_ORDER))])
    return fields[..., order].flatten(1)
