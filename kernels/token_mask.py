"""Hides the tokens that a grammar does not allow, in the rows that have one; other rows are not touched."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TokenMask = npt.NDArray[np.int32]  # [ceil(vocab / 32)], lowest bit first: a set bit is a token that may be drawn


def hide_others(logits: Tensor, masks: Sequence[TokenMask | None], *, keeps: Tensor) -> Tensor:
    """The logits with minus infinity wherever a row's mask has no bit; the tensor itself when no row has a mask.

    Changes `logits` in place unless it is `keeps`, which is copied. Tokens past the end of a mask are hidden.

    Shapes: logits: [num_rows, vocab], any float type. Bytes moved by a masked row: vocab / 8 to it, 8 vocab on it.
    """
    rows = [i for i, mask in enumerate(masks) if mask is not None]
    if not rows:
        return logits
    vocab = logits.shape[1]
    packed = np.zeros((len(rows), -(-vocab // 32)), dtype=np.int32)
    for i, row in enumerate(rows):
        mask = masks[row]
        assert mask is not None, "rows were chosen by their masks"
        size = min(len(mask), packed.shape[1])
        packed[i, :size] = mask[:size]
    if logits is keeps:
        logits = logits.clone()
    if len(rows) == logits.shape[0]:
        return logits.masked_fill_(_hidden(packed, vocab, logits.device), -math.inf)
    logits[rows] = logits[rows].masked_fill_(_hidden(packed, vocab, logits.device), -math.inf)
    return logits


def _hidden(packed: npt.NDArray[np.int32], vocab: int, device: torch.device) -> Tensor:
    """[num_rows, vocab], bool: the tokens without a bit."""
    octets = packed.view(np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little")[:, :vocab] == 0)
    # Unpacked on the device: an eighth of the bytes go over the bus.
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    bits = torch.from_numpy(octets).to(device)[:, :, None] >> shifts & 1
    return bits.flatten(1)[:, :vocab] == 0
