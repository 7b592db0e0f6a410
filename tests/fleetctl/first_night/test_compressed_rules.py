"""The rules of a night in a hurry are content that the product takes, and change no threshold."""

from __future__ import annotations

from pathlib import Path

from fleetctl.controller.content.load import load_content
from fleetctl.first_night.compressed_rules import FOR, write_compressed_rules


def test_hurried_rules_override_ours_and_keep_their_thresholds(tmp_path: Path) -> None:
    write_compressed_rules(tmp_path)
    content = load_content([tmp_path])
    (group,) = [group for group in content.groups if group.name == "first_night"]
    assert {rule.name for rule in group.rules} == set(FOR)
