"""The controller's HTTP API as Python: what the command line, the cockpit, the demo and scripts use.

Every failure is one of `fleetctl.kit.errors`, with the next thing to do. Public, with the types of `fleetctl.wire`: see
docs/client.md.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.line_feed import lines_of, split_lines
from fleetctl.told_node import KnownNodes
from fleetctl.traffic_rule import TrafficRule, TrafficRuleRequest
from fleetctl.wire import (
    NO_CLAIM,
    ActionRequest,
    Alert,
    AlertExplanation,
    ApprovalRequest,
    AssignRequest,
    AuditCheck,
    AuditRow,
    AutoscalerPool,
    AutoscalerRequest,
    CallerInfo,
    ContentListing,
    DiagnoseRequest,
    Diagnosis,
    DrainReceipt,
    Failure,
    FailureGroup,
    FailuresBy,
    Freeze,
    FreezeRequest,
    Gateway,
    Gpu,
    GroupBy,
    HeldRequests,
    Incident,
    IncidentCharts,
    IncidentNote,
    IncidentSilenceRequest,
    KvBlocks,
    MadeToken,
    Node,
    NodeChanges,
    NodeGroup,
    NodePhase,
    Notification,
    Pool,
    Problem,
    Receiver,
    Revision,
    Rollout,
    RoutingTable,
    Run,
    RunbookInfo,
    RunOrder,
    RunRequest,
    RunStatus,
    SeverityRequest,
    Silence,
    SilenceRequest,
    Status,
    TenantUse,
    TimelineEntry,
    TokenInfo,
    TokenRequest,
    VerbInfo,
    VerdictRequest,
)

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

DEFAULT_TIMEOUT_S = 10.0
LONG_ANSWER = 200_000  # bytes of a list: 1,000 nodes take 55 ms to read, in which no key would be answered
PART_ROWS = 50
MAX_KNOWN_LISTS = 32
EVENTS_AT_ONCE = 1000
CONTENT_S = 60.0  # reading and checking hundreds of files
PREDICTION_S = 15.0  # a dry run is simulated before it is answered
STREAM_SILENT_S = 45.0  # of the event stream, which says every 15 s that it is alive
FILE_S = 120.0  # an incident's file of a large fleet
RECEIVER_TEST_S = 30.0  # the receiver has ten seconds for each of two messages
SILENCE_S = 30.0  # the controller asks one Alertmanager after the other
RETRIES = 3  # of a request that was refused because too many came
MAX_RETRY_S = 10
WAIT_MARGIN_S = 10.0  # how much longer than its wait a long poll may take
W = TypeVar("W", bound=BaseModel)

_ERRORS: Mapping[int, type[FleetctlError]] = {
    400: BadInputError,
    403: RefusedError,
    404: BadInputError,
    405: BadInputError,
    409: RefusedError,
    413: BadInputError,
    422: BadInputError,
    429: RefusedError,
    502: UnreachableError,
    503: UnreachableError,
    504: UnreachableError,
}


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
        `reuses_lists`:
        a list that did not change since it was last asked for is not sent and read again, its objects are given once
        more: for who asks over and over, and changes nothing in them."""
        self.url = _checked(url)
        self._known = tuple(dict.fromkeys((self.url, *map(_checked, others))))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout
        self._reuses_lists = reuses_lists
        self._lists: OrderedDict[str, tuple[str, Sequence[Any]]] = OrderedDict()  # tag and rows, by what was asked
        # The controller is reached directly: a proxy from the environment must not see the token.
        # Reading the machine's certificates takes longer than a call: only for what uses them.
        with_tls = any(known.startswith("https://") for known in self._known)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False, verify=with_tls)

    async def __aenter__(self) -> ControllerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def status(self) -> Status:
        """How the controller is, and whom it reaches."""
        return await self._get(Status, "/v1/status")

    async def nodes(self) -> list[Node]:
        """Every node, with its signals and their ages."""
        return await self._list(Node, "/v1/nodes")

    async def node(self, name: str) -> Node:
        """One node. Raises BadInputError when there is none of that name."""
        return await self._get(Node, f"/v1/nodes/{_part(name)}")

    async def groups(self, by: GroupBy) -> list[NodeGroup]:
        """The nodes by pool, zone, model or revision, each group with its load."""
        return await self._list(NodeGroup, "/v1/groups", by=by.value)

    async def gpus(self) -> list[Gpu]:
        """Every card that somebody told of lately."""
        return await self._list(Gpu, "/v1/gpus")

    async def failures(self, since: float | None = None) -> list[Failure]:
        """Failures that began since then (Unix seconds; default: 30 days ago), or stand, the newest first."""
        return await self._list(Failure, "/v1/failures", since=since)

    async def failure_groups(self, by: FailuresBy, since: float | None = None) -> list[FailureGroup]:
        """The same counted, with how long the nodes were watched and how the rate compares with the fleet's."""
        return await self._list(FailureGroup, "/v1/failures/groups", by=by.value, since=since)

    async def node_requests(self, name: str) -> HeldRequests:
        """Requests in flight at a node, oldest first, or why they are not known."""
        return await self._get(HeldRequests, f"/v1/nodes/{_part(name)}/requests")

    async def node_kv(self, name: str) -> KvBlocks:
        """What a node's KV cache is used for, or why that is not known."""
        return await self._get(KvBlocks, f"/v1/nodes/{_part(name)}/kv")

    async def pools(self) -> list[Pool]:
        """Every pool by name: what is wanted of it, and how far that is."""
        return await self._list(Pool, "/v1/pools")

    async def pool(self, name: str) -> Pool:
        """One pool."""
        return await self._get(Pool, f"/v1/pools/{_part(name)}")

    async def revisions(self) -> list[Revision]:
        """Every revision that a node ever had, the newest first."""
        return await self._list(Revision, "/v1/revisions")

    async def revision(self, revision_id: str) -> Revision:
        """One revision."""
        return await self._get(Revision, f"/v1/revisions/{_part(revision_id)}")

    async def rollouts(self, pool: str | None = None) -> list[Rollout]:
        """Rollouts, of one pool when named, the newest first."""
        return await self._list(Rollout, "/v1/rollouts", pool=pool)

    async def rollout(self, rollout_id: str) -> Rollout:
        """One rollout. Raises BadInputError when there is none of this id."""
        return await self._get(Rollout, f"/v1/rollouts/{_part(rollout_id)}")

    async def gateways(self) -> list[Gateway]:
        """Every gateway, and what it says of itself."""
        return await self._list(Gateway, "/v1/gateways")

    async def gateway(self, name: str) -> Gateway:
        """One gateway. Raises BadInputError when there is none of that name."""
        return await self._get(Gateway, f"/v1/gateways/{_part(name)}")

    async def node_logs(self, name: str, lines: int) -> list[str]:
        """The last lines that a node wrote, oldest first."""
        answer = await self._send("GET", f"/v1/nodes/{_part(name)}/logs", params={"lines": lines})
        return split_lines(answer.text)

    async def follow_node_logs(self, name: str, lines: int) -> AsyncIterator[str]:
        """The last lines that a node wrote, then each new one; ends when the controller does."""
        await self.status()  # of the one that leads
        url = f"{self.url}/v1/nodes/{_part(name)}/logs"
        timeout = httpx.Timeout(self._timeout_s, read=None)  # a node may have nothing to say for hours
        params: dict[str, str | int] = {"lines": lines, "follow": "true"}
        async with aclosing(self._lines(url, timeout, params=params)) as told:
            async for line in told:
                yield line

    async def alerts(self) -> list[Alert]:
        """Every alert that is not clear, of our rules and from outside."""
        return await self._list(Alert, "/v1/alerts")

    async def incident_charts(self, incident_id: str, columns: int = 120) -> IncidentCharts:
        """What was measured in the incident's place, and what happened there."""
        answer = await self._send("GET", f"/v1/incidents/{_part(incident_id)}/charts", params={"columns": columns})
        return _parse(IncidentCharts, answer)

    async def explain_alert(self, fingerprint: str) -> AlertExplanation:
        """Each part of an alert's rule with its value. Raises BadInputError where no rule of ours judges it."""
        return await self._get(AlertExplanation, f"/v1/alerts/{_part(fingerprint)}/explanation")

    async def incidents(self, status: str | None = None, limit: int | None = None) -> list[Incident]:
        """The newest first, without timeline and evidence; all of them, or so many."""
        return await self._list(Incident, "/v1/incidents", limit=limit, status=status)

    async def incident(self, incident_id: str) -> Incident:
        """One incident with timeline and evidence."""
        return await self._get(Incident, f"/v1/incidents/{_part(incident_id)}")

    async def postmortem(self, incident_id: str, form: Literal["md", "html"] = "md") -> str:
        """The post-mortem as it is now; of an open incident, what is known so far."""
        path = f"/v1/incidents/{_part(incident_id)}/postmortem"
        return (await self._send("GET", path, FILE_S, params={"format": form})).text

    async def blackbox(self, incident_id: str) -> bytes:
        """The incident's file."""
        return (await self._send("GET", f"/v1/incidents/{_part(incident_id)}/blackbox", FILE_S)).content

    async def import_incident(self, packed: bytes, by: str) -> Incident:
        """Store the incident of a file as a record that nothing acts on."""
        return _parse(Incident, await self._send("POST", "/v1/incidents", FILE_S, content=packed, params={"by": by}))

    async def acknowledge_incident(self, incident_id: str, note: IncidentNote) -> Incident:
        """Somebody has seen it."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/acknowledgement", note)

    async def assign_incident(self, incident_id: str, request: AssignRequest) -> Incident:
        """It is somebody's from now on."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/assignment", request)

    async def comment_incident(self, incident_id: str, note: IncidentNote) -> Incident:
        """A line on its timeline."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/comments", note)

    async def set_incident_severity(self, incident_id: str, request: SeverityRequest) -> Incident:
        """How grave it is, whatever its alerts say."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/severity", request)

    async def silence_incident(self, incident_id: str, request: IncidentSilenceRequest) -> Incident:
        """Silence its alerts where they are."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/silence", request, SILENCE_S)

    async def correct_verdict(self, incident_id: str, request: VerdictRequest) -> Incident:
        """Its verdict was wrong."""
        return await self._post(Incident, f"/v1/incidents/{_part(incident_id)}/verdict", request)

    async def events(self, after: int = 0, wait_s: float = 0.0, incident_id: str | None = None) -> list[TimelineEntry]:
        """Entries after a sequence number, oldest first, 1,000 at most; with `wait_s`, waits for the first one."""
        return await self._list(
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
        async with aclosing(self._followed("/v1/events/stream", None if after is None else str(after))) as told:
            async for _, data in told:
                yield _event(TimelineEntry, data)

    async def follow_nodes(self, known: KnownNodes | None = None) -> AsyncGenerator[KnownNodes, None]:
        """Every node, then those that changed, as it happens, over one connection: what is known, each time that it is
        another and whole. `known`: what was followed before, to go on where it was cut. It ends when the controller
        does. Raises as `follow_events`."""
        known = KnownNodes() if known is None else known
        async with aclosing(self._followed("/v1/events/nodes", known.mark or None)) as told:
            async for mark, data in told:
                changes = _event(NodeChanges, data)
                try:
                    known.take(changes, mark)
                except ValidationError as error:
                    raise _unknown_event(error) from error
                if mark:
                    yield known
                else:
                    await asyncio.sleep(0)  # of many nodes: whatever else runs in this loop has its turn

    async def _followed(self, path: str, last_id: str | None) -> AsyncGenerator[tuple[str, str], None]:
        """Id and data of each event, of the controller that leads."""
        await self.status()
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENT_S)
        event_id = ""
        async with aclosing(self._lines(f"{self.url}{path}", timeout, headers=headers)) as told:
            async for line in told:
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    yield event_id, line.removeprefix("data: ")
                    event_id = ""

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
        return await self._list(
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
        return await self._list(RunbookInfo, "/v1/runbooks")

    async def runbook(self, name: str) -> RunbookInfo:
        """One runbook with its page."""
        return await self._get(RunbookInfo, f"/v1/runbooks/{_part(name)}")

    async def verbs(self) -> list[VerbInfo]:
        """The commands that this controller carries out."""
        return await self._list(VerbInfo, "/v1/verbs")

    async def runs(self, incident_id: str | None = None, limit: int | None = None) -> list[Run]:
        """Runs, the newest first; of one incident, when named; all of them, or so many."""
        return await self._list(Run, "/v1/runs", limit=limit, incident_id=incident_id)

    async def get_run(self, run_id: str) -> Run:
        """One run with its steps."""
        return await self._get(Run, f"/v1/runs/{_part(run_id)}")

    async def start_run(self, request: RunRequest) -> Run:
        """The run as it stands after the request: proposed, approved, or done as a dry run."""
        return await self._post(Run, "/v1/runs", request, PREDICTION_S if request.dry_run else 0.0)

    async def act(self, request: ActionRequest) -> Run:
        """Carry out one command as a run of one step."""
        return await self._post(Run, "/v1/actions", request, PREDICTION_S if request.dry_run else 0.0)

    async def decide(self, run_id: str, answer: ApprovalRequest) -> Run:
        """Approve or deny. The first answer wins; a later one raises RefusedError."""
        return await self._post(Run, f"/v1/runs/{_part(run_id)}/approval", answer)

    async def cancel(self, run_id: str, by: str) -> Run:
        """Stop a run before its next step."""
        return _parse(Run, await self._send("POST", f"/v1/runs/{_part(run_id)}/cancel", json={"by": by}))

    async def order_run(self, run_id: str, what: Literal["pause", "resume", "skip"], order: RunOrder) -> Run:
        """Pause a run before its next step, let it go on, or skip the step that comes next or that waits."""
        return await self._post(Run, f"/v1/runs/{_part(run_id)}/{what}", order)

    async def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        """Walk a tree now; stored nowhere."""
        return await self._post(Diagnosis, "/v1/diagnose", request)

    async def query(self, expr: str) -> dict[str, Any]:
        """`{"at": Unix seconds, "samples": [{"labels", "value"}]}` of a PromQL expression now."""
        answer = await self._send("GET", "/v1/query", params={"expr": expr})
        return _parse_as(TypeAdapter(dict[str, Any]), answer)

    async def routing(self, after: int | None = None, wait_s: float = 0.0) -> RoutingTable | None:
        """The routing table; None when it is still the one known as `after` once `wait_s` has passed."""
        answer = await self._send("GET", "/v1/routing", wait_s, params=_given(after=after, wait_s=wait_s or None))
        return None if answer.status_code == 204 else _parse(RoutingTable, answer)

    async def tenants(self) -> list[TenantUse]:
        """The gateways' tenants by name, their use summed. Raises UnreachableError when no gateway tells."""
        return await self._list(TenantUse, "/v1/tenants")

    async def traffic_rules(self) -> list[TrafficRule]:
        """What the gateways are ordered to do with requests, the oldest rule first."""
        return await self._list(TrafficRule, "/v1/traffic-rules")

    async def make_traffic_rule(self, request: TrafficRuleRequest) -> TrafficRule:
        """Make a rule, in place of one with its id."""
        return await self._post(TrafficRule, "/v1/traffic-rules", request)

    async def remove_traffic_rule(self, rule_id: str, by: str = "api") -> TrafficRule:
        """End a rule now. Raises BadInputError when there is none of this id."""
        answer = await self._send("DELETE", f"/v1/traffic-rules/{_part(rule_id)}", params={"by": by})
        return _parse(TrafficRule, answer)

    async def autoscaler(self) -> list[AutoscalerPool]:
        """Every pool with what the autoscaler may do with it, and its last word on it."""
        return await self._list(AutoscalerPool, "/v1/autoscaler")

    async def configure_autoscaler(self, pool: str, request: AutoscalerRequest) -> AutoscalerPool:
        """Set bounds and mode of a pool. Raises BadInputError."""
        return await self._post(AutoscalerPool, f"/v1/autoscaler/{_part(pool)}", request)

    async def freezes(self) -> list[Freeze]:
        """Times in which automation does not act, those in force, the oldest first."""
        return await self._list(Freeze, "/v1/freezes")

    async def make_freeze(self, request: FreezeRequest) -> Freeze:
        """Freeze the fleet, or one pool, from now on."""
        return await self._post(Freeze, "/v1/freezes", request)

    async def end_freezes(self, freeze_id: str | None = None, by: str = "api") -> list[Freeze]:
        """End one freeze, or all. Raises BadInputError when there is none of this id."""
        path = "/v1/freezes" + (f"/{_part(freeze_id)}" if freeze_id is not None else "")
        return _parse_as(TypeAdapter(list[Freeze]), await self._send("DELETE", path, params={"by": by}))

    async def audit(
        self, *, since: float | None = None, who: str | None = None, target: str | None = None, limit: int = 200
    ) -> list[AuditRow]:
        """The newest changes that fit, oldest first. `since` in Unix seconds."""
        return await self._list(
            AuditRow, "/v1/audit", limit=limit, is_oldest_first=True, since=since, who=who, target=target
        )

    async def verify_audit(self) -> AuditCheck:
        """Whether the audit's rows are those that were written: looked at now."""
        return _parse(AuditCheck, await self._send("GET", "/v1/audit/verification", CONTENT_S))

    async def receipts(self, limit: int | None = None) -> list[DrainReceipt]:
        """Receipts of drains, the newest first, without their lines; all of them, or so many."""
        return await self._list(DrainReceipt, "/v1/receipts", limit=limit)

    async def receipt(self, receipt_id: str) -> DrainReceipt:
        """One receipt with a line for each request."""
        return await self._get(DrainReceipt, f"/v1/receipts/{_part(receipt_id)}")

    async def signed_receipt(self, receipt_id: str) -> dict[str, Any]:
        """One receipt as it was signed."""
        answer = await self._send("GET", f"/v1/receipts/{_part(receipt_id)}")
        return _parse_as(TypeAdapter(dict[str, Any]), answer)

    async def receipt_key(self) -> str:
        """The public key that receipts are signed with, PEM."""
        return (await self._send("GET", "/v1/receipts/key")).text

    async def caller(self) -> CallerInfo:
        """Whom the controller takes this client for."""
        return await self._get(CallerInfo, "/v1/identity")

    async def tokens(self) -> list[TokenInfo]:
        """Named tokens that were ever made, by name."""
        return await self._list(TokenInfo, "/v1/tokens")

    async def create_token(self, request: TokenRequest) -> MadeToken:
        """Make a named token, which is told this once."""
        return await self._post(MadeToken, "/v1/tokens", request)

    async def revoke_token(self, name: str) -> TokenInfo:
        """End the token of this name now. Raises BadInputError when there is none that opens something."""
        return _parse(TokenInfo, await self._send("DELETE", f"/v1/tokens/{_part(name)}"))

    async def content(self) -> ContentListing:
        """Rules, trees, causes, pages and what else is loaded, with their sources."""
        return await self._get(ContentListing, "/v1/content")

    async def reload_content(self) -> ContentListing:
        """Read the content folders again. Raises BadInputError with all that is wrong; then nothing has changed."""
        return _parse(ContentListing, await self._send("POST", "/v1/content/reload", CONTENT_S))

    async def silences(self) -> list[Silence]:
        """Alertmanager's, those in force first."""
        return await self._list(Silence, "/v1/silences", SILENCE_S)

    async def add_silence(self, request: SilenceRequest) -> Silence:
        """Make a silence in Alertmanager."""
        body = request.model_dump(mode="json")
        return _parse(Silence, await self._send("POST", "/v1/silences", SILENCE_S, json=body))

    async def expire_silence(self, silence_id: str) -> Silence:
        """End a silence now."""
        return _parse(Silence, await self._send("DELETE", f"/v1/silences/{_part(silence_id)}", SILENCE_S))

    async def notifications(self, incident_id: str | None = None) -> list[Notification]:
        """Who was told, or is to be told, of what; the newest last."""
        return await self._list(
            Notification, "/v1/notifications", limit=1000, is_oldest_first=True, incident_id=incident_id
        )

    async def notification(self, notification_id: str) -> Notification:
        """One of them."""
        return await self._get(Notification, f"/v1/notifications/{_part(notification_id)}")

    async def receivers(self) -> list[Receiver]:
        """Who can be told, and how that goes."""
        return await self._list(Receiver, "/v1/receivers")

    async def test_receiver(self, name: str, by: str = NO_CLAIM) -> Notification:
        """Tell one receiver that this is a test, and wait for how it went."""
        path, body = f"/v1/receivers/{_part(name)}/test", {"by": by}
        return _parse(Notification, await self._send("POST", path, RECEIVER_TEST_S, json=body))

    async def _get(self, model: type[W], path: str) -> W:
        return _parse(model, await self._send("GET", path))

    async def _list(
        self,
        model: type[W],
        path: str,
        held_s: float = 0.0,
        *,
        limit: int | None = None,
        size: Literal["limit", "newest"] = "limit",
        is_oldest_first: bool = False,
        **params: Any,
    ) -> list[W]:
        """All rows, or `limit` of them, however many answers they take. `is_oldest_first`: of the newest ones, told
        forwards, so that what the next answer has comes before."""
        adapter: TypeAdapter[list[W]] = _list_of(model)
        is_oldest_first = is_oldest_first or size == "newest"
        asked = str(httpx.URL(path, params=_given(**{size: limit}, **params)))
        tag, known = self._lists.get(asked, ("", ()))
        headers = {"If-None-Match": tag} if tag else {}
        answer = await self._send("GET", asked, held_s, headers=headers)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return list(known)
        tag, is_whole = answer.headers.get("ETag", ""), True
        rows: list[W] = []
        while True:
            is_long = len(answer.content) > LONG_ANSWER
            page = await _parse_in_parts(adapter, answer) if is_long else _parse_as(adapter, answer)
            rows = [*page, *rows] if is_oldest_first else [*rows, *page]
            more = answer.links.get("next", {}).get("url", "")
            if not page or not more.startswith(f"{path}?") or (limit is not None and len(rows) >= limit):
                break
            answer, is_whole = await self._send("GET", more, held_s), False
        if limit is not None:
            rows = rows[-limit:] if is_oldest_first else rows[:limit]
        if self._reuses_lists and tag and is_whole:
            self._lists[asked] = tag, tuple(rows)
            self._lists.move_to_end(asked)
            if len(self._lists) > MAX_KNOWN_LISTS:
                self._lists.popitem(last=False)
        return rows

    async def _post(self, model: type[W], path: str, body: BaseModel, held_s: float = 0.0) -> W:
        return _parse(model, await self._send("POST", path, held_s, json=body.model_dump(mode="json")))

    async def _send(self, method: str, path: str, held_s: float = 0.0, **options: Any) -> httpx.Response:
        """The answer to one request that the controller may hold for `held_s`."""
        timeout = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, held_s + WAIT_MARGIN_S))
        problem: FleetctlError | None = None
        untried = [self.url, *(known for known in self._known if known != self.url)]
        for _ in range(len(untried) + 1):  # and where a standby sent us, if we did not know it
            url = untried.pop(0)
            try:
                response = await self._http.request(method, f"{url}{path}", timeout=timeout, **options)
                for _ in range(RETRIES):  # nothing was done of what is refused so
                    if response.status_code != httpx.codes.TOO_MANY_REQUESTS or not (wait_s := _told_wait_s(response)):
                        break
                    await asyncio.sleep(wait_s)
                    response = await self._http.request(method, f"{url}{path}", timeout=timeout, **options)
            except httpx.HTTPError as error:
                problem = problem or self._unreachable(error, url)
                # What was sent may have been done: only what surely did not arrive, or changes nothing, is asked again.
                if not untried or not (isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) or method == "GET"):
                    raise problem from error
                continue
            if response.status_code == httpx.codes.TEMPORARY_REDIRECT:
                leader = _origin_of(response.headers.get("Location", ""))
                untried = [leader, *(one for one in untried if one != leader)]
            elif response.status_code == httpx.codes.SERVICE_UNAVAILABLE and untried:
                problem = _error_of(response)
            elif not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
                raise _error_of(response)
            else:
                self.url = url
                return response
        raise problem or _error_of(response)

    async def _lines(
        self,
        url: str,
        patience: httpx.Timeout,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[str, None]:
        """What one long answer says, line by line, as it comes."""
        try:
            async with self._http.stream("GET", url, params=params, headers=headers, timeout=patience) as response:
                if not response.is_success:
                    await response.aread()
                    raise _error_of(response)
                async for line in lines_of(response):
                    yield line
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError, url: str = "") -> UnreachableError:
        return UnreachableError(
            f"no answer from the controller at {url or self.url}: {str(error) or type(error).__name__}",
            remedy="fleetctl up, or name another with --controller",
        )


def _checked(url: str) -> str:
    try:
        text = str(httpx.URL(url)).rstrip("/")
    except httpx.InvalidURL as error:
        raise BadInputError(f"{url!r} is no URL: {error}", remedy="give one like http://127.0.0.1:7700") from error
    if not text.startswith(("http://", "https://")):
        raise BadInputError(f"{url!r} is no HTTP URL", remedy="give one like http://127.0.0.1:7700")
    return text


def _origin_of(location: str) -> str:
    """The controller that a standby names. Raises UnreachableError when it names none."""
    url = httpx.URL(location)
    if url.scheme not in ("http", "https") or not url.host:
        raise UnreachableError(f"a standby sent us to {location[:200]!r}", remedy="name the leader with --controller")
    return str(url.copy_with(raw_path=b"/")).rstrip("/")


def _error_of(response: httpx.Response) -> FleetctlError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        # Not our controller, or something between us and it.
        problem = Problem(error=f"{response.url} answered {response.status_code}")
    if response.status_code == 401:
        return FleetctlError(
            f"the controller refused the token: {problem.error}",
            remedy="use the same --state-dir as the controller, or set FLEETCTL_CONTROLLER__TOKEN",
        )
    return _ERRORS.get(response.status_code, FleetctlError)(problem.error, remedy=problem.remedy)


def _event(model: type[W], data: str) -> W:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _unknown_event(error) from error


def _unknown_event(error: ValidationError) -> FleetctlError:
    return FleetctlError(
        f"an event is not what this fleetctl knows: {error.errors()[0]['msg']}",
        remedy="use the same version of fleetctl as the controller",
    )


def _parse(model: type[W], response: httpx.Response) -> W:
    return _parse_as(TypeAdapter(model), response)


T = TypeVar("T")


def _parse_as(adapter: TypeAdapter[T], response: httpx.Response) -> T:
    try:
        return adapter.validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "answer"
        raise FleetctlError(
            f"{response.url.path}: the answer is not what this fleetctl knows: {place}: {first['msg']}",
            remedy="use the same version of fleetctl as the controller",
        ) from error


@cache
def _list_of(model: type[W]) -> TypeAdapter[list[W]]:
    return TypeAdapter(list[model])  # type: ignore[valid-type]


async def _parse_in_parts(adapter: TypeAdapter[list[W]], response: httpx.Response) -> list[W]:
    """As `_parse_as`; whatever else runs in this loop has its turn between the parts."""
    found: list[W] = []
    try:
        rows = from_json(response.content)
        for at in range(0, len(rows), PART_ROWS):
            await asyncio.sleep(0)
            found += adapter.validate_python(rows[at : at + PART_ROWS])
    except (ValueError, TypeError):
        return _parse_as(adapter, response)  # which says what is wrong with it
    return found


def _told_wait_s(response: httpx.Response) -> float:
    """How long the controller asks to wait; 0: it does not say, or longer than anybody should sit there."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= MAX_RETRY_S else 0.0


def _part(name: str) -> str:
    """One segment of a path, whatever a person typed."""
    return quote(name, safe="") or "%20"


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
