"""Which screen a kind of fleetctl has, when it is typed after `:`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.tui.place import Place, Visit

NOUNS: Mapping[str, Place] = {
    "now": Place.NOW,
    "top": Place.NOW,
    "status": Place.NOW,
    "fleet": Place.FLEET,
    "nodes": Place.FLEET,
    "pools": Place.FLEET,
    "pool": Place.FLEET,
    "zones": Place.FLEET,
    "zone": Place.FLEET,
    "models": Place.FLEET,
    "model": Place.FLEET,
    "revisions": Place.FLEET,
    "revision": Place.FLEET,
    "node": Place.NODE,
    "logs": Place.NODE,
    "alerts": Place.ALERTS,
    "alert": Place.ALERTS,
    "incidents": Place.INCIDENT,
    "incident": Place.INCIDENT,
    "runbooks": Place.RUNBOOK,
    "runbook": Place.RUNBOOK,
    "run": Place.RUNBOOK,
    "runs": Place.RUNBOOK,
    "traffic": Place.TRAFFIC,
    "routing": Place.TRAFFIC,
    "traffic-rules": Place.TRAFFIC,
    "routes": Place.TRAFFIC,
    "traffic-rule": Place.TRAFFIC,
    "tenants": Place.TRAFFIC,
    "tenant": Place.TRAFFIC,
    "rollouts": Place.ROLLOUT,
    "rollout": Place.ROLLOUT,
    "autoscaler": Place.AUTOSCALER,
    "events": Place.EVENTS,
    "event": Place.EVENTS,
    "audit": Place.AUDIT,
}
"""Kinds that can be listed or looked at, to the screen that has them."""

LOOKING = (
    "get",
    "describe",
    "show",
    "top",
)  # words before, or behind, a noun that change nothing of what it means here
GROUPED = {
    "pools": "pool",
    "pool": "pool",
    "zones": "zone",
    "zone": "zone",
    "models": "model",
    "model": "model",
    "revisions": "revision",
    "revision": "revision",
}
"""Nouns that group the fleet."""

NAMED = frozenset({Place.NODE, Place.INCIDENT, Place.RUNBOOK})  # screens that are about one thing
NOT_NODES = frozenset({"controller", "gateway"})  # that write logs too


@dataclass(frozen=True, slots=True)
class Jump:
    """Go to a screen; `group`: the fleet by this; `words`: of its filter."""

    visit: Visit
    group: str | None = None
    words: str = ""


def jump_of(words: Sequence[str], command: str = "") -> Jump | None:
    """The screen that has it; None where a screen does not show all that is asked for. `command`: the longest one that
    the words begin with."""
    match words:
        case ["incident", "list"]:
            rest = ["incident"]
        case ["incident" | "runbook" as noun, "show", *subjects]:
            rest = [noun, *subjects]
        case ["node", "logs", *subjects]:
            rest = ["logs", *subjects]
        case [look, noun, *subjects] if look in LOOKING:
            if look == "describe" and NOUNS.get(noun) not in NAMED:
                return None  # all of one thing, which a row on a screen is not
            rest = [noun, *subjects]
        case _ if " " in command:
            return None  # one of its own: `rollout status`
        case _:
            rest = list(words)
    noun, *subjects = rest
    place = NOUNS.get(noun)
    if place is None or len(subjects) > 1 or any(one.startswith("-") for one in subjects):
        return None
    subject = subjects[0] if subjects else None
    if subject is None:
        return Jump(Visit(place), GROUPED.get(noun))
    if noun in ("logs", "nodes"):
        return Jump(Visit(Place.NODE, subject)) if subject not in NOT_NODES else None
    if place in NAMED:
        return Jump(Visit(place, subject))
    if noun in GROUPED:
        return Jump(Visit(place), GROUPED[noun], f"{GROUPED[noun]}={subject}")
    return Jump(Visit(place), words=f"name={subject}") if place is Place.ALERTS else None
