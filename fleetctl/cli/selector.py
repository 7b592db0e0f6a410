"""Label selectors of lists: `pool=decode,phase!=ready`, as kubectl writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import runbooks.errors
from fleetctl.cli.kinds import Labels
from fleetctl.kit.errors import BadInputError
from runbooks.node_selector import parse_label_terms


@dataclass(frozen=True, slots=True)
class Requirement:
    """One `key=value` or `key!=value`."""

    key: str
    value: str
    is_negated: bool

    def accepts(self, labels: Labels) -> bool:
        """Whether the labels meet it: one value of several is enough, and a label that is lacking is empty."""
        has = labels.get(self.key, "")
        found = self.value in ([has] if isinstance(has, str) else has or [""])
        return found is not self.is_negated


def parse_selector(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """All requirements of all selectors. Raises BadInputError."""
    try:
        return tuple(Requirement(*term) for term in parse_label_terms(texts))
    except runbooks.errors.BadInputError as error:
        raise BadInputError(error.message, remedy=error.remedy) from None


def refuse_unknown_keys(requirements: Sequence[Requirement], known: Sequence[str], kind: str) -> None:
    """Raises BadInputError for a key that no row of this kind has: it would select nothing without a word."""
    for one in requirements:
        if one.key not in known:
            raise BadInputError(f"-l {one.key}: {kind} have no such label", remedy=f"one of {', '.join(known)}")
