"""Our Dockerfiles: nothing that the linter minds, and what they say fits the code and the manifests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.__main__ import _parser as node_parser
from engine.api.openapi import OPERATIONS
from fleetctl.bundled import NAMES
from tests.fixtures import ROOT
from tests.fixtures.manifests import DEPLOY, kustomized, pod_templates

FILES = sorted((DEPLOY / "images").glob("*.Dockerfile"))
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
ENGINE, CONTROL_PLANE = "engine", "control-plane"


def instructions(name: str) -> list[tuple[str, str]]:
    """Instruction and what follows it, of every stage; continued lines joined."""
    text = (DEPLOY / "images" / f"{name}.Dockerfile").read_text()
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(one.split(maxsplit=1)[0], one.split(maxsplit=1)[1]) for one in lines if one.strip()]


def last(name: str, instruction: str) -> str:
    return [text for found, text in instructions(name) if found == instruction][-1]


def variables(name: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in last(name, "ENV").split())


def test_there_is_an_image_for_the_control_plane_and_one_for_nodes() -> None:
    assert [path.name.removesuffix(".Dockerfile") for path in FILES] == [CONTROL_PLANE, ENGINE]


@pytest.mark.skipif(HADOLINT is None and not os.environ.get("CI"), reason="hadolint has no wheel for this machine")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_linter_minds_nothing(path: Path) -> None:
    assert HADOLINT is not None
    done = subprocess.run([HADOLINT, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_linter_minds_an_image_without_a_version(tmp_path: Path) -> None:
    if HADOLINT is None:
        pytest.skip("hadolint has no wheel for this machine")
    path = tmp_path / "Dockerfile"
    path.write_text("FROM python:latest\nRUN cd /tmp && sudo ls\n")
    assert subprocess.run([HADOLINT, str(path)], capture_output=True, timeout=60, check=False).returncode == 1


@pytest.mark.parametrize("name", [CONTROL_PLANE, ENGINE])
def test_stages_are_of_one_pinned_base_and_the_last_is_not_root(name: str) -> None:
    bases = [text.split()[0] for found, text in instructions(name) if found == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1  # the environment was made for that Python
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    user, group = last(name, "USER").split(":")
    template = pod_templates(kustomized("small"))["fleetctl-engine" if name == ENGINE else "fleetctl-controller"]
    assert template["spec"]["securityContext"]["runAsUser"] == int(user)
    assert template["spec"]["securityContext"]["runAsGroup"] == int(group)
    assert last(name, "STOPSIGNAL") == "SIGTERM"


def test_manifests_run_these_images_with_their_own_entry_point() -> None:
    for template in pod_templates(kustomized("small")).values():
        for container in template["spec"]["containers"]:
            name = container["image"].removeprefix("fleetctl/").partition(":")[0]
            assert name in (CONTROL_PLANE, ENGINE)
            assert "command" not in container
            assert str(container["ports"][0]["containerPort"]) in last(name, "EXPOSE").split()
    assert json.loads(last(CONTROL_PLANE, "ENTRYPOINT")) == ["fleetctl"]
    assert json.loads(last(ENGINE, "ENTRYPOINT")) == ["fleetctl-node"]
    node_parser().parse_args(json.loads(last(ENGINE, "CMD")))


def test_caches_are_in_the_folder_that_the_manifest_lets_a_node_write_to() -> None:
    told = variables(ENGINE)
    (container,) = pod_templates(kustomized("small"))["fleetctl-engine"]["spec"]["containers"]
    writable = [Path(one["mountPath"]) for one in container["volumeMounts"] if not one.get("readOnly")]
    caches = {key for key in told if key.endswith(("CACHE_DIR", "CACHE_HOME"))} | {"HOME"}
    assert caches >= {"NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"}
    for key in caches:
        assert any(Path(told[key]).is_relative_to(folder) for folder in writable), key


def test_health_checks_ask_for_what_is_answered() -> None:
    assert "http://127.0.0.1:8000/health/ready" in last(ENGINE, "HEALTHCHECK")
    assert "/health/ready" in {operation.path for operation in OPERATIONS}
    assert variables(CONTROL_PLANE)["HEALTH_URL"] == "http://127.0.0.1:7700/health/live"


def test_an_image_is_built_from_the_packages_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    read_by_installation = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.py"}
    assert let_in == {*NAMES, "fleetctl"} | read_by_installation
    assert all((ROOT / name).exists() for name in let_in)
