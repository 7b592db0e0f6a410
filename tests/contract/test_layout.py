"""Tests lie as the code does, and nothing but `fleetctl.bundled` changes where packages are found."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fleetctl.bundled import NAMES
from tests.fixtures import ROOT

OF_NO_ONE_PACKAGE = {"contract", "e2e", "fixtures", "data"}


def test_every_folder_of_tests_mirrors_a_folder_of_the_source() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("*.py")} - {Path()}
    mirrors = {folder for folder in folders if folder.parts[0] not in OF_NO_ONE_PACKAGE}
    assert {str(folder) for folder in mirrors if not (ROOT / folder / "__init__.py").exists()} == set()


def test_no_test_finds_its_helpers_by_inserting_a_path() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in files if re.search(r"\bsys\.path\b", path.read_text())] == []


def test_packages_of_fleetctl_that_need_a_neighbour_make_it_importable_first() -> None:
    """A wheel holds the five inside `fleetctl`: without `fleetctl.bundled` these imports would fail there."""
    needy = {path.relative_to(ROOT).parts[1] for path in (ROOT / "fleetctl").rglob("*.py") if imports_a_neighbour(path)}
    lacking = {name for name in needy if "from fleetctl import bundled" not in entrance(name).read_text()}
    assert lacking == set()


def entrance(name: str) -> Path:
    """What runs first when `fleetctl.<name>` is imported."""
    path = ROOT / "fleetctl" / name
    return path / "__init__.py" if path.is_dir() else path


def imports_a_neighbour(path: Path) -> bool:
    """Also inside a function or for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] in NAMES for name in names):
            return True
    return False
