"""The rules in force, file by file, for others to evaluate: as Prometheus' rule files or as PrometheusRule objects.

A rule that a later source overrides is left out; a file of which nothing is left is left out too. What is written is
what the file says: templates and expressions are not touched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from alerts.evaluation.rules import load_rule_file, raw_groups
from alerts.evaluation.yaml_file import read_yaml, shown_path
from fleetctl.controller.content.content import Content
from fleetctl.controller.content.overlay import rule_key
from fleetctl.kit.errors import BadInputError

MAX_OBJECT_NAME = 253
COMMON_LABELS = {"app.kubernetes.io/name": "fleetctl", "app.kubernetes.io/component": "rules"}
DASHBOARD_LABELS = {**COMMON_LABELS, "app.kubernetes.io/component": "dashboards", "grafana_dashboard": "1"}
_PREFIX = "fleetctl"
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class ExportedRules:
    """One rule file. `name` is unique among the exported ones and may name an object of Kubernetes."""

    name: str
    groups: list[dict[str, Any]]  # as Prometheus' YAML has them


def exported_rules(content: Content) -> list[ExportedRules]:
    """Every file that has a rule in force, in the order of the sources."""
    in_force = {(group.file, group.name, rule_key(rule)) for group in content.groups for rule in group.rules}
    taken: Counter[str] = Counter()
    files = []
    for path in content.rule_files:
        groups = _groups_in_force(path, in_force)
        if groups:
            name = object_name(path.parent.name, path.stem)
            taken[name] += 1
            files.append(ExportedRules(name if taken[name] == 1 else f"{name}-{taken[name]}", groups))
    return files


def _groups_in_force(path: Path, in_force: set[tuple[str, str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    raw = raw_groups(read_yaml(path).content, shown_path(path))
    groups = []
    for written, group in zip(raw, load_rule_file(path), strict=True):
        rules = [
            one
            for one, rule in zip(written.get("rules") or [], group.rules, strict=True)
            if (group.file, group.name, rule_key(rule)) in in_force
        ]
        if rules:
            number = {"limit": group.limit} if group.limit else {}  # the reader keeps every scalar as text
            groups.append({**written, **number, "rules": rules})
    return groups


def prometheus_rule(rules: ExportedRules, *, namespace: str | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """The object that the Prometheus operator reads."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(rules.name, namespace, {**COMMON_LABELS, **labels}),
        "spec": {"groups": rules.groups},
    }


def dashboard_config_map(path: Path, *, namespace: str | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """The object that Grafana's sidecar reads: the dashboard's file under its name."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(object_name("dashboard", path.stem), namespace, {**DASHBOARD_LABELS, **labels}),
        "data": {path.name: path.read_text("utf-8")},
    }


def _metadata(name: str, namespace: str | None, labels: Mapping[str, str]) -> dict[str, Any]:
    where = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **where, "labels": dict(labels)}


def object_name(*parts: str) -> str:
    """A DNS subdomain made of the parts: `rules`, `My Rules` becomes `fleetctl-rules-my-rules`."""
    words = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (_PREFIX, *parts))
    return "-".join(word for word in words if word)[: MAX_OBJECT_NAME - 5].strip("-")


def parse_labels(words: Iterable[str]) -> dict[str, str]:
    """`release=prometheus` as labels of an object. Raises BadInputError naming the word."""
    labels = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise BadInputError(f"--label {word}: not a label of Kubernetes", remedy="--label release=prometheus")
        labels[name] = value
    return labels


class _Dumper(yaml.SafeDumper):
    """Expressions and dashboards keep their lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(data: Any) -> str:
    """One document, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
