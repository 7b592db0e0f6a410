"""The rules of a night in a hurry are content that the product takes, and change no threshold."""

from __future__ import annotations

from pathlib import Path

import yaml

from fleetctl.controller.content.load import load_content
from fleetctl.first_night.compressed_rules import FOR, write_compressed_rules


def test_hurried_rules_override_ours_and_keep_their_thresholds(tmp_path: Path) -> None:
    write_compressed_rules(tmp_path)
    content = load_content([tmp_path])
    (group,) = [group for group in content.groups if group.name == "first_night"]
    assert {rule.name for rule in group.rules} == set(FOR)
    told = yaml.safe_load((tmp_path / "rules" / "first_night.yaml").read_text(encoding="utf-8"))
    (down,) = [rule for rule in told["groups"][0]["rules"] if rule["alert"] == "LLMNodeDown"]
    assert "[8s]" in down["expr"]
    # What says how far an expression looks back is shortened with it: a silent node's onset was told 50 s early.
    assert down["annotations"]["looks_back"] == "{{ if lt $value 0.0 }}0s{{ else }}8s{{ end }}"
