"""The traffic rules: made, listed and removed by people and runbooks, ended when they expire, told on the timeline."""

from __future__ import annotations

import re

import sqlalchemy as sa
import structlog

from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.nodes.rule_row import delete_expired, delete_rule, get_rule, list_rules, put_rule
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError
from fleetctl.traffic_rule import MAX_RULES, RULE_ID, TrafficRule, TrafficRuleRequest

log = structlog.get_logger()


class TrafficRules:
    """Owner of the stored rules. Every change is published with the routing table before it is told."""

    def __init__(self, records: Records, routing: Routing) -> None:
        self._records = records
        self._routing = routing

    async def current(self) -> list[TrafficRule]:
        """The rules in force, the oldest first."""
        now = self._records.clock.now()
        return [rule for rule in await self._records.database.read(list_rules) if rule.is_in_force(now)]

    async def make(self, request: TrafficRuleRequest) -> tuple[TrafficRule, TrafficRule | None]:
        """The rule, and the one with the same id that it replaced. Raises BadInputError when there are too many, and
        when its spec gives it no id that can be one."""
        now = self._records.clock.now()
        rule_id = request.id or request.spec.default_id
        if not re.fullmatch(RULE_ID, rule_id):
            raise BadInputError(
                f"the rule has no id that can be one: {rule_id[:100]!r}", remedy="give it an id of its own"
            )
        rule = TrafficRule(
            id=rule_id,
            spec=request.spec,
            made_by=request.made_by,
            made_at=now,
            expires_at=None if request.for_s is None else now + request.for_s,
            reason=request.reason,
        )

        def work(connection: sa.Connection) -> TrafficRule | None:
            before = get_rule(connection, rule.id)
            if before is None and len(list_rules(connection)) >= MAX_RULES:
                raise BadInputError(f"there are {MAX_RULES} traffic rules", remedy="fleetctl get traffic-rules")
            put_rule(connection, rule)
            return before

        before = await self._routing.publish_change(work)
        until = "until it is removed" if request.for_s is None else f"for {request.for_s:g} s"
        text = f"traffic rule {rule.id}: {rule.spec.words}, {until}, by {rule.made_by}"
        await self._tell("made", rule, text)
        return rule, before

    async def remove(self, rule_id: str, by: str) -> TrafficRule:
        """The rule that was removed. Raises BadInputError when there is none of this id."""

        def work(connection: sa.Connection) -> TrafficRule:
            found = get_rule(connection, rule_id)
            if found is None:
                known = ", ".join(rule.id for rule in list_rules(connection)) or "none"
                raise BadInputError(f"there is no traffic rule {rule_id[:100]!r}; rules: {known}")
            delete_rule(connection, rule_id)
            return found

        rule = await self._routing.publish_change(work)
        await self._tell("removed", rule, f"traffic rule {rule.id} removed by {by}: {rule.spec.words}")
        return rule

    async def expire_rules(self) -> None:
        """Remove those whose time is over. One turn of a loop."""
        now = self._records.clock.now()
        if all(rule.is_in_force(now) for rule in self._routing.table.rules):
            return
        for rule in await self._routing.publish_change(lambda connection: delete_expired(connection, now)):
            await self._tell("expired", rule, f"traffic rule {rule.id} expired: {rule.spec.words}")

    async def _tell(self, what: str, rule: TrafficRule, text: str) -> None:
        await self._records.timeline.append(f"traffic_rule.{what}", text, data=rule.model_dump(mode="json"))
