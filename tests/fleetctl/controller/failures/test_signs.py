"""Which failure a node shows, by phase, reason, signals and cards."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.controller.failures.signs import NEVER_READY_AFTER_S, Told, signs_of
from fleetctl.controller.nodes.node_row import RouteIntent
from fleetctl.wire.failure import FailureKind
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.node import NodePhase
from tests.fleetctl.controller.nodes.test_changes import node

NOW = 10_000.0
DOWN = {"process_up": False, "exit_status": -9}


@pytest.mark.parametrize(
    ("phase", "facts", "kind"),
    [
        (NodePhase.READY, {}, None),
        (NodePhase.CORDONED, {}, None),
        (NodePhase.UNREACHABLE, {**DOWN, "was_ready": True, "reason": "its process ended"}, FailureKind.CRASH),
        (
            NodePhase.UNREACHABLE,
            {**DOWN, "was_ready": True, "reason": "OOMKilled (killed by SIGKILL)"},
            FailureKind.OOM,
        ),
        (NodePhase.UNREACHABLE, {"reason": "no answer"}, FailureKind.UNREACHABLE),
        (NodePhase.UNREACHABLE, {**DOWN, "route": RouteIntent.NONE, "reason": "exit code 1"}, FailureKind.NEVER_READY),
        (NodePhase.NOT_READY, {"reason": "core_stuck"}, FailureKind.HUNG),
        (NodePhase.NOT_READY, {"reason": "core_dead"}, FailureKind.CRASH),
        (NodePhase.NOT_READY, {"reason": "wrong_output"}, FailureKind.WRONG_OUTPUT),
        (NodePhase.NOT_READY, {"reason": "asleep"}, None),
        (NodePhase.STOPPED, {**DOWN, "wanted": False}, None),
        (NodePhase.DRAINED, {"reason": "being stopped", "wanted": False}, None),
    ],
)
def test_a_phase_and_its_reason_tell_the_kind(
    phase: NodePhase, facts: dict[str, Any], kind: FailureKind | None
) -> None:
    assert list(signs_of(node("a", phase, **facts), Told(), NOW)) == ([kind] if kind else [])


def test_a_node_that_starts_is_given_half_an_hour() -> None:
    starting = node("a", NodePhase.STARTING, reason="loading")  # since 0
    assert signs_of(starting, Told(), NEVER_READY_AFTER_S - 1) == {}
    assert "starting for 31 minutes" in signs_of(starting, Told(), 1860.0)[FailureKind.NEVER_READY]


def test_signals_of_any_engine_and_the_deep_check_are_signs_too() -> None:
    told = Told(False, {"llm:oom:rate": 0.1, "llm:core_stuck": 1.0, "llm:core_deaths:increase": 0.0})
    assert set(signs_of(node("a"), told, NOW)) == {FailureKind.OOM, FailureKind.HUNG, FailureKind.WRONG_OUTPUT}
    assert signs_of(node("a"), Told(None, {}), NOW) == {}, "what nobody tells is no sign"


def test_cards_tell_xids_ecc_and_heat_with_their_numbers() -> None:
    cards = [
        Gpu(node="a", gpu="3", critical_xids_5m=1.0, xids=[79], ecc_uncorrected_5m=2.0),
        Gpu(node="a", gpu="4", throttled=["hw_thermal"], temperature_c=92.0),
        Gpu(node="a", gpu="5", throttled=["sw_thermal"], ecc_uncorrected=7.0, xids=[31], critical_xids_5m=0.0),
    ]
    assert signs_of(node("a"), Told(None, {}, cards), NOW) == {
        FailureKind.XID: "XID 79 on GPU 3",
        FailureKind.ECC: "uncorrected memory errors on GPU 3",
        FailureKind.THERMAL: "GPU 4 is throttled at 92 C",
    }
