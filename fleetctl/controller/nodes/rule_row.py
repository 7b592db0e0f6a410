"""Traffic rules as they are stored: one row each, the whole rule as a document."""

from __future__ import annotations

import sqlalchemy as sa
import structlog
from pydantic import ValidationError

from fleetctl.controller.tables import traffic_rules
from fleetctl.traffic_rule import TrafficRule

log = structlog.get_logger()


def list_rules(connection: sa.Connection) -> list[TrafficRule]:
    """All stored rules, the oldest first."""
    rows = connection.execute(sa.select(traffic_rules.c.document))
    rules = [rule for row in rows if (rule := _decode(row[0])) is not None]
    return sorted(rules, key=lambda rule: (rule.made_at, rule.id))


def get_rule(connection: sa.Connection, rule_id: str) -> TrafficRule | None:
    """One rule; None when there is none of this id."""
    found = connection.execute(
        sa.select(traffic_rules.c.document).where(traffic_rules.c.id == rule_id)
    ).scalar_one_or_none()
    return None if found is None else _decode(found)


def put_rule(connection: sa.Connection, rule: TrafficRule) -> None:
    """Store the rule, in place of one with its id."""
    delete_rule(connection, rule.id)
    document = rule.model_dump(mode="json")
    connection.execute(sa.insert(traffic_rules).values(id=rule.id, expires_at=rule.expires_at, document=document))


def delete_rule(connection: sa.Connection, rule_id: str) -> None:
    """Remove the rule, if there is one."""
    connection.execute(sa.delete(traffic_rules).where(traffic_rules.c.id == rule_id))


def delete_expired(connection: sa.Connection, now: float) -> list[TrafficRule]:
    """Remove the rules that are over at `now` (Unix seconds). Returns them."""
    over = [rule for rule in list_rules(connection) if not rule.is_in_force(now)]
    for rule in over:
        delete_rule(connection, rule.id)
    return over


def _decode(document: object) -> TrafficRule | None:
    """None for what another version stored and this one does not know: it is kept, and not in force."""
    try:
        return TrafficRule.model_validate(document)
    except ValidationError as error:
        log.warning("traffic_rule.unreadable", errors=error.error_count())
        return None
