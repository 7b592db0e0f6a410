"""Verbs that order the gateways something for a time: each makes a traffic rule, and has a verb that removes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runbooks.fleet_view import FleetView
from runbooks.ports import Receipt
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Action, EffectCall, Option, Verb


def rule_verbs(
    name: str,
    *,
    rule_id: str,
    help: str,
    example: str,
    predicts: Callable[[Action], str],
    spec: Callable[[Action], dict[str, Any]],
    options: tuple[Option, ...],
    lifetime_s: float,
    lifetime_help: str = "how long the rule holds",
    resolve: Callable[[Action, FleetView, Action | None], Action],
    removal_help: str,
    removal_example: str,
) -> tuple[Verb, Verb]:
    """The verb `name` and its `remove`, which undoes it.

    `rule_id`: of the rule when none is typed. `spec`: what the rule orders, as `fleetctl.traffic_rule` has it.
    `--for` is added to `options`; `lifetime_s` is its default.
    """
    group = name.partition(" ")[0]

    async def make(call: EffectCall) -> Receipt:
        action = call.action
        return await call.effects.make_traffic_rule(
            action.target.name,
            spec(action),
            for_s=action.args["for_s"],
            made_by=call.asked_by,
            reason=call.reason,
        )

    return (
        Verb(
            name=name,
            kinds=(TargetKind.ROUTE,),
            default_target=rule_id,
            help=help,
            example=example,
            capacity=KEEPS,
            predicts=predicts,
            effect=make,
            idempotency="a rule with the same id is replaced",
            options=(*options, Option("--for", "for_s", "lifetime", lifetime_s, lifetime_help)),
            needs_target=False,
            resolve=resolve,
            orders=spec,
            undo=f"{group} remove {{target}}",
        ),
        Verb(
            name=f"{group} remove",
            kinds=(TargetKind.ROUTE,),
            default_target=rule_id,
            help=removal_help,
            example=removal_example,
            capacity=KEEPS,
            predicts=lambda action: f"removes traffic rule {action.target.name}",
            effect=_remove,
            idempotency="a rule that is not there is removed already",
            needs_target=False,
        ),
    )


async def _remove(call: EffectCall) -> Receipt:
    return await call.effects.remove_traffic_rule(call.action.target.name, removed_by=call.asked_by)


def share_words(share: float) -> str:
    """A share for people: `5%`, and not `0%` for one in a thousand."""
    return f"{share * 100:.3g}%"
