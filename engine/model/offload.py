"""Weights that leave the device for host memory and come back, in the same tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.weights import DecoderWeights


class OffloadedWeights:
    """Holds the only copy while the device's is given up. Tensors keep their identity, not their address."""

    def __init__(self, weights: DecoderWeights) -> None:
        self._weights = weights
        self._host: list[tuple[Tensor, Tensor]] = []  # (of the device, its copy)

    @torch.inference_mode()
    def offload(self) -> None:
        """Takes as much host memory as the weights have on the device."""
        if self._host:
            return
        for tensor in self._weights.tensors():
            self._host.append((tensor, tensor.to("cpu", copy=True)))
            tensor.untyped_storage().resize_(0)

    @torch.inference_mode()
    def restore(self) -> None:
        """Does nothing when nothing was offloaded. Raises what torch raises when the device has not the memory."""
        while self._host:
            tensor, copy = self._host[-1]
            tensor.untyped_storage().resize_(copy.nbytes)
            tensor.copy_(copy)
            self._host.pop()
