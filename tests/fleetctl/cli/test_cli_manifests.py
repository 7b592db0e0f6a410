"""`fleetctl manifests`: what a user without a clone applies to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.cli.app import run
from tests.fixtures.content import put, write_content
from tests.fixtures.manifests import Manifest, by_key, kustomized, rendered, run_kube_tool

MONITORED = "resources: [small]\ncomponents: [../components/monitoring]\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """By somebody with a rule of their own."""
    write_content(tmp_path / "ops")
    monkeypatch.setenv("FLEETCTL_CONTENT", str(tmp_path / "ops"))
    assert run(["manifests", str(tmp_path / "deploy"), "--label", "release=prometheus"]) == 0
    return tmp_path / "deploy"


def built(folder: Path) -> list[Manifest]:
    return rendered(run_kube_tool("kubectl", "kustomize", str(folder)))


def test_what_is_written_renders_as_the_release_does(written: Path) -> None:
    for overlay in ("small", "ha", "attach"):
        assert by_key(built(written / "kustomize" / "overlays" / overlay)) == by_key(kustomized(overlay))


def test_rules_of_the_user_are_among_what_prometheus_is_given(written: Path) -> None:
    put(written / "kustomize" / "overlays" / "kustomization.yaml", MONITORED)
    rules = [one for one in built(written / "kustomize" / "overlays") if one["kind"] == "PrometheusRule"]
    assert "fleetctl-rules-neighbours" in {one["metadata"]["name"] for one in rules}
    assert {one["metadata"]["labels"]["release"] for one in rules} == {"prometheus"}
    values = '{"monitoring": {"rules": true}}'
    words = ("template", "fleetctl", str(written / "helm" / "fleetctl"), "--set-json", values)
    names = {one["metadata"]["name"] for one in rendered(run_kube_tool("helm", *words))}
    assert {one["metadata"]["name"] for one in rules} <= names


def test_a_folder_of_others_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("a: b\n")
    assert run(["manifests", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_newer_release_replaces_its_own_files_and_keeps_those_of_the_user(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written / "kustomize" / "overlays" / "ours" / "kustomization.yaml"
    put(own, "resources: [../small]\n")
    monkeypatch.delenv("FLEETCTL_CONTENT")
    assert run(["manifests", str(written), "--overwrite"]) == 0
    assert own.exists()
    assert not list(written.rglob("fleetctl-rules-neighbours.yaml"))
    assert by_key(built(own.parent)) == by_key(kustomized("small"))
