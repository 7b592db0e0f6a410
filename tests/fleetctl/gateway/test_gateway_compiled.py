"""Which build of the gateway's hot modules is imported."""

from __future__ import annotations

import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from fleetctl.gateway.compiled import BUILD_MARK, FOLDER, MODULES, SourceFinder, choose_build, source_digest, source_of

PACKAGE = "compiled_example"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a build of its source."""
    folder = tmp_path / PACKAGE
    for module in MODULES:
        copy = source_of(module, folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        (copy.parent / "__init__.py").touch()
        shutil.copy(source_of(module), copy)
        copy.with_suffix(EXTENSION_SUFFIXES[0]).touch()
    (folder / "__init__.py").touch()
    (folder / BUILD_MARK).write_text(source_digest(folder))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def is_source_found() -> bool:
    try:
        found = [find_spec(f"{PACKAGE}.{module}") for module in MODULES]
    finally:
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
    origins = {Path(spec.origin).suffix for spec in found if spec is not None and spec.origin is not None}
    assert len(origins) == 1, "all of one build"
    return origins == {".py"}


def test_a_build_of_the_same_source_is_imported(built: Path) -> None:
    choose_build(PACKAGE, built, "")
    assert not is_source_found()
    choose_build(PACKAGE, built, "1")
    assert not is_source_found()


def test_the_source_is_imported_once_one_file_of_it_was_changed(built: Path) -> None:
    with source_of(MODULES[-1], built).open("a") as file:
        file.write("# changed")
    choose_build(PACKAGE, built, "")
    assert is_source_found()


def test_the_source_is_imported_where_a_process_is_told_so(built: Path) -> None:
    choose_build(PACKAGE, built, "0")
    assert is_source_found()


def test_a_process_that_wants_the_compiled_modules_does_not_run_on_without(built: Path) -> None:
    (built / BUILD_MARK).unlink()
    with pytest.raises(ImportError, match="make compile-gateway"):
        choose_build(PACKAGE, built, "1")


def test_without_a_build_imports_are_left_alone(built: Path) -> None:
    (built / BUILD_MARK).unlink()
    for module in MODULES:
        source_of(module, built).with_suffix(EXTENSION_SUFFIXES[0]).unlink()
    choose_build(PACKAGE, built, "")
    assert not any(isinstance(one, SourceFinder) for one in sys.meta_path)


def test_what_is_compiled_is_there() -> None:
    assert [module for module in MODULES if not source_of(module, FOLDER).is_file()] == []
