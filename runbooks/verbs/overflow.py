"""`overflow on`, `overflow off` and `overflow remove`: the way out of the house, opened or closed for a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.rule_verb import rule_verbs
from runbooks.target import Target, TargetKind
from runbooks.verb import Action, Option

DEFAULT_ID = "overflow"
DEFAULT_WHEN = ("no_node", "overloaded")
REASONS = ("model_not_here", "queue_wait", "overloaded", "no_node")
"""`fleetctl.settings.overflow.OverflowReason` has the same members."""


def _resolve_on(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action once requests can go out by it: an endpoint has the model, and its budget is known and not spent."""
    model, when = action.args["model"], action.args["when"] or DEFAULT_WHEN
    if wrong := sorted(set(when) - set(REASONS)):
        raise BadInputError(f"overflow on --when: {', '.join(wrong)}", remedy=f"give any of {', '.join(REASONS)}")
    if fleet.ways_out is None:
        raise BadInputError("no gateway says where overflow could go", remedy="fleetctl get gateways")
    whose = f" for model {model}" if model else ""
    fitting = [one for one in fleet.ways_out if model is None or model in one.models]
    if not fitting:
        raise BadInputError(
            f"no gateway has an endpoint{whose} outside",
            remedy="set gateway.overflow.endpoints, and reload the gateway",
        )
    known = [one for one in fitting if one.budget_left is not None]
    names = ", ".join(sorted({one.endpoint for one in fitting}))
    if not known:
        raise BadInputError(f"the budget of {names} is not known: nothing would go out", remedy="see the gateway's log")
    if not any(one.budget_left for one in known):
        raise BadInputError(
            f"the budget of {names} is spent: nothing would go out",
            remedy="raise it in the settings, or wait for its end",
        )
    return _of_model(action.with_args(when=tuple(when)))


def _resolve_off(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is: to close the way out needs nothing to be known."""
    return _of_model(action)


def _of_model(action: Action) -> Action:
    """With a model it has a rule of its own, beside the one for all models."""
    model = action.args["model"]
    if model and action.target.name == DEFAULT_ID:
        return replace(action, target=Target(TargetKind.ROUTE, f"{DEFAULT_ID}-{model}"[:100]))
    return action


def _spec(action: Action, state: str) -> dict[str, Any]:
    args = action.args
    spec: dict[str, Any] = {"kind": "overflow", "state": state}
    if state == "on":
        spec["when"] = list(args["when"] or DEFAULT_WHEN)
    return spec | ({"model": args["model"]} if args["model"] else {})


def _predict_on(action: Action) -> str:
    args = action.args
    whose = f" for model {args['model']}" if args["model"] else ""
    when = " or ".join(args["when"] or DEFAULT_WHEN)
    return f"sends requests{whose} out of the house when {when}, within the budget, for {args['for_s']:g} s"


def _predict_off(action: Action) -> str:
    args = action.args
    whose = f" for model {args['model']}" if args["model"] else ""
    return f"sends no request{whose} out of the house for {args['for_s']:g} s; those that are out end there"


_MODEL = Option("--model", "model", "word", None, "only requests for this model")

_ON, _REMOVE = rule_verbs(
    "overflow on",
    rule_id=DEFAULT_ID,
    help="Let requests go out of the house, to the endpoints of the settings and within their budget, for a time.",
    example="overflow on --for 1h",
    predicts=_predict_on,
    spec=lambda action: _spec(action, "on"),
    options=(
        _MODEL,
        Option("--when", "when", "names", None, "what must be so before one goes out; none: no_node,overloaded"),
    ),
    lifetime_s=3600.0,
    resolve=_resolve_on,
    removal_help="End an order about overflow now: what the settings say holds again.",
    removal_example="overflow remove",
)
_OFF, _ = rule_verbs(
    "overflow off",
    rule_id=DEFAULT_ID,
    help="Keep all requests in the house, whatever the settings say, for a time.",
    example="overflow off --for 1h",
    predicts=_predict_off,
    spec=lambda action: _spec(action, "off"),
    options=(_MODEL,),
    lifetime_s=3600.0,
    resolve=_resolve_off,
    removal_help="",
    removal_example="",
)
VERBS = (_ON, _OFF, _REMOVE)
