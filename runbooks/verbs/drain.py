"""`drain`: empty a node without losing a request."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.target import TargetKind
from runbooks.verb import REMOVES, Option, Shortcut, Verb

VERBS = (
    Verb(
        name="drain",
        kinds=(TargetKind.NODE,),
        help="Cordon a node, let its requests finish or move, and show the receipt.",
        example="drain node-2 --deadline 30s",
        capacity=REMOVES,
        moves_requests=True,
        predicts=lambda action: (
            f"sends no new requests to {action.target}, lets its requests finish and moves the rest"
        ),
        effect=lambda call: call.effects.drain(call.action.target.name, deadline_s=call.action.args["deadline_s"]),
        idempotency="a drain that has begun is waited for, not begun again",
        needs=(Ability.DRAIN,),
        options=(Option("--deadline", "deadline_s", "duration", 30.0, "when to move what has not finished"),),
        shortcuts=(Shortcut("D", "Drain", "--deadline 30s"),),
    ),
)
