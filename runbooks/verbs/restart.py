"""`restart`: a fresh process for a drained node."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.target import TargetKind
from runbooks.verb import PAUSES, Verb
from runbooks.verbs.node import WAIT

VERBS = (
    Verb(
        name="restart",
        kinds=(TargetKind.NODE,),
        help="Stop and start a drained node under its own name.",
        example="restart node-2 --wait 180s",
        capacity=PAUSES,
        predicts=lambda action: f"stops and starts {action.target} under its own name and waits until it is ready",
        effect=lambda call: call.effects.restart_node(call.action.target.name, wait_s=call.action.args["wait_s"]),
        idempotency="the old process is marked before it is stopped: only that one is ever replaced",
        needs=(Ability.RESTART,),
        options=(WAIT,),
    ),
)
