"""Which nodes a command means that names none: `--pool decode -l engine=vllm`, fixed when a run is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbooks.errors import BadCommandError, BadInputError
from runbooks.ports import NodeFacts
from runbooks.value import ValueType, check_value

LABELS = ("pool", "model", "zone", "revision")
"""Options of their own; each is also a label for `-l`."""
KEYS = (*LABELS, "engine", "name")

DEFAULT_LIMIT = 16
"""A slip of the finger must not mean a hundred nodes; `--limit` says how many may be meant."""

SIGNS = ("!=", "==", "=")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A label that a node must have, or must not have, with this value."""

    key: str
    value: str
    is_negated: bool = False

    def accepts(self, node: NodeFacts) -> bool:
        """Whether the node meets it."""
        return (str(getattr(node, self.key)) == self.value) is not self.is_negated

    def __str__(self) -> str:
        return f"{self.key}{'!=' if self.is_negated else '='}{self.value}"


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """All requirements must be met. `at_once`: how many of the nodes are acted on at the same time."""

    requirements: tuple[Requirement, ...]
    at_once: int = 1
    limit: int = DEFAULT_LIMIT

    @property
    def words(self) -> str:
        """For people: `pool=decode, zone!=a`."""
        return ", ".join(map(str, self.requirements))

    def select(self, nodes: Mapping[str, NodeFacts] | None) -> tuple[str, ...]:
        """Names of the wanted nodes that are meant, in order. Raises BadInputError when there is none, or too many."""
        if nodes is None:
            raise BadInputError("could not look which nodes there are", remedy="name the node, or try again")
        found = sorted(
            (
                node.name
                for node in nodes.values()
                if node.wanted and all(one.accepts(node) for one in self.requirements)
            ),
            key=_by_number,
        )
        if not found:
            known = {key: sorted({str(getattr(node, key)) for node in nodes.values() if node.wanted}) for key in LABELS}
            asked = next((one.key for one in self.requirements if one.key in known), "pool")
            raise BadInputError(
                f"no node is meant by {self.words}", remedy=f"{asked}s: {', '.join(known[asked]) or 'none'}"
            )
        if len(found) > self.limit:
            raise BadInputError(
                f"{self.words} means {len(found)} nodes ({', '.join(found[:8])}, ...), at most {self.limit} are taken",
                remedy=f"narrow it, or give --limit {len(found)}",
            )
        return tuple(found)


class SelectorWords:
    """Collects a command's selector options. What is wrong with them is told as an error of the command."""

    OPTIONS = (*(f"--{label}" for label in LABELS), "-l", "--at-once", "--limit")

    def __init__(self, command: str) -> None:
        """`command`: its words, for errors."""
        self._command = command
        self._requirements: list[Requirement] = []
        self._counts: dict[str, int] = {}

    def read(self, name: str, value: str) -> None:
        """Take one option in. Raises BadCommandError."""
        try:
            self._read(name, value)
        except BadInputError as error:
            raise BadCommandError(f"{self._command} {name}: {error.message}", remedy=error.remedy) from None

    def _read(self, name: str, value: str) -> None:
        if name in ("--at-once", "--limit"):
            if not re.fullmatch(r"[1-9]\d{0,2}", value):
                raise BadInputError(f"{value[:80]!r} is not a count", remedy="write a whole number of 1 and more")
            self._counts[name] = int(value)
        elif name == "-l":
            self._requirements += parse_requirements([value])
        else:
            self._requirements.append(Requirement(name.removeprefix("--"), check_value(ValueType.STRING, value)))

    @property
    def selector(self) -> NodeSelector | None:
        """What was read; None when nothing was. Raises BadCommandError for a limit of nothing."""
        if not self._requirements:
            if self._counts:
                raise BadCommandError(
                    f"{self._command}: {next(iter(self._counts))} limits nodes that a label names",
                    remedy="add --pool POOL",
                )
            return None
        return NodeSelector(
            tuple(self._requirements), self._counts.get("--at-once", 1), self._counts.get("--limit", DEFAULT_LIMIT)
        )


def parse_label_terms(texts: Iterable[str]) -> list[tuple[str, str, bool]]:
    """Key, value (maybe empty) and whether it is negated, of each term in `pool=decode,phase!=ready`.

    As kubectl writes them. Raises BadInputError.
    """
    found = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        for sign in SIGNS:
            key, found_sign, value = (word.strip() for word in part.partition(sign))
            if found_sign and key:
                found.append((key, value, sign == "!="))
                break
        else:
            raise BadInputError(f"-l {part[:80]!r}: expected key=value or key!=value", remedy="e.g. -l pool=default")
    return found


def parse_requirements(texts: Iterable[str]) -> list[Requirement]:
    """The requirements in `pool=decode,zone!=a`. Raises BadInputError for a label that no node has."""
    found = []
    for key, value, is_negated in parse_label_terms(texts):
        if key not in KEYS:
            raise BadInputError(f"-l {key[:80]}: nodes have no such label", remedy=f"one of {', '.join(KEYS)}")
        if not value or value.split() != [value]:
            raise BadInputError(f"-l {key}: {value[:80]!r} is no value", remedy=f"e.g. -l {key}=default")
        found.append(Requirement(key, check_value(ValueType.STRING, value), is_negated))
    return found


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """node-2 comes before node-10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)
