"""Traffic rules: stored, published with the table, ended on time, ordered by commands and by the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetctl.controller.audit import Audit
from fleetctl.controller.database import Database
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.node_row import Role, change_node, want_node
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.nodes.traffic_rules import TrafficRules
from fleetctl.controller.records import Records
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.stall import StallMonitor
from fleetctl.priority_class import PriorityClass
from fleetctl.settings.controller import AuditSettings
from fleetctl.traffic_rule import RerouteSpec, ShedSpec, TrafficRuleRequest
from fleetctl.wire.routing import RoutingTable
from tests.fixtures.controller import make_spec
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio

LONG = RerouteSpec(over_tokens=32768, pool="long")


@asynccontextmanager
async def opened(url: str, path: Path, clock: DrivenClock) -> AsyncIterator[tuple[TrafficRules, Routing, Timeline]]:
    database = Database(url)
    try:
        timeline = await Timeline.opened(database, clock)
        metrics = ControllerMetrics()
        audit = Audit(database, timeline, metrics, clock, AuditSettings(), path / "audit")
        records = Records(clock, database, timeline, metrics, StallMonitor(), audit)
        await database.write(lambda c: want_node(c, make_spec("n1"), Role.MEMBER, clock.now()))
        await database.write(lambda c: change_node(c, "n1", clock.now(), {"route": "active", "url": "http://n1"}))
        routing = await Routing.opened(records)
        yield TrafficRules(records, routing), routing, timeline
    finally:
        database.close()


async def test_a_rule_is_published_at_once_survives_a_restart_and_ends_on_time(
    any_database_url: str, tmp_path: Path
) -> None:
    clock = DrivenClock()
    async with opened(any_database_url, tmp_path, clock) as (rules, routing, _):
        version = routing.table.version
        rule, before = await rules.make(TrafficRuleRequest(spec=LONG, for_s=60, made_by="ann", reason="storm"))
        assert (rule.id, rule.expires_at, before) == ("long-context", clock.now() + 60, None)
        assert routing.table.version == version + 1
        assert routing.table.rules == [rule]
        await rules.expire_rules()
        assert routing.table.version == version + 1, "nothing is over yet"
    async with opened(any_database_url, tmp_path, clock) as (rules, routing, timeline):
        assert routing.table.rules == [rule]
        clock.move(60.0)
        assert await rules.current() == [], "over is over, whether or not the loop has looked"
        await rules.expire_rules()
        assert routing.table.rules == []
        told = [entry.kind for entry in await timeline.read_all(None) if entry.kind.startswith("traffic_rule")]
        assert told == ["traffic_rule.made", "traffic_rule.expired"]


async def test_a_rule_of_the_same_id_is_replaced_and_one_that_is_not_there_can_not_be_removed(
    any_database_url: str, tmp_path: Path
) -> None:
    async with opened(any_database_url, tmp_path, DrivenClock()) as (rules, routing, _):
        first, _ = await rules.make(TrafficRuleRequest(spec=LONG))
        second, before = await rules.make(TrafficRuleRequest(spec=RerouteSpec(over_prefill_s=5, share=0.25)))
        assert before == first
        assert routing.table.rules == [second]
        await rules.make(TrafficRuleRequest(id="very-long", spec=LONG))
        assert [rule.id for rule in await rules.current()] == ["long-context", "very-long"]
        version = routing.table.version
        with pytest.raises(BadInputError, match="no traffic rule 'other'; rules: long-context, very-long"):
            await rules.remove("other", "ann")
        assert routing.table.version == version
        assert await rules.remove("very-long", "ann")
        assert [rule.id for rule in routing.table.rules] == ["long-context"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pool": "long"}, "give one threshold"),
        ({"over_tokens": 1, "over_prefill_s": 1, "pool": "long"}, "give one threshold"),
        ({"over_tokens": 1}, "give pool or share"),
        ({"over_tokens": 1, "pool": "long", "share": 0.5}, "give pool or share"),
    ],
)
async def test_a_reroute_has_one_threshold_and_one_place(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RerouteSpec.model_validate(given)


async def test_a_table_of_a_newer_controller_is_read_without_the_rules_that_are_not_known() -> None:
    known = {"id": "a", "spec": {"kind": "reroute", "over_tokens": 5, "pool": "p"}, "made_at": 1.0}
    newer = {"id": "b", "spec": {"kind": "of-next-year"}, "made_at": 1.0}
    table = RoutingTable.model_validate({"version": 3, "routes": [], "rules": [newer, known]})
    assert [rule.id for rule in table.rules] == ["a"]


async def test_the_table_says_how_many_gateways_share_limits_and_anew_only_when_that_changes(
    any_database_url: str, tmp_path: Path
) -> None:
    async with opened(any_database_url, tmp_path, DrivenClock()) as (rules, routing, _):
        version = routing.table.version
        await routing.publish_num_gateways(1)
        assert routing.table.version == version
        for _ in range(2):
            await routing.publish_num_gateways(3)
        assert (routing.table.version, routing.table.num_gateways) == (version + 1, 3)
        await rules.make(TrafficRuleRequest(spec=LONG, for_s=60))
        assert routing.table.num_gateways == 3, "other changes keep it"
        await routing.publish_num_gateways(0)
        assert routing.table.num_gateways == 1


async def test_an_order_to_shed_is_a_rule_like_any_other(any_database_url: str, tmp_path: Path) -> None:
    async with opened(any_database_url, tmp_path, DrivenClock()) as (rules, routing, _):
        rule, _before = await rules.make(TrafficRuleRequest(spec=ShedSpec(below=PriorityClass.STANDARD), for_s=900))
        assert (rule.id, rule.kind, rule.spec.words) == ("shed", "shed", "turns away class batch")
        read = RoutingTable.model_validate_json(routing.table.model_dump_json())
        assert read.rules == [rule]
    with pytest.raises(ValueError, match="no class is below batch"):
        ShedSpec(below=PriorityClass.BATCH)
