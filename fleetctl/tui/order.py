"""The command line of the cockpit: what nouns and verbs of `fleetctl` mean here. Pure.

A noun goes to a screen. A verb is the command itself: the controller judges it, as it does what a shell sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fleetctl.tui.place import Place, Visit
from runbooks.command import parse_command
from runbooks.errors import RunbookError
from runbooks.verb import Verb
from runbooks.verbs import VERBS

NOUNS: Mapping[str, Place] = {
    "now": Place.NOW,
    "top": Place.NOW,
    "status": Place.NOW,
    "fleet": Place.FLEET,
    "nodes": Place.FLEET,
    "pools": Place.FLEET,
    "zones": Place.FLEET,
    "models": Place.FLEET,
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
    "tenants": Place.TRAFFIC,
    "rollouts": Place.ROLLOUT,
    "rollout": Place.ROLLOUT,
    "autoscaler": Place.AUTOSCALER,
    "events": Place.EVENTS,
    "audit": Place.AUDIT,
}
"""Kinds that can be listed or looked at, to the screen that has them."""

LOOKING = ("get", "describe", "show")  # words before, or behind, a noun that change nothing of what it means here
GROUPED = {"pools": "pool", "zones": "zone", "models": "model"}  # nouns that group the fleet
HANDLED: dict[str, Literal["ack", "assign"]] = {"ack": "ack", "assign": "assign"}


@dataclass(frozen=True, slots=True)
class Jump:
    """Go to a screen; `group`: the fleet by this."""

    visit: Visit
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Send a command; `dry_run`: only ask what it would do. `target` is what has to be typed again where it is
    dangerous."""

    command: str
    verb: Verb
    target: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Start:
    """Run a page; `dry_run`: only ask what it would do. `target`: what it is about, to be typed again."""

    runbook: str
    inputs: Mapping[str, str]
    target: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Approve or deny a run."""

    run_id: str
    approve: bool


@dataclass(frozen=True, slots=True)
class Handle:
    """Say that an incident was seen, or whose it is."""

    what: Literal["ack", "assign"]
    incident_id: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class Simple:
    """What needs no words: help, quit, refresh."""

    what: Literal["help", "quit", "refresh"]


@dataclass(frozen=True, slots=True)
class Wrong:
    """It can't be done: why, and what to type instead."""

    why: str
    remedy: str = ""


Order = Jump | Act | Start | Answer | Handle | Simple | Wrong

GENTLE = frozenset({"cordon"})
"""Take nodes out, and end or move nothing of what they hold."""

SIMPLE: dict[str, Literal["help", "quit", "refresh"]] = {
    "q": "quit",
    "quit": "quit",
    "exit": "quit",
    "help": "help",
    "?": "help",
    "refresh": "refresh",
}


def parse_order(text: str) -> Order:
    """What a typed line means."""
    words = text.split()
    if words[:1] == ["fleetctl"]:
        words = words[1:]
    if not words:
        return Wrong("nothing was typed", "a kind (nodes, alerts) or a command (drain node-2)")
    if len(words) == 1 and words[0] in SIMPLE:
        return Simple(SIMPLE[words[0]])
    if words[0] in ("incident", "runbook", "replace") and (special := _special(words)) is not None:
        return special
    if verb_of(words) is None:
        return _jump(words)
    dry_run = "--dry-run" in words
    command = " ".join(word for word in text.split() if word not in ("--dry-run", "fleetctl"))
    try:
        action = parse_command(command)
    except RunbookError as error:
        return Wrong(error.message, error.remedy or "")
    return Act(command, action.verb, str(action.target), dry_run)


def _special(words: list[str]) -> Order | None:
    match words:
        case ["incident", "ack" | "assign", *rest] if not rest:
            return Wrong(f"incident {words[1]}: which incident?", f"incident {words[1]} ID")
        case ["incident", "ack", incident_id, *_]:
            return Handle("ack", incident_id)
        case ["incident", "assign", incident_id, *rest]:
            return Handle("assign", incident_id, " ".join(rest).removeprefix("--to").strip())
        case ["runbook", "approve" | "deny" as what, run_id]:
            return Answer(run_id, what == "approve")
        case ["runbook", "approve" | "deny" as what]:
            return Wrong(f"runbook {what}: which run?", f"runbook {what} RUN")
        case ["replace", *rest]:
            return _replace(rest)
        case ["runbook", "run", *rest]:
            return _run_page(rest)
    return None


def _replace(words: list[str]) -> Order:
    """The page behind `fleetctl replace`."""
    match [word for word in words if word != "--dry-run"]:
        case [node]:
            inputs = {"node": node}
        case [node, "--deadline", deadline]:
            inputs = {"node": node, "deadline": deadline}
        case _:
            return Wrong("replace: which node?", "replace NODE [--deadline 30s] [--dry-run]")
    return Start("replace-node", inputs, node, "--dry-run" in words)


def _run_page(words: list[str]) -> Order:
    rest = [word for word in words if word != "--dry-run"]
    if not rest or not all("=" in word for word in rest[1:]):
        return Wrong("runbook run: which page, with which inputs?", "runbook run replace-node node=node-2 [--dry-run]")
    inputs = dict(word.split("=", 1) for word in rest[1:])
    return Start(rest[0], inputs, inputs.get("node") or inputs.get("pool") or rest[0], "--dry-run" in words)


def _jump(words: list[str]) -> Order:
    rest = [word for word in words if word not in LOOKING]
    if not rest or (rest[0] not in NOUNS):
        wrong = rest[0] if rest else words[0]
        near = [name for name in (*NOUNS, *VERBS, "replace") if name.startswith(wrong[:2])]
        return Wrong(
            f"{wrong!r} is no kind and no command of the cockpit", f"perhaps {', '.join(near[:4])}" if near else "?"
        )
    place, subject = NOUNS[rest[0]], rest[1] if len(rest) > 1 else None
    if rest[0] == "nodes" and subject is not None:
        place = Place.NODE
    return Jump(Visit(place, subject), GROUPED.get(rest[0]))


def verb_of(words: Sequence[str]) -> Verb | None:
    return VERBS.get(" ".join(words[:2])) or VERBS.get(words[0]) if words else None


def is_dangerous(verb: Verb, command: str) -> bool:
    """Whether it takes nodes out and ends or moves what they hold: what it acts on is typed again.

    A cordon does neither, and a pool that grows takes nothing out.
    """
    try:
        action = parse_command(command)
    except RunbookError:
        return False
    change = action.change
    if change is None:
        return not str(action.args.get("to", "")).startswith("+")
    return bool(change.taken_out) and verb.name not in GENTLE
