"""The controller's HTTP API as Python: what the command line, the cockpit, the demo and scripts use.

Every failure is one of `fleetctl.kit.errors`, with the next thing to do. Public, with the types of `fleetctl.wire`: see
docs/client.md. One class, as long as there are routes: each call is a line or two. How it reaches the controller:
`controller_link.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from fleetctl.controller_link import (
    DEFAULT_TIMEOUT_S,
    ControllerLink,
    event_of,
    given,
    parse,
    parse_as,
    part,
    unknown_event,
)
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.line_feed import split_lines
from fleetctl.told_node import KnownNodes
from fleetctl.traffic_rule import TrafficRule, TrafficRuleRequest
from fleetctl.wire.alert import Alert, AlertExplanation
from fleetctl.wire.audit import AuditCheck, AuditRow
from fleetctl.wire.autoscaler import AutoscalerPool, AutoscalerRequest
from fleetctl.wire.chart import IncidentCharts
from fleetctl.wire.content import ContentListing
from fleetctl.wire.diagnosis import DiagnoseRequest, Diagnosis
from fleetctl.wire.failure import Failure, FailureGroup, FailuresBy
from fleetctl.wire.freeze import Freeze, FreezeRequest
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupBy, NodeGroup
from fleetctl.wire.held import HeldRequests, KvBlocks
from fleetctl.wire.identity import NO_CLAIM, CallerInfo, MadeToken, TokenInfo, TokenRequest
from fleetctl.wire.incident import (
    AssignRequest,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    SeverityRequest,
    VerdictRequest,
)
from fleetctl.wire.node import Node, NodeChanges, NodePhase
from fleetctl.wire.notification import Notification, Receiver
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import RoutingTable
from fleetctl.wire.run import ActionRequest, ApprovalRequest, Run, RunOrder, RunRequest, RunStatus
from fleetctl.wire.runbook import RunbookInfo, VerbInfo
from fleetctl.wire.silence import Silence, SilenceRequest
from fleetctl.wire.status import Status
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry

__all__ = [
    "ActionRequest",
    "Alert",
    "BadInputError",
    "ControllerClient",
    "FleetctlError",
    "Incident",
    "KnownNodes",
    "Node",
    "NodePhase",
    "Pool",
    "RefusedError",
    "Run",
    "RunRequest",
    "RunStatus",
    "TimelineEntry",
    "UnreachableError",
]

EVENTS_AT_ONCE = 1000
CONTENT_S = 60.0  # reading and checking hundreds of files
PREDICTION_S = 15.0  # a dry run is simulated before it is answered
FILE_S = 120.0  # an incident's file of a large fleet
RECEIVER_TEST_S = 30.0  # the receiver has ten seconds for each of two messages
SILENCE_S = 30.0  # the controller asks one Alertmanager after the other
W = TypeVar("W", bound=BaseModel)


class ControllerClient:
    """The controller that leads, of one or several. Use it as an async context manager, or call `close`.

    Raises from every method: BadInputError (400, 404), RefusedError (403, 409, 429: a role, a guard or a person said
    no), UnreachableError (no answer, 503), FleetctlError (401 and the rest).
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        others: Sequence[str] = (),
        *,
        reuses_lists: bool = False,
    ) -> None:
        """`url` like http://127.0.0.1:7700, the one that is asked: that of the leader, once it is known. `others`:
        where else a controller on the same database may lead; `token` is needed for changes; `timeout` in seconds.
        `reuses_lists`: a list that did not change since it was last asked for is not sent and read again, its objects
        are given once more: for who asks over and over, and changes nothing in them."""
        self._link = ControllerLink(url, token, timeout, others, reuses_lists=reuses_lists)

    @property
    def url(self) -> str:
        """Where it is: of the one that leads, once that is known."""
        return self._link.url

    async def __aenter__(self) -> ControllerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()

    async def status(self) -> Status:
        """How the controller is, and whom it reaches."""
        return await self._link.get(Status, "/v1/status")

    async def nodes(self) -> list[Node]:
        """Every node, with its signals and their ages."""
        return await self._link.rows(Node, "/v1/nodes")

    async def node(self, name: str) -> Node:
        """One node. Raises BadInputError when there is none of that name."""
        return await self._link.get(Node, f"/v1/nodes/{part(name)}")

    async def groups(self, by: GroupBy) -> list[NodeGroup]:
        """The nodes by pool, zone, model or revision, each group with its load."""
        return await self._link.rows(NodeGroup, "/v1/groups", by=by.value)

    async def gpus(self) -> list[Gpu]:
        """Every card that somebody told of lately."""
        return await self._link.rows(Gpu, "/v1/gpus")

    async def failures(self, since: float | None = None) -> list[Failure]:
        """Failures that began since then (Unix seconds; default: 30 days ago), or stand, the newest first."""
        return await self._link.rows(Failure, "/v1/failures", since=since)

    async def failure_groups(self, by: FailuresBy, since: float | None = None) -> list[FailureGroup]:
        """The same counted, with how long the nodes were watched and how the rate compares with the fleet's."""
        return await self._link.rows(FailureGroup, "/v1/failures/groups", by=by.value, since=since)

    async def node_requests(self, name: str) -> HeldRequests:
        """Requests in flight at a node, oldest first, or why they are not known."""
        return await self._link.get(HeldRequests, f"/v1/nodes/{part(name)}/requests")

    async def node_kv(self, name: str) -> KvBlocks:
        """What a node's KV cache is used for, or why that is not known."""
        return await self._link.get(KvBlocks, f"/v1/nodes/{part(name)}/kv")

    async def pools(self) -> list[Pool]:
        """Every pool by name: what is wanted of it, and how far that is."""
        return await self._link.rows(Pool, "/v1/pools")

    async def pool(self, name: str) -> Pool:
        """One pool."""
        return await self._link.get(Pool, f"/v1/pools/{part(name)}")

    async def revisions(self) -> list[Revision]:
        """Every revision that a node ever had, the newest first."""
        return await self._link.rows(Revision, "/v1/revisions")

    async def revision(self, revision_id: str) -> Revision:
        """One revision."""
        return await self._link.get(Revision, f"/v1/revisions/{part(revision_id)}")

    async def rollouts(self, pool: str | None = None) -> list[Rollout]:
        """Rollouts, of one pool when named, the newest first."""
        return await self._link.rows(Rollout, "/v1/rollouts", pool=pool)

    async def rollout(self, rollout_id: str) -> Rollout:
        """One rollout. Raises BadInputError when there is none of this id."""
        return await self._link.get(Rollout, f"/v1/rollouts/{part(rollout_id)}")

    async def gateways(self) -> list[Gateway]:
        """Every gateway, and what it says of itself."""
        return await self._link.rows(Gateway, "/v1/gateways")

    async def gateway(self, name: str) -> Gateway:
        """One gateway. Raises BadInputError when there is none of that name."""
        return await self._link.get(Gateway, f"/v1/gateways/{part(name)}")

    async def node_logs(self, name: str, lines: int) -> list[str]:
        """The last lines that a node wrote, oldest first."""
        answer = await self._link.send("GET", f"/v1/nodes/{part(name)}/logs", params={"lines": lines})
        return split_lines(answer.text)

    async def follow_node_logs(self, name: str, lines: int) -> AsyncIterator[str]:
        """The last lines that a node wrote, then each new one; ends when the controller does."""
        params: dict[str, str | int] = {"lines": lines, "follow": "true"}
        may_be_silent_s = None  # a node may have nothing to say for hours
        async with aclosing(self._link.lines(f"/v1/nodes/{part(name)}/logs", may_be_silent_s, params=params)) as told:
            async for line in told:
                yield line

    async def alerts(self) -> list[Alert]:
        """Every alert that is not clear, of our rules and from outside."""
        return await self._link.rows(Alert, "/v1/alerts")

    async def incident_charts(self, incident_id: str, columns: int = 120) -> IncidentCharts:
        """What was measured in the incident's place, and what happened there."""
        answer = await self._link.send("GET", f"/v1/incidents/{part(incident_id)}/charts", params={"columns": columns})
        return parse(IncidentCharts, answer)

    async def explain_alert(self, fingerprint: str) -> AlertExplanation:
        """Each part of an alert's rule with its value. Raises BadInputError where no rule of ours judges it."""
        return await self._link.get(AlertExplanation, f"/v1/alerts/{part(fingerprint)}/explanation")

    async def incidents(self, status: str | None = None, limit: int | None = None) -> list[Incident]:
        """The newest first, without timeline and evidence; all of them, or so many."""
        return await self._link.rows(Incident, "/v1/incidents", limit=limit, status=status)

    async def incident(self, incident_id: str) -> Incident:
        """One incident with timeline and evidence."""
        return await self._link.get(Incident, f"/v1/incidents/{part(incident_id)}")

    async def postmortem(self, incident_id: str, form: Literal["md", "html"] = "md") -> str:
        """The post-mortem as it is now; of an open incident, what is known so far."""
        path = f"/v1/incidents/{part(incident_id)}/postmortem"
        return (await self._link.send("GET", path, FILE_S, params={"format": form})).text

    async def blackbox(self, incident_id: str) -> bytes:
        """The incident's file."""
        return (await self._link.send("GET", f"/v1/incidents/{part(incident_id)}/blackbox", FILE_S)).content

    async def import_incident(self, packed: bytes, by: str) -> Incident:
        """Store the incident of a file as a record that nothing acts on."""
        return parse(
            Incident, await self._link.send("POST", "/v1/incidents", FILE_S, content=packed, params={"by": by})
        )

    async def acknowledge_incident(self, incident_id: str, note: IncidentNote) -> Incident:
        """Somebody has seen it."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/acknowledgement", note)

    async def assign_incident(self, incident_id: str, request: AssignRequest) -> Incident:
        """It is somebody's from now on."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/assignment", request)

    async def comment_incident(self, incident_id: str, note: IncidentNote) -> Incident:
        """A line on its timeline."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/comments", note)

    async def set_incident_severity(self, incident_id: str, request: SeverityRequest) -> Incident:
        """How grave it is, whatever its alerts say."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/severity", request)

    async def silence_incident(self, incident_id: str, request: IncidentSilenceRequest) -> Incident:
        """Silence its alerts where they are."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/silence", request, SILENCE_S)

    async def correct_verdict(self, incident_id: str, request: VerdictRequest) -> Incident:
        """Its verdict was wrong."""
        return await self._link.post(Incident, f"/v1/incidents/{part(incident_id)}/verdict", request)

    async def events(self, after: int = 0, wait_s: float = 0.0, incident_id: str | None = None) -> list[TimelineEntry]:
        """Entries after a sequence number, oldest first, 1,000 at most; with `wait_s`, waits for the first one."""
        return await self._link.rows(
            TimelineEntry,
            "/v1/events",
            wait_s,
            limit=EVENTS_AT_ONCE,
            after=after,
            wait_s=wait_s or None,
            incident_id=incident_id,
        )

    async def follow_events(self, after: int | None = None) -> AsyncIterator[TimelineEntry]:
        """Entries as they come, over one connection: those after this number first; None: new ones only. It ends when
        the controller does. Raises UnreachableError too when the line is silent for longer than it ever is."""
        async with aclosing(self._link.followed("/v1/events/stream", None if after is None else str(after))) as told:
            async for _, data in told:
                yield event_of(TimelineEntry, data)

    async def follow_nodes(self, known: KnownNodes | None = None) -> AsyncGenerator[KnownNodes, None]:
        """Every node, then those that changed, as it happens, over one connection: what is known, each time that it is
        another and whole. `known`: what was followed before, to go on where it was cut. It ends when the controller
        does. Raises as `follow_events`."""
        known = KnownNodes() if known is None else known
        async with aclosing(self._link.followed("/v1/events/nodes", known.mark or None)) as told:
            async for mark, data in told:
                changes = event_of(NodeChanges, data)
                try:
                    known.take(changes, mark)
                except ValidationError as error:
                    raise unknown_event(error) from error
                if mark:
                    yield known
                else:
                    await asyncio.sleep(0)  # of many nodes: whatever else runs in this loop has its turn

    async def newest_events(
        self,
        limit: int = 1000,
        *,
        kind: str | None = None,
        node: str | None = None,
        incident_id: str | None = None,
        run_id: str | None = None,
        since: float | None = None,
    ) -> list[TimelineEntry]:
        """The newest entries, oldest first; only those that fit, and happened since then (Unix seconds)."""
        return await self._link.rows(
            TimelineEntry,
            "/v1/events",
            limit=limit,
            size="newest",
            kind=kind,
            node=node,
            incident_id=incident_id,
            run_id=run_id,
            since=since,
        )

    async def runbooks(self) -> list[RunbookInfo]:
        """Every runbook, without its page."""
        return await self._link.rows(RunbookInfo, "/v1/runbooks")

    async def runbook(self, name: str) -> RunbookInfo:
        """One runbook with its page."""
        return await self._link.get(RunbookInfo, f"/v1/runbooks/{part(name)}")

    async def verbs(self) -> list[VerbInfo]:
        """The commands that this controller carries out."""
        return await self._link.rows(VerbInfo, "/v1/verbs")

    async def runs(self, incident_id: str | None = None, limit: int | None = None) -> list[Run]:
        """Runs, the newest first; of one incident, when named; all of them, or so many."""
        return await self._link.rows(Run, "/v1/runs", limit=limit, incident_id=incident_id)

    async def get_run(self, run_id: str) -> Run:
        """One run with its steps."""
        return await self._link.get(Run, f"/v1/runs/{part(run_id)}")

    async def start_run(self, request: RunRequest) -> Run:
        """The run as it stands after the request: proposed, approved, or done as a dry run."""
        return await self._link.post(Run, "/v1/runs", request, PREDICTION_S if request.dry_run else 0.0)

    async def act(self, request: ActionRequest) -> Run:
        """Carry out one command as a run of one step."""
        return await self._link.post(Run, "/v1/actions", request, PREDICTION_S if request.dry_run else 0.0)

    async def decide(self, run_id: str, answer: ApprovalRequest) -> Run:
        """Approve or deny. The first answer wins; a later one raises RefusedError."""
        return await self._link.post(Run, f"/v1/runs/{part(run_id)}/approval", answer)

    async def cancel(self, run_id: str, by: str) -> Run:
        """Stop a run before its next step."""
        return parse(Run, await self._link.send("POST", f"/v1/runs/{part(run_id)}/cancel", json={"by": by}))

    async def order_run(self, run_id: str, what: Literal["pause", "resume", "skip"], order: RunOrder) -> Run:
        """Pause a run before its next step, let it go on, or skip the step that comes next or that waits."""
        return await self._link.post(Run, f"/v1/runs/{part(run_id)}/{what}", order)

    async def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        """Walk a tree now; stored nowhere."""
        return await self._link.post(Diagnosis, "/v1/diagnose", request)

    async def query(self, expr: str) -> dict[str, Any]:
        """`{"at": Unix seconds, "samples": [{"labels", "value"}]}` of a PromQL expression now."""
        answer = await self._link.send("GET", "/v1/query", params={"expr": expr})
        return parse_as(TypeAdapter(dict[str, Any]), answer)

    async def routing(self, after: int | None = None, wait_s: float = 0.0) -> RoutingTable | None:
        """The routing table; None when it is still the one known as `after` once `wait_s` has passed."""
        answer = await self._link.send("GET", "/v1/routing", wait_s, params=given(after=after, wait_s=wait_s or None))
        return None if answer.status_code == 204 else parse(RoutingTable, answer)

    async def tenants(self) -> list[TenantUse]:
        """The gateways' tenants by name, their use summed. Raises UnreachableError when no gateway tells."""
        return await self._link.rows(TenantUse, "/v1/tenants")

    async def traffic_rules(self) -> list[TrafficRule]:
        """What the gateways are ordered to do with requests, the oldest rule first."""
        return await self._link.rows(TrafficRule, "/v1/traffic-rules")

    async def make_traffic_rule(self, request: TrafficRuleRequest) -> TrafficRule:
        """Make a rule, in place of one with its id."""
        return await self._link.post(TrafficRule, "/v1/traffic-rules", request)

    async def remove_traffic_rule(self, rule_id: str, by: str = "api") -> TrafficRule:
        """End a rule now. Raises BadInputError when there is none of this id."""
        answer = await self._link.send("DELETE", f"/v1/traffic-rules/{part(rule_id)}", params={"by": by})
        return parse(TrafficRule, answer)

    async def autoscaler(self) -> list[AutoscalerPool]:
        """Every pool with what the autoscaler may do with it, and its last word on it."""
        return await self._link.rows(AutoscalerPool, "/v1/autoscaler")

    async def configure_autoscaler(self, pool: str, request: AutoscalerRequest) -> AutoscalerPool:
        """Set bounds and mode of a pool. Raises BadInputError."""
        return await self._link.post(AutoscalerPool, f"/v1/autoscaler/{part(pool)}", request)

    async def freezes(self) -> list[Freeze]:
        """Times in which automation does not act, those in force, the oldest first."""
        return await self._link.rows(Freeze, "/v1/freezes")

    async def make_freeze(self, request: FreezeRequest) -> Freeze:
        """Freeze the fleet, or one pool, from now on."""
        return await self._link.post(Freeze, "/v1/freezes", request)

    async def end_freezes(self, freeze_id: str | None = None, by: str = "api") -> list[Freeze]:
        """End one freeze, or all. Raises BadInputError when there is none of this id."""
        path = "/v1/freezes" + (f"/{part(freeze_id)}" if freeze_id is not None else "")
        return parse_as(TypeAdapter(list[Freeze]), await self._link.send("DELETE", path, params={"by": by}))

    async def audit(
        self, *, since: float | None = None, who: str | None = None, target: str | None = None, limit: int = 200
    ) -> list[AuditRow]:
        """The newest changes that fit, oldest first. `since` in Unix seconds."""
        return await self._link.rows(
            AuditRow, "/v1/audit", limit=limit, is_oldest_first=True, since=since, who=who, target=target
        )

    async def verify_audit(self) -> AuditCheck:
        """Whether the audit's rows are those that were written: looked at now."""
        return parse(AuditCheck, await self._link.send("GET", "/v1/audit/verification", CONTENT_S))

    async def receipts(self, limit: int | None = None) -> list[DrainReceipt]:
        """Receipts of drains, the newest first, without their lines; all of them, or so many."""
        return await self._link.rows(DrainReceipt, "/v1/receipts", limit=limit)

    async def receipt(self, receipt_id: str) -> DrainReceipt:
        """One receipt with a line for each request."""
        return await self._link.get(DrainReceipt, f"/v1/receipts/{part(receipt_id)}")

    async def signed_receipt(self, receipt_id: str) -> dict[str, Any]:
        """One receipt as it was signed."""
        answer = await self._link.send("GET", f"/v1/receipts/{part(receipt_id)}")
        return parse_as(TypeAdapter(dict[str, Any]), answer)

    async def receipt_key(self) -> str:
        """The public key that receipts are signed with, PEM."""
        return (await self._link.send("GET", "/v1/receipts/key")).text

    async def caller(self) -> CallerInfo:
        """Whom the controller takes this client for."""
        return await self._link.get(CallerInfo, "/v1/identity")

    async def tokens(self) -> list[TokenInfo]:
        """Named tokens that were ever made, by name."""
        return await self._link.rows(TokenInfo, "/v1/tokens")

    async def create_token(self, request: TokenRequest) -> MadeToken:
        """Make a named token, which is told this once."""
        return await self._link.post(MadeToken, "/v1/tokens", request)

    async def revoke_token(self, name: str) -> TokenInfo:
        """End the token of this name now. Raises BadInputError when there is none that opens something."""
        return parse(TokenInfo, await self._link.send("DELETE", f"/v1/tokens/{part(name)}"))

    async def content(self) -> ContentListing:
        """Rules, trees, causes, pages and what else is loaded, with their sources."""
        return await self._link.get(ContentListing, "/v1/content")

    async def reload_content(self) -> ContentListing:
        """Read the content folders again. Raises BadInputError with all that is wrong; then nothing has changed."""
        return parse(ContentListing, await self._link.send("POST", "/v1/content/reload", CONTENT_S))

    async def silences(self) -> list[Silence]:
        """Alertmanager's, those in force first."""
        return await self._link.rows(Silence, "/v1/silences", SILENCE_S)

    async def add_silence(self, request: SilenceRequest) -> Silence:
        """Make a silence in Alertmanager."""
        body = request.model_dump(mode="json")
        return parse(Silence, await self._link.send("POST", "/v1/silences", SILENCE_S, json=body))

    async def expire_silence(self, silence_id: str) -> Silence:
        """End a silence now."""
        return parse(Silence, await self._link.send("DELETE", f"/v1/silences/{part(silence_id)}", SILENCE_S))

    async def notifications(self, incident_id: str | None = None) -> list[Notification]:
        """Who was told, or is to be told, of what; the newest last."""
        return await self._link.rows(
            Notification, "/v1/notifications", limit=1000, is_oldest_first=True, incident_id=incident_id
        )

    async def notification(self, notification_id: str) -> Notification:
        """One of them."""
        return await self._link.get(Notification, f"/v1/notifications/{part(notification_id)}")

    async def receivers(self) -> list[Receiver]:
        """Who can be told, and how that goes."""
        return await self._link.rows(Receiver, "/v1/receivers")

    async def test_receiver(self, name: str, by: str = NO_CLAIM) -> Notification:
        """Tell one receiver that this is a test, and wait for how it went."""
        path, body = f"/v1/receivers/{part(name)}/test", {"by": by}
        return parse(Notification, await self._link.send("POST", path, RECEIVER_TEST_S, json=body))
