"""What is wrong with a node now, by what the controller sees of it: each sign one kind of failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.fleet_series import reason_word
from fleetctl.wire.failure import FailureKind
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.node import NodePhase

NEVER_READY_AFTER_S = 1800.0  # a large model takes minutes to load; what takes longer is not on its way

SERIES = {
    "llm:oom:rate": (FailureKind.OOM, "steps ran out of device memory"),
    "llm:core_stuck": (FailureKind.HUNG, "its core makes no progress"),
    "llm:core_deaths:increase": (FailureKind.CRASH, "its core died"),
}
"""Canonical series whose value above zero is a failure, on every engine that tells them."""

_BY_WORD = {
    "process_ended": FailureKind.CRASH,
    "core_dead": FailureKind.CRASH,
    "core_stuck": FailureKind.HUNG,
    "wrong_output": FailureKind.WRONG_OUTPUT,
    "start_failed": FailureKind.NEVER_READY,
    "no_answer": FailureKind.UNREACHABLE,
}
_OUT_OF_MEMORY = ("oomkilled", "out of memory")


@dataclass(frozen=True, slots=True)
class Told:
    """What else is known of a node beside its phase."""

    answers_right: bool | None = None
    series: Mapping[str, float] = field(default_factory=dict)
    cards: Sequence[Gpu] = ()

    def value(self, name: str) -> float:
        """Of a series of `SERIES`; zero where it is not known: no sign of anything."""
        return self.series.get(name, 0.0)


def signs_of(state: NodeState, told: Told, now: float) -> dict[FailureKind, str]:
    """Every kind of failure that shows, with its words. What we stop or restart ourselves fails in nothing."""
    if not state.row.wanted or state.row.is_restarting:
        return {}
    found: dict[FailureKind, str] = {}
    kind = _BY_WORD.get(reason_word(state))
    if kind is FailureKind.CRASH and any(word in state.reason.lower() for word in _OUT_OF_MEMORY):
        kind = FailureKind.OOM
    if kind is not None:
        found[kind] = state.reason
    elif state.phase is NodePhase.STARTING and state.since is not None and now - state.since > NEVER_READY_AFTER_S:
        found[FailureKind.NEVER_READY] = f"starting for {(now - state.since) / 60:.0f} minutes: {state.reason}"
    for name, (kind, words) in SERIES.items():
        if told.value(name) > 0:
            found.setdefault(kind, words)
    if told.answers_right is False:
        found.setdefault(FailureKind.WRONG_OUTPUT, "its deep check failed")
    return found | _of_cards(told.cards)


def _of_cards(cards: Sequence[Gpu]) -> dict[FailureKind, str]:
    words: dict[FailureKind, list[str]] = {}
    for card in cards:
        if card.critical_xids_5m or "lost" in (card.faults or ()):
            codes = "/".join(map(str, card.xids))
            what = f"XID {codes} on GPU {card.gpu}" if codes else f"GPU {card.gpu} is lost"
            words.setdefault(FailureKind.XID, []).append(what)
        if card.ecc_uncorrected_5m:
            words.setdefault(FailureKind.ECC, []).append(f"uncorrected memory errors on GPU {card.gpu}")
        if "hw_thermal" in (card.throttled or ()):
            heat = "" if card.temperature_c is None else f" at {card.temperature_c:.0f} C"
            words.setdefault(FailureKind.THERMAL, []).append(f"GPU {card.gpu} is throttled{heat}")
    return {kind: "; ".join(one) for kind, one in words.items()}
