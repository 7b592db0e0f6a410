"""What systemctl says of a unit, as what a provider sees. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetctl.providers.hosts.options import Place
from fleetctl.providers.provider import ObservedInstance, Sign, SignKind

_RUNS = frozenset({"active", "reloading", "activating", "deactivating", "refreshing"})
_COMES_AGAIN = "auto-restart"  # it ended, and systemd waits before it starts it again
_KILLED = frozenset({"2", "3"})  # ExecMainCode: CLD_KILLED, CLD_DUMPED; 1 is CLD_EXITED
_RESULTS = {"oom-kill": "out of memory", "watchdog": "its watchdog was not served", "timeout": "it timed out"}
_NO_RESULT = ("", "success", "exit-code", "signal")  # nothing beside how its process ended
_KINDS = {"oom-kill": SignKind.MEMORY, "watchdog": SignKind.LIVENESS, "start-limit-hit": SignKind.CRASH}

UnitState = Mapping[str, str]
"""Properties of a unit, by their names in systemd."""


class UnreadableStateError(ValueError):
    """This is not what systemctl says."""


def read_states(text: str, units: Sequence[str]) -> dict[str, UnitState]:
    """The states of these units, from `systemctl show` of them in this order: a paragraph each. Raises
    UnreadableStateError."""
    paragraphs = [part for part in text.replace("\r\n", "\n").split("\n\n") if part.strip()]
    if len(paragraphs) != len(units):
        raise UnreadableStateError(f"told of {len(paragraphs)} units, not of {len(units)}")
    states: dict[str, UnitState] = {}
    for unit, paragraph in zip(units, paragraphs, strict=True):
        state = dict(line.split("=", 1) for line in paragraph.splitlines() if "=" in line)
        if not state.get("ActiveState"):
            raise UnreadableStateError(f"did not tell the ActiveState of {unit}")
        states[unit] = state
    return states


def seen_of(place: Place, state: UnitState) -> ObservedInstance:
    """The node as its unit is."""
    active, sub = state["ActiveState"], state.get("SubState", "")
    running = active in _RUNS and sub != _COMES_AGAIN
    if running:
        # A unit that is on its way has no invocation yet.
        return ObservedInstance(place.name, True, state.get("InvocationID") or None, place.url, reasons=())
    result = state.get("Result", "")
    trouble = _RESULTS.get(result, "" if result in _NO_RESULT else result)
    if sub == _COMES_AGAIN:
        trouble = "; ".join(filter(None, (trouble, "systemd starts it again")))
    return ObservedInstance(
        place.name,
        False,
        None,
        place.url,
        _exit_status(state),
        trouble=trouble,
        reasons=_signs(result),
        comes_back=sub == _COMES_AGAIN,
    )


def _signs(result: str) -> tuple[Sign, ...]:
    return () if result in _NO_RESULT else (Sign(result, _KINDS.get(result, SignKind.OTHER)),)


def _exit_status(state: UnitState) -> int | None:
    """Of the last run; None where it never ran."""
    status, code = state.get("ExecMainStatus", ""), state.get("ExecMainCode", "0")
    if not status.isdigit() or code in ("", "0"):
        return None
    return -int(status) if code in _KILLED else int(status)
