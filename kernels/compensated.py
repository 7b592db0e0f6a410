"""Rounding to four bits where each column's error is made up for in the columns behind it (GPTQ).

A matrix that is rounded says something else, by `error @ inputs`. Inputs have much in common, so columns that are not
rounded yet can take most of the error of one that is: how much of it, the inverse of the inputs' Gram matrix says.
Costs nothing at a step: codes and scales lie as those of `block_weight.quantised`.

Source: Frantar et al. 2022, arXiv:2210.17323. One thread computes: a BLAS adds up in another order with more of them,
and the same directory must give the same bits on every start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from kernels.block_weight import GROUP, INT4_MID, SMALLEST, BlockWeight, four_bits, quantised
from kernels.quantization import CompensatedKind

# Of the mean square of an input, for as many tokens as inputs, added to each: what few tokens seem to have in common
# is chance. With 0.01 whatever their number, half as many tokens as inputs made a model worse than plain rounding.
DAMPING = 0.1


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread inside."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def compensated(weight: Tensor, kind: CompensatedKind, inputs: Tensor) -> BlockWeight:
    """The weight rounded to blocks: of no row is the error on these inputs larger than `quantised`'s.

    To be called within `one_thread`.

    Shapes: weight: [rows, width], the width a multiple of 32; inputs: [tokens, width].
    """
    plain, seen = quantised(weight, kind), inputs.float()
    gram = seen.T @ seen
    damping = DAMPING * len(gram) / len(seen)
    upper = _inverse_root(gram, damping) if bool(gram.isfinite().all()) else None
    if upper is None:
        return plain
    found = _rounded_in_order(weight.float(), plain, upper)
    is_worse = _error(weight, found, gram) > _error(weight, plain, gram)
    found.codes[is_worse], found.scales[is_worse] = plain.codes[is_worse], plain.scales[is_worse]
    return found


def _inverse_root(gram: Tensor, damping: float) -> Tensor | None:
    """The upper U with `U.T @ U` the inverse of the damped Gram matrix; None where even that has none."""
    damped = gram.double()
    damped.diagonal().add_(damping * damped.diagonal().mean())
    # From the last column on: `damped = R @ R.T` with an upper R, whose inverse it is.
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if int(failed):
        return None
    return torch.linalg.solve_triangular(
        lower.flip(0, 1), torch.eye(len(gram), dtype=torch.float64), upper=True
    ).float()


def _rounded_in_order(left: Tensor, like: BlockWeight, upper: Tensor) -> BlockWeight:
    """Rounds group by group, column by column; `left` is what is still to be said."""
    left, width = left.clone(), left.shape[1]
    codes, scales = torch.empty_like(like.codes), torch.empty_like(like.scales)
    steps = upper.diagonal().tolist()
    for begin in range(0, width, GROUP):
        end = begin + GROUP
        _, kept = four_bits(left[:, begin:end])
        scales[:, begin // GROUP] = kept
        scale = kept.float()
        inverse = torch.where(scale.abs() < SMALLEST, 0.0, 1.0 / scale)
        columns = left[:, begin:end].T.contiguous()  # of a group that fit in a cache: [32, rows]
        rounded, errors = torch.empty_like(columns), torch.empty_like(columns)
        for own in range(GROUP):
            at, column = begin + own, columns[own]
            code = torch.mul(column, inverse, out=rounded[own]).round_().clamp_(-INT4_MID, INT4_MID - 1)
            error = torch.addcmul(column, code, scale, value=-1, out=errors[own]).div_(steps[at])
            columns[own + 1 :].addr_(upper[at, at + 1 : end], error, alpha=-1)
        codes[:, begin:end] = rounded.add_(INT4_MID).T.to(torch.uint8)
        left[:, end:].addmm_(errors.T, upper[begin:end, end:], alpha=-1)
    return replace(like, codes=codes, scales=scales)


def _error(weight: Tensor, rounded: BlockWeight, gram: Tensor) -> Tensor:
    """Of each row, squared and summed over the inputs: [rows]."""
    off = rounded.dequantised().sub_(weight.float())
    return torch.linalg.vecdot(off @ gram, off)
