"""The worked example of docs/content.md is what it says: it loads, and does what the text promises."""

from __future__ import annotations

import re
from pathlib import Path

from fleetctl.controller.content.content import alert_names
from fleetctl.controller.content.folder import FOLDERS
from fleetctl.controller.content.load import load_content
from tests.fixtures.content import put

DOC = Path(__file__).parents[4] / "docs" / "content.md"
_EXAMPLE = re.compile(
    r"`((?:rules|trees|causes|pages|policies|objectives)/[a-z-]+\.(?:yaml|md))`.*?\n(`{3,4})\w+\n(.*?)\n\2\n", re.S
)


def test_the_worked_example_loads_without_a_warning(tmp_path: Path) -> None:
    examples = {name: text for name, _, text in _EXAMPLE.findall(DOC.read_text("utf-8"))}
    for name, text in examples.items():
        put(tmp_path / name, text + "\n")
    content = load_content([tmp_path])

    assert len(examples) == 6
    assert content.warnings == ()
    assert "NodeStepsSlow" in alert_names(content.rules)
    page = content.page_for_cause("noisy_neighbour")
    assert page is not None
    assert page.name == "leave-host"
    (objective,) = [one for one in content.objects if one.name == "llm:objective_ttft_seconds"]
    assert objective.overrides == ("built-in",)


def test_every_folder_and_file_that_is_read_is_in_the_table() -> None:
    text = DOC.read_text("utf-8")
    for folder in FOLDERS:
        assert f"| `{folder}/*" in text
    assert "| `no_tree.yaml` |" in text
    assert "| `metrics_catalog.yaml` |" in text
