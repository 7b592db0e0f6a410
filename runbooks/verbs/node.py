"""`node start`, `node stop` and `node forget`: processes of single nodes, and what is kept of those that are gone."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.fleet_view import FleetView
from runbooks.target import TargetKind
from runbooks.verb import CREATES, KEEPS, REMOVES, Action, Option, Verb

WAIT = Option("--wait", "wait_s", "duration", 120.0, "how long to wait until the node is ready and routed")


def _check_forget(action: Action, fleet: FleetView) -> str:
    """Only what was stopped is forgotten."""
    if fleet.nodes is None:
        return "could not look which nodes there are"
    node = fleet.nodes.get(action.target.name)
    if node is None:
        stopped = sorted(name for name, one in fleet.nodes.items() if not one.wanted)
        return f"there is no node named {action.target.name}; stopped nodes: {', '.join(stopped) or 'none'}"
    return f"{node.name} is wanted: stop it first (fleetctl node stop {node.name})" if node.wanted else ""


VERBS = (
    Verb(
        name="node start",
        kinds=(TargetKind.NODE,),
        help="Start a node and wait until it is ready and gets requests.",
        example="node start node-4 --like node-2",
        capacity=CREATES,
        predicts=lambda action: f"starts {action.target} and waits until it is ready and routed",
        effect=lambda call: call.effects.start_node(
            call.action.target.name, like=call.action.args["like"], wait_s=call.action.args["wait_s"]
        ),
        idempotency="a node that runs is waited for, not started again",
        needs=(Ability.START,),
        options=(Option("--like", "like", "node", None, "copy this node's settings"), WAIT),
        needs_target=False,
    ),
    Verb(
        name="node stop",
        kinds=(TargetKind.NODE,),
        help="Stop a drained node. Refused while it holds requests, unless --force.",
        example="node stop node-2",
        capacity=REMOVES,
        predicts=lambda action: f"stops {action.target}, if it holds no requests",
        effect=lambda call: call.effects.stop_node(
            call.action.target.name, grace_s=call.action.args["grace_s"], force=call.action.args["force"]
        ),
        idempotency="a node that does not run is stopped",
        needs=(Ability.STOP,),
        options=(
            Option("--grace", "grace_s", "duration", 10.0, "time between SIGTERM and SIGKILL"),
            Option("--force", "force", "flag", False, "stop it even while it holds requests"),
        ),
    ),
    Verb(
        name="node forget",
        kinds=(TargetKind.NODE,),
        help="Take a stopped node out of every list, with its log; events and runs keep its name.",
        example="node forget node-2",
        capacity=KEEPS,
        predicts=lambda action: f"takes {action.target}, which is stopped, out of every list, with its log",
        effect=lambda call: call.effects.forget_node(call.action.target.name),
        idempotency="a node that is not known is forgotten",
        needs_target=False,
        check_start=_check_forget,
    ),
)
