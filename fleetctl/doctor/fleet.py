"""Checks of the controller and of whom it reaches, from what it says of itself. Pure but for the questions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fleetctl.client import ControllerClient
from fleetctl.doctor.finding import Finding, Health
from fleetctl.doctor.node_clocks import check_node_clocks
from fleetctl.doctor.node_tokens import check_node_tokens
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.wire.gateway import Gateway, GatewayPhase
from fleetctl.wire.identity import CallerInfo, TokenRole
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.notification import Receiver
from fleetctl.wire.status import Status

MAX_SKEW_S = 2.0
AT_WORK = frozenset({NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINING, NodePhase.DRAINED, NodePhase.STARTING})


async def check_fleet(client: ControllerClient, version: str) -> list[Finding]:
    """All that can be learnt by asking the controller."""
    before = time.time()
    try:
        status = await client.status()
    except UnreachableError as error:
        return [Finding("controller", Health.bad, error.message, error.remedy or "fleetctl up")]
    except FleetctlError as error:
        return [Finding("controller", Health.bad, error.message, error.remedy or "fleetctl token whoami")]
    after = time.time()
    found = [*judge_status(status, version), judge_clock(status.now, before, after)]
    found.append(judge_role(await client.caller()))
    nodes = await client.nodes()
    found += judge_nodes(nodes)
    found += await check_node_clocks(nodes)
    found += await check_node_tokens(client, nodes)
    found += judge_gateways(await client.gateways())
    try:
        found += judge_notifications(await client.receivers())
    except BadInputError:  # an older controller has no such path; that it is older is told above
        found.append(Finding("receivers", Health.unknown, "this controller knows of none"))
    return found


def judge_status(status: Status, version: str) -> Iterator[Finding]:
    """The controller's own troubles."""
    if status.version != version:
        yield Finding(
            "controller",
            Health.doubtful,
            f"it is {status.version}, this is {version}",
            "install one version at both ends",
        )
    else:
        yield Finding("controller", Health.good, f"answers, epoch {status.epoch}, policy {status.policy}")
    if status.late_loops:
        yield Finding("loops", Health.bad, f"late: {', '.join(status.late_loops)}", "fleetctl logs controller")
    if status.storage_error:
        yield Finding(
            "state", Health.bad, status.storage_error, "make room or mend the database: controller.database_url"
        )
    if status.audit_error:
        yield Finding("audit", Health.bad, status.audit_error, "fleetctl audit verify")
    if status.content.failed_at is not None:
        yield Finding("content", Health.bad, status.content.error, "fleetctl content check")
    for missing in status.leadership.missing:
        yield Finding(
            "controllers", Health.doubtful, f"{missing} does not answer", "start it, or take it from controller.peers"
        )
    yield from judge_alertmanagers(status)
    webhook = status.webhook
    if webhook.last_error:
        seen = f"{webhook.refused} refused, {webhook.deferred} deferred; last: {webhook.last_error}"
        yield Finding("webhook", Health.doubtful, seen, "see docs/alertmanager.md: the receiver's URL and credentials")
    elif webhook.accepted:
        yield Finding("webhook", Health.good, f"{webhook.accepted} notifications taken from Alertmanager")


def judge_alertmanagers(status: Status) -> Iterator[Finding]:
    """Whether pages get out."""
    if not status.alertmanagers:
        yield Finding("Alertmanager", Health.unused, "our alerts go to none", "set alertmanagers: [http://HOST:9093]")
    for one in status.alertmanagers:
        if one.last_error:
            seen = f"{one.url}: {one.last_error.removeprefix(f'{one.url}: ')}; {one.queued} alerts wait"
            yield Finding("Alertmanager", Health.bad, seen, "see that this URL answers from the controller's machine")
        else:
            yield Finding("Alertmanager", Health.good, f"{one.url}: {one.sent} alerts sent")


def judge_clock(theirs: float, before: float, after: float) -> Finding:
    """How far two clocks are apart: theirs was read between two looks at ours."""
    off_s = theirs - after if theirs > after else min(0.0, theirs - before)
    if abs(off_s) <= MAX_SKEW_S:
        return Finding("clocks", Health.good, f"this one and the controller's are within {max(0.1, abs(off_s)):.1f} s")
    words = f"the controller's is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} this one"
    return Finding("clocks", Health.bad, words, "timedatectl set-ntp true, on both machines")


def judge_role(caller: CallerInfo) -> Finding:
    """What this token may do."""
    seen = f"{caller.name}, {caller.role.value}, by {caller.via}"
    if caller.role is TokenRole.VIEWER:
        return Finding(
            "permissions",
            Health.doubtful,
            f"{seen}: may look, not act",
            "ask an admin: fleetctl token create NAME --role operator",
        )
    return Finding("permissions", Health.good, seen)


def judge_nodes(nodes: list[Node]) -> Iterator[Finding]:
    """Whether the nodes answer and tell."""
    working = [node for node in nodes if node.phase is not NodePhase.STOPPED]
    if not working:
        yield Finding("nodes", Health.unused, "no node is wanted", "fleetctl up, or fleet.targets in the settings")
        return
    bad = [node for node in working if node.phase not in AT_WORK]
    for node in bad:
        yield Finding(
            "nodes", Health.bad, f"{node.name} is {node.phase.value}: {node.reason}", f"fleetctl diagnose {node.name}"
        )
    if not bad:
        yield Finding("nodes", Health.good, f"{len(working)} answer")


def judge_gateways(gateways: list[Gateway]) -> Iterator[Finding]:
    """Whether the gateways answer and follow the routing table."""
    if not gateways:
        yield Finding("gateways", Health.unused, "none is known", "fleetctl up, or controller.gateways in the settings")
    for one in gateways:
        if one.phase is not GatewayPhase.READY:
            yield Finding(
                "gateways", Health.bad, f"{one.name} is {one.phase.value}: {one.reason}", "fleetctl logs gateway"
            )
        else:
            yield Finding("gateways", Health.good, f"{one.name} answers")


def judge_notifications(receivers: list[Receiver]) -> Iterator[Finding]:
    """Whether people can be told of incidents."""
    if not receivers:
        mend = "set notifications.receivers: docs/notifications.md"
        yield Finding("receivers", Health.unused, "nobody is told of incidents by us", mend)
    for one in receivers:
        if one.last_error:
            seen = f"{one.name}: {one.last_error}; {one.waiting} messages wait"
            yield Finding("receivers", Health.bad, seen, f"fleetctl notify show {one.name}")
        elif not one.routes:
            yield Finding("receivers", Health.doubtful, f"{one.name}: no route names it", "notifications.routes")
        elif one.delivered_at is None:
            seen = f"{one.name} was not told of anything lately"
            yield Finding("receivers", Health.unknown, seen, f"fleetctl notify test {one.name}")
        else:
            yield Finding("receivers", Health.good, f"{one.name} took its last message")
