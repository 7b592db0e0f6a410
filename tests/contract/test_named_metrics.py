"""Every metric that a page names is one that somebody emits or a rule records."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache

import yaml

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from tests.fixtures import ROOT

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
HISTORY = re.compile(r"CHANGELOG\.md|docs/decisions/.*|tests/.*")
PACKAGES = ("alerts", "diagnostics", "engine", "fleetctl", "kernels", "runbooks")
SPAN = re.compile(r"`([^`\n]+)`")
METRIC = re.compile(
    r"(?:(?:llm|vllm):\w[\w:]*\w|(?:engine|controller|gateway|store|fleet|fleetctl)_\w+_(?:total|seconds|bytes|ratio|known|failed))"
)
SUFFIXES = ("", "_total", "_sum", "_count", "_bucket", "_info")
LOG_KEYS = frozenset({"fleetctl_node"})


@cache
def emitted() -> frozenset[str]:
    """Names in string literals of the code, names that rules record, and those of the catalog."""
    names: set[str] = set()
    for path in TRACKED:
        if path.endswith(".py") and path.split("/")[0] in PACKAGES:
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names |= set(re.findall(r"[a-zA-Z_:][\w:]+", node.value))
    names |= {
        rule.name for group in load_rule_files([*builtin_signal_files(), *builtin_rule_files()]) for rule in group.rules
    }
    for prefix, space in yaml.safe_load((ROOT / "alerts" / "metrics_catalog.yaml").read_text())["namespaces"].items():
        names |= {f"{prefix}{name}" for name in space.get("families", {})}
    return frozenset(names)


def is_emitted(name: str) -> bool:
    return any(name.removesuffix(suffix) in emitted() for suffix in SUFFIXES if name.endswith(suffix))


def test_every_named_metric_is_emitted_or_recorded() -> None:
    named = {
        (path, name)
        for path in TRACKED
        if path.endswith(".md") and not HISTORY.fullmatch(path)
        for span in SPAN.findall((ROOT / path).read_text())
        for name in METRIC.findall(span)
    }
    assert len(named) > 20
    assert {(path, name) for path, name in named if not is_emitted(name)} == set()


def test_a_metric_that_nobody_emits_is_noticed() -> None:
    assert is_emitted("controller_silences_known")
    assert not is_emitted("controller_silence_known")
    assert not is_emitted("llm:kv_share")
