"""How what happens to a random fleet goes: at once and for good, over most of an hour, or to and fro."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from diagnostics.bench.random_fleet import Happening
from diagnostics.bench.serving_model import DEFAULTS

AT_ONCE_S = (300.0, 900.0)  # when it is judged
QUIET_S = (900.0, 1800.0)  # where a request comes in a minute
SLOWLY_S = (2400.0, 3600.0)
DRIFTS, TURNS = 0.18, 0.15  # of those that can
_PERIODS_S = (240, 280, 420)  # at one of the times of judgement at least it is there

CAN_DRIFT = frozenset(
    {
        "clients_hang_up", "too_long_requests", "longer_answers", "longer_prompts", "prompts_share_no_more",
        "one_node_is_slow", "one_node_prefills_slowly", "all_decode_slowly", "cards_wait", "more_arrivals",
        "frontend_of_one_node_is_slow", "the_gateway_is_slow", "blocks_leak", "a_card_is_hot", "uneven_routing",
    }
)  # fmt: skip
CAN_TURN = frozenset(
    {
        "clients_hang_up", "too_long_requests", "more_arrivals", "one_node_is_slow", "all_decode_slowly", "cards_wait",
        "frontend_of_one_node_is_slow", "the_gateway_is_slow", "all_fail", "a_node_answers_500", "uneven_routing",
        "traffic_cut_off",
    }
)  # fmt: skip


class Course(NamedTuple):
    """The changes, when a verdict is asked for, and a word for it."""

    changes: list[dict[str, Any]]
    judged_at_s: tuple[float, ...]
    word: str


def course(what: str, happens: Happening, *, is_quiet: bool, rng: random.Random) -> Course:
    """One of those that this can have."""
    drawn = rng.random()
    if happens.judged_at_s:
        return Course(happens.changes, happens.judged_at_s, "")
    if what in CAN_DRIFT and drawn < DRIFTS:
        return Course([_shaped(one, "ramp", rng.choice([1800, 2700])) for one in happens.changes], SLOWLY_S, "slowly")
    if what in CAN_TURN and not is_quiet and DRIFTS <= drawn < DRIFTS + TURNS:
        period = rng.choice(_PERIODS_S)
        return Course([_shaped(one, "pulse", period) for one in happens.changes], AT_ONCE_S, "to and fro")
    return Course(happens.changes, QUIET_S if is_quiet else AT_ONCE_S, "")


def _shaped(one: dict[str, Any], shape: str, over: float) -> dict[str, Any]:
    """A quantity that changed at once, or within minutes, changes so."""
    is_quantity = one["what"] in DEFAULTS or one["what"].startswith(("DCGM_", "gateway_ttft"))
    if not is_quantity or one["what"] == "giant_tokens" or one.get("shape", "step") not in ("step", "ramp"):
        return one
    return one | {"shape": shape, "over": over}
