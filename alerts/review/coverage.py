"""Which signal each engine can tell: read off the signal files themselves, so that the table cannot be wrong."""

from __future__ import annotations

from dataclasses import dataclass

from alerts.evaluation.builtin import builtin_signal_files
from alerts.evaluation.rules import load_rule_file
from alerts.matcher import Matcher
from alerts.promql.nodes import Binary, Node, Selector, children
from alerts.review.catalog import builtin_catalog
from alerts.sample import NAME

ENGINES = ("fleetctl", "vllm", "sglang", "tgi", "trtllm", "triton", "dcgm")
_NOT_OURS = frozenset({"vllm:num_requests_waiting_by_reason"})  # vLLM's names that our own engine does not have
_SHARED = {"engine": {"fleetctl", "vllm"}, "dcgm": {"fleetctl", "dcgm"}}  # files that serve two


@dataclass(frozen=True, slots=True)
class SignalCoverage:
    """`engines` are those that can tell the signal; for the others the series is absent."""

    signal: str
    engines: tuple[str, ...]


def coverage() -> list[SignalCoverage]:
    """Every signal in the order of the files. Raises BadRuleError when a file of ours is broken."""
    found: dict[str, set[str]] = {}
    for path in builtin_signal_files():
        candidates = _SHARED.get(path.stem, {path.stem})
        for group in load_rule_file(path):
            for rule in group.rules:
                able = _able(rule.query.root, candidates, found)
                found.setdefault(rule.name, set()).update(candidates if able is None else able)
    return [SignalCoverage(name, tuple(e for e in ENGINES if e in engines)) for name, engines in found.items()]


def _able(node: Node, candidates: set[str], found: dict[str, set[str]]) -> set[str] | None:
    """Engines for which the expression can give a value; None when it reads no series."""
    if isinstance(node, Selector):
        return _selected(node, candidates, found)
    parts = [able for child in children(node) if (able := _able(child, candidates, found)) is not None]
    if not parts:
        return None
    if isinstance(node, Binary) and node.op == "or":
        return set.union(*parts)
    if isinstance(node, Binary) and node.op == "unless":
        return parts[0]
    return set.intersection(*parts)


def _selected(selector: Selector, candidates: set[str], found: dict[str, set[str]]) -> set[str]:
    matchers = [matcher for group in selector.groups for matcher in group]
    name = next((matcher for matcher in matchers if matcher.name == NAME), None)
    of_engine = [matcher for matcher in matchers if matcher.name == "engine"]
    allowed = {engine for engine in candidates if all(matcher.accepts(engine) for matcher in of_engine)}
    if name is None:
        return allowed
    if name.value.startswith("llm:"):
        allowed &= set[str]().union(*(engines for signal, engines in found.items() if name.accepts(signal)))
    return allowed if _is_ours(name) else allowed - {"fleetctl"}


def _is_ours(name: Matcher) -> bool:
    """Does our own node emit what the matcher for the name selects."""
    if name.value.startswith("DCGM_"):
        return any(name.accepts(each) for each in builtin_catalog().read_by_node)
    return name.value not in _NOT_OURS
