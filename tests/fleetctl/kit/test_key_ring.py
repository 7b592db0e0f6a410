"""Keys by name: read where they lie, read again, and nowhere shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from fleetctl.kit.key_ring import READ_AGAIN_S, KeyPlace, KeyRing
from fleetctl.settings.fleet import FleetSettings

SECRET = "sk-do-not-show"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_read_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("CHAT_KEY", SECRET)
    ring = KeyRing({"file": KeyPlace(file=tmp_path / "key"), "env": KeyPlace(env="CHAT_KEY")})
    assert ring.header("file") == ring.header("env") == f"Bearer {SECRET}"
    assert (ring.header(""), ring.problem("")) == ("", "")


def test_a_changed_key_is_taken_and_a_lost_one_stays(tmp_path: Path) -> None:
    file, clock = tmp_path / "key", Clock()
    file.write_text("one")
    ring = KeyRing({"k": KeyPlace(file=file)}, clock)
    assert ring.header("k") == "Bearer one"
    file.write_text("two")
    assert ring.header("k") == "Bearer one"
    clock.now = READ_AGAIN_S
    assert ring.header("k") == "Bearer two"
    file.unlink()
    clock.now *= 2
    assert ring.header("k") == "Bearer two"
    assert ring.problem("k") == f"{file}: No such file or directory"


@pytest.mark.parametrize("content", [f"{SECRET} {SECRET}", f"{SECRET}\r\nX-Evil: 1", f"{SECRET}é", "", "\0"])
def test_what_is_no_key_is_told_once_and_never_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    clock = Clock()
    ring = KeyRing({"k": KeyPlace(file=tmp_path / "key")}, clock)
    with capture_logs() as logs:
        for _ in range(3):
            assert ring.header("k") == ""
            clock.now += READ_AGAIN_S
    assert len(logs) == 1
    assert SECRET not in str(logs) + ring.problem("k")
    assert "holds no API key" in ring.problem("k")


def test_a_name_that_nobody_gave_a_place_is_a_problem() -> None:
    assert KeyRing({}).problem("k") == "fleet.api_keys has no k"


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"targets": [{"api_key": "k", "static_configs": [{"targets": ["a:1"]}]}]}, "api_keys has no k"),
        ({"commands": [{"api_key": "k", "command": ["x", "{port}"]}]}, "api_keys has no k"),
        ({"api_keys": {"k": {}}}, "give file or env"),
        ({"api_keys": {"k": {"file": "/k", "env": "K"}}}, "give file or env"),
        ({"api_keys": {"k": {"env": "FLEETCTL_KEY"}}}, "hidden from our processes"),
    ],
)
def test_settings_of_keys_that_can_not_work_are_refused(fleet: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FleetSettings.model_validate(fleet)
