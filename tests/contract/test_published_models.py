"""The models that `fleetctl up` fetches by name are those that the engine can fetch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.model.published import PUBLISHED
from fleetctl import stack
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.settings.tree import Settings


def test_both_sides_know_the_same_names() -> None:
    assert set(stack.PUBLISHED_MODELS) == set(PUBLISHED)


def test_up_serves_where_the_engine_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[-2:])
        return subprocess.CompletedProcess(command, 0, stdout="/models/smollm2\n")

    monkeypatch.setattr(stack.subprocess, "run", run)
    settings = Settings.model_validate({"fleet": {"model": "smollm2"}})
    assert stack.prepare_model(settings, lambda line: None) == Path("/models/smollm2")
    assert asked == [["get-model", "smollm2"]]
    monkeypatch.setattr(stack.subprocess, "run", lambda c, **_: subprocess.CompletedProcess(c, 1, stdout=""))
    with pytest.raises(FleetctlError, match="smollm2: the model could not be fetched"):
        stack.prepare_model(settings, lambda line: None)


def test_a_misspelt_name_is_no_name_for_a_model_of_random_weights(tmp_path: Path) -> None:
    settings = Settings.model_validate({"state_dir": tmp_path, "fleet": {"model": "smolm2"}})
    with pytest.raises(BadInputError, match="no model 'smolm2' to fetch") as refused:
        stack.prepare_model(settings, lambda line: None)
    assert refused.value.remedy == "fleetctl up --model smollm2"


def test_a_state_folder_that_cannot_be_made_is_told_before_anything_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings.model_validate({"state_dir": tmp_path / "file" / "state"})
    with pytest.raises(BadInputError, match="file/state: Not a directory") as refused:
        stack.prepare_model(settings, lambda line: pytest.fail(line))
    assert "--state-dir" in (refused.value.remedy or "")
