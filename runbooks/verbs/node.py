"""`node start` and `node stop`: the processes of single nodes."""

from __future__ import annotations

from runbooks.target import TargetKind
from runbooks.verb import CREATES, REMOVES, Option, Verb

WAIT = Option("--wait", "wait_s", "duration", 120.0, "how long to wait until the node is ready and routed")

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
        options=(
            Option("--grace", "grace_s", "duration", 10.0, "time between SIGTERM and SIGKILL"),
            Option("--force", "force", "flag", False, "stop it even while it holds requests"),
        ),
    ),
)
