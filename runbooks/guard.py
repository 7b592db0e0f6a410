"""May this be done now? Pure judgements over what is known of the fleet; what is not known is never a yes.

They are asked when a run is proposed, to show the ruling, and again right before each step, to hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbooks.ability import Ability
from runbooks.fleet_view import Change, FleetView
from runbooks.leave import why_not_ended
from runbooks.ports import Capacity, NodeFacts, WantedChange
from runbooks.run import Run, RunStatus
from runbooks.target import NODE_SETS, Target, TargetKind
from runbooks.verb import Action

DEFAULT_FLOOR_RATIO = 0.6

Overlap = Callable[[Target, Target], bool | None]
"""Whether two targets have something in common; None is unknown, which keeps off. `FleetView.overlap` is one."""


def overlap_by_name(one: Target, other: Target) -> bool | None:
    """What can be told without a look at the fleet: nodes by their names, a pool and a node not at all."""
    return FleetView(None, None).overlap(one, other)


class GuardAnswer(StrEnum):
    """What a guard can say."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # could not look


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a guard says. Only a yes allows."""

    answer: GuardAnswer
    reason: str

    @property
    def allows(self) -> bool:
        """Unknown does not allow."""
        return self.answer is GuardAnswer.YES

    def __str__(self) -> str:
        return f"{self.answer.value}: {self.reason}"


def capacity_floor(num_wanted: int, floor_ratio: float = DEFAULT_FLOOR_RATIO) -> int:
    """How many nodes must keep taking requests: at least one."""
    return max(1, math.ceil(floor_ratio * num_wanted - 1e-9))


def judge_capacity(
    action: Action,
    fleet: FleetView,
    *,
    change: Change | None = None,
    fresh: Iterable[str] = (),
    gone: Iterable[str] = (),
    leaving: Iterable[str] = (),
    floor_ratio: float = DEFAULT_FLOOR_RATIO,
) -> Ruling:
    """Whether enough nodes still take requests once `action` has begun: of each pool and model that it takes nodes
    from, and of the fleet.

    `change` is the part of it that comes next; without one, all of it. The floor is a share of what was wanted when the
    run began or within the last hour, whichever is more: `fresh` nodes, which the same run started, serve but don't
    raise it, so that a replacement counts for the node it replaces, nor do those that a rollout has beyond its pool's
    size; `gone` nodes, which it took out, don't lower it.
    `leaving` are nodes that steps of other runs are taking out right now.
    """
    change = action.change if change is None else change
    if change is None:
        return Ruling(GuardAnswer.UNKNOWN, f"could not look which nodes {action.target.words} has")
    if not change.taken_out:
        return Ruling(GuardAnswer.YES, "adds capacity" if change.creates or change.adds else "changes nothing")
    wanted = fleet.wanted
    if fleet.serving is None or wanted is None:
        names = ", ".join(sorted(change.taken_out))
        return Ruling(GuardAnswer.UNKNOWN, f"could not look which nodes serve: {names} is not taken out blindly")
    fresh, gone = frozenset(fresh) | fleet.surge_nodes(change.taken_out), frozenset(gone)
    whole = _Share(
        "", fleet.serving - frozenset(leaving), (wanted - fresh) | gone, fleet.past.peak(_any, without=fresh)
    )
    rulings = [_judge_floor(change, whole, floor_ratio)]
    for kind, name in _places(action, fleet, change):
        place = Target(kind, name)
        members = fleet.members(place, also=gone) or frozenset()
        in_place = _in_place(kind, name)
        share = _Share(
            f" of {place.words}",
            whole.serving & members,
            whole.planned & members,
            fleet.past.peak(in_place, without=fresh),
        )
        if share.figures != whole.figures:
            rulings.append(_judge_floor(change, share, floor_ratio))
    about_place = len(rulings) > 1 and action.target.kind in NODE_SETS
    return next((ruling for ruling in rulings if not ruling.allows), rulings[1 if about_place else 0])


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of the fleet that a floor is about."""

    where: str
    serving: frozenset[str]
    planned: frozenset[str]
    num_before: int  # wanted within the last hour; 0: not known

    @property
    def figures(self) -> tuple[frozenset[str], frozenset[str], int]:
        return self.serving, self.planned, self.num_before


def _places(action: Action, fleet: FleetView, change: Change) -> list[tuple[TargetKind, str]]:
    """The pools and models that lose nodes, and what the action is about, without repetition."""
    taken = [fleet.nodes[name] for name in sorted(change.taken_out) if fleet.nodes and name in fleet.nodes]
    target = [(action.target.kind, action.target.name)] if action.target.kind in NODE_SETS else []
    pools = [(TargetKind.POOL, node.pool) for node in taken]
    models = [(TargetKind.MODEL, node.model) for node in taken]
    return list(dict.fromkeys([*target, *pools, *models]))


def _in_place(kind: TargetKind, name: str) -> Callable[[WantedChange], bool]:
    return lambda change: bool(getattr(change, kind.value, None) == name)


def _any(_: WantedChange) -> bool:
    return True


def _judge_floor(change: Change, share: _Share, floor_ratio: float) -> Ruling:
    names = ", ".join(sorted(change.taken_out))
    num_wanted = max(len(share.planned), share.num_before)
    floor = capacity_floor(num_wanted, floor_ratio)
    left = len(share.serving - change.taken_out)
    before = f" ({num_wanted} were wanted within the last hour)" if num_wanted > len(share.planned) else ""
    if not change.taken_out & share.serving:
        takes = "takes" if len(change.taken_out) == 1 else "take"
        return Ruling(
            GuardAnswer.YES, f"{names} {takes} no requests now; {left} serve{share.where}, the floor is {floor}{before}"
        )
    if left < floor:
        return Ruling(
            GuardAnswer.NO,
            f"without {names} only {left} of {len(share.serving)} nodes{share.where} would serve,"
            f" the floor is {floor}{before}",
        )
    return Ruling(GuardAnswer.YES, f"{left} nodes{share.where} serve without {names}, the floor is {floor}{before}")


def judge_undo(
    action: Action,
    fleet: FleetView,
    *,
    change: Change | None = None,
    fresh: Iterable[str] = (),
    acted_on: Iterable[str] = (),
) -> Ruling:
    """Whether an undo step may take out what it names: never a node that serves for one that does not.

    `acted_on` are the nodes that the run was about and did not start itself: each must serve again before a `fresh`
    one, which stands for it, may go.
    """
    change = action.change if change is None else change
    if change is None or fleet.serving is None or not change.taken_out & fleet.serving:
        return Ruling(GuardAnswer.YES, "takes out nothing that serves")
    lost = sorted(frozenset(acted_on) - frozenset(fresh) - fleet.serving)
    if lost:
        kept = ", ".join(sorted(change.taken_out & fleet.serving))
        return Ruling(GuardAnswer.NO, f"{kept} serves and {', '.join(lost)} does not: what works stays")
    return Ruling(GuardAnswer.YES, "what was there before serves again")


def judge_names(existing: Iterable[Target], fresh: Iterable[str], fleet: FleetView) -> Ruling:
    """Whether the things to act on exist, and the names of new nodes are free."""
    if fleet.nodes is None:
        return Ruling(GuardAnswer.UNKNOWN, "could not look which nodes exist")
    wanted = {node.name for node in fleet.nodes.values() if node.wanted}
    for target in existing:
        if target.kind is TargetKind.NODE:
            is_there, known = target.name in wanted, sorted(wanted)
        elif target.kind in NODE_SETS:
            values = {getattr(node, target.kind.value) for node in fleet.nodes.values() if node.wanted}
            is_there, known = target.name in values, sorted(values)
        else:
            continue
        if not is_there:
            kind = target.kind.value
            return Ruling(GuardAnswer.NO, f"there is no {kind} {target.name}; {kind}s: {', '.join(known) or 'none'}")
    for name in fresh:
        if name in wanted:
            return Ruling(GuardAnswer.NO, f"the new node's name {name} is taken: give a free one")
    return Ruling(GuardAnswer.YES, "all names fit")


def judge_plan(
    actions: Sequence[Action],
    fleet: FleetView,
    *,
    fresh: Iterable[str] = (),
    floor_ratio: float = DEFAULT_FLOOR_RATIO,
) -> tuple[Ruling, ...]:
    """One ruling for each action, each on the fleet as the actions before it leave it."""
    fresh = frozenset(fresh)
    rulings = []
    for action in actions:
        rulings.append(judge_capacity(action, fleet, fresh=fresh, floor_ratio=floor_ratio))
        fleet = fleet.after(action.change)
    return tuple(rulings)


def judge_near_floor(
    actions: Sequence[Action],
    fleet: FleetView,
    *,
    fresh: Iterable[str] = (),
    floor_ratio: float = DEFAULT_FLOOR_RATIO,
) -> bool:
    """Whether some action leaves a pool so few nodes that the loss of one more would break a floor. Unknown is near."""
    fresh = frozenset(fresh)
    for action in actions:
        change = action.change
        if change is None or (change.taken_out and fleet.serving is None):
            return True
        for pool in sorted({node.pool for name in change.taken_out if (node := (fleet.nodes or {}).get(name))}):
            others = sorted(
                (fleet.members(Target(TargetKind.POOL, pool)) or frozenset()) & (fleet.serving or frozenset())
            )
            one_more = next((name for name in others if name not in change.taken_out), None)
            if one_more is None:
                return True
            if not judge_capacity(action, fleet, fresh=fresh, leaving=[one_more], floor_ratio=floor_ratio).allows:
                return True
        fleet = fleet.after(change)
    return False


def judge_start(actions: Sequence[Action], fleet: FleetView) -> Ruling:
    """Whether what was planned still fits the fleet, right before the first step."""
    if why := why_not_ended(actions, fleet):
        return Ruling(GuardAnswer.NO, why)
    for action in actions:
        if why := _lacking(action, fleet) or _without_capacity(action, fleet):
            return Ruling(GuardAnswer.NO, why)
        if action.verb.check_start is not None and (why := action.verb.check_start(action, fleet)):
            return Ruling(GuardAnswer.NO, why)
        fleet = fleet.after(action.change)
    return Ruling(GuardAnswer.YES, "as planned")


def why_never(actions: Sequence[Action], fleet: FleetView) -> str:
    """What a node that the actions mean can never do, by its engine or by who runs it; empty when each can."""
    return next((why for action in actions if (why := _lacking(action, fleet))), "")


def _lacking(action: Action, fleet: FleetView) -> str:
    """Why a node that the action means can't do its part; empty when each can, as far as that is known."""
    if action.target.kind is TargetKind.ROLLOUT and fleet.revisions is not None:
        facts = fleet.revisions.pools.get(action.target.name)
        if facts is not None and (why := facts.cannot.get(action.verb.name.split()[-1])):
            return f"{action.verb.name} of pool {action.target.name} can't be done: {why}"
    for ability in action.verb.needs:
        for name, node in sorted(_meant(ability, action, fleet).items()):
            if why := node.cannot.get(ability):
                return f"{name}: {action.verb.name} can't be done: {why}"
    return ""


def _without_capacity(action: Action, fleet: FleetView) -> str:
    """Why the new nodes can't all be started; empty when they can, or when that is not known."""
    nodes, wanted = fleet.nodes or {}, fleet.wanted or frozenset()
    copies: dict[str, list[str]] = {}
    for name, like in (action.change or Change()).creates.items():
        if name not in wanted:
            copies.setdefault(like or name, []).append(name)
    for like, names in copies.items():
        room = nodes[like].capacity if like in nodes else Capacity()
        if room.more is not None and len(names) > room.more:
            return f"{len(names)} more like {like} can't be started, only {room.more}: {room.why}"
        strangers = sorted(set(names) - set(names if room.names is None else room.names))
        if strangers:
            return f"no node can be started as {strangers[0]}: {room.why}"
    return ""


def _meant(ability: Ability, action: Action, fleet: FleetView) -> dict[str, NodeFacts]:
    """Whose ability it is about: a new node's is that of the node it copies."""
    nodes, change = fleet.nodes or {}, action.change or Change()
    if action.target.kind is TargetKind.ROLLOUT:
        return {name: node for name, node in nodes.items() if node.wanted and node.pool == action.target.name}
    if action.target.kind is TargetKind.HOST:
        return {name: node for name, node in nodes.items() if node.wanted and node.host == action.target.name}
    if ability is Ability.START:
        copied = {name: nodes.get(like or name) for name, like in change.creates.items()}
        return {name: node for name, node in copied.items() if node is not None}
    names = {action.target.name} if action.target.kind is TargetKind.NODE else change.taken_out
    return {name: nodes[name] for name in names if name in nodes}


def judge_repeat(runbook: str, targets: Sequence[Target], earlier: Iterable[Run]) -> Ruling:
    """No to what was already tried on the same target for the same incident and undone: it does not help."""
    for run in earlier:
        if (
            run.runbook == runbook
            and run.status in (RunStatus.UNDONE, RunStatus.FAILED)
            and not run.dry_run
            and set(run.targets) & set(targets)
        ):
            return Ruling(
                GuardAnswer.NO,
                f"{run.id} tried {runbook} for this incident and ended {run.status.value}: it is not repeated;"
                " to insist, start it without naming the incident",
            )
    return Ruling(GuardAnswer.YES, "not tried for this incident")


def held_text(target: Target, claimed: Target, holder: Run, *, is_known: bool = True) -> str:
    """Why a run can't have `target`: one mutating run at a time on `claimed`, which is or may be part of the same."""
    held = f"{claimed} is held by run {holder.id} ({holder.title}, {holder.status.value})"
    if target == claimed:
        return held
    return f"{target} is not free: {held}" + ("" if is_known else f", and whether {target} belongs to it is not known")


class Policy(StrEnum):
    """Who lets a run start that the controller proposed."""

    ASK = "ask"  # a person approves
    RUN = "run"  # pages of low and medium risk start by themselves; guards hold all the same


def needs_person(policy: Policy, risk: str) -> bool:
    """Whether a proposed run of this risk waits for a person's approval."""
    return policy is not Policy.RUN or risk == "high"
