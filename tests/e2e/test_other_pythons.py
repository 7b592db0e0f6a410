"""The control plane on newer Pythons than the one that the suite runs on, where this machine has them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.installed import Installed, build_release

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]


def pythons(version: str) -> Iterator[str]:
    """Of the path, and those that pyenv keeps."""
    if found := shutil.which(f"python{version}"):
        yield found
    yield from map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))


def python_of(version: str) -> str:
    for one in pythons(version):  # pyenv's own name for one that is not chosen ends with an error
        if subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return one
    pytest.skip(f"there is no Python {version} here")


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_control_plane_installs_and_works_on_another_python(version: str, tmp_path: Path) -> None:
    installed = Installed(tmp_path, python_of(version))
    (wheel,) = build_release(tmp_path, "--wheel").glob("*.whl")
    installed.install(f"{wheel}[postgres,kubernetes]")
    rules = installed.home / "rules.yaml"
    rules.write_text("groups: [{name: a, rules: [{alert: Down, expr: up == 0, for: 5m}]}]\n")
    checked = installed.run("fleetctl", "alerts", "check", str(rules))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    linted = installed.run("fleetctl", "tree", "lint")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert installed.run("fleetctl", "get", "nodes").returncode == 4  # no controller to ask
    served = installed.python("import fleetctl.controller.app, fleetctl.gateway.app, fleetctl.tui.app")
    assert served.returncode == 0, served.stderr
