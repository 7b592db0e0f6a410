"""Read rule files as a reviewer does: what can never fire, what fires for the wrong reason, what misleads.

`error`: cannot be loaded, can never be true, or is always true. `warning`: works, but does not say
what it seems to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from alerts.catalog import builtin_catalog
from alerts.errors import AlertsError
from alerts.lint_metrics import metric_remarks
from alerts.lint_rule import rule_remarks
from alerts.lint_shapes import shape_remarks
from alerts.remark import Remark
from alerts.rules import Rule, load_rule, read_yaml, shown_path


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect; `group` and `rule` are "" when the whole file or group is meant. `line` counts from 1."""

    file: str
    line: int
    group: str
    rule: str
    severity: str
    check: str
    message: str
    remedy: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.group, self.rule) if part)
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.file}:{self.line}: {place + ': ' if place else ''}{self.severity}: {self.message}{remedy}"


def lint_files(paths: Sequence[Path]) -> list[Finding]:
    """All findings of all files, in order of place. A name recorded in one file is known in the others.

    Raises BadRuleError when a file is no YAML or no rule file at all.
    """
    files = [_read(path) for path in paths]
    recorded = {rule.name for file in files for place in file.places if (rule := place.rule) and rule.kind == "record"}
    return [finding for file in files for finding in _lint(file, recorded)]


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


def _lint(file: _File, recorded: set[str]) -> list[Finding]:
    catalog = builtin_catalog()
    found = list(file.findings)
    for place in file.places:
        if place.rule is None:
            found.append(Finding(file.name, place.line, place.group, place.name, "error", "syntax", place.error, ""))
            continue
        remarks = [
            *metric_remarks(place.rule.query.root, catalog, recorded, is_alert=place.rule.kind == "alert"),
            *shape_remarks(place.rule, catalog),
            *rule_remarks(place.rule),
        ]
        seen: set[tuple[str, str]] = set()
        for remark in remarks:
            if (remark.check, remark.message) not in seen:
                seen.add((remark.check, remark.message))
                found.append(_finding(file.name, place, remark))
    return sorted(found, key=lambda finding: finding.line)


def _finding(file: str, place: _Place, remark: Remark) -> Finding:
    line = place.expr_line if remark.is_about_expression else place.line
    return Finding(file, line, place.group, place.name, remark.severity, remark.check, remark.message, remark.remedy)


def _read(path: Path) -> _File:
    content = read_yaml(path)
    name = shown_path(path)
    root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    groups = (content or {}).get("groups") if isinstance(content, dict) or content is None else None
    if content is not None and not isinstance(groups, list):
        is_case = isinstance(content, dict) and "tests" in content
        remedy = f"these are unit tests: fleetctl alerts test {name}" if is_case else "see Prometheus' rule files"
        finding = Finding(name, 1, "", "", "error", "syntax", "no rule file: it has no list `groups`", remedy)
        return _File(name, (), (finding,))
    findings: list[Finding] = []
    places: list[_Place] = []
    nodes = _items(_child(root, "groups"))
    for group, node in zip(groups or [], nodes, strict=False):
        if not isinstance(group, dict) or not isinstance(group.get("rules", []), list | None):
            findings.append(
                Finding(name, _line(node), "", "", "error", "syntax", "a group is a mapping with `rules`", "")
            )
            continue
        group_name = str(group.get("name", ""))
        labels = group.get("labels") if isinstance(group.get("labels"), dict) else {}
        for raw, rule_node in zip(group.get("rules") or [], _items(_child(node, "rules")), strict=False):
            places.append(_place(group_name, raw, labels or {}, rule_node))
    if not findings and all(place.rule is not None for place in places):
        findings.extend(_whole_file(path, name))
    return _File(name, tuple(places), tuple(findings))


def _whole_file(path: Path, name: str) -> list[Finding]:
    """What only the file as a whole shows: group keys, two groups of one name."""
    from alerts.rules import load_rule_file

    try:
        load_rule_file(path)
    except AlertsError as error:
        return [Finding(name, 1, "", "", "error", "syntax", str(error).removeprefix(f"{name}: "), "")]
    return []


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
