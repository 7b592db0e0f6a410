"""Four bits whose errors are made up for: on the inputs seen never worse than plain rounding, and GPTQ's codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.block_weight import GROUP, BlockWeight, quantised
from kernels.compensated import DAMPING, compensated, one_thread


def _inputs(tokens: int, width: int, seed: int) -> Tensor:
    """Numbers that have much in common, as what a layer reads has: a few directions, and some noise."""
    drawn = torch.Generator().manual_seed(seed)
    directions = torch.randn(max(width // 8, 1), width, generator=drawn)
    return torch.randn(tokens, len(directions), generator=drawn) @ directions + 0.3 * torch.randn(
        tokens, width, generator=drawn
    )


def _errors(weight: Tensor, rounded: BlockWeight, inputs: Tensor) -> Tensor:
    """Of each row, squared and summed over the inputs."""
    return ((rounded.dequantised().double() - weight.double()) @ inputs.double().T).square().sum(1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    tokens=st.sampled_from([1, 5, 40, 300]),
    rows=st.integers(1, 40),
    groups=st.integers(1, 4),
    silent=st.booleans(),
)
def test_no_row_says_anything_worse_on_the_inputs_that_were_seen(
    seed: int, tokens: int, rows: int, groups: int, silent: bool
) -> None:
    width = groups * GROUP
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed + 1))
    inputs = _inputs(tokens, width, seed)
    if silent:
        inputs[:, ::3] = 0  # columns that nothing was seen of
    with one_thread():
        found = compensated(weight, "int4", inputs)
    own, plain = (_errors(weight, one, inputs) for one in (found, quantised(weight, "int4")))
    assert (own <= plain * (1 + 1e-4) + 1e-6).all()  # compared in float32


def test_most_of_the_error_goes_where_inputs_have_much_in_common() -> None:
    weight, inputs = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)), _inputs(1000, 256, 1)
    found, plain = compensated(weight, "int4", inputs), quantised(weight, "int4")
    assert _errors(weight, found, inputs).sum() < 0.5 * _errors(weight, plain, inputs).sum()


def test_codes_and_scales_are_those_of_gptq_written_down_plainly() -> None:
    weight, inputs = torch.randn(24, 96, generator=torch.Generator().manual_seed(2)), _inputs(500, 96, 3)
    found = compensated(weight, "int4", inputs)
    codes, scales = _plain_gptq(weight.double().numpy(), inputs.double().numpy())
    same = (found.codes.numpy().astype(int) - 8 == codes).all(axis=1)
    assert same.mean() > 0.9  # what is left lay on the edge of two codes in float32
    assert np.array_equal(found.scales.numpy()[same], scales[same])


def _plain_gptq(weight: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Column by column, with the whole inverse of what is left (Frantar et al. 2022, equations 2 and 3)."""
    weight, (rows, width) = weight.copy(), weight.shape
    hessian = inputs.T @ inputs
    damping = DAMPING * width / len(inputs) * np.diag(hessian).mean()
    inverse = np.linalg.inv(hessian + damping * np.eye(width))
    codes, scales = np.zeros((rows, width), dtype=int), np.zeros((rows, width // GROUP), dtype=np.float16)
    for column in range(width):
        if column % GROUP == 0:
            group = torch.from_numpy(weight[:, column : column + GROUP]).float()
            scales[:, column // GROUP] = quantised(group, "int4").scales[:, 0].numpy()
        scale = scales[:, column // GROUP].astype(float)
        codes[:, column] = np.clip(np.rint(weight[:, column] / scale), -8, 7)
        error = (weight[:, column] - codes[:, column] * scale) / inverse[column, column]
        weight -= error[:, None] * inverse[column]
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return codes, scales


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_inputs_that_say_nothing_leave_plain_rounding(bad: float) -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    found, plain = compensated(weight, "w4a8", torch.full((3, 64), bad)), quantised(weight, "w4a8")
    assert found.kind == plain.kind
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.scales, plain.scales)
