"""How the controller talks to nodes and the gateway: short HTTP calls whose every failure is a value or one error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from fleetctl.controller.nodes.node_answers import (
    BadStatusError,
    GatewayReport,
    GoldenReport,
    NoAnswerError,
    NodeDrain,
    NodeHealth,
    NotAllowedError,
    SilentPeerError,
    UnansweredError,
    health_of,
    parse_drain,
    parse_gateway,
    parse_object,
    words_of,
)
from fleetctl.engines.kind import OWN_ENGINE, EngineKind
from fleetctl.engines.table import engine_kind
from fleetctl.kit.errors import UnreachableError
from fleetctl.kit.fetch import Fetcher, TextAnswer
from fleetctl.kit.http_body import read_limited
from fleetctl.kit.key_ring import NO_KEYS, KeyRing
from fleetctl.wire.held import HeldRequest, HeldRequests, KvBlocks
from fleetctl.wire.tenant import TenantUse

PROBE_TIMEOUT_S = 2.0
ADMIN_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 * 1024


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
                return health_of(kind, path, answered)
        return health_of(kind, last, await self._probes.get(f"{url}{last}", authorization))

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
        return answered.status == 200 and parse_object(answered.text.encode()).get("is_sleeping") is True

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
        return parse_object(content)

    async def drain_state(self, url: str, *, timeout_s: float = ADMIN_TIMEOUT_S) -> NodeDrain:
        """Raises NoAnswerError (SilentPeerError when it says nothing), NotAllowedError."""
        return parse_drain(await self.admin("GET", f"{url}/admin/drain", timeout_s=timeout_s))

    async def start_drain(self, url: str, deadline_s: float) -> NodeDrain:
        """Raises NoAnswerError, NotAllowedError."""
        return parse_drain(await self.admin("POST", f"{url}/admin/drain", {"deadline_s": deadline_s}))

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
        return parse_gateway(answer)

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
        return parse_object(await self._read(method, url, body, headers, timeout_s, also))

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
            said = words_of(content)
            words = f"{method} {url}: answered {response.status_code}{f': {said}' if said else ''}"
            raise BadStatusError(words, response.status_code, said)
        return content


def describe(error: Exception) -> str:
    """A short reason; httpx's time-outs have an empty message."""
    return str(error) or type(error).__name__
