"""Which questions of a verdict brought nothing at all, by why: a page shows what was read, and counts the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class _Asked(Protocol):
    @property
    def title(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def why_unknown(self) -> str | None: ...


One = TypeVar("One", bound=_Asked)


def part_unanswered(evidence: Iterable[One]) -> tuple[list[One], dict[str, list[str]]]:
    """What has an answer or at least a value; and the titles of what has neither, by why, most of them first."""
    told: list[One] = []
    silent: dict[str, list[str]] = {}
    for one in evidence:
        if one.answer == "unknown" and one.value is None:
            silent.setdefault(one.why_unknown or "no data", []).append(one.title)
        else:
            told.append(one)
    return told, dict(sorted(silent.items(), key=lambda item: -len(item[1])))


def counted(titles: Sequence[str]) -> str:
    """How many questions these are, in words."""
    return f"{len(titles)} question{'' if len(titles) == 1 else 's'}"
