"""Alerts that no tree explains: the incident says so, and what to do instead, rather than nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import yaml

from diagnostics.incident import Incident, gravest
from diagnostics.tree import BadTreeError
from diagnostics.walker import Diagnosis

NO_TREE_FILE = Path(__file__).parent / "no_tree.yaml"


@lru_cache(maxsize=1)
def reasons_without_tree() -> Mapping[str, str]:
    """Alert to what to do instead of walking a tree. Raises BadTreeError when the file can't be used."""
    try:
        found = yaml.safe_load(NO_TREE_FILE.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadTreeError(f"{NO_TREE_FILE}: can't be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise BadTreeError(f"{NO_TREE_FILE}: expected a mapping from alerts to texts")
    return found


def undiagnosed(incident: Incident) -> Diagnosis:
    """What stands in the place of a diagnosis for an incident none of whose alerts has a tree. It names no cause."""
    name = gravest(incident.alerts).name
    reason = reasons_without_tree().get(name)
    title = f"No tree explains {name}: {reason}" if reason else f"No tree explains {name}: see its own description"
    return Diagnosis(tree="", cause=None, title=title)
