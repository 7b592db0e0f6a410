"""The commands of docs/kubernetes.md, typed as they stand there, with a real kubectl against a real API server.

Not real: no pod starts (there is no kubelet, and no image), so what waits for one ends; and the server is older than
those that the manifests are for, so budgets are sent in the version that it knows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import ROOT
from tests.fixtures.kubernetes.control_plane import ControlPlane
from tests.fixtures.manifests import HOW_TO_GET_THEM, kube_tool

pytestmark = pytest.mark.waits

# `kubectl VERB -k DIR` with what differs here; `rollout status` gives up at once, nothing can be run in a pod, a diff
# that finds something ends with 1, and nobody takes finalizers away.
KUBECTL = """#!/bin/bash
set -euo pipefail
wait=; case " $* " in *" delete "*) wait=--wait=false ;; esac
real() {{ {kubectl} --kubeconfig={kubeconfig} "$@" $wait; }}
case " $* " in
  *" -k "*) {kubectl} kustomize "${{!#}}" | sed 's#policy/v1$#policy/v1beta1#; /unhealthyPodEvictionPolicy/d' \\
    | real "$1" -f - || test "$1" = diff -a $? = 1 ;;
  *" rollout status "*) real "$@" --timeout=1s || test $? = 1 ;;
  *" exec "*) echo "left out: $*" ;;
  *) real "$@" ;;
esac
"""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    if kube_tool("kubectl") is None:
        words = f"kubectl is not installed: {HOW_TO_GET_THEM}"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    made = ControlPlane.start(tmp_path / "plane")
    yield made
    made.stop()


class Shell:
    """Runs what the page says, in a folder of its own."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.folder, self.plane = folder, plane
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self._program("kubectl", KUBECTL.format(kubectl=kube_tool("kubectl"), kubeconfig=plane.kubeconfig))
        self._program("pip", "#!/bin/sh\nexit 0\n")
        self._program("fleetctl", f'#!/bin/sh\nexec {sys.executable} -m fleetctl.cli "$@"\n')

    def run(self, script: str) -> str:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def found(self, *words: str) -> set[str]:
        told = json.loads(self.run(f"kubectl get {' '.join(words)} -o json"))
        return {f"{one['kind']}/{one['metadata']['name']}" for one in told["items"]}

    def _program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)


def commands(title: str) -> str:
    """The first block of commands below this title."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    found = re.search(rf"^## {title}\n.*?```console\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def test_the_five_commands_an_upgrade_and_the_end_of_it(plane: ControlPlane, tmp_path: Path) -> None:
    shell = Shell(plane, tmp_path / "work")
    five = commands("Five commands")
    assert len(re.split(r"(?<!\\)\n", five.strip())) == 5
    told = shell.run(five)
    assert "Waiting for" in told, "the controller is asked for by this name"
    everything = shell.found("-n fleetctl", "deployments,statefulsets,services,configmaps,roles,poddisruptionbudgets")
    assert {
        *("StatefulSet/fleetctl-controller", "StatefulSet/fleetctl-gateway", "Deployment/fleetctl-engine"),
        *("Service/fleetctl-gateway", "Role/fleetctl-fleet"),
        "PodDisruptionBudget/fleetctl-engine",
    } <= everything
    secret = json.loads(shell.run("kubectl -n fleetctl get secret fleetctl-tokens -o json"))
    assert set(secret["data"]) == {"controller.token", "gateway.token", "node.token"}

    ours = shell.folder / "deploy" / "ours"
    ours.mkdir()
    (ours / "kustomization.yaml").write_text("resources: [../kustomize/overlays/small]\n")
    shell.run(commands("Upgrade"))
    shell.run(commands("Uninstall"))
    assert shell.found("namespaces", "--field-selector=metadata.name=fleetctl,status.phase=Active") == set()
