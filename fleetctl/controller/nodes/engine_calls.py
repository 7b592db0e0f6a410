"""What a node's engine does by itself when it is asked: limits, prefix cache, sleep, adapters, profiles.

Each call finds its work done; what an engine has no call for, or has switched off, is refused before anything changes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.controller.nodes.node_answers import BadStatusError, NoAnswerError, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.engines.engine_call import ENGINE_CALLS, EngineAct, EngineCall
from fleetctl.engines.table import engine_kind
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.held import HeldRequests, KvBlocks
from runbooks.ports import NotPossibleError, PermanentError, Receipt, TemporaryError

_NEVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
"""What a node says no to, and will again."""

_ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_NOT_THERE = re.compile(r"not (be )?(found|loaded)|does not exist", re.IGNORECASE)
SLEEP_LIMIT_S = 60.0
PROFILE_LIMIT_S = 120.0  # some write their file before they answer

LIMITS_BEFORE = "limits_before"
"""Key of the stored limits, by node: the instance that has them, and for each run what held before its change."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that runs, and where."""

    spec: NodeSpec
    url: str
    instance: str

    @property
    def is_own(self) -> bool:
        return engine_kind(self.spec.engine).is_own


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """Asks one node at a time: ours through its admin routes, others through the calls that their engine has."""

    database: Database
    provider: NodeProvider
    client: NodeClient

    async def set_limits(self, name: str, limits: Mapping[str, int], seats_ratio: float | None, run_id: str) -> Receipt:
        """What held before the run's first call is stored before anything is changed."""
        url, instance = await self._running(name)
        now = await self._ask("GET", f"{url}/admin/limits")
        before = await self.database.write(lambda c: _keep_limits(c, name, instance, run_id, now))
        if seats_ratio is not None:
            limits = {**limits, "max_num_seqs": max(1, int(before["max_num_seqs"] * seats_ratio))}
        after = await self._ask("POST", f"{url}/admin/limits", dict(limits))
        return {"node": name, "before": _only(before, limits), "limits": _only(after, limits)}

    async def restore_limits(self, name: str, run_id: str) -> Receipt:
        """A node that was restarted since has the limits of its settings already."""
        url, instance = await self._running(name)
        before = await self.database.read(lambda c: _kept_limits(c, name, instance, run_id))
        if before is None:
            return {"node": name, "note": "nothing changed its limits since it was started"}
        after = await self._ask("POST", f"{url}/admin/limits", before)
        await self.database.write(lambda c: _drop_limits(c, name, run_id))
        return {"node": name, "limits": after}

    async def reset_prefix_cache(self, name: str) -> Receipt:
        """Done before any request that comes after it."""
        node = await self._node(name)
        if node.is_own:
            await self._ask("POST", f"{node.url}/admin/reset_prefix_cache")
        else:
            answer = await self._call(node, EngineAct.RESET_PREFIX_CACHE)
            if answer.get("success") is False:
                raise TemporaryError(f"{name}: its engine could not reset its prefix cache now")
        return {"node": name, "reset": True}

    async def load_adapter(self, name: str, adapter: str, path: str) -> Receipt:
        """One that is loaded under this name is left as it is."""
        node = await self._node(name)
        if adapter in await self._models(node):
            return {"node": name, "adapter": adapter, "note": "it was loaded already"}
        try:
            await self._call(node, EngineAct.LOAD_ADAPTER, {"lora_name": adapter, "lora_path": path})
        except NotPossibleError as error:
            if "already" not in str(error):  # SGLang's releases do not all list adapters among models
                raise
            return {"node": name, "adapter": adapter, "note": "it was loaded already"}
        return {"node": name, "adapter": adapter, "path": path}

    async def unload_adapter(self, name: str, adapter: str) -> Receipt:
        """One that is not loaded is unloaded."""
        node = await self._node(name)
        if adapter == node.spec.model:
            raise NotPossibleError(f"{name}: {adapter} is its model, and no adapter")
        try:
            await self._call(node, EngineAct.UNLOAD_ADAPTER, {"lora_name": adapter})
        except NotPossibleError as error:
            if not _NOT_THERE.search(str(error)):
                raise
            return {"node": name, "adapter": adapter, "note": "it was not loaded"}
        return {"node": name, "adapter": adapter}

    async def set_profiling(self, name: str, *, is_on: bool) -> Receipt:
        """What a second start does is the engine's matter."""
        act = EngineAct.START_PROFILE if is_on else EngineAct.STOP_PROFILE
        await self._call(await self._node(name), act, timeout_s=PROFILE_LIMIT_S)
        return {"node": name, "profiling": is_on}

    async def require(self, name: str, act: EngineAct) -> None:
        """Raises NotPossibleError when the node's engine has no route for it: before anything is changed."""
        node = await self._node(name)
        if not node.is_own:
            await self._require(node, act)

    async def fall_asleep(self, name: str) -> Receipt:
        """The node must hold nothing: whoever calls this has made sure."""
        node = await self._node(name)
        if node.is_own:
            answer = await self._ask("POST", f"{node.url}/admin/sleep?level=1", timeout_s=SLEEP_LIMIT_S)
            return {"node": name, "state": answer.get("state"), "weights": answer.get("weights")}
        if not await self._sleeps(node):
            await self._call(node, EngineAct.SLEEP, timeout_s=SLEEP_LIMIT_S)
        if not await self._sleeps(node):
            raise TemporaryError(f"{name}: its engine took the call, and does not say that it sleeps")
        return {"node": name, "state": "asleep"}

    async def wake_up(self, name: str, wait_s: float) -> Receipt:
        """One that is awake says so."""
        node = await self._node(name)
        if not node.is_own:
            await self._require(node, EngineAct.WAKE)
            if await self._sleeps(node):
                await self._call(node, EngineAct.WAKE, timeout_s=max(wait_s, 1.0))
            return {"node": name, "state": "awake"}
        if (await self._ask("GET", f"{node.url}/admin/sleep")).get("state") == "awake":
            return {"node": name, "state": "awake"}
        answer = await self._ask("POST", f"{node.url}/admin/wake_up", timeout_s=max(wait_s, 1.0))
        return {"node": name, "state": answer.get("state")}

    async def held_requests(self, name: str) -> dict[str, Any]:
        """Requests in flight, without prompts and texts. Raises NoAnswerError, NotAllowedError."""
        url, _ = await self._running(name)
        return await self.client.admin("GET", f"{url}/admin/requests")

    async def requests_view(self, name: str) -> HeldRequests:
        """Requests in flight, for a person: that nobody can say is an answer too."""
        try:
            url, _ = await self._running(name)
            return await self.client.requests_view(url)
        except NotAllowedError as error:
            return HeldRequests(unknown=str(error), is_refused=True)
        except (PermanentError, NoAnswerError) as error:
            return HeldRequests(unknown=str(error))

    async def kv_blocks(self, name: str) -> KvBlocks:
        """What its KV cache is used for: that nobody can say is an answer too."""
        try:
            url, _ = await self._running(name)
            return await self.client.kv_blocks(url)
        except (PermanentError, NoAnswerError, NotAllowedError) as error:
            return KvBlocks(unknown=str(error))

    async def page(self, name: str, path: str) -> str:
        """What a node's page says, with the key that it wants. Raises PermanentError."""
        node = await self._node(name)
        answer = await self.client.probe(f"{node.url}{path}", node.spec.api_key)
        if answer.status is None:
            raise PermanentError(f"no answer: {answer.problem}")
        return answer.text

    async def _running(self, name: str) -> tuple[str, str]:
        """Address and instance of a node of our engine."""
        node = await self._node(name)
        if not node.is_own:
            engine = node.spec.engine or "an engine that is not known"
            raise PermanentError(f"{name} runs {engine}: it can't be asked this")
        return node.url, node.instance

    async def _node(self, name: str) -> _Node:
        row = await self.database.read(lambda c: get_node(c, name))
        if row is None or not row.wanted:
            raise PermanentError(f"{name} is not a node that should run")
        view = await asyncio.to_thread(self.provider.observe, name)
        if not view.running or not view.url:
            raise PermanentError(f"{name} does not run")
        return _Node(row.spec, view.url, view.instance or "")

    async def _call(
        self, node: _Node, act: EngineAct, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """The engine's own call, where it has one that is switched on."""
        call, name = await self._require(node, act), node.spec.name
        try:
            url = f"{node.url}{call.path}"
            return await self.client.call(url, body, timeout_s=timeout_s, api_key=node.spec.api_key)
        except NotAllowedError as error:
            raise NotPossibleError(f"{name}: {error}") from error
        except BadStatusError as error:
            if error.status in _ABSENT and call.answers_get:  # else the route is there: it is about its object
                raise NotPossibleError(_absent(node, call, error.status)) from error
            if error.status == HTTPStatus.BAD_REQUEST and act is EngineAct.RESET_PREFIX_CACHE:
                raise TemporaryError(f"{name}: {error.said or 'its engine is busy'}") from error
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR or "not enabled" in error.said:  # vLLM: 500
                needs = f" (it needs {call.needs})" if call.needs else ""
                raise NotPossibleError(f"{name}: its engine refuses to {act.value}: {error.said}{needs}") from error
            raise TemporaryError(f"{name}: {error}") from error
        except NoAnswerError as error:
            raise TemporaryError(f"{name}: {error}") from error

    async def _require(self, node: _Node, act: EngineAct) -> EngineCall:
        call = ENGINE_CALLS.get(node.spec.engine, {}).get(act)
        if call is None:
            title = engine_kind(node.spec.engine).title
            raise NotPossibleError(f"{node.spec.name}: {title} has no call to {act.value}")
        if not call.answers_get:
            answer = await self.client.probe(f"{node.url}{call.path}", node.spec.api_key)
            if answer.status == HTTPStatus.NOT_FOUND:
                raise NotPossibleError(_absent(node, call, answer.status))
        return call

    async def _sleeps(self, node: _Node) -> bool:
        return await self.client.is_sleeping(node.url, node.spec.engine, node.spec.api_key)

    async def _models(self, node: _Node) -> set[str]:
        """Names that it serves, its adapters among them."""
        answer = await self.client.probe(f"{node.url}/v1/models", node.spec.api_key)
        try:
            return {str(row["id"]) for row in json.loads(answer.text)["data"]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = answer.problem or f"answers {answer.status}"
            raise TemporaryError(f"{node.spec.name}: does not list its models: {why}") from error

    async def _ask(
        self, method: str, url: str, body: dict[str, Any] | None = None, *, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        try:
            return await self.client.admin(method, url, body, timeout_s=timeout_s)
        except NotAllowedError as error:
            raise PermanentError(str(error)) from error
        except NoAnswerError as error:
            if isinstance(error, BadStatusError) and error.status in _NEVER:
                raise PermanentError(str(error)) from error
            raise TemporaryError(str(error)) from error


def _absent(node: _Node, call: EngineCall, status: int) -> str:
    path = call.path.partition("?")[0]
    needs = f": it is not switched on; start the engine with {call.needs}" if call.needs else ""
    return f"{node.spec.name}: {path} answers {status}{needs}"


def _only(limits: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    return {key: limits.get(key) for key in named}


def _keep_limits(
    connection: sa.Connection, name: str, instance: str, run_id: str, now: Mapping[str, Any]
) -> dict[str, Any]:
    """What held before the run's first change of this instance, stored now if it was not."""
    kept: dict[str, Any] = get_meta(connection, f"{LIMITS_BEFORE}:{name}") or {}
    by_run: dict[str, Any] = kept.get("by_run", {}) if kept.get("instance") == instance else {}
    before: dict[str, Any] = by_run.setdefault(run_id, dict(now))
    put_meta(connection, f"{LIMITS_BEFORE}:{name}", {"instance": instance, "by_run": by_run})
    return before


def _kept_limits(connection: sa.Connection, name: str, instance: str, run_id: str) -> dict[str, Any] | None:
    kept: dict[str, Any] = get_meta(connection, f"{LIMITS_BEFORE}:{name}") or {}
    if kept.get("instance") != instance or not kept["by_run"]:
        return None
    found: dict[str, Any] = kept["by_run"].get(run_id) or next(iter(kept["by_run"].values()))
    return found


def _drop_limits(connection: sa.Connection, name: str, run_id: str) -> None:
    """A run forgets its own; without one, nothing is changed any more."""
    kept: dict[str, Any] = get_meta(connection, f"{LIMITS_BEFORE}:{name}") or {}
    by_run: dict[str, Any] = kept.get("by_run", {})
    by_run = {run: limits for run, limits in by_run.items() if run != run_id} if run_id in by_run else {}
    put_meta(connection, f"{LIMITS_BEFORE}:{name}", {**kept, "by_run": by_run})
