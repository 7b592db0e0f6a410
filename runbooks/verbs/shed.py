"""`shed` and `shed remove`: turn requests of less important classes away at the gateways, for a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.rule_verb import rule_verbs, share_words
from runbooks.target import Target, TargetKind
from runbooks.verb import Action, Option

CLASSES = ("critical", "standard", "batch")
"""In order of importance; `fleetctl.priority_class.PriorityClass` has the same members."""

DEFAULT_ID = "shed"
WITHOUT_CLASSES = (
    "turn half of everybody away with `fleetctl shed --below critical --share 0.5 --for 15m`, or add nodes with"
    " `fleetctl scale POOL --to +1`; classes are told apart by a tenants file (docs/gateway.md#admission)"
)


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action once it turns somebody away; with tenants it has a rule of their own, beside the one for all."""
    below, tenants = action.args["below"], action.args["tenants"]
    if below not in CLASSES[:-1]:
        raise BadInputError(
            f"{action.verb.name} --below: {below!r} has no class below it", remedy=f"give {' or '.join(CLASSES[:-1])}"
        )
    lower = CLASSES[CLASSES.index(below) + 1 :]
    if fleet.priority_classes is not None and fleet.priority_classes.isdisjoint(lower):
        there = " and ".join(sorted(fleet.priority_classes))
        raise BadInputError(
            f"{action.verb.name} --below {below} would turn nobody away: no tenants file is set (gateway.tenants_file),"
            f" and so everybody is of class {there}",
            remedy=WITHOUT_CLASSES,
        )
    if tenants and action.target.name == DEFAULT_ID:
        return replace(action, target=Target(TargetKind.ROUTE, f"{DEFAULT_ID}:{'+'.join(tenants)}"[:100]))
    return action


def _spec(action: Action) -> dict[str, Any]:
    args = action.args
    spec: dict[str, Any] = {"kind": "shed", "below": args["below"]}
    if args["share"] is not None:
        spec["share"] = args["share"]
    return spec | ({"tenants": list(args["tenants"])} if args["tenants"] else {})


def _predict(action: Action) -> str:
    args = action.args
    below = args["below"]
    lower = " and ".join(CLASSES[CLASSES.index(below) + 1 :]) if below in CLASSES else f"below {below}"
    share = f"{share_words(args['share'])} of the new requests" if args["share"] is not None else "new requests"
    whose = f" of {', '.join(args['tenants'])}" if args["tenants"] else ""
    return f"answers {share} of class {lower}{whose} with 429 for {args['for_s']:g} s; what runs goes on"


VERBS = rule_verbs(
    "shed",
    rule_id=DEFAULT_ID,
    help="Turn requests of less important classes away at the gateways, for a time.",
    example="shed --below standard --for 15m",
    predicts=_predict,
    spec=_spec,
    options=(
        Option("--below", "below", "word", None, "the least important class that is still served", True),
        Option("--share", "share", "ratio", None, "only this share of them, by request id"),
        Option("--tenants", "tenants", "names", None, "only these tenants, with commas between"),
    ),
    lifetime_s=900.0,
    lifetime_help="how long it holds",
    resolve=_resolve,
    removal_help="End shedding now.",
    removal_example="shed remove",
)
