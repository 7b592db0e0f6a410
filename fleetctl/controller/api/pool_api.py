"""Pools over HTTP: their size, revisions, rollouts and autoscaler."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fleetctl.controller.api.answer import answer
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import note, read_body
from fleetctl.controller.http_pages import listed
from fleetctl.controller.rollouts.views import rollout_view
from fleetctl.providers.provider import capacity_of
from fleetctl.wire.autoscaler import AutoscalerRequest
from fleetctl.wire.group import GroupBy, GroupLoad
from fleetctl.wire.pool import Pool, PoolState, Revision
from fleetctl.wire.rollout import Rollout


class PoolApi:
    """Routes of pools and of what decides about them."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def pools(self, request: Request) -> Response:
        return listed(request, await self._pools())

    async def pool(self, request: Request) -> Response:
        name = request.path_params["name"]
        views = await self._pools()
        found = next((pool for pool in views if pool.name == name), None)
        if found is None:
            known = ", ".join(pool.name for pool in views) or "none"
            raise HTTPException(404, f"there is no pool named {name[:100]}; pools: {known}")
        return answer(found)

    async def _pools(self) -> list[Pool]:
        views = await self._c.pools.views()
        loads = self._loads(GroupBy.POOL)
        return [
            one.model_copy(
                update={
                    "autoscaler": self._c.autoscaling.words_of(one.name),
                    **self._room_of(one.name),
                    **_load_of(one.name, loads),
                }
            )
            for one in views
        ]

    def _room_of(self, pool: str) -> dict[str, object]:
        """How many more nodes the pool can get, as its newest node's provider knows."""
        rows = [state.row for state in self._c.fleet.nodes.values() if state.row.spec.pool == pool]
        if not rows:
            return {}
        room = capacity_of(self._c.provider, max(rows, key=lambda row: row.created_at).spec)
        return {"more": room.more, "more_why": room.why}

    def _loads(self, by: GroupBy) -> dict[str, GroupLoad]:
        return {group.name: group.load for group in self._c.groups.groups(by)}

    async def autoscaler(self, request: Request) -> Response:
        return listed(request, await self._c.autoscaling.views())

    async def configure_autoscaler(self, request: Request) -> Response:
        body = await read_body(request, AutoscalerRequest)
        pool = request.path_params["pool"]
        said = body.model_dump(exclude={"by"}, exclude_none=True)
        words = " ".join(f"{key}={value}" for key, value in said.items())
        who = note(request, claim=body.by, target=f"pool/{pool}", why=words)
        return answer(await self._c.autoscaling.configure(pool, body.model_copy(update={"by": who})))

    async def revisions(self, request: Request) -> Response:
        return listed(request, await self._revisions())

    async def revision(self, request: Request) -> Response:
        views = await self._revisions()
        found = next((revision for revision in views if revision.id == request.path_params["id"]), None)
        if found is None:
            raise HTTPException(404, f"there is no revision {request.path_params['id'][:100]}")
        return answer(found)

    async def _revisions(self) -> list[Revision]:
        loads = self._loads(GroupBy.REVISION)
        views = await self._c.pools.revision_views()
        return [one.model_copy(update=_load_of(one.id, loads)) for one in views]

    async def rollouts(self, request: Request) -> Response:
        return listed(request, await self._rollouts(request.query_params.get("pool")))

    async def rollout(self, request: Request) -> Response:
        found = next((one for one in await self._rollouts(None) if one.id == request.path_params["id"]), None)
        if found is None:
            raise HTTPException(404, f"there is no rollout {request.path_params['id'][:100]}")
        return answer(found)

    async def _rollouts(self, pool: str | None) -> list[Rollout]:
        """The newest first; those under way with what is seen of their pools."""
        statuses = {one.rollout.id: one for one in await self._c.rollouts.statuses()}
        known = await self._c.rollouts.history(pool)
        of_pods = await self._c.pod_rollouts.views(pool)
        held = {one.name: one.reason for one in await self._c.pools.views() if one.state is PoolState.HELD}
        own = [rollout_view(one, statuses.get(one.id), held.get(one.pool, "")) for one in known]
        return [*of_pods, *own]


def _load_of(name: str, loads: Mapping[str, GroupLoad]) -> dict[str, GroupLoad]:
    """What a view is updated with; nothing where no node of it is wanted."""
    return {"load": loads[name]} if name in loads else {}
