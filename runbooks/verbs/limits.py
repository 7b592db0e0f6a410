"""`limits`, `reset-prefix-cache`, `sleep` and `wake`: what a node's engine does without a restart, where it can."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.ports import Receipt
from runbooks.target import TargetKind
from runbooks.verb import ADDS, KEEPS, REMOVES, Action, EffectCall, Option, Verb
from runbooks.verbs.node import WAIT

_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk_tokens", "max_num_queued_reqs")


def _wanted(action: Action) -> dict[str, int]:
    return {key: action.args[key] for key in _LIMITS if action.args[key] is not None}


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action as it is, once it says either limits or that the former ones hold again."""
    seats = action.args["seats"]
    if seats is not None and action.args["max_num_seqs"] is not None:
        raise BadInputError("limits: --seats and --max-num-seqs say the same thing", remedy="keep one of them")
    if action.args["before"] is (bool(_wanted(action)) or seats is not None):
        raise BadInputError(
            "limits: says nothing to change", remedy="give --max-num-seqs N or another limit, or --before"
        )
    zero = next((key for key, value in _wanted(action).items() if value < 1), None)
    if zero:
        raise BadInputError(f"limits: {zero} is at least 1", remedy="to send it nothing: fleetctl cordon NODE")
    return action


def _predict(action: Action) -> str:
    if action.args["before"]:
        return f"gives {action.target} the limits that it had before"
    words = ", ".join(f"{key} {value}" for key, value in _wanted(action).items())
    if (seats := action.args["seats"]) is not None:
        words = ", ".join(filter(None, [f"max_num_seqs to {seats:.0%} of what it is", words]))
    return f"sets {words} on {action.target} from its next step on, until it restarts; what runs goes on"


async def _change(call: EffectCall) -> Receipt:
    name = call.action.target.name
    if call.action.args["before"]:
        return await call.effects.restore_limits(name, run_id=call.run_id)
    seats = call.action.args["seats"]
    return await call.effects.set_limits(name, _wanted(call.action), seats_ratio=seats, run_id=call.run_id)


VERBS = (
    Verb(
        name="limits",
        kinds=(TargetKind.NODE,),
        help="Change limits of a running node: how many requests and tokens it takes at once.",
        example="limits node-2 --max-num-seqs 16",
        capacity=KEEPS,
        predicts=_predict,
        effect=_change,
        idempotency="limits are set, not changed by so much; those from before are stored first",
        options=(
            Option("--max-num-seqs", "max_num_seqs", "count", None, "requests in one step"),
            Option("--seats", "seats", "ratio", None, "requests in one step, as a share of what it takes now"),
            Option("--max-num-batched-tokens", "max_num_batched_tokens", "count", None, "tokens in one step"),
            Option("--prefill-chunk-tokens", "prefill_chunk_tokens", "count", None, "tokens of one prompt in one step"),
            Option("--max-num-queued-reqs", "max_num_queued_reqs", "count", None, "requests that may wait"),
            Option("--before", "before", "flag", False, "what held before it was changed"),
        ),
        resolve=_resolve,
        needs=(Ability.LIMITS,),
        undo="limits {target} --before",
    ),
    Verb(
        name="reset-prefix-cache",
        kinds=(TargetKind.NODE,),
        help="Let a node forget its cached prompts.",
        example="reset-prefix-cache node-2",
        capacity=KEEPS,
        predicts=lambda action: f"empties the prefix cache of {action.target}: prompts are computed whole once more",
        effect=lambda call: call.effects.reset_prefix_cache(call.action.target.name),
        idempotency="an empty cache is empty",
        needs=(Ability.RESET_PREFIX_CACHE,),
    ),
    Verb(
        name="sleep",
        kinds=(TargetKind.NODE,),
        help="Let a drained node give the memory of its weights and KV cache back.",
        example="sleep node-2",
        capacity=REMOVES,
        predicts=lambda action: f"cordons {action.target} and puts it to sleep, if it holds no requests",
        effect=lambda call: call.effects.sleep_node(call.action.target.name),
        idempotency="a node that sleeps is asleep",
        needs=(Ability.SLEEP,),
        undo="wake {target}",
    ),
    Verb(
        name="wake",
        kinds=(TargetKind.NODE,),
        help="Let a node that sleeps load its weights again, and send it requests once it is ready.",
        example="wake node-2 --wait 120s",
        capacity=ADDS,
        predicts=lambda action: f"wakes {action.target} and lets it take requests once it is ready",
        effect=lambda call: call.effects.wake_node(call.action.target.name, wait_s=call.action.args["wait_s"]),
        idempotency="a node that is awake is waited for",
        options=(WAIT,),
        needs=(Ability.SLEEP,),
    ),
)
