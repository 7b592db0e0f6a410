"""`host cordon` and `host uncordon`: whether new nodes may be placed on a machine, as on one whose GPU is bad."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Action, Verb


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is, where a node of the fleet is, or was, on that machine."""
    hosts = {node.host for node in (fleet.nodes or {}).values() if node.host}
    if fleet.nodes is not None and action.target.name not in hosts:
        known = ", ".join(sorted(hosts)) or "none is known"
        raise BadInputError(
            f"no node of the fleet is on a machine {action.target.name}; machines: {known}",
            remedy="fleetctl describe node NAME",
        )
    return action


def _predict_cordon(action: Action) -> str:
    return (
        f"keeps new nodes from machine {action.target.name}; those that run there go on, and are drained by themselves"
    )


VERBS = (
    Verb(
        name="host cordon",
        kinds=(TargetKind.HOST,),
        help="Keep new nodes from a machine, as from one whose GPU is bad; what runs there goes on.",
        example="host cordon gpu-7",
        capacity=KEEPS,
        predicts=_predict_cordon,
        effect=lambda call: call.effects.cordon_host(call.action.target.name, cordoned=True),
        idempotency="the machine's mark is set, not changed",
        needs=(Ability.CORDON_HOST,),
        needs_target=False,
        resolve=_resolve,
        undo="host uncordon {target}",
    ),
    Verb(
        name="host uncordon",
        kinds=(TargetKind.HOST,),
        help="Let new nodes be placed on a machine again.",
        example="host uncordon gpu-7",
        capacity=KEEPS,
        predicts=lambda action: f"lets new nodes be placed on machine {action.target.name} again",
        effect=lambda call: call.effects.cordon_host(call.action.target.name, cordoned=False),
        idempotency="the machine's mark is set, not changed",
        needs=(Ability.CORDON_HOST,),
        needs_target=False,
        resolve=_resolve,
    ),
)
