"""`rollout`: a pool gets from one revision to another, and back. Each verb is an order to it; it goes on by itself."""

from __future__ import annotations

from runbooks.ability import Ability
from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.node_setting import check_settings, check_unset
from runbooks.ports import Receipt, RolloutFacts, RolloutOrder, RolloutOrderKind
from runbooks.rule_verb import share_words
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, Action, EffectCall, Option, Verb

DEFAULT_STEPS = (0.05, 0.25, 0.5, 1.0)
STATUS = "fleetctl rollout status"
_EXCHANGED = (
    "Kubernetes exchanges the pods of pool {pool} by the workload's own strategy, each drained by its preStop hook; "
    "no gate judges it, and PodDisruptionBudgets are not asked"
)


def _facts(action: Action, fleet: FleetView) -> RolloutFacts:
    """Raises BadInputError when it is not known, or there is no such pool."""
    if fleet.revisions is None:
        raise BadInputError("could not look which revisions there are", remedy="try again")
    found = fleet.revisions.pools.get(action.target.name)
    if found is None:
        known = ", ".join(sorted(fleet.revisions.pools)) or "none"
        raise BadInputError(f"there is no pool {action.target.name}; pools: {known}", remedy="fleetctl get pools")
    return found


def _check_revision(revision: str, facts: RolloutFacts, fleet: FleetView) -> None:
    assert fleet.revisions is not None
    if facts.workload:
        if revision not in facts.kept:
            known = ", ".join(facts.kept) or "none"
            raise BadInputError(f"{facts.workload} keeps no revision {revision}", remedy=f"it has {known}")
        return
    if revision not in fleet.revisions.revisions:
        raise BadInputError(f"there is no revision {revision}", remedy="fleetctl get revisions")


def _is_refused(action: Action, facts: RolloutFacts) -> bool:
    """Whether the guard says why it can't be done."""
    return action.verb.name.split()[-1] in facts.cannot


def _check_workload(action: Action, facts: RolloutFacts) -> None:
    """Raises BadInputError when the pool is another's than it was when this was planned."""
    if action.args["workload"] not in (None, facts.workload):
        raise BadInputError(f"pool {action.target.name} is {facts.workload or 'a pool of our own nodes'}")


def _check_for_workload(action: Action, facts: RolloutFacts) -> None:
    """Raises BadInputError for what only a rollout of the controller's own has."""
    given = [
        option.name
        for option in action.verb.options
        if option.key not in ("to", "settings", "workload") and action.args[option.key] != option.default
    ]
    if given:
        raise BadInputError(
            f"pool {action.target.name} is {facts.workload}, which exchanges its pods by its own strategy: "
            f"{', '.join(given)} can't be given",
            remedy="change its manifest",
        )
    others = [one for one in action.args["settings"] or () if not one.startswith("image=")]
    if others or len(action.args["settings"] or ()) > 1:
        raise BadInputError(
            f"pool {action.target.name} is {facts.workload}: --set takes image=IMAGE and nothing else there",
            remedy="change its manifest",
        )


def _check_changes(action: Action, facts: RolloutFacts) -> None:
    """Raises BadInputError for what no node would start with; nothing where nobody can say what nodes take."""
    pool = action.target.name
    if facts.takes is not None and action.args["settings"]:
        remedy = f"fleetctl rollout start {pool} --set SETTING --dry-run"
        check_settings(facts.takes, action.args["settings"], remedy)
    if facts.given is not None and action.args["unset"]:
        check_unset(facts.given, action.args["unset"], facts.revision, pool)


def _resolve_start(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action with its steps, once it says what to roll out, and nothing else is on its way."""
    facts, args, pool = _facts(action, fleet), action.args, action.target.name
    if _is_refused(action, facts):
        return action
    _check_workload(action, facts)
    if facts.workload:
        _check_for_workload(action, facts)
    changes = [args[key] for key in ("model_dir", "settings", "unset") if args[key]]
    if (args["to"] is None) == (not changes):
        raise BadInputError(
            f"{action.verb.name}: what is to be rolled out?",
            remedy="give --to REVISION, or what changes: --model-dir, --set, --unset",
        )
    _check_changes(action, facts)
    if args["to"] is not None:
        _check_revision(args["to"], facts, fleet)
        if args["to"] == facts.revision and not facts.state:
            raise BadInputError(f"pool {pool} is of revision {args['to']} already", remedy=f"{STATUS} {pool}")
    if facts.state and facts.to != args["to"]:
        raise BadInputError(
            f"a rollout of pool {pool} to {facts.to} is under way: {facts.state}",
            remedy=f"{STATUS} {pool}; fleetctl rollout rollback {pool}",
        )
    if facts.workload:
        return action.with_args(workload=facts.workload)
    steps: tuple[float, ...] = args["steps"] or DEFAULT_STEPS
    if list(steps) != sorted(set(steps)):
        raise BadInputError(f"{action.verb.name} --steps: each must be larger than the one before")
    return action.with_args(steps=steps if steps[-1] == 1.0 else (*steps, 1.0))


def _under_way(action: Action, fleet: FleetView) -> RolloutFacts:
    facts = _facts(action, fleet)
    if not facts.state and not _is_refused(action, facts):
        raise BadInputError(
            f"no rollout of pool {action.target.name} is under way",
            remedy=f"fleetctl rollout history {action.target.name}",
        )
    return facts


def _resolve_step(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action with the step that it leaves: called again after a crash it means the same one."""
    facts = _under_way(action, fleet)
    if _is_refused(action, facts):
        return action
    if facts.state == "rolling_back":
        raise BadInputError("it is rolling back: there is no step to change", remedy=f"{STATUS} {action.target.name}")
    if action.args["from"] not in (None, facts.step + 1):
        raise BadInputError(f"it is at step {facts.step + 1}", remedy="look again, or leave --from out")
    if facts.step + 1 >= len(facts.steps):
        raise BadInputError(
            "it is at its last step: all nodes are being exchanged", remedy=f"{STATUS} {action.target.name}"
        )
    return action.with_args(**{"from": facts.step + 1})


def _resolve_under_way(action: Action, fleet: FleetView, last: Action | None) -> Action:
    facts = _under_way(action, fleet)
    if facts.state == "rolling_back":
        raise BadInputError(f"it is rolling back: that goes on; `{STATUS} {action.target.name}` shows how far it is")
    return action


def _resolve_rollback(action: Action, fleet: FleetView, last: Action | None) -> Action:
    """The action with the revision that it goes back to."""
    facts, pool = _facts(action, fleet), action.target.name
    if _is_refused(action, facts):
        return action
    _check_workload(action, facts)
    to = action.args["to"] or facts.earlier
    if not to:
        raise BadInputError(
            f"no earlier revision of pool {pool} is known", remedy="give --to; `fleetctl get revisions`"
        )
    _check_revision(to, facts, fleet)
    if not facts.state and to == facts.revision:
        raise BadInputError(f"pool {pool} is of revision {to} already", remedy=f"fleetctl rollout history {pool}")
    if facts.state and to == facts.to:
        raise BadInputError(f"{to} is what is being rolled out", remedy="give an earlier one with --to")
    return action.with_args(to=to, workload=facts.workload or None)


def _changes(action: Action) -> str:
    args = action.args
    words = [f"model directory {args['model_dir']}"] if args["model_dir"] else []
    words += [*(args["settings"] or ()), *(f"no {key}" for key in args["unset"] or ())]
    return ", ".join(words)


def _predict_start(action: Action) -> str:
    args, pool = action.args, action.target.name
    what = f"revision {args['to']}" if args["to"] else f"a revision like its own, but with {_changes(action)}"
    if args["workload"]:
        return f"gives {args['workload']} {what}: {_EXCHANGED.format(pool=pool)}"
    steps = ", ".join(share_words(share) for share in args["steps"] or DEFAULT_STEPS)
    who = "a person promotes each step" if args["by_hand"] else "each step follows when its nodes are ready"
    if not args["no_gate"] and not args["by_hand"]:
        who = "each step follows once the gate passes it"
    judged = "nothing but whether new nodes get ready is judged" if args["no_gate"] else "what is worse is rolled back"
    return f"rolls {what} out to pool {pool} in steps of {steps} of the sessions; {who}; {judged}"


async def _effect(call: EffectCall) -> Receipt:
    action = call.action
    kind = RolloutOrderKind(action.verb.name.split()[1])
    return await call.effects.order_rollout(
        RolloutOrder(kind, action.target.name, dict(action.args), call.asked_by, call.reason, call.override)
    )


def _predict_rollback(action: Action) -> str:
    to = f"revision {action.args['to']}" if action.args["to"] else "the revision before"
    if action.args["workload"]:
        return f"gives {action.args['workload']} {to} again: {_EXCHANGED.format(pool=action.target.name)}"
    return f"takes pool {action.target.name} back to {to}: sessions first, then nodes; those of it that serve stay"


_FROM = Option("--from", "from", "count", None, "the step that it is at; refused if it is not")
_WORKLOAD = Option(
    "--workload", "workload", "word", None, "whose own rollout it is, where the pool is pods; refused if it is another"
)
_KINDS = (TargetKind.ROLLOUT,)

VERBS = (
    Verb(
        name="rollout start",
        kinds=_KINDS,
        help="Roll a revision out to a pool: a canary first, judged beside the nodes of now, then step by step.",
        example="rollout start decode --set max-num-seqs=32",
        capacity=KEEPS,
        predicts=_predict_start,
        effect=_effect,
        idempotency="a rollout to the same revision that is under way is the one",
        options=(
            Option("--to", "to", "word", None, "a revision that there is; `fleetctl get revisions` lists them"),
            Option("--model-dir", "model_dir", "path", None, "the pool's revision with this model directory"),
            Option(
                "--set", "settings", "settings", None, "the pool's revision with these settings: max-num-seqs=32,..."
            ),
            Option("--unset", "unset", "names", None, "the pool's revision without these settings"),
            Option(
                "--steps", "steps", "shares", None, "shares of the sessions, the last is all; none: 5%,25%,50%,100%"
            ),
            Option("--by-hand", "by_hand", "flag", False, "a person promotes; what fails is rolled back all the same"),
            Option("--no-gate", "no_gate", "flag", False, "judge nothing but whether the new nodes get ready and stay"),
            Option("--shadow", "shadow", "ratio", None, "compare answers too, on copies of this share of the requests"),
            _WORKLOAD,
        ),
        needs_target=False,
        needs=(Ability.START, Ability.STOP),
        resolve=_resolve_start,
    ),
    Verb(
        name="rollout canary",
        kinds=_KINDS,
        help="Set the share of the sessions that the new revision gets in the present step.",
        example="rollout canary chat --share 10%",
        capacity=KEEPS,
        predicts=lambda action: (
            f"gives the new revision {share_words(action.args['share'])} of the sessions of pool {action.target.name},"
            " and begins this step anew"
        ),
        effect=_effect,
        idempotency="a step that has this share stays as it is",
        options=(Option("--share", "share", "ratio", None, "of the sessions: 10% or 0.1", required=True), _FROM),
        needs_target=False,
        resolve=_resolve_step,
    ),
    Verb(
        name="rollout promote",
        kinds=_KINDS,
        help="Go to the next step now, whatever the gate says; with --all to the last one.",
        example="rollout promote chat",
        capacity=KEEPS,
        predicts=lambda action: (
            f"goes from step {action.args['from'] or '?'} to the {'last' if action.args['all'] else 'next'} one,"
            " whatever the gate says"
        ),
        effect=_effect,
        idempotency="one that is beyond the step it was to leave stays there",
        options=(Option("--all", "all", "flag", False, "to the last step: all nodes"), _FROM),
        needs_target=False,
        resolve=_resolve_step,
    ),
    Verb(
        name="rollout pause",
        kinds=_KINDS,
        help="Stay at the present step; what fails is rolled back all the same.",
        example="rollout pause chat",
        capacity=KEEPS,
        predicts=lambda action: (
            "stays at its step until it is resumed or promoted; what fails is rolled back all the same"
        ),
        effect=_effect,
        idempotency="one that is paused stays so",
        needs_target=False,
        resolve=_resolve_under_way,
    ),
    Verb(
        name="rollout resume",
        kinds=_KINDS,
        help="Go on after a pause: the present step is judged anew.",
        example="rollout resume chat",
        capacity=KEEPS,
        predicts=lambda action: "goes on with its step, which is judged anew",
        effect=_effect,
        idempotency="one that is not paused goes on",
        needs_target=False,
        resolve=_resolve_under_way,
    ),
    Verb(
        name="rollout rollback",
        kinds=_KINDS,
        help="Take a pool back to an earlier revision: the one before, or any with --to.",
        example="rollout rollback decode",
        capacity=KEEPS,
        predicts=_predict_rollback,
        effect=_effect,
        idempotency="a pool that goes back there already goes on with it",
        options=(Option("--to", "to", "word", None, "the revision; none: the one before the last rollout"), _WORKLOAD),
        needs_target=False,
        resolve=_resolve_rollback,
    ),
)
