"""`reroute long-context` and `reroute remove`: nodes of their own for requests with long prompts, for a time."""

from __future__ import annotations

from typing import Any

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.rule_verb import rule_verbs, share_words
from runbooks.value import ThresholdUnit, parse_threshold
from runbooks.verb import Action, Option

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
    where = f"pool {args['pool']}" if args["pool"] else f"{share_words(args['share'] or 0)} of the nodes"
    cap = f", at most {args['cap']} at once on each node" if args["cap"] else ""
    return f"sends prompts over {args['over']} to {where} and others elsewhere, for {args['for_s']:g} s{cap}"


VERBS = rule_verbs(
    "reroute long-context",
    rule_id="long-context",
    help="Give requests with long prompts nodes of their own, for a time.",
    example="reroute long-context --over 32k --share 0.25 --for 1h",
    predicts=_predict,
    spec=_spec,
    options=(
        Option(
            "--over", "over", "threshold", None, "what is long: 32k (tokens), 5s (prefill), 25% (of a KV cache)", True
        ),
        Option("--to", "pool", "word", None, "the pool that they go to"),
        Option("--share", "share", "ratio", None, "the share of the nodes that they go to, instead of a pool"),
        Option("--cap", "cap", "count", None, "how many of them one node gets at once; none: no limit"),
    ),
    lifetime_s=3600.0,
    resolve=_resolve,
    removal_help="End a reroute now: its requests go where all go.",
    removal_example="reroute remove long-context",
)
