"""`fleetctl alerts export`: what a Prometheus, and a Prometheus operator, are given of the rules in force."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from fleetctl.cli.app import run
from tests.fixtures import DATA
from tests.fixtures.content import put

PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"
SCHEMA = json.loads((DATA / "crd" / "monitoring.coreos.com_v1.json").read_text())
IS_PROMETHEUS_RULE = jsonschema_rs.validator_for({**SCHEMA, "$ref": "#/$defs/PrometheusRule"})
OURS = [*builtin_signal_files(), *builtin_rule_files()]
BOARDS = ("fleet", "gateway", "node", "slo")
OWN_RULES = """
groups:
  - name: ours
    limit: 5
    rules:
      - alert: LLMNodeSlow
        expr: llm:step_seconds:mean > 0.1
        for: 1m
        labels: {severity: ticket}
        annotations: {summary: "{{ $labels.node }} is slow: {{ $value }} s", description: "{{ $value }} s"}
"""

needs_promtool = pytest.mark.skipif(
    not Path(PROMTOOL).exists() and not os.environ.get("CI"),
    reason="promtool is not installed: apt-get install prometheus",
)


@pytest.fixture
def own_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ops"
    put(folder / "rules" / "Our Node.yaml", OWN_RULES)
    monkeypatch.setenv("FLEETCTL_CONTENT", str(folder))
    return folder


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["alerts", "export", "--kubernetes", *words]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def rules_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for one in documents for group in one["spec"]["groups"] for rule in group["rules"]]


def test_every_rule_file_is_one_object_that_the_operator_takes(capsys: pytest.CaptureFixture[str]) -> None:
    found = exported(capsys, "--namespace", "monitoring", "--label", "release=prometheus")

    assert [list(IS_PROMETHEUS_RULE.iter_errors(one)) for one in found] == [[]] * len(OURS)
    names = [one["metadata"]["name"] for one in found]
    assert len(set(names)) == len(OURS)
    assert {"fleetctl-signals-engine", "fleetctl-rules-latency"} <= set(names)
    assert {one["metadata"]["namespace"] for one in found} == {"monitoring"}
    assert {one["metadata"]["labels"]["release"] for one in found} == {"prometheus"}


def test_no_rule_and_no_template_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    found = rules_of(exported(capsys))
    loaded = [rule for group in load_rule_files(OURS) for rule in group.rules]
    assert [one.get("alert") or one.get("record") for one in found] == [rule.name for rule in loaded]
    assert [one["expr"].strip() for one in found] == [rule.query.text.strip() for rule in loaded]
    texts = [dict(getattr(rule, "annotations", ())) for rule in loaded]
    assert [one.get("annotations", {}) for one in found] == [
        {name: template.text for name, template in text.items()} for text in texts
    ]


@needs_promtool
def test_promtool_accepts_what_is_under_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in exported(capsys):
        (tmp_path / f"{one['metadata']['name']}.yaml").write_text(yaml.safe_dump(one["spec"]))
    words = [PROMTOOL, "check", "rules", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_of_ours_that_a_user_replaces_is_exported_once(
    own_content: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = exported(capsys)

    (slow,) = [rule for rule in rules_of(found) if rule.get("alert") == "LLMNodeSlow"]
    assert slow["labels"] == {"severity": "ticket"}
    (own,) = [one for one in found if one["metadata"]["name"] == "fleetctl-rules-our-node"]
    assert own["spec"]["groups"][0]["limit"] == 5
    assert list(IS_PROMETHEUS_RULE.iter_errors(own)) == []


def test_files_of_one_name_from_two_folders_are_two_objects(
    own_content: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_content / "rules" / "Our Node.yaml").rename(own_content / "rules" / "node.yaml")
    names = [one["metadata"]["name"] for one in exported(capsys)]
    assert names.count("fleetctl-rules-node") == names.count("fleetctl-rules-node-2") == 1


@needs_promtool
def test_without_kubernetes_a_folder_of_rule_files_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rules"
    assert run(["alerts", "export", "--to", str(folder)]) == 0
    files = sorted(map(str, folder.iterdir()))
    assert len(files) == len(OURS)
    done = subprocess.run([PROMTOOL, "check", "rules", *files], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_json_is_one_list_that_kubectl_applies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["alerts", "export", "--kubernetes", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], len(found["items"])) == ("List", len(OURS))


def test_dashboards_are_config_maps_that_grafanas_sidecar_finds(capsys: pytest.CaptureFixture[str]) -> None:
    boards = [one for one in exported(capsys, "--dashboards", "-n", "monitoring") if one["kind"] == "ConfigMap"]
    assert [one["metadata"]["name"] for one in boards] == [f"fleetctl-dashboard-{name}" for name in BOARDS]
    assert {one["metadata"]["labels"]["grafana_dashboard"] for one in boards} == {"1"}
    assert [json.loads(one["data"][f"{name}.json"])["uid"] for one, name in zip(boards, BOARDS, strict=True)] == [
        f"fleetctl-{name}" for name in BOARDS
    ]


def test_dashboards_are_files_for_grafanas_provider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["alerts", "export", "--dashboards", "--to", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.json")} == set(BOARDS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--to DIR"),
        (["--to", "x", "--namespace", "a"], "--kubernetes"),
        (["--kubernetes", "--label", "release"], "release=prometheus"),
        (["--kubernetes", "--label", "a b=c"], "a b=c"),
        (["--kubernetes", "-o", "xml"], "xml"),
    ],
)
def test_what_can_not_be_exported_is_refused_with_a_remedy(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["alerts", "export", *words]) == 2
    assert told in capsys.readouterr().err
