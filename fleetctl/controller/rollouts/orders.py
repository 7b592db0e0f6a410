"""What an order of a person makes of a pool's rollout: begun, changed, sent back, or refused. Inside a transaction."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.nodes.pool_row import PoolRow, get_revision, store_revision
from fleetctl.controller.nodes.revision import Revision
from fleetctl.controller.rollouts.rollout import Rollout, RolloutState
from fleetctl.providers.spec import NodeSpec
from runbooks.ports import PermanentError, RolloutOrder, RolloutOrderKind


def ordered(
    connection: sa.Connection, order: RolloutOrder, pool: PoolRow, standing: Rollout | None, now: float
) -> Rollout | None:
    """The rollout as the order leaves it; None: it is so already. Raises PermanentError."""
    args = order.args
    why = order.reason or "asked for"
    changed: dict[str, Any] = {"at": now, "by": order.by, "why": why}
    if order.override:
        changed |= {"override": order.override, "override_at": now}
    match order.kind:
        case RolloutOrderKind.START:
            return _begun(connection, order, pool, standing, now)
        case RolloutOrderKind.ROLLBACK:
            return _returned(order, pool, standing, changed)
    if standing is None:
        raise PermanentError(f"no rollout of pool {pool.name} is under way")
    if standing.state is RolloutState.ROLLING_BACK:
        raise PermanentError(f"{standing.id} is rolling back")
    match order.kind:
        case RolloutOrderKind.PAUSE:
            return None if standing.state is RolloutState.PAUSED else standing.moved(RolloutState.PAUSED, **changed)
        case RolloutOrderKind.RESUME:
            return standing.at_step(standing.step, **changed) if standing.state is RolloutState.PAUSED else None
        case RolloutOrderKind.PROMOTE:
            if standing.step >= args["from"] or standing.is_last_step:
                return None
            return standing.at_step(len(standing.steps) - 1 if args["all"] else standing.step + 1, **changed)
        case _:
            return _with_share(standing, args["share"], changed)


def _begun(
    connection: sa.Connection, order: RolloutOrder, pool: PoolRow, standing: Rollout | None, now: float
) -> Rollout | None:
    args = order.args
    to = args["to"] or _made_revision(connection, pool, args, now)
    if standing is not None:
        if standing.to_revision == to and standing.state is not RolloutState.ROLLING_BACK:
            return None
        raise PermanentError(f"{standing.id} of pool {pool.name} to {standing.to_revision} is under way")
    revision = get_revision(connection, to)
    if revision is None:
        raise PermanentError(f"there is no revision {to}")
    if to == pool.revision:
        raise PermanentError(f"pool {pool.name} is of revision {to} already")
    if revision.model != pool.model:
        raise PermanentError(f"{to} serves model {revision.model}, and pool {pool.name} {pool.model}")
    begun = Rollout(
        id=f"rollout-{secrets.token_hex(3)}",
        pool=pool.name,
        from_revision=pool.revision,
        to_revision=to,
        steps=tuple(args["steps"]),
        started_at=now,
        started_by=order.by,
        reason=order.reason,
        is_gated=not args["no_gate"],
        by_hand=args["by_hand"],
        shadow_share=args["shadow"] or 0.0,
        override=order.override,
        override_at=now,
    )
    return begun.at_step(0, at=now, by=order.by, why=order.reason or "asked for")


def _returned(order: RolloutOrder, pool: PoolRow, standing: Rollout | None, changed: dict[str, Any]) -> Rollout | None:
    to = order.args["to"]
    if standing is not None:
        if standing.state is RolloutState.ROLLING_BACK and standing.back_to == to:
            return None
        if to == standing.to_revision:
            return None if standing.is_return else standing.rolling_back(to=standing.from_revision, **changed)
        return standing.rolling_back(to=to, **changed)
    if to == pool.revision:
        raise PermanentError(f"pool {pool.name} is of revision {to} already")
    begun = Rollout(
        id=f"rollout-{secrets.token_hex(3)}",
        pool=pool.name,
        from_revision=pool.revision,
        to_revision=to,
        steps=(1.0,),
        started_at=changed["at"],
        started_by=order.by,
        reason=order.reason,
        is_gated=False,
        is_return=True,
    )
    return begun.at_step(0, **changed)


def _with_share(standing: Rollout, share: float, changed: dict[str, Any]) -> Rollout | None:
    if standing.share == share:
        return None
    before = tuple(one for one in standing.steps[: standing.step] if one < share)
    after = tuple(one for one in standing.steps if one > share)
    steps = (*before, share, *after)
    return replace(standing, steps=steps).at_step(len(before), **changed)


def _made_revision(connection: sa.Connection, pool: PoolRow, args: Any, now: float) -> str:
    """The id of the pool's revision with what changes, stored. Raises PermanentError."""
    base = get_revision(connection, pool.revision)
    if base is None:
        raise PermanentError(f"revision {pool.revision} of pool {pool.name} is not known")
    spec = base.spec("new", pool=pool.name, zone="")
    options = dict(spec.options)
    if args["model_dir"]:
        options["model"] = args["model_dir"]
    for setting in args["settings"] or ():
        key, _, value = setting.partition("=")
        options[key.replace("-", "_")] = {"true": True, "false": False}.get(value, value)
    for key in args["unset"] or ():
        if options.pop(key.replace("-", "_"), None) is None:
            known = ", ".join(sorted(options)) or "none"
            raise PermanentError(f"revision {base.id} has no setting {key}; settings: {known}")
    made = Revision.of(NodeSpec(name="new", pool=pool.name, model=base.model, engine=base.engine, options=options))
    store_revision(connection, made, now)
    return made.id
