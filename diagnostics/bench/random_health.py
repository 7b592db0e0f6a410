"""What happens to a random fleet that stays well: nothing is to be named, and nobody is to be called."""

from __future__ import annotations

from diagnostics.bench.random_fleet import Fault, Happening, RandomFleet, change, rollout


def _with_room(fleet: RandomFleet, share: float) -> None:
    """So much of its usual traffic: what comes next fits."""
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * share, 3)


def nothing(fleet: RandomFleet) -> Happening:
    del fleet
    return Happening()


def a_busier_hour(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.6)
    return Happening(changes=[change("arrivals", times=1.5, shape="ramp", over=600)])


def traffic_doubles(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.4)
    return Happening(changes=[change("arrivals", times=2)])


def night_becomes_day(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.1)
    return Happening(changes=[change("arrivals", times=6, shape="ramp", over=2400, at=-1800)])


def a_quiet_hour(fleet: RandomFleet) -> Happening:
    del fleet
    return Happening(changes=[change("arrivals", times=0.4, shape="ramp", over=840)])


def day_becomes_night(fleet: RandomFleet) -> Happening:
    del fleet
    return Happening(changes=[change("arrivals", times=0.08, shape="ramp", over=2700, at=-1800)])


def a_burst_that_fits(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.5)
    return Happening(changes=[change("arrivals", times=1.8, shape="spike", over=240)])


def jobs_at_fixed_times(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.4)
    return Happening(changes=[change("arrivals", times=1.8, shape="pulse", over=600, at=-2400)])


def a_harmless_upgrade(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.5)
    return Happening(facts=rollout(fleet)[1])


def restarts_in_turn(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3:
        return None
    _with_room(fleet, 0.5)
    facts = [
        {"kind": "restart", "on": node, "at": 110 * number, "restart_s": 45} for number, node in enumerate(fleet.names)
    ]
    return Happening(facts=facts)


def a_node_is_added(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or len(fleet.names) < 3:
        return None
    new = fleet.names[-1]
    facts = [{"kind": "node_added", "on": new, "at": 0}, {"kind": "scale", "on": new, "at": -60}]
    return Happening(changes=[change("hit_ratio", new, times=0.3, until=180)], facts=facts)


def a_somewhat_other_mix(fleet: RandomFleet) -> Happening:
    _with_room(fleet, 0.6)
    return Happening(changes=[change("prompt_tokens", times=1.25), change("output_tokens", times=1.2)])


def more_is_shared(fleet: RandomFleet) -> Happening:
    return Happening(changes=[change("hit_ratio", to=min(0.92, fleet.load["hit_ratio"] + 0.15))])


def a_few_requests_in_an_hour(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = fleet.some(0.0, 0.001, 0.003)
    return Happening()


def cards_at_rest(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = 0.0
    changes = [change("DCGM_FI_DEV_SM_CLOCK", to=210, at=-2700)] if fleet.gpu else []
    return Happening(changes=changes)


def one_failed_request(fleet: RandomFleet) -> Happening | None:
    if fleet.has("llamacpp"):
        return None
    node = fleet.some_node()
    return Happening(changes=[change("error_ratio", node, to=min(1, 0.05 / fleet.load["arrivals"]), at=60, until=65)])


def one_scrape_is_lost(fleet: RandomFleet) -> Happening:
    return Happening(changes=[change("up", fleet.some_node(), shape="vanish", until=fleet.some(5, 10))])


def users_cancel_by_design(fleet: RandomFleet) -> Happening:
    fleet.load["abort_ratio"] = fleet.some(0.3, 0.6)
    return Happening()


def exporters_are_rolled(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu or fleet.has("fleetctl"):
        return None
    changes = [
        change("DCGM_*", node, shape="vanish", at=60 * number, until=60 * number + 25)
        for number, node in enumerate(fleet.names)
    ]
    return Happening(changes=changes)


def an_old_xid(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    return Happening(changes=[change("DCGM_FI_DEV_XID_ERRORS", fleet.some_node(), to=fleet.some(13, 31), at=-2700)])


def cards_at_their_power(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    return Happening(changes=[change("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", to=4, at=-2700)])


HEALTHY: tuple[Fault, ...] = (
    nothing,
    a_busier_hour,
    traffic_doubles,
    night_becomes_day,
    a_quiet_hour,
    day_becomes_night,
    a_burst_that_fits,
    jobs_at_fixed_times,
    a_harmless_upgrade,
    restarts_in_turn,
    a_node_is_added,
    a_somewhat_other_mix,
    more_is_shared,
    a_few_requests_in_an_hour,
    cards_at_rest,
    one_failed_request,
    one_scrape_is_lost,
    users_cancel_by_design,
    exporters_are_rolled,
    an_old_xid,
    cards_at_their_power,
)
