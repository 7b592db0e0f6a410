"""`reroute long-context` and `reroute remove`: nodes of their own for requests with long prompts, for a time."""

from __future__ import annotations

from typing import Any

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.ports import Receipt
from runbooks.target import TargetKind
from runbooks.value import ThresholdUnit, parse_threshold
from runbooks.verb import KEEPS, Action, EffectCall, Option, Verb

_THRESHOLD_KEYS = {
    ThresholdUnit.TOKENS: "over_tokens",
    ThresholdUnit.SECONDS: "over_prefill_s",
    ThresholdUnit.RATIO: "over_kv_share",
}


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is, once it names a place that there is."""
    pool, share = action.args["pool"], action.args["share"]
    if (pool is None) == (share is None):
        raise BadInputError(f"{action.verb.name}: where to?", remedy="give --to POOL or --share 0.25, and only one")
    assert fleet.nodes is not None
    pools = sorted({node.pool for node in fleet.nodes.values() if node.wanted})
    if pool is not None and pool not in pools:
        raise BadInputError(f"there is no pool {pool}", remedy=f"pools: {', '.join(pools) or 'none'}")
    if pool is not None and pools == [pool]:
        raise BadInputError(
            f"pool {pool} is the only one: nothing would be kept apart", remedy="use --share 0.25, or add a pool"
        )
    return action


def _spec(action: Action) -> dict[str, Any]:
    args = action.args
    unit, amount = parse_threshold(args["over"])
    threshold = int(amount) if unit is ThresholdUnit.TOKENS else amount
    given = {_THRESHOLD_KEYS[unit]: threshold, "pool": args["pool"], "share": args["share"], "cap": args["cap"]}
    return {"kind": "reroute", **{key: value for key, value in given.items() if value is not None}}


def _predict(action: Action) -> str:
    args = action.args
    where = f"pool {args['pool']}" if args["pool"] else f"{args['share'] or 0:.0%} of the nodes"
    cap = f", at most {args['cap']} at once on each node" if args["cap"] else ""
    return f"sends prompts over {args['over']} to {where} and others elsewhere, for {args['for_s']:g} s{cap}"


async def _make(call: EffectCall) -> Receipt:
    action = call.action
    return await call.effects.make_traffic_rule(
        action.target.name,
        _spec(action),
        for_s=action.args["for_s"],
        made_by=call.asked_by,
        reason=call.reason,
    )


async def _remove(call: EffectCall) -> Receipt:
    return await call.effects.remove_traffic_rule(call.action.target.name, removed_by=call.asked_by)


VERBS = (
    Verb(
        name="reroute long-context",
        kinds=(TargetKind.ROUTE,),
        default_target="long-context",
        help="Give requests with long prompts nodes of their own, for a time.",
        example="reroute long-context --over 32k --share 0.25 --for 1h",
        capacity=KEEPS,
        predicts=_predict,
        effect=_make,
        idempotency="a rule with the same id is replaced",
        options=(
            Option(
                "--over",
                "over",
                "threshold",
                None,
                "what is long: 32k (tokens), 5s (prefill), 25% (of a KV cache)",
                True,
            ),
            Option("--to", "pool", "word", None, "the pool that they go to"),
            Option("--share", "share", "ratio", None, "the share of the nodes that they go to, instead of a pool"),
            Option("--cap", "cap", "count", None, "how many of them one node gets at once; none: no limit"),
            Option("--for", "for_s", "lifetime", 3600.0, "how long the rule holds"),
        ),
        needs_target=False,
        resolve=_resolve,
        undo="reroute remove {target}",
    ),
    Verb(
        name="reroute remove",
        kinds=(TargetKind.ROUTE,),
        default_target="long-context",
        help="End a reroute now: its requests go where all go.",
        example="reroute remove long-context",
        capacity=KEEPS,
        predicts=lambda action: f"removes traffic rule {action.target.name}",
        effect=_remove,
        idempotency="a rule that is not there is removed already",
        needs_target=False,
    ),
)
