"""Cause files: what is refused, all at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.cause import builtin_causes, load_causes
from diagnostics.content_file import BadContentFileError

GOOD = """
causes:
  - name: noisy_neighbour
    title: A neighbour takes time
    means: Another tenant of the host.
    signals: [llm:step_seconds:mean]
    page: leave-host
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_our_own_causes_name_each_other() -> None:
    causes = builtin_causes()
    assert {other for cause in causes.values() for other in cause.confused_with} <= causes.keys()
    assert causes["slow_node"].page == "replace-node"


def test_every_fault_of_every_file_is_told_with_its_line(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", GOOD.replace("title:", "titel:"))
    second = write(tmp_path / "b.yaml", GOOD + "    no_page: nothing helps\n")
    with pytest.raises(BadContentFileError) as refused:
        load_causes([first, second])
    assert [str(problem) for problem in refused.value.problems] == [
        f"{first}:3: cause noisy_neighbour: title: Field required",
        f"{first}:4: cause noisy_neighbour: titel: Extra inputs are not permitted; correct its spelling or remove it",
        f"{second}:3: cause noisy_neighbour:"
        " give `page`, the page that treats it, or `no_page`, a sentence why there is none",
    ]


def test_a_cause_is_defined_once(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.yaml", GOOD), write(tmp_path / "b.yaml", GOOD)
    with pytest.raises(BadContentFileError, match=r"cause noisy_neighbour: defined already in .*a\.yaml:3; rename one"):
        load_causes([first, second])


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadContentFileError, match=r"a\.yaml:8: 'causes\[0\]\.page' is given twice; keep one"):
        load_causes([write(tmp_path / "a.yaml", GOOD + "    page: other\n")])
