"""What a person does where nothing is proposed: the words, with the command as it can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from fleetctl.traffic_rule import Spec, TrafficRule
from runbooks.page import Page


def run_command(page: str, given: Mapping[str, str], missing: Sequence[str] = (), incident_id: str = "") -> str:
    """The command that runs a page with these inputs; what is missing stands there as `NODE`, for who knows it."""
    of = ["--incident", incident_id] if incident_id else []
    words = [*(f"{name}={value}" for name, value in given.items()), *(f"{name}={name.upper()}" for name in missing)]
    return shlex.join(["fleetctl", "runbook", "run", page, *of, *words])


def missing_words(page: Page, scope: Mapping[str, str], missing: Sequence[str], incident_id: str = "") -> str:
    """Why a page is not proposed whose inputs the scope does not give, and the command for who knows them."""
    known = {name: scope[name] for name in page.inputs if name in scope}
    why = f"{page.name} needs {', '.join(missing)}, which the scope does not give"
    return f"{why}. By hand: {run_command(page.name, known, missing, incident_id)}"


def in_force_words(page: str, wanted: Mapping[str, Spec], rules: Iterable[TrafficRule]) -> str:
    """Why a page is not proposed whose rules stand already, and order as much; "" where it makes none, and where one of
    them is not there. `rules`: those in force."""
    standing = {rule.id: rule for rule in rules}
    found = [standing[name] for name, spec in wanted.items() if name in standing]
    if not found or len(found) < len(wanted):
        return ""
    if not all(rule.spec.orders_as_much_as(wanted[rule.id]) for rule in found):
        return ""
    told = ", ".join(f"traffic rule {rule.id} ({rule.spec.words})" for rule in found)
    return f"{page} is in force already: {told}. By hand: fleetctl runbook show {page}"


def words_for_node(node: str | None) -> str:
    """What a person does about a node that nobody here can start, stop or restart."""
    if node is None:
        return ""
    return (
        f". By hand: `fleetctl drain {node}`, so that nothing new goes there and what it holds ends or moves;"
        " then restart or replace it where it runs, and `fleetctl uncordon` it"
    )
