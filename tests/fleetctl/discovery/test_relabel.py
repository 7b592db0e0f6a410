"""Relabelling, rule by rule beside a real Prometheus: the same targets stay, with the same labels."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.discovery.discovery import Discovery
from fleetctl.discovery.relabel import relabelled
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.targets import RelabelRule, TargetGroup
from tests.fixtures.alertmanager import NEEDS_PROMETHEUS
from tests.fixtures.prometheus_server import running_prometheus

TARGETS: list[dict[str, Any]] = [
    {"targets": ["10.0.0.1:8000", "vllm-a.example.com:9000"], "labels": {"app": "Chat", "zone": "eu-1a", "a": "x"}},
    {"targets": ["[::1]:8001"], "labels": {"app": "batch", "__meta_pod": "vllm-7f9c-abcde", "b": "eu-1a"}},
    {"targets": ["10.0.0.3:80"], "labels": {"zone": "us", "tmp_one": "1", "tmp_two": "2", "lang": "日本"}},
]

RULES: dict[str, list[dict[str, Any]]] = {
    "default_replace": [{"source_labels": ["app"], "target_label": "pool"}],
    "regex_is_anchored": [{"source_labels": ["app"], "regex": "ha", "target_label": "pool"}],
    "groups": [
        {"source_labels": ["__address__"], "regex": r"(.+):(\d+)", "target_label": "node", "replacement": "n-${1}-$2"}
    ],
    "named_group": [
        {"source_labels": ["zone"], "regex": "(?P<r>[a-z]+)-.*", "target_label": "region", "replacement": "$r"}
    ],
    "several_sources": [{"source_labels": ["app", "zone"], "separator": "/", "target_label": "both"}],
    "empty_removes": [{"source_labels": ["app"], "target_label": "zone", "replacement": ""}],
    "unknown_group_is_empty": [{"source_labels": ["app"], "target_label": "pool", "replacement": "p-$9"}],
    "no_match_leaves": [{"source_labels": ["app"], "regex": "nothing", "target_label": "pool"}],
    "flags": [{"source_labels": ["app"], "regex": "(?i)CHAT", "target_label": "pool", "replacement": "chat"}],
    "label_by_value": [{"source_labels": ["app"], "regex": "(.+)", "target_label": "is_$1", "replacement": "yes"}],
    "keep": [{"source_labels": ["app"], "regex": "Chat|batch", "action": "keep"}],
    "drop": [{"source_labels": ["app"], "regex": "Chat", "action": "drop"}],
    "keepequal": [{"source_labels": ["zone"], "target_label": "b", "action": "keepequal"}],
    "dropequal": [{"source_labels": ["a"], "target_label": "b", "action": "dropequal"}],
    "labelmap": [{"regex": "tmp_(.+)", "replacement": "kept_$1", "action": "labelmap"}],
    "labeldrop": [{"regex": "tmp_.*|app", "action": "labeldrop"}],
    "labelkeep": [{"regex": "__.*|job|app", "action": "labelkeep"}],
    "lowercase": [{"source_labels": ["app"], "target_label": "app", "action": "lowercase"}],
    "uppercase": [{"source_labels": ["zone"], "target_label": "zone", "action": "UPPERCASE"}],
    "hashmod": [{"source_labels": ["__address__"], "modulus": 7, "target_label": "shard", "action": "hashmod"}],
    "hashmod_then_keep": [
        {"source_labels": ["__address__"], "modulus": 2, "target_label": "__tmp_shard", "action": "hashmod"},
        {"source_labels": ["__tmp_shard"], "regex": "1", "action": "keep"},
    ],
    "chain": [
        {"source_labels": ["__meta_pod"], "regex": "(.+)-[^-]+-[^-]+", "target_label": "pool"},
        {"source_labels": ["pool"], "regex": "", "target_label": "pool", "replacement": "none"},
    ],
    "address": [
        {"source_labels": ["__address__"], "regex": r"(.*):\d+", "target_label": "__address__", "replacement": "$1:9"}
    ],
    "unicode": [{"source_labels": ["lang"], "regex": "(..)", "target_label": "first"}],
    "dollar": [{"source_labels": ["app"], "target_label": "price", "replacement": "5$$"}],
}


def prometheus_says(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Job to the labels of the targets that stay."""
    jobs = [
        {
            "job_name": name,
            "static_configs": TARGETS,
            "relabel_configs": rules,
            "scrape_interval": "1h",
            "scrape_timeout": "1s",
        }
        for name, rules in RULES.items()
    ]
    with running_prometheus(folder, [], scrape_configs=jobs) as (url, process):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                data = httpx.get(f"{url}/api/v1/targets", timeout=5.0).json()["data"]
            except (httpx.HTTPError, KeyError, ValueError):  # 503 in plain words while it starts
                data = {"activeTargets": [], "droppedTargets": []}
            if len(data["activeTargets"]) + len(data["droppedTargets"]) == 4 * len(RULES):
                break
            time.sleep(0.1)
        found: dict[str, list[dict[str, str]]] = {name: [] for name in RULES}
        for one in data["activeTargets"]:
            found[one["scrapePool"]].append(one["labels"])
        return found


@pytest.mark.e2e
@NEEDS_PROMETHEUS
def test_every_action_does_what_prometheus_does(tmp_path: Path) -> None:
    told = prometheus_says(tmp_path / "prometheus")
    for name, rules in RULES.items():
        checked = [RelabelRule.model_validate(rule) for rule in rules]
        ours = []
        for group in TARGETS:
            for address in group["targets"]:
                labels = {**group["labels"], "__address__": address, "job": name}
                found = relabelled({**labels, "__scheme__": "http", "__metrics_path__": "/metrics"}, checked)
                if found is not None:
                    # What Prometheus does beside relabelling: the instance, and no label of its own is shown.
                    found.setdefault("instance", found["__address__"])
                    ours.append({key: value for key, value in found.items() if not key.startswith("__")})
        assert by_text(ours) == by_text(told[name]), name


def by_text(labels: list[dict[str, str]]) -> list[str]:
    return sorted(json.dumps(one, sort_keys=True, ensure_ascii=False) for one in labels)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"action": "explode"}, "keep"),
        ({"source_labels": ["a"]}, "needs target_label"),
        ({"action": "hashmod", "target_label": "x"}, "needs modulus"),
        ({"source_label": ["a"], "target_label": "x"}, "source_label"),
    ],
)
def test_a_rule_that_prometheus_would_refuse_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RelabelRule.model_validate(rule)


def test_a_regex_that_cannot_be_read_is_told_with_its_place() -> None:
    group = TargetGroup.model_validate(
        {
            "static_configs": [{"targets": ["a:1"]}],
            "relabel_configs": [{"target_label": "x"}, {"target_label": "y", "regex": "(unclosed"}],
        }
    )
    with pytest.raises(BadInputError, match=r"fleet\.targets\.0\.relabel_configs\.1\.regex"):
        Discovery([group])
