"""What the soak does to a fleet ends, also where the fleet mends faster than anybody looks."""

from __future__ import annotations

import signal
from typing import Any, cast

import pytest

from fleetctl.first_night.target_fleet import TargetFleet
from fleetctl.gateway_soak.disturbances import Disturber


class MendedAtOnce:
    """Of the fleet: a gateway that its controller has started again before the signal's sender looks."""

    instance = "first"

    def instance_of(self, _: str) -> str:
        return self.instance

    def send_signal(self, _: str, number: signal.Signals) -> None:
        assert number is signal.SIGKILL
        self.instance = "second"


@pytest.mark.anyio
async def test_a_killed_gateway_is_gone_though_another_runs_under_its_name_already() -> None:
    fleet = cast(Any, MendedAtOnce())
    disturber = Disturber(cast(TargetFleet, fleet), {"gateway": "http://127.0.0.1:1"}, seed=1, pause_s=0.0)
    await disturber.kill_gateway("")
    assert fleet.instance == "second"
