"""What happens to a random fleet that stays well: nothing is to be named, and nobody is to be called."""

from __future__ import annotations

from diagnostics.bench.random_fleet import Fault, Happening, RandomFleet, change, rollout


def nothing(fleet: RandomFleet) -> Happening:
    del fleet
    return Happening()


def a_busier_hour(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 0.6, 2)
    return Happening(changes=[change("arrivals", times=1.5, shape="ramp", over=600)])


def a_quiet_hour(fleet: RandomFleet) -> Happening:
    del fleet
    return Happening(changes=[change("arrivals", times=0.4, shape="ramp", over=840)])


def a_burst_that_fits(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 0.5, 2)
    return Happening(changes=[change("arrivals", times=1.8, shape="spike", over=240)])


def a_harmless_upgrade(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 0.5, 2)
    return Happening(facts=rollout(fleet)[1])


def a_somewhat_other_mix(fleet: RandomFleet) -> Happening:
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 0.6, 2)
    return Happening(changes=[change("prompt_tokens", times=1.25), change("output_tokens", times=1.2)])


HEALTHY: tuple[Fault, ...] = (
    nothing,
    a_busier_hour,
    a_quiet_hour,
    a_burst_that_fits,
    a_harmless_upgrade,
    a_somewhat_other_mix,
)
