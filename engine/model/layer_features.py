"""Hidden states of a model in front of some of its layers, for each token that has KV: what EAGLE-3 drafts from.

They lie in blocks of the same numbers as KV, so whatever finds a token's KV finds its features: a chunk of a prompt, a
prefix from the cache, blocks that came back from host memory. A step writes them as it goes, in recordings too, and
nobody pays for more than that until they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.kv_memory import empty_kv
from kernels.kv_cache import Pairs, copy_blocks, swap_blocks
from kernels.layer_ops import store_rows


class LayerFeatures:
    """`keep` in a forward pass, `at` after it."""

    def __init__(
        self,
        layers: Sequence[int],
        width: int,
        *,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._places = {layer: [p for p, own in enumerate(layers) if own == layer] for layer in layers}
        self._shapes = [(len(layers), 1, count, block_size, width) for count in (num_blocks, num_host_blocks)]
        self._dtype, self._device = dtype, device
        self.take()

    def keep(self, layer: int, stream: Tensor, slots: Tensor) -> None:
        """What layer `layer` begins with: [num_tokens, width]. Does nothing for a layer that is not asked for."""
        for place in self._places.get(layer, ()):
            store_rows(stream, self._cache[place].view(-1, stream.shape[1]), slots)

    def at(self, slots: Tensor) -> Tensor:
        """The features of some slots, side by side: [num_slots, number of layers x width]."""
        width = self._cache.shape[-1]
        return torch.cat([plane.view(-1, width).index_select(0, slots) for plane in self._cache], dim=1)

    def move(self, swap_out: Pairs, swap_in: Pairs, copies: Pairs) -> None:
        """Follows KV blocks to host memory, back, and onto others."""
        swap_blocks(self._cache, self._host_cache, swap_out)
        swap_blocks(self._host_cache, self._cache, swap_in)
        copy_blocks(self._cache, copies)

    def drop(self) -> int:
        """Gives the memory back; how many bytes it is."""
        num_bytes = self._cache.nbytes + self._host_cache.nbytes
        self._cache = self._host_cache = torch.empty(0)
        return num_bytes

    def take(self) -> None:
        """Takes the memory."""
        self._cache = empty_kv(self._shapes[0], self._dtype, self._device)
        self._host_cache = empty_kv(self._shapes[1], self._dtype, torch.device("cpu"))
