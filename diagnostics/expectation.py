"""What a cause expects to be seen: the whole of what the scorer knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Place = Literal["node", "pool", "fleet"]
PLACES: tuple[Place, ...] = ("node", "pool", "fleet")
# What a verdict's title may name beside questions. `a_node`: the node, or "a node of pool chat" of more than a node.
TITLE_NAMES = ("where", "a_node", "node", "pool", "model")

# How often a question is answered yes where the cause is at work.
MUST_YES = 0.97
OFTEN_YES = 0.8
ONE_OF_YES = 0.5  # of two or three of which one is a must; of more, each is as likely as what may be seen
MAY_YES = 0.4
NEVER_YES = 0.01


@dataclass(frozen=True, slots=True)
class Expectation:
    """Questions by what a cause says of their answers. What it does not name is no more likely than without it."""

    says: str  # the verdict's title: one of TITLE_NAMES in braces, or a question's id for its value
    explains: frozenset[str]  # the trees whose alerts it can be behind
    must: tuple[tuple[str, ...], ...]  # of each group one is yes; a fresh no of all rules the cause out
    often: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    never: tuple[str, ...] = ()  # a fresh yes rules the cause out
    where: frozenset[Place] = frozenset(PLACES)
    prior: float = 1.0  # how common it is beside the others
    at_most: Literal["confirmed", "likely"] = "confirmed"  # likely: its evidence only coincides
    only_seen: bool = False  # a must that nobody can tell rules it out: its symptoms alone are everybody's
    alone: bool = False  # never beside another: it is named where nothing else explains what is seen
    state: bool = False  # what others lead to: beside one of them it is named second
    tell_apart: Mapping[str, str] = field(default_factory=dict)  # another cause: the question that tells the two apart
    hurts: tuple[str, ...] = ()  # where the first that is told and all others known are no, it passes by itself
    unhurt: str = ""  # what is said then, as `says`; {{nodes}}: those that start
    acts_on: tuple[str, ...] = ()  # its page is proposed once one of them is yes; none: whenever it is named
    awaits: str = ""  # what is said until then
    lasts_s: float = 0.0  # it is confirmed once it has gone on for so long: what goes by itself is often shorter
    left_while: Mapping[str, str] = field(default_factory=dict)  # its page is not proposed while this is yes: why

    @property
    def yes_rates(self) -> dict[str, float]:
        """How often each question that is named is yes where the cause is at work."""
        rates = dict.fromkeys(self.never, NEVER_YES) | dict.fromkeys(self.may, MAY_YES)
        rates |= dict.fromkeys(self.often, OFTEN_YES)
        for group in self.must:
            rates |= dict.fromkeys(group, MUST_YES if len(group) == 1 else ONE_OF_YES if len(group) <= 3 else MAY_YES)
        return rates

    @property
    def names(self) -> frozenset[str]:
        """Every question that it names."""
        return (
            frozenset(self.yes_rates)
            | frozenset(self.tell_apart.values())
            | frozenset(self.hurts)
            | {*self.acts_on, *self.left_while}
        )
