"""Pools and revisions as they stand: what is stored of them beside the nodes as last seen and the runs that act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from fleetctl import wire
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.node_row import NodeRow, list_nodes
from fleetctl.controller.nodes.pool_row import PoolRow, RevisionRow, list_pools, list_revisions
from fleetctl.controller.records import Records
from runbooks.run import Run
from runbooks.target import Target, TargetKind

ActiveRuns = Callable[[], Awaitable[Sequence[Run]]]
"""The runs that are approved and not at their end."""


class Pools:
    """Reads pools and revisions for whoever shows them."""

    def __init__(self, records: Records, fleet: Fleet, active_runs: ActiveRuns, *, stale_after_s: float) -> None:
        """`stale_after_s`: a node that was not looked at for so long is in an unknown state."""
        self._database = records.database
        self._clock = records.clock
        self._fleet = fleet
        self._active_runs = active_runs
        self._stale_after_s = stale_after_s

    async def views(self) -> list[wire.Pool]:
        """Every pool by name."""
        pools, rows = await self._database.read(lambda c: (list_pools(c), list_nodes(c)))
        runs = await self._active_runs()
        return [self._view(pool, [row for row in rows if row.spec.pool == pool.name], runs) for pool in pools]

    async def revision_views(self) -> list[wire.Revision]:
        """Every revision, the newest first."""
        revisions, pools, rows = await self._database.read(lambda c: (list_revisions(c), list_pools(c), list_nodes(c)))
        return [revision_view(one, pools, rows) for one in revisions]

    def _view(self, pool: PoolRow, rows: Sequence[NodeRow], runs: Iterable[Run]) -> wire.Pool:
        wanted = [row for row in rows if row.wanted]
        states = [state for row in wanted if (state := self._known(row.name)) is not None]
        holder = next((run for run in runs if acts_on(run, pool.name, {row.name for row in rows})), None)
        return wire.Pool(
            name=pool.name,
            model=pool.model,
            wanted=pool.wanted_size,
            nodes=len(wanted),
            ready=sum(state.is_serving for state in states),
            unknown=len(wanted) - len(states),
            revision=pool.revision,
            revisions=Counter(row.spec.revision for row in wanted),
            owner=pool.owner.value,
            held_by=holder.id if holder is not None else None,
            updated_at=pool.updated_at,
            updated_by=pool.updated_by,
        )

    def _known(self, name: str) -> NodeState | None:
        """What was seen of the node lately; None when that is not known."""
        age_s = self._clock.now() - self._fleet.seen_at(name)
        return self._fleet.nodes.get(name) if age_s <= self._stale_after_s else None


def revision_view(row: RevisionRow, pools: Iterable[PoolRow], nodes: Iterable[NodeRow]) -> wire.Revision:
    """A revision with the nodes and pools that have it."""
    revision_id = row.revision.id
    return wire.Revision(
        id=revision_id,
        created_at=row.created_at,
        nodes=[node.name for node in nodes if node.wanted and node.spec.revision == revision_id],
        pools=[pool.name for pool in pools if pool.revision == revision_id],
        **row.revision.to_json(),
    )


def acts_on(run: Run, pool: str, nodes: Iterable[str]) -> bool:
    """Whether the run changes the pool or one of these nodes of it."""
    meant = {Target(TargetKind.POOL, pool), Target(TargetKind.FLEET, "")}
    meant |= {Target(TargetKind.NODE, name) for name in nodes}
    return not run.dry_run and not meant.isdisjoint(run.targets)
