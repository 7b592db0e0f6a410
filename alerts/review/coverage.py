"""Which signal each engine can tell: read off the signals files and the catalog, so that the table cannot be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from alerts.evaluation.builtin import builtin_signal_files
from alerts.evaluation.rules import RuleGroup, load_rule_file
from alerts.labels import METRIC_NAME
from alerts.promql import parse
from alerts.promql.nodes import Binary, Node, Selector, children
from alerts.review.catalog import Catalog, builtin_catalog
from alerts.review.lint_signals import SCRAPE_METRICS, declared_engines

GPU_EXPORTER = "dcgm"
# Told beside the engine: by us, by routers and gateways that are not ours, by the host's and the platform's exporters.
_OURS = ("fleet_", "gateway_", "controller_", "fleetctl_", "ALERTS")
_BESIDE = (
    *_OURS,
    "sgl_router_",
    "vllm_router_",
    "envoy_",
    "nginx_",
    "litellm_",
    "kube_",
    "node_",
    "container_",
    "probe_",
    "certmanager_",
)


@dataclass(frozen=True, slots=True)
class SignalCoverage:
    """`engines` are those that can tell the signal; for the others the series is absent."""

    signal: str
    engines: tuple[str, ...]


def covered_engines() -> list[str]:
    """The engines that some signals file of ours reads, our own first."""
    named = {engine for path in builtin_signal_files() for engine in _engines_of(path)}
    return sorted(named, key=lambda engine: (engine != "fleetctl", list(builtin_catalog().engines).index(engine)))


def coverage() -> list[SignalCoverage]:
    """Every signal in the order of the files. Raises BadRuleError when a file of ours is broken."""
    catalog, found = builtin_catalog(), dict[str, set[str]]()
    for path in builtin_signal_files():
        candidates = _engines_of(path)
        for group in load_rule_file(path):
            for rule in group.rules:
                able = _able(rule.query.root, candidates, found, catalog)
                found.setdefault(rule.name, set()).update(candidates if able is None else able)
    order = covered_engines()
    return [SignalCoverage(name, tuple(e for e in order if e in engines)) for name, engines in found.items()]


def answering_engines(groups: Iterable[RuleGroup]) -> Callable[[str], frozenset[str]]:
    """A function from a PromQL expression to the serving engines that can answer it, by what these rules record.

    What is no engine's (a GPU exporter's, the gateway's, the controller's, the scrape's own) is there beside each.
    """
    catalog, serving = builtin_catalog(), {engine for engine in covered_engines() if engine != GPU_EXPORTER}
    found = {
        one.signal: set(serving) if GPU_EXPORTER in one.engines else set(one.engines) & serving for one in coverage()
    }
    for group in groups:
        for rule in group.rules:
            if rule.kind == "record" and rule.name not in found:
                able = _able(rule.query.root, serving, found, catalog)
                found[rule.name] = set(serving) if able is None else able

    def answer(expression: str) -> frozenset[str]:
        able = _able(parse(expression).root, serving, found, catalog)
        return frozenset(serving if able is None else able)

    return answer


def _engines_of(path: Path) -> set[str]:
    declared = declared_engines(path)
    return set() if declared is None else set(declared[1])


def _able(node: Node, candidates: set[str], found: dict[str, set[str]], catalog: Catalog) -> set[str] | None:
    """Engines for which the expression can give a value; None when it reads no series."""
    if isinstance(node, Selector):
        return _selected(node, candidates, found, catalog)
    parts = [able for child in children(node) if (able := _able(child, candidates, found, catalog)) is not None]
    if not parts:
        return None
    if isinstance(node, Binary) and node.op == "or":
        return set.union(*parts)
    if isinstance(node, Binary) and node.op == "unless":
        return parts[0]
    return set.intersection(*parts)


def _selected(selector: Selector, candidates: set[str], found: dict[str, set[str]], catalog: Catalog) -> set[str]:
    matchers = [matcher for group in selector.groups for matcher in group]
    name = next((matcher for matcher in matchers if matcher.name == METRIC_NAME), None)
    of_engine = [matcher for matcher in matchers if matcher.name == "engine"]
    allowed = {engine for engine in candidates if all(matcher.accepts(engine) for matcher in of_engine)}
    if name is None or any(name.accepts(metric) for metric in SCRAPE_METRICS):
        return allowed
    if name.value.startswith(_BESIDE):
        return allowed
    if name.value.startswith("llm:"):
        return allowed & set[str]().union(*(engines for signal, engines in found.items() if name.accepts(signal)))
    return {engine for engine in allowed if any(name.accepts(metric) for metric in catalog.emitted_by([engine]))}
