from __future__ import annotations

from itertools import islice
from statistics import fmean, median

import pytest

from fleetctl.load.generated_shapes import TrafficKind, generate_shapes
from fleetctl.load.prompt import prompt_text
from fleetctl.load.shape import RequestShape


def common_prefix(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_prompt_is_the_same_each_time() -> None:
    shape = RequestShape(0.0, 700, 1, (5, 6))
    assert prompt_text(shape, salt=1) == prompt_text(shape, salt=1)


def test_shared_ids_are_shared_text_and_the_rest_differs() -> None:
    first = prompt_text(RequestShape(0.0, 1100, 1, (5, 6)), salt=1)
    second = prompt_text(RequestShape(0.0, 1300, 1, (5, 6)), salt=2)
    shared = common_prefix(first, second)
    assert 1024 * 4 <= shared <= 1024 * 4 + 20
    other = prompt_text(RequestShape(0.0, 1100, 1, (5, 7)), salt=1)
    assert 512 * 4 <= common_prefix(first, other) <= 512 * 4 + 20


def test_prompts_without_ids_share_nothing() -> None:
    texts = [prompt_text(RequestShape(0.0, 100, 1), salt=salt) for salt in range(20)]
    assert len(set(texts)) == 20


@pytest.mark.parametrize("tokens", [1, 7, 511, 512, 513, 2000])
@pytest.mark.parametrize("chars_per_token", [1.0, 3.3, 4.0])
def test_length_follows_the_tokens(tokens: int, chars_per_token: float) -> None:
    text = prompt_text(RequestShape(0.0, tokens, 1, (1, 2)), salt=0, chars_per_token=chars_per_token)
    assert abs(len(text) - tokens * chars_per_token) <= 2


def test_a_partial_last_block_begins_like_the_whole_block() -> None:
    whole = prompt_text(RequestShape(0.0, 512, 1, (9,)), salt=0)
    part = prompt_text(RequestShape(0.0, 100, 1, (9,)), salt=0)
    assert whole.startswith(part)


def test_traffic_is_the_same_for_a_seed_and_differs_for_another() -> None:
    def first(seed: int) -> list[RequestShape]:
        return list(islice(generate_shapes(TrafficKind(seed=seed)), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_traffic_has_the_rate_and_lengths_asked_for() -> None:
    traffic = TrafficKind(rate_per_s=10, prompt_tokens_median=50, output_tokens_median=20, system_prompt_tokens=100)
    shapes = list(islice(generate_shapes(traffic), 4000))
    assert 9 < len(shapes) / shapes[-1].at_s < 11
    assert 45 < median(s.prompt_tokens - 100 for s in shapes) < 55
    assert 18 < median(s.output_tokens for s in shapes) < 22
    assert fmean(s.output_tokens for s in shapes) > 20, "the tail is long on one side"
    assert len({s.prefix_ids for s in shapes}) == 3
    assert all(s.block_tokens == 100 for s in shapes)
    assert max(s.output_tokens for s in shapes) <= traffic.max_output_tokens


def test_traffic_without_system_prompts_shares_nothing() -> None:
    assert all(s.prefix_ids == () for s in islice(generate_shapes(TrafficKind(num_system_prompts=0)), 20))


@pytest.mark.parametrize(
    "wrong", [{"rate_per_s": 0}, {"rate_per_s": float("nan")}, {"max_output_tokens": 0}, {"prompt_sigma": -1}], ids=repr
)
def test_senseless_traffic_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="traffic"):
        TrafficKind(**wrong)  # type: ignore[arg-type]
