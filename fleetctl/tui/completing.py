"""What completes a line of the cockpit's command line, out of the names that are there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleetctl.tui.noun import LOOKING, NOUNS
from fleetctl.tui.order import SIMPLE, verb_of
from fleetctl.tui.shell import ELSEWHERE
from fleetctl.tui.snapshot import Snapshot
from runbooks.target import TargetKind
from runbooks.verb import Verb
from runbooks.verbs import VERBS


@dataclass(frozen=True, slots=True)
class Names:
    """What is there, for completion."""

    nodes: Sequence[str] = ()
    pools: Sequence[str] = ()
    incidents: Sequence[str] = ()
    runs: Sequence[str] = ()
    runbooks: Sequence[str] = ()
    alerts: Sequence[str] = ()
    commands: Sequence[str] = ()  # beside verbs
    kinds: Sequence[str] = ()


def names_of(snapshot: Snapshot, commands: Collection[str], kinds: Sequence[str]) -> Names:
    """By what was read last. `commands`: those that are no verbs. `kinds`: what can be listed."""
    return Names(
        nodes=[node.name for node in snapshot.nodes],
        pools=[pool.name for pool in snapshot.pools],
        incidents=[one.id for one in snapshot.incidents],
        runs=[run.id for run in snapshot.runs],
        runbooks=sorted({run.runbook for run in snapshot.runs} - {"action"}),
        alerts=sorted({alert.name for alert in snapshot.alerts}),
        commands=tuple(commands),
        kinds=kinds,
    )


def completions(text: str, names: Names) -> list[str]:
    """Whole lines that begin with what was typed, the shortest first."""
    head, _, last = text.rpartition(" ")
    words = head.split()
    offered = sorted({one for one in _offered(words, names) if one.startswith(last) and one != last}, key=_by_length)
    return [f"{head} {one}" if head else one for one in offered[:20]]


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


def _offered(words: list[str], names: Names) -> list[str]:
    if not words:
        return [
            *NOUNS,
            "get",
            "describe",
            *(name.split()[0] for name in VERBS),
            "replace",
            *(one.split()[0] for one in names.commands if one not in ELSEWHERE),
            *(one for one in SIMPLE if len(one) > 1),
        ]
    if words in (["get"], ["describe"], ["explain"]):
        return [*NOUNS, *names.kinds] if words != ["explain"] else list(names.kinds)
    verb = verb_of(words)
    rest = [word for word in words if word not in LOOKING]
    if verb is None:
        begun = f"{' '.join(words)} "
        second = [name.removeprefix(begun).split()[0] for name in (*VERBS, *names.commands) if name.startswith(begun)]
        return [*second, *_subjects(rest, names)]
    taken = len(verb.name.split())
    if len(words) == taken:
        return _targets(verb, names)
    used = set(words)
    return [option for option in (*(one.name for one in verb.options), "--dry-run") if option not in used]


def _subjects(rest: list[str], names: Names) -> list[str]:
    match rest:
        case ["node" | "nodes" | "logs" | "diagnose"]:
            return list(names.nodes)
        case ["pool" | "pools"]:
            return list(names.pools)
        case ["incident"]:
            return ["ack", "assign", *names.incidents]
        case ["incident", "ack" | "assign"] | ["incidents"]:
            return list(names.incidents)
        case ["runbook"]:
            return ["approve", "deny", "run", *names.runbooks]
        case ["runbook", "run"]:
            return list(names.runbooks)
        case ["replace"]:
            return list(names.nodes)
        case ["runbook", "approve" | "deny"] | ["run"]:
            return list(names.runs)
        case ["alert" | "alerts"]:
            return list(names.alerts)
    return []


def _targets(verb: Verb, names: Names) -> list[str]:
    found: list[str] = []
    if TargetKind.NODE in verb.kinds:
        found += names.nodes
    if TargetKind.POOL in verb.kinds:
        alone = verb.kinds == (TargetKind.POOL,)
        found += [pool if alone else f"pool/{pool}" for pool in names.pools]
    return found
