"""What a node's engine does by itself when it is asked: limits, prefix cache, sleep. Each call finds its work done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.controller.nodes.node_client import BadStatusError, NoAnswerError, NodeClient, NotAllowedError
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.engines.table import engine_kind
from fleetctl.providers.provider import NodeProvider
from runbooks.ports import PermanentError, Receipt, TemporaryError

_NEVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
"""What a node says no to, and will again."""

LIMITS_BEFORE = "limits_before"
"""Key of the stored limits, by node: the instance that has them, and for each run what held before its change."""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """Asks one node at a time through its admin routes."""

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
        url, _ = await self._running(name)
        await self._ask("POST", f"{url}/admin/reset_prefix_cache")
        return {"node": name, "reset": True}

    async def fall_asleep(self, name: str) -> Receipt:
        """The node must hold nothing: whoever calls this has made sure."""
        url, _ = await self._running(name)
        answer = await self._ask("POST", f"{url}/admin/sleep?level=1", timeout_s=60.0)
        return {"node": name, "state": answer.get("state"), "weights": answer.get("weights")}

    async def wake_up(self, name: str, wait_s: float) -> Receipt:
        """One that is awake says so."""
        url, _ = await self._running(name)
        if (await self._ask("GET", f"{url}/admin/sleep")).get("state") == "awake":
            return {"node": name, "state": "awake"}
        answer = await self._ask("POST", f"{url}/admin/wake_up", timeout_s=max(wait_s, 1.0))
        return {"node": name, "state": answer.get("state")}

    async def held_requests(self, name: str) -> dict[str, Any]:
        """Requests in flight, without prompts and texts. Raises NoAnswerError, NotAllowedError."""
        url, _ = await self._running(name)
        return await self.client.admin("GET", f"{url}/admin/requests")

    async def _running(self, name: str) -> tuple[str, str]:
        row = await self.database.read(lambda c: get_node(c, name))
        if row is None or not row.wanted:
            raise PermanentError(f"{name} is not a node that should run")
        if not engine_kind(row.spec.engine).is_own:
            raise PermanentError(
                f"{name} runs {row.spec.engine or 'an engine that is not known'}: it can't be asked this"
            )
        view = await asyncio.to_thread(self.provider.observe, name)
        if not view.running or not view.url:
            raise PermanentError(f"{name} does not run")
        return view.url, view.instance or ""

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
