"""What a random fleet is besides, which is nobody's fault: how little it tells and does, and what else just happened.

Real incidents come with an alert that has stood for days, with a deploy a quarter of an hour before, with two engines
in a pool, or with a request a minute. None of it changes what the fault may be called.
"""

from __future__ import annotations

from collections.abc import Callable

from diagnostics.bench.case import NodeForm
from diagnostics.bench.random_fleet import ENGINES, RandomFleet, change, rollout

Circumstance = Callable[[RandomFleet], bool]
"""Changes the fleet; false: it is not of the kind."""


def a_request_a_minute(fleet: RandomFleet) -> bool:
    fleet.load["arrivals"] = round(fleet.rng.uniform(1, 5) / 60, 4)
    fleet.is_quiet = True
    return True


def two_nodes(fleet: RandomFleet) -> bool:
    del fleet.nodes[2:]
    return True


def nothing_told(fleet: RandomFleet) -> bool:
    """Neither gateway nor controller nor anybody who reads cards."""
    fleet.gateway = fleet.controller = fleet.gpu = False
    fleet.changes = [one for one in fleet.changes if not one["what"].startswith("DCGM")]
    return True


def two_engines(fleet: RandomFleet) -> bool:
    if len(fleet.nodes) < 4 or fleet.has("fleetctl"):
        return False
    other = fleet.rng.choice([one for one in ENGINES if one not in (fleet.engine, "fleetctl")])
    half = len(fleet.nodes) // 2
    fleet.nodes[half:] = [one.model_copy(update={"engine": other}) for one in fleet.nodes[half:]]
    return True


def another_pool(fleet: RandomFleet) -> bool:
    fleet.beside = [NodeForm(name=f"other-{i}", pool="code", zone="ab"[i % 2], engine=fleet.engine) for i in (1, 2)]
    return True


def first_tokens_are_always_late(fleet: RandomFleet) -> bool:
    """Their alert is as old as the record."""
    fleet.load["overhead_seconds"] = fleet.some(0.4, 0.9)
    return True


def a_card_waits_for_its_reset(fleet: RandomFleet) -> bool:
    """And its ticket is as old as the record."""
    if not fleet.gpu:
        return False
    fleet.changes.append(change("DCGM_FI_DEV_ROW_REMAP_PENDING", fleet.some_node(), to=1, at=-2700))
    return True


def an_older_card(fleet: RandomFleet) -> bool:
    """One node has always been a third slower."""
    if len(fleet.nodes) < 3:
        return False
    fleet.changes.append(change("slow", fleet.some_node(), times=1.35, at=-2700))
    return True


def a_harmless_deploy_before(fleet: RandomFleet) -> bool:
    """So long before the fault that it did not bring it about."""
    if len(fleet.nodes) > 4:
        return False
    minutes = fleet.some(14, 20)
    fleet.facts += [one | {"at": one["at"] - 60 * minutes, "revision": "v0b"} for one in rollout(fleet)[1]]
    return True


def somewhat_more_traffic(fleet: RandomFleet) -> bool:
    """Which fits, minutes before the fault."""
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 0.7, 3)
    fleet.changes.append(change("arrivals", times=1.3, shape="ramp", over=120, at=-fleet.some(120, 300)))
    return True


def traffic_ebbs(fleet: RandomFleet) -> bool:
    """Over the whole time, as in the evening."""
    fleet.changes.append(change("arrivals", times=0.6, shape="ramp", over=4500, at=-2700))
    return True


def a_scrape_is_lost(fleet: RandomFleet) -> bool:
    at = fleet.some(-400, -90, 60)
    fleet.changes.append(change("up", fleet.some_node(), shape="vanish", at=at, until=at + 10))
    return True


CIRCUMSTANCES: tuple[Circumstance, ...] = (
    a_request_a_minute,
    two_nodes,
    nothing_told,
    nothing_told,
    two_engines,
    another_pool,
    first_tokens_are_always_late,
    a_card_waits_for_its_reset,
    an_older_card,
    a_harmless_deploy_before,
    somewhat_more_traffic,
    traffic_ebbs,
    a_scrape_is_lost,
)


FAULTY: frozenset[Circumstance] = frozenset({a_card_waits_for_its_reset, an_older_card})
"""Those that a diagnosis names rightly where nothing else is wrong."""


def in_circumstances(fleet: RandomFleet, *, is_well: bool = False) -> tuple[str, ...]:
    """Puts the fleet into none, one or two of them, and returns their names. `is_well`: into none that is a fault."""
    told = []
    wanted = [one for one in CIRCUMSTANCES if not (is_well and one in FAULTY)]
    for circumstance in fleet.rng.sample(wanted, fleet.rng.choices([0, 1, 2], [30, 45, 25])[0]):
        if circumstance.__name__ not in told and circumstance(fleet):
            told.append(circumstance.__name__)
    return tuple(told)
