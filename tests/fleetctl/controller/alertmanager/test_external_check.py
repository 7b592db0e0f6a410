"""Alerts whose end no webhook told of end once Alertmanager has forgotten them, and not before that is certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.external_check import MISSING_FOR_S, ExternalCheck
from fleetctl.controller.alertmanager.webhook_payload import Notice, Notification
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.kit.errors import UnreachableError
from fleetctl.settings.alertmanager import AlertmanagerPeer
from tests.fixtures.controller import make_config, make_provider
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


class Peer(AlertmanagerClient):
    """An Alertmanager in which these alerts fire; None: it does not answer."""

    def __init__(self, *fingerprints: str) -> None:
        super().__init__(AlertmanagerPeer(url="http://alertmanager:9093"))
        self.listed: set[str] | None = set(fingerprints)

    async def firing(self) -> set[str]:
        if self.listed is None:
            raise UnreachableError("down")
        return self.listed


async def tell(controller: Controller, *fingerprints: str) -> None:
    notices = tuple(Notice(one, True, {"alertname": one, "node": one}, {}, 1, None) for one in fingerprints)
    await controller.alertmanager.external.record_notification(Notification("4", "g", "r", 0, "", notices))


def states(controller: Controller) -> dict[str, str]:
    return {one.name: one.state for one in controller.alertmanager.external.alerts()}


async def test_only_what_was_listed_and_is_missing_everywhere_for_long_has_ended(tmp_path: Path) -> None:
    clock, first, second = DrivenClock(), Peer("a", "b"), Peer("c")
    config = make_config(tmp_path, nodes=1)
    async with open_controller(config, make_provider(tmp_path), clock) as controller:
        external = controller.alertmanager.external
        await tell(controller, "a", "b", "c", "never-listed")
        check = ExternalCheck(external, [first, second], clock)
        await check.end_forgotten()
        first.listed, second.listed = {"b"}, None
        await passes(check, clock, 3)
        assert set(states(controller).values()) == {"firing"}, "one peer does not answer: it may have it"
        second.listed = {"c"}
        await check.end_forgotten()
        assert states(controller)["a"] == "firing", "an Alertmanager that was just restarted has none either"
        clock.move(MISSING_FOR_S)
        await tell(controller, "a")
        await check.end_forgotten()
        assert states(controller)["a"] == "firing", "a notification has just named it"
        await passes(check, clock, 2)
        assert states(controller) == {"a": "resolved", "b": "firing", "c": "firing", "never-listed": "firing"}
        assert [(one.name, before) for one, before in external.take_changes()][-1] == ("a", "firing")
    async with open_controller(config, make_provider(tmp_path), clock) as controller:
        assert states(controller) == {"a": "resolved", "b": "firing", "c": "firing", "never-listed": "firing"}
        first.listed = set()
        check = ExternalCheck(controller.alertmanager.external, [first, second], clock)
        await check.end_forgotten()
        await passes(check, clock, 2)
        assert states(controller)["b"] == "resolved", "that it was listed is known after a restart"


async def passes(check: ExternalCheck, clock: DrivenClock, times: int) -> None:
    for _ in range(times):
        clock.move(MISSING_FOR_S + 1)
        await check.end_forgotten()
