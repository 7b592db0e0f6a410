"""`canary` and `shadow`: a share of the requests, or copies of it, go to a revision or a pool that is to be judged."""

from __future__ import annotations

from typing import Any

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.rule_verb import rule_verbs, share_words
from runbooks.verb import Action, Option

DEFAULT_SHARE = 0.05
CANARY, SHADOW = "canary", "shadow"


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is, once it names a place that there is and that other requests stay away from."""
    name, pool, revision = action.verb.name, action.args["pool"], action.args["revision"]
    if (pool is None) == (revision is None):
        raise BadInputError(f"{name}: where to?", remedy="give --to POOL or --revision REVISION, and only one")
    assert fleet.nodes is not None
    kind, wanted = ("pool", pool) if pool is not None else ("revision", revision)
    known = sorted({getattr(node, kind) for node in fleet.nodes.values() if node.wanted and getattr(node, kind)})
    if wanted not in known and action.args["share"]:  # a share of 0 is ordered before there is a node
        raise BadInputError(f"there is no {kind} {wanted}", remedy=f"{kind}s: {', '.join(known) or 'none'}")
    if known and all(getattr(node, kind) == wanted for node in fleet.nodes.values() if node.wanted):
        raise BadInputError(
            f"{kind} {wanted} is the only one: there is nothing to compare it with",
            remedy=f"add nodes of another {kind} first",
        )
    return action


def _place(action: Action) -> str:
    pool, revision = action.args["pool"], action.args["revision"]
    return f"pool {pool}" if pool is not None else f"revision {revision}"


def _of_model(action: Action) -> str:
    return f" for model {action.args['model']}" if action.args["model"] else ""


def _predict_canary(action: Action) -> str:
    args = action.args
    share = f"{share_words(args['share'])} of the sessions" if args["share"] else "no session"
    return f"sends {share}{_of_model(action)} to {_place(action)} and the others elsewhere, for {args['for_s']:g} s"


def _predict_shadow(action: Action) -> str:
    args = action.args
    share = f"{share_words(args['share'])} of the requests{_of_model(action)}"
    return f"sends copies of {share} to {_place(action)} for {args['for_s']:g} s; users get what they got before"


def _canary_spec(action: Action) -> dict[str, Any]:
    args = action.args
    kind = "pools" if args["pool"] is not None else "revisions"
    spec: dict[str, Any] = {"kind": CANARY, kind: {args["pool"] or args["revision"]: args["share"]}}
    return spec | ({"model": args["model"]} if args["model"] else {})


def _shadow_spec(action: Action) -> dict[str, Any]:
    args = action.args
    given = {key: args[key] for key in ("share", "pool", "revision", "model", "cap")}
    return {"kind": SHADOW, **{key: value for key, value in given.items() if value is not None}}


_PLACE = (
    Option("--to", "pool", "word", None, "the pool that they go to"),
    Option("--revision", "revision", "word", None, "the revision whose nodes they go to, instead of a pool"),
)
_MODEL = Option("--model", "model", "word", None, "only requests for this model")

VERBS = (
    *rule_verbs(
        CANARY,
        rule_id=CANARY,
        help="Send a share of the sessions to a pool or revision, and all others elsewhere, for a time.",
        example="canary --revision r2 --share 5% --for 1h",
        predicts=_predict_canary,
        spec=_canary_spec,
        options=(
            *_PLACE,
            Option(
                "--share",
                "share",
                "share",
                DEFAULT_SHARE,
                "the share of the sessions: 5% or 0.05; 0 keeps all away, also before the first node is there",
            ),
            _MODEL,
        ),
        lifetime_s=3600.0,
        resolve=_resolve,
        removal_help="End a canary now: its requests go where all go.",
        removal_example="canary remove",
    ),
    *rule_verbs(
        SHADOW,
        rule_id=SHADOW,
        help="Send copies of a share of the requests to a pool or revision, and compare the answers, for a time.",
        example="shadow --revision r2 --share 5% --for 1h",
        predicts=_predict_shadow,
        spec=_shadow_spec,
        options=(
            *_PLACE,
            Option("--share", "share", "ratio", DEFAULT_SHARE, "the share of the requests, by their id: 5% or 0.05"),
            _MODEL,
            Option("--cap", "cap", "count", None, "how many copies one gateway has in flight at once; none: 16"),
        ),
        lifetime_s=3600.0,
        resolve=_resolve,
        removal_help="End a shadow now; what its gateways compared is listed until they end.",
        removal_example="shadow remove",
    ),
)
