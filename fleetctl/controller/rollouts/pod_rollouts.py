"""Rollouts of pools that are pods: Kubernetes exchanges them, we pass orders on and say how they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.providers.pool_rollout import PoolRollout, RollsPools
from fleetctl.wire.rollout import Rollout
from runbooks.ports import (
    PermanentError,
    Receipt,
    RevisionFacts,
    RolloutFacts,
    RolloutOrder,
    RolloutOrderKind,
    TemporaryError,
)

IMAGE = "image="


class PodRollouts:
    """The pools of one provider, before all others': a pool that has a pod is Kubernetes' to roll out."""

    def __init__(
        self,
        rolls: RollsPools | None,
        own_facts: Callable[[], Awaitable[RevisionFacts]],
        own_order: Callable[[RolloutOrder], Awaitable[Receipt]],
        require_lease: Callable[[], None],
    ) -> None:
        """`own_facts`, `own_order`: of the controller's own rollouts, for every other pool."""
        self._rolls = rolls
        self._own_facts, self._own_order = own_facts, own_order
        self._require_lease = require_lease

    async def facts(self) -> RevisionFacts:
        """What plans need: of pods as their workloads say. Raises FleetctlError when these can't be looked at."""
        own, found = await self._own_facts(), await self._found()
        return RevisionFacts(own.revisions, {**own.pools, **{name: _facts(one) for name, one in found.items()}})

    async def order(self, order: RolloutOrder) -> Receipt:
        """Pass it on. Called again it finds the workload as it was told to be."""
        rolls = self._rolls
        standing = (await self._looked()).get(order.pool)
        if rolls is None or standing is None:
            return await self._own_order(order)
        try:
            self._require_lease()
            match order.kind:
                case RolloutOrderKind.PAUSE | RolloutOrderKind.RESUME:
                    held = order.kind is RolloutOrderKind.PAUSE
                    await asyncio.to_thread(rolls.hold_rollout, order.pool, held=held)
                    what = "paused" if held else "goes on"
                case RolloutOrderKind.START if not order.args["to"]:
                    image = str(order.args["settings"][0]).removeprefix(IMAGE)
                    await asyncio.to_thread(rolls.roll_image, order.pool, image)
                    what = f"its image is {image}"
                case RolloutOrderKind.START | RolloutOrderKind.ROLLBACK:
                    await asyncio.to_thread(rolls.roll_to, order.pool, order.args["to"])
                    what = f"its template is that of {order.args['to']}"
                case _:
                    raise PermanentError(standing.cannot.get(order.kind.value, "it has no steps"))
        except UnreachableError as error:
            raise TemporaryError(error.message) from error
        except FleetctlError as error:
            raise PermanentError(error.message) from error
        was = standing.current
        return {
            "workload": standing.workload,
            "was": was.id if was is not None else None,
            "told": f"{standing.workload}: {what}; it goes on by itself: fleetctl rollout status {order.pool}",
        }

    async def views(self, pool: str | None = None) -> list[Rollout]:
        """Of each pool the one that is, or was last; none while the cluster can't be looked at."""
        try:
            found = await self._found()
        except FleetctlError:
            return []
        return [_view(one) for name, one in sorted(found.items()) if pool in (None, name) and one.current is not None]

    async def _found(self) -> Mapping[str, PoolRollout]:
        return {} if self._rolls is None else await asyncio.to_thread(self._rolls.pool_rollouts)

    async def _looked(self) -> Mapping[str, PoolRollout]:
        try:
            return await self._found()
        except FleetctlError as error:
            raise TemporaryError(error.message) from error


def _facts(rollout: PoolRollout) -> RolloutFacts:
    current, earlier = rollout.current, rollout.earlier
    under_way = rollout.state if rollout.state != "done" else ""
    return RolloutFacts(
        revision=current.id if current is not None else "",
        earlier=earlier.id if earlier is not None else "",
        state=under_way,
        to=current.id if under_way and current is not None else "",
        size=rollout.size,
        kept=tuple(one.id for one in rollout.revisions),
        workload=rollout.workload,
        cannot=rollout.cannot,
    )


def _view(rollout: PoolRollout) -> Rollout:
    current, earlier = rollout.current, rollout.earlier
    assert current is not None
    view = Rollout(
        id=rollout.workload.replace("/", "-"),
        pool=rollout.pool,
        state=rollout.state,
        from_revision=earlier.id if earlier is not None else "",
        to_revision=current.id,
        steps=[1.0],
        share=1.0,
        gated=False,
        needs_person=rollout.state in ("paused", "failed"),
        why=rollout.why,
        started_at=current.created_at,
        started_by=rollout.workload,
        reason=f"image {', '.join(current.images)}",
        updated_at=current.created_at,
        updated_by=rollout.workload,
    )
    if view.is_ended:
        return view
    waits = f"{rollout.new_ready} of {rollout.size} nodes of the new revision ready"
    if rollout.state == "paused":
        waits = f"a person: fleetctl rollout resume {rollout.pool}; {waits}"
    counts = {"new_nodes": rollout.new, "new_ready": rollout.new_ready, "other_nodes": rollout.size - rollout.new}
    return view.model_copy(update={**counts, "waits_for": waits})
