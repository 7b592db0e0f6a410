"""Read rule files as a reviewer does: what can never fire, what fires for the wrong reason, what misleads.

`error`: cannot be loaded, can never be true, or is always true. `warning`: works, but does not say
what it seems to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from alerts.errors import AlertsError, BadCatalogError, BadRuleError
from alerts.evaluation.rules import Rule, load_group, load_rule, raw_groups
from alerts.evaluation.yaml_file import read_yaml, shown_path
from alerts.review.catalog import CATALOG_FILE, Catalog, builtin_catalog, load_catalog
from alerts.review.finding import Finding, Problem
from alerts.review.lint_metrics import dead_metrics, metric_problems
from alerts.review.lint_rule import rule_problems
from alerts.review.lint_shapes import shape_problems
from alerts.review.lint_signals import (
    declaration_problems,
    declared_engines,
    reads_engine_metrics,
    signal_problems,
)

UNREADABLE = "unreadable"
_LINE = re.compile(r", line (\d+): ")


def lint_files(paths: Sequence[Path]) -> list[Finding]:
    """All findings of all files, in order of place. A name recorded in one file is known in the others.

    A file that is no YAML or no rule file at all has one finding, whose check is UNREADABLE. Metrics of engines that
    the package does not know come from a `metrics_catalog.yaml` beside a file, or one folder above it.
    """
    catalog, findings = _catalog_of(paths)
    files = [_read(path) for path in paths]
    recorded = {rule.name for file in files for place in file.places if (rule := place.rule) and rule.kind == "record"}
    return [*findings, *(finding for file in files for finding in _lint(file, catalog, recorded))]


def _catalog_of(paths: Sequence[Path]) -> tuple[Catalog, list[Finding]]:
    folders = dict.fromkeys(folder for path in paths for folder in (path.resolve().parent, path.resolve().parents[1]))
    added = [file for folder in folders if (file := folder / CATALOG_FILE.name).is_file() and file != CATALOG_FILE]
    findings = []
    for file in added:
        try:
            load_catalog([file])
        except BadCatalogError as error:
            reason = str(error).removeprefix(shown_path(file)).removeprefix(": ")
            findings.append(Finding(shown_path(file), 1, "", "", "error", UNREADABLE, reason, ""))
    return (builtin_catalog() if findings else load_catalog(added)), findings


@dataclass(frozen=True, slots=True)
class _Place:
    group: str
    name: str
    line: int
    expr_line: int
    rule: Rule | None  # None: it cannot be read, for the reason in `error`
    error: str


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    places: tuple[_Place, ...]
    findings: tuple[Finding, ...]
    declared: tuple[int, tuple[str, ...]] | None = None  # line and engines of `# engines:`


def _lint(file: _File, catalog: Catalog, recorded: set[str]) -> list[Finding]:
    found = [*file.findings, *_declaration_findings(file, catalog, recorded)]
    engines = file.declared[1] if file.declared else ()
    is_signals = bool(engines) and all(engine in catalog.engines for engine in engines)
    for place in file.places:
        if place.rule is None:
            found.append(Finding(file.name, place.line, place.group, place.name, "error", "syntax", place.error, ""))
            continue
        root, is_alert = place.rule.query.root, place.rule.kind == "alert"
        problems = [
            *(
                signal_problems(root, catalog, recorded, engines)
                if is_signals
                else dead_metrics(root, catalog, recorded)
            ),
            *metric_problems(root, catalog, recorded, is_alert=is_alert),
            *shape_problems(place.rule, catalog),
            *rule_problems(place.rule),
        ]
        found += [_finding(file.name, place, problem) for problem in dict.fromkeys(problems)]
    return sorted(found, key=lambda finding: finding.line)


def _declaration_findings(file: _File, catalog: Catalog, recorded: set[str]) -> list[Finding]:
    if file.declared is not None:
        line, engines = file.declared
        return [
            Finding(file.name, line, "", "", problem.severity, problem.check, problem.message, problem.remedy)
            for problem in declaration_problems(engines, catalog)
        ]
    signals = [
        place
        for place in file.places
        if place.rule is not None
        and place.rule.kind == "record"
        and place.rule.name.startswith("llm:")
        and reads_engine_metrics(place.rule.query.root, recorded)
    ]
    if not signals:
        return []
    first = signals[0]
    message = f"records {first.name} from an engine's own metrics, and the file does not say which engine's"
    remedy = f"write `# engines: NAME` above `groups:`; the catalog knows {', '.join(catalog.engines)}"
    return [Finding(file.name, first.line, first.group, first.name, "error", "no-engine", message, remedy)]


def _finding(file: str, place: _Place, problem: Problem) -> Finding:
    line = place.expr_line if problem.is_about_expression else place.line
    return Finding(
        file, line, place.group, place.name, problem.severity, problem.check, problem.message, problem.remedy
    )


def _read(path: Path) -> _File:
    name = shown_path(path)
    try:
        content, root = read_yaml(path)
        groups = raw_groups(content, name)
    except BadRuleError as error:
        reason = str(error).removeprefix(name).removeprefix(": ")
        line = _LINE.match(reason)
        at = int(line.group(1)) if line else 1
        return _File(
            name, (), (Finding(name, at, "", "", "error", UNREADABLE, reason[line.end() if line else 0 :], ""),)
        )
    findings: list[Finding] = []
    places: list[_Place] = []
    names: set[str] = set()
    nodes = _items(_child(root, "groups"))
    for number, (group, node) in enumerate(zip(groups, nodes, strict=False), 1):
        called = str(group.get("name") or "") if isinstance(group, dict) else ""
        rules = group.get("rules") if isinstance(group, dict) else None
        listed = rules if isinstance(rules, list) else []
        try:
            if called and called in names:
                raise BadRuleError("a second group of this name")
            names.add(called)
            # Its own keys; the rules are read one by one, so that each can be told of.
            load_group({**group, "rules": []} if listed else group, number, name)
        except BadRuleError as error:
            reason = re.sub(rf"^{re.escape(name)}: group {re.escape(called or str(number))}: ", "", str(error))
            findings.append(Finding(name, _line(node), called, "", "error", "syntax", reason, ""))
        labels = group.get("labels") if isinstance(group, dict) and isinstance(group.get("labels"), dict) else {}
        for raw, rule_node in zip(listed, _items(_child(node, "rules")), strict=False):
            places.append(_place(called, raw, labels or {}, rule_node))
    return _File(name, tuple(places), tuple(findings), declared_engines(path))


def _place(group: str, raw: Any, labels: dict[str, str], node: yaml.Node | None) -> _Place:
    name = str(raw.get("alert") or raw.get("record") or "") if isinstance(raw, dict) else ""
    expr = _child(node, "expr")
    line = _line(node)
    # A block scalar's text starts on the line after its mark.
    block = isinstance(expr, yaml.ScalarNode) and expr.style in ("|", ">")
    expr_line = _line(expr) + int(block) if expr is not None else line
    try:
        return _Place(group, name, line, expr_line, load_rule(raw, labels), "")
    except AlertsError as error:
        return _Place(group, name, expr_line, expr_line, None, str(error))


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if getattr(name, "value", None) == key), None)
    return None


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _line(node: yaml.Node | None) -> int:
    return node.start_mark.line + 1 if node is not None else 1
