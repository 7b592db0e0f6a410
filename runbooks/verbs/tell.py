"""`silence alert`, `notify`, `exec` and `evidence collect`: steps around the fleet, which take nothing out of it."""

from __future__ import annotations

from runbooks.fleet_view import FleetView
from runbooks.ports import Receipt
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Action, EffectCall, Option, Verb

_SILENCE_LABELS = ("node", "pool", "model")


def _labels(action: Action) -> dict[str, str]:
    return {key: action.args[key] for key in _SILENCE_LABELS if action.args[key] is not None}


async def _silence(call: EffectCall) -> Receipt:
    args = call.action.args
    return await call.effects.add_silence(
        args["alert"], _labels(call.action), for_s=args["for_s"], by=call.asked_by, key=call.key
    )


async def _notify(call: EffectCall) -> Receipt:
    facts = {"run": call.run_id, "incident": call.incident_id, "reason": call.reason}
    return await call.effects.notify(call.action.args["receiver"], call.action.args["text"], key=call.key, facts=facts)


async def _execute(call: EffectCall) -> Receipt:
    args = call.action.args
    return await call.effects.execute(
        call.action.target.name, args["arguments"] or (), limit_s=args["limit_s"], key=call.key
    )


def _predict_program(action: Action) -> str:
    words = [action.target.words, *(action.args["arguments"] or ())]
    return f"calls {' '.join(words)} for at most {action.args['limit_s']:g} s"


def _check_silence(action: Action, fleet: FleetView) -> str:
    """An alert that is muted everywhere is one that nobody has."""
    return "" if _labels(action) else "it would mute the alert everywhere: give --node, --pool or --model"


VERBS = (
    Verb(
        name="silence alert",
        kinds=(TargetKind.FLEET,),
        default_target="fleet",
        help="Mute one alert of a node, pool or model for a time, in Alertmanager.",
        example="silence alert --alert LLMNodeSlow --node node-2 --for 30m",
        capacity=KEEPS,
        predicts=lambda action: (
            f"mutes {action.args['alert']} of {', '.join(_labels(action).values())} for {action.args['for_s']:g} s"
        ),
        effect=_silence,
        idempotency="a silence of this step is found by its comment",
        options=(
            Option("--alert", "alert", "word", None, "name of the alert", required=True),
            Option("--node", "node", "word", None, "of this node"),
            Option("--pool", "pool", "word", None, "of this pool"),
            Option("--model", "model", "word", None, "of this model"),
            Option("--for", "for_s", "lifetime", 1800.0, "how long; it ends by itself"),
        ),
        needs_target=False,
        mutates=False,
        check_start=_check_silence,
    ),
    Verb(
        name="notify",
        kinds=(TargetKind.FLEET,),
        default_target="fleet",
        help="Tell a receiver of the settings (notifications.receivers), with run and incident.",
        example="notify --receiver oncall --text 'node-2 is being replaced'",
        capacity=KEEPS,
        predicts=lambda action: f"tells {action.args['receiver']}: {action.args['text']}",
        effect=_notify,
        idempotency="each message has the key of its step, by which a receiver knows a repeat",
        options=(
            Option("--receiver", "receiver", "word", None, "its name in notifications.receivers", required=True),
            Option("--text", "text", "text", None, "what is told", required=True),
        ),
        needs_target=False,
        mutates=False,
    ),
    Verb(
        name="exec",
        kinds=(TargetKind.PROGRAM,),
        help="Call an executable of the settings (actions.programs), without a shell.",
        example="exec reset-gpu --args node-2 --limit 30s",
        capacity=KEEPS,
        predicts=_predict_program,
        effect=_execute,
        idempotency="called again after a crash, with the same FLEETCTL_STEP_KEY: the program tells",
        options=(
            Option("--args", "arguments", "names", None, "its arguments, with commas between"),
            Option("--limit", "limit_s", "duration", 60.0, "when it is ended by force"),
        ),
        needs_target=False,
    ),
    Verb(
        name="evidence collect",
        kinds=(TargetKind.NODE,),
        help="Write down what a node says of itself: log, requests in flight, metrics, stacks, GPUs.",
        example="evidence collect node-2",
        capacity=KEEPS,
        predicts=lambda action: f"writes log, requests, metrics, stacks and GPUs of {action.target} to a file",
        effect=lambda call: call.effects.collect_evidence(
            call.action.target.name, incident_id=call.incident_id, key=call.key
        ),
        idempotency="its file is named after the step, and written anew",
        mutates=False,
    ),
)
