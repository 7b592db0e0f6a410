"""The reader of YAML keys stands twice, since `kit` and `alerts` may not import each other."""

from __future__ import annotations

import ast

from tests.fixtures import ROOT


def code_of(path: str) -> list[str]:
    """All but the first docstring, which says why it is there."""
    return [ast.unparse(node) for node in ast.parse((ROOT / path).read_text()).body[1:]]


def test_both_places_have_the_same_code() -> None:
    """What it does is tested in tests/alerts/test_yaml_keys.py."""
    assert code_of("fleetctl/kit/yaml_keys.py") == code_of("alerts/yaml_keys.py")
