"""Signals files: each says which engines it reads (`# engines: vllm`), and reads no metric that they do not emit.

A recording rule on a name that nobody emits loads, passes every test of its syntax, and records nothing for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher, compile_go
from alerts.native_name import native_name
from alerts.promql.nodes import Node, Selector, children
from alerts.review.catalog import Catalog
from alerts.review.finding import Problem
from alerts.review.name_pattern import names_of_pattern

SCRAPE_METRICS = frozenset(
    {
        "up",
        "scrape_duration_seconds",
        "scrape_samples_scraped",
        "scrape_samples_post_metric_relabeling",
        "scrape_series_added",
        "scrape_timeout_seconds",
        "scrape_sample_limit",
        "scrape_body_size_bytes",
        "ALERTS",
        "ALERTS_FOR_STATE",
    }
)
"""What Prometheus itself writes for each target and alert."""
_SIGNAL_PREFIX = "llm:"
_DIRECTIVE = re.compile(r"#\s*engines:\s*(.*?)\s*")


def declared_engines(path: Path) -> tuple[int, tuple[str, ...]] | None:
    """Line (from 1) and engines of the comment `# engines: a, b` above the file's content; None without one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return None
        directive = _DIRECTIVE.fullmatch(line.strip())
        if directive:
            return number, tuple(directive.group(1).replace(",", " ").split())
    return None


def declaration_problems(engines: tuple[str, ...], catalog: Catalog) -> Iterator[Problem]:
    """What is wrong with the line `# engines:` itself."""
    known = ", ".join(catalog.engines)
    if not engines:
        yield Problem("error", "unknown-engine", "`# engines:` names no engine", f"name some of {known}")
    for engine in engines:
        if engine not in catalog.engines:
            yield Problem(
                "error",
                "unknown-engine",
                f"{engine}: no engine of the metrics catalog ({known})",
                "add a namespace with its metrics to a metrics_catalog.yaml beside this file",
            )


def reads_engine_metrics(root: Node, recorded: set[str]) -> bool:
    """True when the expression reads anything but `llm:` series, scrape metrics and what rules record."""
    return any(
        matcher.op not in ("=", "=~") or any(not _is_given(name, recorded) for name in _names(matcher))
        for matcher in _name_matchers(root)
    )


def signal_problems(root: Node, catalog: Catalog, recorded: set[str], engines: tuple[str, ...]) -> Iterator[Problem]:
    """Names that none of these engines emits. `recorded`: names that rules under review write themselves."""
    for matcher in _name_matchers(root):
        if matcher.op not in ("=", "=~"):
            continue
        names = _names(matcher)
        if names == [matcher.value] and matcher.op == "=~" and names_of_pattern(matcher.value) is None:
            pattern = compile_go(matcher.value)
            if not any(pattern.fullmatch(name) for name in (*catalog.emitted_by(engines), *recorded)):
                yield _dead(matcher.value, catalog, engines)
            continue
        for name in dict.fromkeys(map(native_name, names)):
            if not _is_given(name, recorded) and not catalog.emitters(name) & set(engines):
                yield _dead(name, catalog, engines)


def _dead(name: str, catalog: Catalog, engines: tuple[str, ...]) -> Problem:
    elsewhere = sorted(catalog.emitters(name))
    asked = " and ".join(engines)
    because = f"{asked} does not emit this"
    if elsewhere:
        because = f"{' and '.join(elsewhere)} {'emits' if len(elsewhere) == 1 else 'emit'} it, not {asked}"
    closest = catalog.closest_of(name, engines)
    add = f"add it to metrics_catalog.yaml ({asked}) with its source if it does"
    return Problem(
        "error",
        "dead-metric",
        f"{name}: {because}, so the rule never gives a sample",
        f"did you mean {closest}? else {add}" if closest else add,
    )


def _is_given(name: str, recorded: set[str]) -> bool:
    return name in SCRAPE_METRICS or name in recorded or name.startswith(_SIGNAL_PREFIX)


def _names(matcher: Matcher) -> list[str]:
    """The names that the matcher stands for; the pattern itself when they cannot be listed."""
    if matcher.op == "=":
        return [matcher.value]
    found = names_of_pattern(matcher.value)
    return [matcher.value] if found is None else found


def _name_matchers(node: Node) -> Iterator[Matcher]:
    if isinstance(node, Selector):
        for group in node.groups:
            yield from (matcher for matcher in group if matcher.name == METRIC_NAME)
    for child in children(node):
        yield from _name_matchers(child)
