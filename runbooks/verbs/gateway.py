"""`gateway restart`: a fresh process for a gateway that hangs."""

from __future__ import annotations

from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Option, Verb

VERBS = (
    Verb(
        name="gateway restart",
        kinds=(TargetKind.GATEWAY,),
        default_target="gateway",
        help="Stop and start the gateway of the controller's machine. Requests that it still carries end.",
        example="gateway restart",
        capacity=KEEPS,
        predicts=lambda action: f"stops {action.target.words} and starts it; requests that it still carries end",
        effect=lambda call: call.effects.restart_gateway(call.action.target.name, wait_s=call.action.args["wait_s"]),
        idempotency="a gateway keeps nothing: a second restart costs what it carries by then, and no more",
        options=(Option("--wait", "wait_s", "duration", 30.0, "how long to wait until it answers"),),
        needs_target=False,
    ),
)
