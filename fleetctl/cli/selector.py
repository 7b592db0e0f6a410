"""Label selectors of lists: `pool=decode,phase!=ready`, as kubectl writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetctl.cli.kinds import Labels
from fleetctl.kit.errors import BadInputError


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
    found = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        for sign in ("!=", "==", "="):
            key, found_sign, value = part.partition(sign)
            if found_sign and key.strip():
                found.append(Requirement(key.strip(), value.strip(), sign == "!="))
                break
        else:
            raise BadInputError(f"-l {part!r}: expected key=value or key!=value", remedy="e.g. -l pool=default")
    return tuple(found)


def refuse_unknown_keys(requirements: Sequence[Requirement], known: Sequence[str], kind: str) -> None:
    """Raises BadInputError for a key that no row of this kind has: it would select nothing without a word."""
    for one in requirements:
        if one.key not in known:
            raise BadInputError(f"-l {one.key}: {kind} have no such label", remedy=f"one of {', '.join(known)}")
