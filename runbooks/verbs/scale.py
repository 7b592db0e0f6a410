"""`scale`: how many nodes a pool has. What is typed is a size; what is kept with the run are the nodes it means."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from runbooks.ability import Ability
from runbooks.errors import BadInputError
from runbooks.fleet_view import Change, FleetView
from runbooks.ports import NodeFacts, Receipt
from runbooks.target import TargetKind
from runbooks.verb import Action, Capacity, EffectCall, Option, Shortcut, Verb, Verify

MAX_NODES_AT_ONCE = 16
"""A slip of the finger must not start a hundred processes; a larger step is taken in two runs."""


def _resolve(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The size as a number, the nodes by name: new ones, or those to stop, in that order."""
    assert fleet.nodes is not None
    members = [node for node in fleet.nodes.values() if node.pool == action.target.name]
    pool = [node for node in members if node.wanted]
    if not members:
        known = ", ".join(sorted({node.pool for node in fleet.nodes.values()})) or "none"
        raise BadInputError(
            f"there is no pool {action.target.name}; pools: {known}", remedy="`fleetctl get nodes` shows the pools"
        )
    if action.args["from"] not in (None, len(pool)):
        raise BadInputError(f"{action.target.words} has {len(pool)} nodes", remedy="look again, or leave --from out")
    if action.args["to"] == "before":
        return _back(action, last)
    num = _wanted_size(action.args["to"], len(pool))
    if num < 1:
        raise BadInputError(f"{action.target.words} has {len(pool)} nodes", remedy="leave it at least one")
    count = num - len(pool)
    named: tuple[str, ...] = action.args["nodes"] or ()
    if abs(count) > MAX_NODES_AT_ONCE:
        raise BadInputError(
            f"{action.target.words} has {len(pool)} nodes: {abs(count)} at once are too many",
            remedy=f"at most {MAX_NODES_AT_ONCE} in one run",
        )
    if named and len(named) != abs(count):
        raise BadInputError(f"--nodes names {len(named)}, and {abs(count)} change", remedy="leave it out, or name all")
    if count < 0:
        strangers = [name for name in named if name not in {node.name for node in pool}]
        if strangers:
            raise BadInputError(f"{strangers[0]} is not in {action.target.words}", remedy="name nodes of the pool")
        named = named or tuple(node.name for node in leave_first(pool, fleet.serving)[:-count])
    like: str | None = action.args["like"]
    if count > 0:
        # Of a pool of none: the last that it had.
        like = like or newest(pool or members, fleet.serving, fleet.unproven(action.target.name)).name
        named = named or names_for(fleet.nodes.get(like), like, fleet.nodes, count)
    return action.with_args(**{"to": str(num), "from": len(pool), "nodes": named, "like": like if count > 0 else None})


def _back(action: Action, last: Action | None) -> Action:
    """The action that takes `last`, a resolved scaling of the same pool, back."""
    if last is None or not _is_resolved(last):
        raise BadInputError(f"{action.target.words} was not scaled", remedy="give a size")
    names = tuple(reversed(last.args["nodes"] or ()))
    return action.with_args(
        **{"to": str(last.args["from"]), "from": int(last.args["to"]), "nodes": names, "like": None}
    )


def _wanted_size(text: str, num_now: int) -> int:
    return num_now + int(text) if text[0] in "+-" else int(text)


def newest(pool: Sequence[NodeFacts], serving: Collection[str] | None, unproven: str = "") -> NodeFacts:
    """The newest node of the pool that serves: its settings are known to work. Where none does, the newest.

    `unproven`: a revision that a rollout still tries; its nodes only where there are no others."""

    def order(node: NodeFacts) -> tuple[bool, bool, float, str]:
        return node.name in (serving or ()), not unproven or node.revision != unproven, node.created_at, node.name

    return max(pool, key=order)


def leave_first(pool: Sequence[NodeFacts], serving: Collection[str] | None) -> list[NodeFacts]:
    """The pool in the order in which its nodes may leave: those without traffic, the least loaded, the youngest."""

    def order(node: NodeFacts) -> tuple[bool, float, float, str]:
        held = math.inf if node.held is None else node.held
        return node.name in (serving or ()), held, -node.created_at, node.name

    return sorted(pool, key=order)


def names_for(copied: NodeFacts | None, like: str, used: Collection[str], count: int) -> tuple[str, ...]:
    """Names for new nodes: those that can be had, where not any can."""
    given = copied.capacity.names if copied is not None else None
    return free_names(like, used, count) if given is None or len(given) < count else given[:count]


def free_names(like: str, used: Collection[str], count: int) -> tuple[str, ...]:
    """Names for new nodes, numbered on from those that `like`'s series ever had: node-3 gives node-4, node-5."""
    match = re.fullmatch(r"(.*?)(\d+)[a-z]?", like)
    stem = match[1] if match else f"{like[:50]}-"
    numbers = [int(found[1]) for name in used if (found := re.fullmatch(rf"{re.escape(stem)}(\d{{1,9}})[a-z]?", name))]
    first = max(numbers, default=0 if match else 1) + 1
    return tuple(f"{stem}{first + i}" for i in range(count))


def _is_resolved(action: Action) -> bool:
    to, before = action.args["to"], action.args["from"]
    return before is not None and bool(to.isdecimal()) and (action.args["nodes"] is not None or int(to) == before)


def _is_growth(action: Action) -> bool:
    return bool(int(action.args["to"]) > action.args["from"])


def _change(action: Action) -> Change | None:
    names = action.args["nodes"]
    if not _is_resolved(action):
        return None
    if _is_growth(action):
        return Change(creates=dict.fromkeys(names or (), action.args["like"]))
    return Change(removes=frozenset(names or ()))


def _predict(action: Action) -> str:
    pool, before, to = action.target.words, action.args["from"], action.args["to"]
    if not _is_resolved(action):
        return f"brings {pool} to {to} nodes"
    names = ", ".join(action.args["nodes"] or ())
    if not names:
        return f"nothing: {pool} has {to} nodes"
    if not _is_growth(action):
        return f"drains and stops {names}, one after the other: {pool} from {before} to {to} nodes"
    copies = f" like {action.args['like']}" if action.args["like"] else ""
    return f"starts {names}{copies} and waits until they are ready and routed: {pool} from {before} to {to} nodes"


def _check_start(action: Action, fleet: FleetView) -> str:
    now = fleet.members(action.target)
    if now is None or not _is_resolved(action) or len(now) == action.args["from"]:
        return ""
    return f"{action.target.words} had {action.args['from']} nodes when this was planned and has {len(now)} now"


def _verify(action: Action) -> Verify:
    """The new nodes answer: one that was dead before, which is why more are wanted, need not. Of fewer: those left."""
    pool, num, names = action.target.name, action.args["to"], action.args["nodes"]
    if names and _is_resolved(action) and _is_growth(action):
        which = f'pool="{pool}",node=~"{"|".join(names)}"'
        num, says = len(names), f"{_counted(names)} of pool {pool} {'answers' if len(names) == 1 else 'answer'}"
    else:
        which, says = f'pool="{pool}"', f"{num} nodes of pool {pool} answer"
    return Verify(expect=f"count(llm:up{{{which}}} == 1) >= bool {num}", within_s=60.0, settle_s=5.0, says=says)


def _counted(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"the {len(names)} new nodes"


async def _effect(call: EffectCall) -> Receipt:
    args = call.action.args
    names = args["nodes"] or ()
    grows = _is_growth(call.action)
    receipt = await call.effects.scale_pool(
        call.action.target.name,
        start=names if grows else (),
        stop=() if grows else names,
        like=args["like"],
        wait_s=args["wait_s"],
        deadline_s=args["deadline_s"],
        before_removal=call.before_removal,
        by=call.asked_by,
    )
    return {**receipt, "from": args["from"], "to": int(args["to"])}


VERBS = (
    Verb(
        name="scale",
        kinds=(TargetKind.POOL,),
        help="Give a pool more nodes, or drain and stop some of its nodes.",
        example="scale decode --to +2",
        capacity=Capacity("adds or removes nodes of the pool", _change),
        needs_target=False,  # a pool all of whose nodes were stopped grows again; `_resolve` knows which there are
        predicts=_predict,
        effect=_effect,
        moves_requests=True,
        idempotency="the nodes are chosen when the run is asked for; one that runs, or is gone, is done",
        needs=(Ability.START, Ability.STOP, Ability.DRAIN),
        options=(
            Option("--to", "to", "size", None, "nodes it shall have: 5, +2, -1, or before", required=True),
            Option("--from", "from", "count", None, "nodes it has now; refused at the start if it has not"),
            Option("--nodes", "nodes", "nodes", None, "which to start or stop, with commas between"),
            Option("--like", "like", "node", None, "copy this node's settings; default: the newest that serves"),
            Option("--wait", "wait_s", "duration", 180.0, "how long to wait until new nodes are ready and routed"),
            Option("--deadline", "deadline_s", "duration", 30.0, "when to move what a leaving node has not finished"),
        ),
        resolve=_resolve,
        check_start=_check_start,
        undo="scale {target} --to before",
        verify=_verify,
        shortcuts=(Shortcut("plus", "Node", "--to +1"), Shortcut("minus", "Node", "--to -1")),
    ),
)
