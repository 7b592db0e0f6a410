"""How the controller talks to nodes and the gateway: short HTTP calls whose every failure is a value or one error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from fleetctl.engines.kind import OWN_ENGINE, EngineKind
from fleetctl.engines.table import engine_kind
from fleetctl.kit.errors import UnreachableError
from fleetctl.kit.fetch import Fetcher, TextAnswer
from fleetctl.kit.http_body import read_limited
from fleetctl.kit.key_ring import NO_KEYS, KeyRing
from fleetctl.wire import GatewayWorkers, HeldRequest, HeldRequests, KvBlocks, TenantUse
from runbooks.ports import WayOut

PROBE_TIMEOUT_S = 2.0
ADMIN_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 * 1024
MAX_WORDS = 300
_ERROR_KEYS = ("message", "error_message", "detail", "reason")


class NoAnswerError(Exception):
    """The peer did not answer, or not in the agreed shape: what it does is unknown."""


class SilentPeerError(NoAnswerError):
    """The peer said nothing at all: no connection, or nothing in time. It may hang, or be gone."""


class UnansweredError(SilentPeerError):
    """The peer took the request and did not answer it in time."""


class BadStatusError(NoAnswerError):
    """The peer answered with another status than the agreed one."""

    def __init__(self, message: str, status: int, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said  # its own words; empty: none


class NotAllowedError(Exception):
    """The peer refused our token: trying again can't help."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node says of itself; `answered` False means it said nothing, and why is in `reason`."""

    answered: bool
    ready: bool
    reason: str
    since: float | None = None


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """`GET /admin/drain`. Counts are requests; `receipt` is complete when `state` is drained."""

    state: str
    running: int
    waiting: int
    receipt: dict[str, int]

    @property
    def held(self) -> int:
        """Requests that the node holds."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What a gateway says of itself. `out`: nodes to which it sends nothing, or little, and why."""

    table_version: int | None
    table_age_s: float | None
    in_flight: int | None
    lost: int  # requests that failed or were given up since its start
    out: dict[str, str]
    failing_open: tuple[str, ...]  # models of which it sees no node well by the controller's word
    ways_out: tuple[WayOut, ...] | None = None  # endpoints outside that it may send requests to; None: not told
    workers: GatewayWorkers | None = None  # None: not told
    inflight: Mapping[str, int] = field(default_factory=dict)  # requests that it has open, by node
    worker_deaths: int | None = None  # ends of its workers that nobody asked for, since its own start; None: not told


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """What `/health/deep` says of the known-answer prompt: passed, failed or unknown, and how long ago in seconds."""

    result: str
    age_s: float | None
    detail: str
    is_running: bool


class NodeClient:
    """Nodes' health and admin routes, and the gateway's status. Share one; it holds the connections."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        probes: Fetcher,
        node_token: str,
        may_act: Callable[[], None] = lambda: None,
        keys: KeyRing = NO_KEYS,
    ) -> None:
        """`probes`: for the health of every node, each on a connection of its own; `http`: for what actions ask.
        `may_act`: called right before whatever changes something; raises UnreachableError.
        `keys`: of nodes that want one, by the names that specs have."""
        self.keys = keys
        self._may_act = may_act
        self._http = http
        self._probes = probes
        self._headers = {"Authorization": f"Bearer {node_token}"}

    async def health(
        self, url: str, engine: str = OWN_ENGINE, *, may_sleep: bool = False, api_key: str = ""
    ) -> NodeHealth:
        """What the node says of itself, at its engine's own path. No answer is a value too: nothing is raised.

        `may_sleep`: one that says it is ready is asked whether it sleeps, where that is a question of its own."""
        health = await self._health(url, engine_kind(engine), self.keys.header(api_key))
        if may_sleep and health.ready and await self.is_sleeping(url, engine, api_key):
            return NodeHealth(True, False, "asleep")
        return health

    async def _health(self, url: str, kind: EngineKind, authorization: str) -> NodeHealth:
        *earlier, last = kind.ready_paths
        for path in earlier:
            answered = await self._probes.get(f"{url}{path}", authorization)
            if answered.status != HTTPStatus.NOT_FOUND:
                return _health_of(kind, path, answered)
        return _health_of(kind, last, await self._probes.get(f"{url}{last}", authorization))

    async def probe(self, url: str, api_key: str = "") -> TextAnswer:
        """One page of a node, as text. No answer is a value too: nothing is raised."""
        return await self._probes.get(url, self.keys.header(api_key))

    async def deep_health(self, url: str) -> GoldenReport:
        """What the node says of its output; asking makes it look again. Raises NoAnswerError."""
        golden = (await self.admin("GET", f"{url}/health/deep", send_token=False, also=503)).get("golden")
        if not isinstance(golden, dict):
            raise NoAnswerError("/health/deep says nothing of the golden prompt")
        result, age_s, detail = golden.get("result"), golden.get("age_s"), golden.get("detail")
        return GoldenReport(
            result=result if isinstance(result, str) else "unknown",
            age_s=max(0.0, float(age_s)) if isinstance(age_s, int | float) else None,
            detail=detail if isinstance(detail, str) else "",
            is_running=golden.get("running") is True,
        )

    async def is_sleeping(self, url: str, engine: str, api_key: str = "") -> bool:
        """Whether its engine says that it sleeps; False too where it has no such word, or gives no answer now."""
        if not (path := engine_kind(engine).sleep_path):
            return False
        answered = await self.probe(f"{url}{path}", api_key)
        return answered.status == 200 and _parse_object(answered.text.encode()).get("is_sleeping") is True

    async def complete(self, url: str, body: Mapping[str, Any], *, timeout_s: float, api_key: str = "") -> object:
        """What a node answers a user's request with. Raises UnansweredError, NoAnswerError, NotAllowedError."""
        try:
            async with asyncio.timeout(timeout_s):
                content = await self._read("POST", url, dict(body), self._keyed(api_key), timeout_s)
        except TimeoutError as error:
            raise UnansweredError(f"POST {url}: no answer within {timeout_s:g} s") from error
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise NoAnswerError(f"POST {url}: its answer is not JSON") from error

    async def call(
        self, url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float, api_key: str = ""
    ) -> dict[str, Any]:
        """A POST to another engine, with its own key and never our token. Raises NoAnswerError, NotAllowedError."""
        try:
            self._may_act()
        except UnreachableError as error:
            raise NoAnswerError(f"POST {url}: not sent: {error.message}") from error
        content = await self._read("POST", url, None if body is None else dict(body), self._keyed(api_key), timeout_s)
        return _parse_object(content)

    async def drain_state(self, url: str, *, timeout_s: float = ADMIN_TIMEOUT_S) -> NodeDrain:
        """Raises NoAnswerError (SilentPeerError when it says nothing), NotAllowedError."""
        return _parse_drain(await self.admin("GET", f"{url}/admin/drain", timeout_s=timeout_s))

    async def start_drain(self, url: str, deadline_s: float) -> NodeDrain:
        """Raises NoAnswerError, NotAllowedError."""
        return _parse_drain(await self.admin("POST", f"{url}/admin/drain", {"deadline_s": deadline_s}))

    async def held_requests(self, url: str) -> object:
        """The rows of what the node holds, as it tells them. Raises NoAnswerError, NotAllowedError."""
        answer = await self.admin("GET", f"{url}/admin/requests")
        arriving = answer.get("arriving")
        more = [{"request_id": one} for one in arriving] if isinstance(arriving, list) else []
        if not isinstance(answer.get("requests"), list):
            raise NoAnswerError(f"GET {url}/admin/requests: no list of requests")
        return [*answer["requests"], *more]

    async def requests_view(self, url: str) -> HeldRequests:
        """What the node holds, for a person. Raises NoAnswerError, NotAllowedError."""
        answer = await self.admin("GET", f"{url}/admin/requests", timeout_s=PROBE_TIMEOUT_S)
        arriving = answer.get("arriving")
        try:
            rows = [HeldRequest.model_validate(row) for row in answer.get("requests", ())]
        except (ValidationError, TypeError) as error:
            raise NoAnswerError(f"GET {url}/admin/requests: not a list of requests") from error
        return HeldRequests(requests=rows, num_arriving=len(arriving) if isinstance(arriving, list) else 0)

    async def kv_blocks(self, url: str) -> KvBlocks:
        """What the node's KV cache is used for. Raises NoAnswerError, NotAllowedError."""
        answer = await self.admin("GET", f"{url}/admin/kv", timeout_s=PROBE_TIMEOUT_S)
        try:
            return KvBlocks.model_validate(answer)
        except ValidationError as error:
            raise NoAnswerError(f"GET {url}/admin/kv: not a map of blocks") from error

    async def drained_requests(self, url: str) -> object:
        """The rows of what a draining node held or refused. Raises NoAnswerError, NotAllowedError."""
        answer = await self.admin("GET", f"{url}/admin/drain?requests=true")
        if not isinstance(answer.get("requests"), list):
            raise NoAnswerError("it has no list of them")
        return answer["requests"]

    async def request_fate(self, gateway_url: str, request_id: str) -> dict[str, Any] | None:
        """What a gateway says of a request; None when it does not know it. Raises NoAnswerError, NotAllowedError."""
        path = f"{gateway_url}/gateway/requests/{quote(request_id, safe='')}"
        answer = await self.admin("GET", path, timeout_s=PROBE_TIMEOUT_S, also=HTTPStatus.NOT_FOUND)
        return answer if "fate" in answer else None

    async def resume(self, url: str) -> None:
        """Raises NoAnswerError, NotAllowedError."""
        await self.admin("POST", f"{url}/admin/resume", {})

    async def gateway_report(self, url: str) -> GatewayReport:
        """Raises NoAnswerError."""
        answer = await self.admin("GET", f"{url}/gateway/status", send_token=False, timeout_s=PROBE_TIMEOUT_S)
        return _parse_gateway(answer)

    async def gateway_tenants(self, url: str) -> list[TenantUse]:
        """What the gateway says of its tenants. Raises NoAnswerError, NotAllowedError."""
        answer = await self.admin("GET", f"{url}/gateway/tenants", timeout_s=PROBE_TIMEOUT_S)
        try:
            return [TenantUse.model_validate(row) for row in answer.get("tenants", [])]
        except (ValidationError, TypeError) as error:
            raise NoAnswerError(f"GET {url}/gateway/tenants: not a list of tenants") from error

    async def gateway_shadow(self, url: str, rule_id: str) -> tuple[float, int] | None:
        """Mean agreement of the answers that the gateway compared for the rule, and their number; None: it knows none.

        Raises NoAnswerError, NotAllowedError.
        """
        answer = await self.admin("GET", f"{url}/gateway/shadow", timeout_s=PROBE_TIMEOUT_S)
        try:
            report = next((one for one in answer["shadows"] if one["rule"] == rule_id), None)
            return None if report is None else (float(report["mean_agreement"] or 0.0), int(report["compared"]))
        except (KeyError, TypeError, ValueError) as error:
            raise NoAnswerError(f"GET {url}/gateway/shadow: not a list of shadows") from error

    async def gateway_table_version(self, url: str) -> int:
        """Raises NoAnswerError."""
        version = (await self.gateway_report(url)).table_version
        if version is None:
            raise NoAnswerError("the gateway states no table_version")
        return version

    async def admin(
        self,
        method: str,
        url: str,
        body: dict[str, Any] | None = None,
        *,
        send_token: bool = True,
        timeout_s: float = ADMIN_TIMEOUT_S,
        also: int | None = None,
    ) -> dict[str, Any]:
        """The object that a node or gateway answers with. Raises NoAnswerError, NotAllowedError."""
        headers = self._headers if send_token else {}
        if method != "GET":
            try:
                self._may_act()
            except UnreachableError as error:
                raise NoAnswerError(f"{method} {url}: not sent: {error.message}") from error
        return _parse_object(await self._read(method, url, body, headers, timeout_s, also))

    def _keyed(self, api_key: str) -> dict[str, str]:
        header = self.keys.header(api_key)
        return {"Authorization": header} if header else {}

    async def _read(
        self,
        method: str,
        url: str,
        body: dict[str, Any] | None,
        headers: Mapping[str, str],
        timeout_s: float,
        also: int | None = None,
    ) -> bytes:
        """The body of a good answer. Raises NoAnswerError, NotAllowedError."""
        try:
            async with self._http.stream(method, url, json=body, headers=headers, timeout=timeout_s) as response:
                content = await read_limited(response, MAX_ANSWER_BYTES)
                if content is None:
                    raise NoAnswerError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        except httpx.PoolTimeout as error:  # our own queue: it says nothing about the peer
            raise NoAnswerError(f"{method} {url}: {describe(error)}") from error
        except httpx.ReadTimeout as error:
            raise UnansweredError(f"{method} {url}: no answer within {timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise SilentPeerError(f"{method} {url}: {describe(error)}") from error
        except httpx.HTTPError as error:
            raise NoAnswerError(f"{method} {url}: {describe(error)}") from error
        if response.status_code in (401, 403):
            raise NotAllowedError(f"{method} {url}: the node refuses the controller's token, or key")
        if not response.is_success and response.status_code != also:
            said = _words_of(content)
            words = f"{method} {url}: answered {response.status_code}{f': {said}' if said else ''}"
            raise BadStatusError(words, response.status_code, said)
        return content


def _health_of(kind: EngineKind, path: str, answered: TextAnswer) -> NodeHealth:
    status = answered.status
    if status is None:
        return NodeHealth(False, False, f"no answer: {answered.problem}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return NodeHealth(True, False, f"{path} answers {status}: it wants a key")
    if status not in (200, 503):
        return NodeHealth(False, False, f"{path} answers {status}")
    if status == 200 and not kind.is_own:
        return NodeHealth(True, True, "ready")
    answer = _parse_object(answered.text.encode())
    reason = answer.get("reason") if kind.is_own else _foreign_reason(kind, answered.text)
    since = answer.get("since") if kind.is_own else None
    return NodeHealth(
        answered=True,
        ready=status == 200,
        reason=reason if isinstance(reason, str) else ("ready" if status == 200 else "not ready, without a reason"),
        since=float(since) if isinstance(since, int | float) else None,
    )


def _foreign_reason(kind: EngineKind, text: str) -> str:
    """Why another engine is not ready, in the words that our own nodes have for it."""
    if kind.unready_reason:
        return kind.unready_reason
    return "loading" if "loading" in text.lower() else f"{kind.title} says no more"


def describe(error: Exception) -> str:
    """A short reason; httpx's time-outs have an empty message."""
    return str(error) or type(error).__name__


def _parse_object(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _words_of(content: bytes) -> str:
    """What an error answer says, in the shapes that engines have; for people, one short line."""
    told = _parse_object(content)
    inner = told.get("error")
    found = inner.get("message") if isinstance(inner, dict) else inner
    words = next((one for one in (found, *map(told.get, _ERROR_KEYS)) if isinstance(one, str)), "")
    return " ".join((words or content[:MAX_WORDS].decode("utf-8", "replace")).split())[:MAX_WORDS]


def _parse_drain(answer: dict[str, Any]) -> NodeDrain:
    state = answer.get("state")
    if state not in ("serving", "draining", "drained"):
        raise NoAnswerError(f"the node states an unknown drain state {state!r}")
    receipt = answer.get("receipt")
    running, waiting = answer.get("running"), answer.get("waiting")
    if not isinstance(running, int) or not isinstance(waiting, int):
        # Not zero: a node that doesn't say what it holds must not be taken for idle.
        raise NoAnswerError("the node does not say how many requests it holds")
    counts = receipt if isinstance(receipt, dict) else {}
    return NodeDrain(state, running, waiting, {k: v for k, v in counts.items() if isinstance(v, int)})


def _ways_out(told: object) -> tuple[WayOut, ...] | None:
    if not isinstance(told, list):
        return None
    rows = [row for row in told if isinstance(row, dict)]
    return tuple(
        WayOut(
            str(row.get("endpoint")),
            frozenset(str(model) for model in models) if isinstance(models := row.get("models"), list) else frozenset(),
            float(left) if isinstance(left := row.get("budget_left"), int | float) else None,
        )
        for row in rows
    )


def _parse_gateway(answer: dict[str, Any]) -> GatewayReport:
    if "table_version" not in answer:
        raise NoAnswerError("the gateway states no table_version")
    nodes, outcomes, failing_open = answer.get("nodes"), answer.get("outcomes"), answer.get("failing_open")
    counts = outcomes if isinstance(outcomes, dict) else {}
    workers = answer.get("workers")
    deaths = workers.get("deaths") if isinstance(workers, dict) else None
    try:
        told_workers = None if workers is None else GatewayWorkers.model_validate(workers)
    except ValidationError:
        told_workers = None
    version, age_s, in_flight = (answer.get(key) for key in ("table_version", "table_age_s", "in_flight"))
    return GatewayReport(
        table_version=version if isinstance(version, int) and not isinstance(version, bool) else None,
        table_age_s=float(age_s) if isinstance(age_s, int | float) else None,
        in_flight=in_flight if isinstance(in_flight, int) else None,
        lost=sum(count for key in ("failed", "gave_up") if isinstance(count := counts.get(key), int)),
        inflight={
            str(node): facts["inflight"]
            for node, facts in (nodes if isinstance(nodes, dict) else {}).items()
            if isinstance(facts, dict) and isinstance(facts.get("inflight"), int)
        },
        out={
            str(node): str(facts["out"])
            for node, facts in (nodes if isinstance(nodes, dict) else {}).items()
            if isinstance(facts, dict) and facts.get("out")
        },
        failing_open=tuple(str(model) for model in failing_open) if isinstance(failing_open, list) else (),
        ways_out=_ways_out(answer.get("overflow")),
        workers=told_workers,
        worker_deaths=deaths if isinstance(deaths, int) else None,
    )
