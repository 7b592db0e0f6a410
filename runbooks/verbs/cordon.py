"""`cordon` and `uncordon`: whether a node gets new requests."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.target import TargetKind
from runbooks.verb import ADDS, REMOVES, Shortcut, Verb

VERBS = (
    Verb(
        name="cordon",
        kinds=(TargetKind.NODE,),
        help="Send no new requests to a node; what runs there goes on.",
        example="cordon node-2",
        capacity=REMOVES,
        predicts=lambda action: f"sends no new requests to {action.target}",
        effect=lambda call: call.effects.cordon(call.action.target.name),
        idempotency="the route's state is set, not changed",
        shortcuts=(Shortcut("c", "Cordon"),),
        needs=(Ability.CORDON,),
    ),
    Verb(
        name="uncordon",
        kinds=(TargetKind.NODE,),
        help="Let a cordoned or drained node take requests again.",
        example="uncordon node-2",
        capacity=ADDS,
        predicts=lambda action: f"lets {action.target} take requests again",
        effect=lambda call: call.effects.uncordon(call.action.target.name),
        idempotency="the route's state is set, not changed",
        shortcuts=(Shortcut("u", "Uncordon"),),
    ),
)
