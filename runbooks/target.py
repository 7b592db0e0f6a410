"""What a command acts on: its kind and name, with one written form that commands, API, journal and claims share.

A bare name is a node (`node-2`); everything else says its kind (`pool/decode`, `model/llama`); `fleet` is all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbooks.errors import BadInputError
from runbooks.value import ValueType, check_value


class TargetKind(StrEnum):
    """The closed set of what a verb may act on."""

    NODE = "node"
    POOL = "pool"
    MODEL = "model"
    REVISION = "revision"
    TENANT = "tenant"
    ROUTE = "route"
    GATEWAY = "gateway"
    HOST = "host"  # a machine: what runs on it is claimed by itself
    ROLLOUT = "rollout"  # of the pool of this name: an order to it waits for no run on the pool's nodes
    PROGRAM = "program"  # an executable of the settings
    FLEET = "fleet"  # has no name: there is one


_NAMED = frozenset(kind.value for kind in TargetKind if kind is not TargetKind.FLEET)

NODE_SETS = frozenset({TargetKind.POOL, TargetKind.MODEL, TargetKind.REVISION})
"""Kinds that stand for the nodes that have this pool, model or revision."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One thing of the fleet. `str(target)` is its written form, which `parse_target` reads back."""

    kind: TargetKind
    name: str

    def __str__(self) -> str:
        if self.kind is TargetKind.FLEET:
            return self.kind.value
        if self.kind is TargetKind.NODE and self.name != TargetKind.FLEET:
            return self.name
        return f"{self.kind.value}/{self.name}"

    @property
    def words(self) -> str:
        """For a sentence: "node-2", "pool decode", "the fleet"."""
        if self.kind is TargetKind.FLEET:
            return "the fleet"
        if self.kind is TargetKind.ROLLOUT:
            return f"the rollout of pool {self.name}"
        if self.kind is TargetKind.HOST:
            return f"machine {self.name}"
        return self.name if self.kind is TargetKind.NODE else f"{self.kind.value} {self.name}"


def written_forms(kinds: Sequence[TargetKind]) -> str:
    """How targets of these kinds are typed, for help and errors: "NODE", "POOL", "NODE or pool/NAME or fleet"."""
    if len(kinds) == 1 and kinds[0] is not TargetKind.FLEET:
        return "POOL" if kinds[0] is TargetKind.ROLLOUT else kinds[0].value.upper()
    special = {TargetKind.NODE: "NODE", TargetKind.FLEET: "fleet"}
    return " or ".join(special.get(kind, f"{kind.value}/NAME") for kind in kinds)


def node_target(name: str) -> Target:
    """The node of this name, which is not checked."""
    return Target(TargetKind.NODE, name)


def parse_target(text: str, kinds: Sequence[TargetKind] = tuple(TargetKind)) -> Target:
    """The target that `text` names, which must be of one of `kinds`.

    A bare name is a node; where no node is taken and one kind only, it is of that kind. Raises BadInputError.
    """
    head, slash, rest = text.partition("/")
    if text == TargetKind.FLEET and TargetKind.FLEET in kinds:
        return Target(TargetKind.FLEET, "")
    if slash and head in _NAMED:
        kind, name = TargetKind(head), rest
    elif TargetKind.NODE in kinds or len(kinds) != 1:
        kind, name = TargetKind.NODE, text
    else:
        kind, name = kinds[0], text
    if kind not in kinds or kind is TargetKind.FLEET:
        raise BadInputError(f"{text[:80]!r} is not a {_or(kinds)}", remedy=f"write {written_forms(kinds)}")
    value_type = ValueType.NODE if kind is TargetKind.NODE else ValueType.STRING
    return Target(kind, check_value(value_type, name))


def _or(kinds: Sequence[TargetKind]) -> str:
    return " or ".join(kind.value for kind in kinds)
