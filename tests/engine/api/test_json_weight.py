"""Bodies are weighed by their values before they are parsed: texts weigh nothing, however long."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import json_weight
from engine.api.json_weight import WEIGHTS, weight

TEXTS = st.text(alphabet='a"\\{[:,é', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def weight_by_reading(value: Any) -> int:
    """The same, of the parsed value."""
    if isinstance(value, list):
        return WEIGHTS[b"["] + WEIGHTS[b","] * max(0, len(value) - 1) + sum(map(weight_by_reading, value))
    if isinstance(value, dict):
        marks = WEIGHTS[b"{"] + WEIGHTS[b":"] * len(value) + WEIGHTS[b","] * max(0, len(value) - 1)
        return marks + sum(map(weight_by_reading, value.values()))
    return 0


@given(VALUES, st.integers(1, 40), st.booleans())
def test_what_stands_inside_of_texts_weighs_nothing_wherever_a_slice_ends(value: Any, size: int, plain: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_weight, "SLICE_BYTES", size)
        assert weight(json.dumps(value, ensure_ascii=plain).encode(), 10**9) == weight_by_reading(value)


def test_weighing_ends_as_soon_as_it_is_too_much() -> None:
    heavy = b"[" + b"1," * 1_000_000 + b"1]"
    assert 1000 < weight(heavy, 1000) < 200_000


@pytest.mark.parametrize("body", [b'"' * 99_999, b"\\" * 99_999, b'"\\', b"\xff{" * 50_000, b""])
def test_what_is_no_json_is_weighed_all_the_same(body: bytes) -> None:
    assert weight(body, 10**9) >= 0
