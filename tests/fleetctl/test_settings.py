"""Settings: one tree from file, environment and flags, with errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.load import load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for key in [key for key in os.environ if key.startswith("FLEETCTL_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_flags_win_over_environment_and_environment_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("controller: {port: 1, policy: propose, scrape_interval_s: 3}\n")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__PORT", "2")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__POLICY", "run")
    settings = load_settings(path, {"controller": {"port": 3}})
    assert settings.controller.port == 3
    assert settings.controller.policy == "run"
    assert settings.controller.scrape_interval_s == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("controller: {prot: 1}", "f.yaml: controller.prot"),
        ("controller: {port: abc}", "f.yaml: controller.port"),
        ("- 1", "f.yaml: expected a mapping"),
        ("a: [", "f.yaml: not YAML"),
    ],
)
def test_bad_file_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as error:
        load_settings(path)
    assert words in error.value.message


def test_config_show_masks_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FLEETCTL_CONTROLLER__TOKEN", "hunter2")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__DATABASE_URL", "postgresql+psycopg://ops:pa55@db/fleet")
    assert run(["config", "show", "-o", "json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "pa55" not in text
    assert json.loads(text)["controller"]["database_url"] == "postgresql+psycopg://ops:***@db/fleet"


def test_missing_config_file_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "nope.yaml", "config", "show"]) == 2
    assert "nope.yaml" in capsys.readouterr().err
