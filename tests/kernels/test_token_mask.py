from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels.sample_row import SampleRow
from kernels.sampling import sample
from kernels.token_mask import TokenMask, hide_others


def _mask(allowed: set[int], num_words: int) -> TokenMask:
    bits = np.zeros(num_words * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _logits(rows: int, vocab: int) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(rows * vocab))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1191])
def test_hides_all_but_the_allowed_in_masked_rows_alone(vocab: int) -> None:
    logits = _logits(3, vocab)
    allowed = {0, vocab - 1, vocab // 2}
    found = hide_others(logits, [None, _mask(allowed, -(-vocab // 32)), None], keeps=logits)
    assert torch.equal(found[[0, 2]], logits[[0, 2]])
    for token in range(vocab):
        assert found[1, token] == (logits[1, token] if token in allowed else -math.inf)


def test_logits_that_are_to_be_kept_are_copied_and_others_changed_in_place() -> None:
    logits = _logits(1, 40)
    before = logits.clone()
    masked = hide_others(logits, [_mask({3}, 2)], keeps=logits)
    assert torch.equal(logits, before)
    copy = logits.clone()
    assert hide_others(copy, [_mask({3}, 2)], keeps=logits) is copy
    assert torch.equal(copy, masked)
    assert hide_others(logits, [None], keeps=logits) is logits


def test_tokens_past_the_end_of_a_mask_are_hidden_and_bits_past_the_vocabulary_ignored() -> None:
    found = hide_others(_logits(1, 100), [_mask({1, 30}, 1)], keeps=torch.empty(0))
    assert set(torch.isfinite(found[0]).nonzero().flatten().tolist()) == {1, 30}
    found = hide_others(_logits(1, 40), [_mask({1, 63}, 2)], keeps=torch.empty(0))
    assert set(torch.isfinite(found[0]).nonzero().flatten().tolist()) == {1}


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.4}, {"logit_bias": ((7, 90.0),)}],
    ids=str,
)
def test_only_allowed_tokens_are_drawn_whatever_else_shapes_the_draw(options: dict[str, object]) -> None:
    allowed = {2, 5, 11}
    rows = [SampleRow(seed=3, position=i, allowed=_mask(allowed, 2), **options) for i in range(200)]
    drawn = sample(_logits(1, 50).expand(200, -1), rows)
    assert {d.token_id for d in drawn} <= allowed


def test_a_row_draws_the_same_token_beside_a_masked_one_and_logprobs_stay_the_models_own() -> None:
    logits = _logits(2, 64)
    free, masked = SampleRow(seed=1, num_logprobs=2), SampleRow(seed=2, num_logprobs=2, allowed=_mask({9}, 2))
    together = sample(logits, [free, masked])
    assert together == [sample(logits[:1], [free])[0], sample(logits[1:], [masked])[0]]
    assert together[1].token_id == 9
    assert together[1].logprob == pytest.approx(float(logits[1].log_softmax(-1)[9]))
