"""What a release installs is whole, and does the main job from another folder, beside foreign packages."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleetctl.bundled import NAMES
from fleetctl.providers.process import ProcessTable
from tests.fixtures import ROOT
from tests.fixtures.installed import Installed, build_release

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.timeout(900),
]  # the longest of its stage, so it begins first

NEEDS_GPU = {"kernels.bench"}  # measure on a device at import, or are nothing without one
NEEDS_EXTRA = ("fleetctl.providers.kubernetes.",)  # the extra [kubernetes]
FOREIGN = ("kernels", "engine")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    return build_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    (path,) = release.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def control_plane(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel without the extra `[engine]`, in an environment that holds foreign `kernels` and `engine`."""
    folder = tmp_path_factory.mktemp("installed")
    installed = Installed(folder)
    installed.install(*(str(foreign_wheel(name, folder)) for name in FOREIGN), str(wheel))
    return installed


@pytest.fixture(scope="module")
def whole(control_plane: Installed, wheel: Path) -> Installed:
    """The same environment with the extra: whoever asks for it is the last to see the control plane alone."""
    control_plane.install(f"{wheel}[engine]")
    return control_plane


def foreign_wheel(name: str, folder: Path) -> Path:
    """A distribution of somebody else, with one of our packages' names."""
    path = folder / f"{name}-9.9-py3-none-any.whl"
    info = f"{name}-9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "from .layer import WHOSE\n")
        archive.writestr(f"{name}/layer.py", f"WHOSE = 'foreign {name}'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def repository_files(folders: Sequence[str]) -> set[str]:
    """What git would commit of these folders."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(listing, capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git clone: nothing to compare the wheel with")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_wheel_holds_every_file_of_the_packages_and_one_name_at_the_top(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = repository_files(["fleetctl"]) | {f"fleetctl/_bundled/{name}" for name in repository_files(NAMES)}
    assert held == ours


def test_control_plane_works_without_the_engine(control_plane: Installed) -> None:
    rules = control_plane.home / "rules.yaml"
    rules.write_text("groups: [{name: a, rules: [{alert: Down, expr: up == 0, for: 5m}]}]\n")
    assert control_plane.python("import torch").returncode == 1
    assert control_plane.run("fleetctl", "--help").returncode == 0
    assert control_plane.run("fleetctl", "get", "nodes").returncode == 4  # no controller to ask
    checked = control_plane.run("fleetctl", "alerts", "check", str(rules))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("command", [("fleetctl", "up"), ("fleetctl", "demo"), ("fleetctl-node", "serve")])
def test_starting_a_node_without_the_engine_names_the_extra(control_plane: Installed, command: tuple[str, ...]) -> None:
    done = control_plane.run(*command)
    assert done.returncode == 2
    assert "the engine is not installed here" in done.stderr
    assert "pip install 'llm-fleetctl[engine]'" in done.stderr


def test_every_module_imports_beside_foreign_packages_of_the_same_names(whole: Installed) -> None:
    code = (
        "import fleetctl.bundled, importlib, pkgutil\n"
        "failed = {}\n"
        f"for top in ('fleetctl', *{NAMES!r}):\n"
        "    package = importlib.import_module(top)\n"
        "    for module in pkgutil.walk_packages(package.__path__, top + '.', onerror=lambda name: None):\n"
        f"        if module.name.endswith('.__main__') or module.name in {NEEDS_GPU!r}: continue\n"
        f"        if module.name.startswith({NEEDS_EXTRA!r}): continue\n"
        "        try: importlib.import_module(module.name)\n"
        "        except BaseException as error: failed[module.name] = repr(error)\n"
        "assert not failed, failed\n"
    )
    done = whole.python(code)
    assert done.returncode == 0, done.stderr


def test_foreign_packages_stay_whole(whole: Installed) -> None:
    code = (
        "import fleetctl, fleetctl.client, importlib.metadata as metadata\n"  # a program that only asks the controller
        "import kernels, engine.layer\n"
        "assert (kernels.WHOSE, engine.layer.WHOSE) == ('foreign kernels', 'foreign engine')\n"
        "assert metadata.packages_distributions()['kernels'] == ['kernels']\n"
        "assert metadata.version('llm-fleetctl') and metadata.version('engine') == '9.9'\n"
    )
    done = whole.python(code)
    assert done.returncode == 0, done.stderr


def test_a_foreign_package_imported_first_is_named_and_not_mixed_with_ours(whole: Installed) -> None:
    done = whole.python("import kernels, fleetctl.bundled")
    assert done.returncode == 1
    assert "ImportError: kernels is imported from" in done.stderr


def test_installed_demo_names_the_cause_and_loses_no_request(whole: Installed) -> None:
    decoy = whole.home / "engine"  # what lies in the working directory is nobody's engine
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise ImportError('a folder of the user')\n")
    state = whole.home / "state"
    done = whole.run("fleetctl", "--state-dir", str(state), "demo", "-o", "json", timeout_s=540)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["diagnosed"] == report["expected"] == "slow_node"
    assert report["requests"]["lost"] == 0
    assert report["requests"]["duplicated"] == 0
    assert report["requests"]["sent"] == report["requests"]["finished"] + report["requests"]["refused"]
    assert report["detected_s"] <= report["mitigated_s"]
    assert "slow_node" in Path(report["postmortem"]).read_text()
    assert Path(report["blackbox"]).stat().st_size > 0
    assert ProcessTable(state / "demo" / "run").running() == []
