"""`pool owner`: who may set a pool's size, a person or the autoscaler."""

from __future__ import annotations

from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.ports import PoolOwner
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Action, Option, Verb


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is, once it names one of the owners that there are."""
    if action.args["owner"] not in set(PoolOwner):
        raise BadInputError(
            f"{action.verb.name} --to: {action.args['owner']!r} can't own a pool",
            remedy=f"give {' or '.join(PoolOwner)}",
        )
    return action


VERBS = (
    Verb(
        name="pool owner",
        kinds=(TargetKind.POOL,),
        help="Say who may set a pool's size: a person or the autoscaler.",
        example="pool owner decode --to autoscaler",
        capacity=KEEPS,
        predicts=lambda action: f"hands {action.target.words} to the {action.args['owner']}",
        effect=lambda call: call.effects.set_pool_owner(
            call.action.target.name, call.action.args["owner"], by=call.asked_by
        ),
        idempotency="the same owner again changes nothing",
        options=(Option("--to", "owner", "word", None, "person or autoscaler", required=True),),
        resolve=_resolve,
    ),
)
