"""`adapter load`, `adapter unload`, `profile start`, `profile stop`: what engines have calls for while they serve."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Option, Verb

_NAME = Option("--name", "name", "word", None, "the model name that clients ask for", required=True)

VERBS = (
    Verb(
        name="adapter load",
        kinds=(TargetKind.NODE,),
        help="Let a running node serve a LoRA adapter under a model name of its own.",
        example="adapter load node-2 --name support --path /adapters/support",
        capacity=KEEPS,
        predicts=lambda action: f"loads {action.args['path']} on {action.target} as model {action.args['name']}",
        effect=lambda call: call.effects.load_adapter(
            call.action.target.name, call.action.args["name"], path=call.action.args["path"]
        ),
        idempotency="an adapter that is loaded under this name is left as it is",
        options=(
            _NAME,
            Option("--path", "path", "text", None, "where the adapter lies on the node's machine", required=True),
        ),
        needs=(Ability.ADAPTERS,),
    ),
    Verb(
        name="adapter unload",
        kinds=(TargetKind.NODE,),
        help="Take a LoRA adapter from a running node.",
        example="adapter unload node-2 --name support",
        capacity=KEEPS,
        predicts=lambda action: (
            f"takes model {action.args['name']} from {action.target}; its clients are refused there"
        ),
        effect=lambda call: call.effects.unload_adapter(call.action.target.name, call.action.args["name"]),
        idempotency="an adapter that is not loaded is unloaded",
        options=(_NAME,),
        needs=(Ability.ADAPTERS,),
    ),
    Verb(
        name="profile start",
        kinds=(TargetKind.NODE,),
        help="Let a node's engine record what it does; it is slower meanwhile.",
        example="profile start node-2",
        capacity=KEEPS,
        predicts=lambda action: f"{action.target} records a profile on its machine until it is told to stop",
        effect=lambda call: call.effects.set_profiling(call.action.target.name, is_on=True),
        idempotency="it is asked once more: some engines refuse a second start, others begin anew",
        needs=(Ability.PROFILE,),
        undo="profile stop {target}",
    ),
    Verb(
        name="profile stop",
        kinds=(TargetKind.NODE,),
        help="End the recording; the engine writes it on its machine.",
        example="profile stop node-2",
        capacity=KEEPS,
        predicts=lambda action: f"{action.target} ends its profile and writes it on its machine",
        effect=lambda call: call.effects.set_profiling(call.action.target.name, is_on=False),
        idempotency="one that does not record is asked to stop all the same",
        needs=(Ability.PROFILE,),
    ),
)
