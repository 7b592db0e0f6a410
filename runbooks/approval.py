"""How many persons a run needs before it acts, and who of them answered. Pure judgements.

A rule says when it holds and how many approvers it wants; of several that hold, the strictest counts. Who asked is not
one of the approvers, unless the rule says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

MAX_APPROVERS = 5


def identity_of(who: str) -> str:
    """The identity in a name with a claim behind it, as "admin (says ann)": an identity has no space."""
    return who.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Approval:
    """One person's yes. `at` in Unix seconds."""

    by: str
    at: float
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Approvals:
    """What a proposal needs, and has so far. Kept with the run."""

    needed: int = 1
    asker_counts: bool = True  # whoever asked may be one of them
    why: str = ""  # the rule, and what made it hold
    given: tuple[Approval, ...] = ()

    def why_not(self, by: str, asked_by: str) -> str:
        """Why this person's yes can't count; empty when it can."""
        if not self.asker_counts and identity_of(by) == identity_of(asked_by):
            return f"{identity_of(by)} asked for it, so another person approves it ({self.why})"
        if any(identity_of(one.by) == identity_of(by) for one in self.given):
            return f"{identity_of(by)} approved it already; needs {self.missing} more approver{_s(self.missing)}"
        return ""

    @property
    def missing(self) -> int:
        """How many more persons have to say yes."""
        return max(0, self.needed - len(self.given))

    @property
    def words(self) -> str:
        """For people: "1 of 2: ann; needs one more approver"; empty where one answer is all."""
        if self.needed < 2 and self.asker_counts:
            return ""
        names = ", ".join(one.by for one in self.given)
        so_far = f"{len(self.given)} of {self.needed}" + (f": {names}" if names else "")
        if not self.missing:
            return so_far
        more = "one" if self.missing == 1 else str(self.missing)
        extra = " more" if self.given else ""
        who = "" if self.asker_counts else ", not who asked"
        return f"{so_far}; needs {more}{extra} approver{_s(self.missing)}{who} ({self.why})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Approvals:
        """The value of `to_dict`; of an empty mapping, what one person's answer settles."""
        given = tuple(Approval(**one) for one in stored.get("given", ()))
        return cls(**{**stored, "given": given})


@dataclass(frozen=True, slots=True)
class ApprovalFacts:
    """What rules look at of one run."""

    actions: frozenset[str]  # its page's name, and its commands' verbs
    pools: frozenset[str]
    risk: str
    is_override: bool
    takes_out: bool  # it takes nodes out of service for good, or for a while
    near_floor: bool  # with one more node lost, a floor would not hold
    by_automation: bool
    cause: str | None = None  # of its incident
    confidence: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """`approvers` persons approve what fits all of its conditions; an empty condition fits everything."""

    name: str
    approvers: int
    actions: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    risks: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    confidences: frozenset[str] = frozenset()
    is_override: bool | None = None
    takes_out: bool | None = None
    near_floor: bool | None = None
    by_automation: bool | None = None
    asker_counts: bool = False
    expires_s: float | None = None  # None: as other proposals
    only_with_approvers: int = 0  # holds once so many named identities may approve

    def fits(self, facts: ApprovalFacts, num_approvers: int) -> bool:
        """Whether it holds for this run."""
        sets = (
            (self.actions, facts.actions),
            (self.pools, facts.pools),
            (self.risks, {facts.risk}),
            (self.causes, {facts.cause}),
            (self.confidences, {facts.confidence}),
        )
        flags = (
            (self.is_override, facts.is_override),
            (self.takes_out, facts.takes_out),
            (self.near_floor, facts.near_floor),
            (self.by_automation, facts.by_automation),
        )
        return (
            num_approvers >= self.only_with_approvers
            and all(not wanted or wanted & found for wanted, found in sets)
            and all(wanted in (None, found) for wanted, found in flags)
        )


@dataclass(frozen=True, slots=True)
class ApprovalNeed:
    """What rules want of a run: 0 approvers is what its asker may start. `expires_s`: None, as other proposals."""

    approvers: int = 0
    asker_counts: bool = True
    expires_s: float | None = None
    why: str = ""


NO_NEED = ApprovalNeed()


def _two(name: str, **when: Any) -> ApprovalRule:
    return ApprovalRule(name, approvers=2, by_automation=False, only_with_approvers=2, **when)


DEFAULT_RULES: tuple[ApprovalRule, ...] = (
    _two("override", is_override=True),
    _two("scale-in", actions=frozenset({"scale"}), takes_out=True),
    _two("near-floor", actions=frozenset({"node stop", "replace-node"}), near_floor=True),
)
"""Two persons for what is dangerous, once two named identities may approve: nobody alone is locked out."""


def judge_approvals(facts: ApprovalFacts, rules: Iterable[ApprovalRule], num_approvers: int) -> ApprovalNeed:
    """What the strictest of the rules that hold wants: most approvers, then those without the asker, then the soonest
    end. `num_approvers`: named identities that may approve."""
    holding = [rule for rule in rules if rule.fits(facts, num_approvers)]
    if not holding:
        return NO_NEED
    ends = [rule.expires_s for rule in holding if rule.expires_s is not None]
    strictest = max(holding, key=lambda rule: (rule.approvers, not rule.asker_counts, rule.name))
    return ApprovalNeed(
        approvers=strictest.approvers,
        asker_counts=all(rule.asker_counts for rule in holding if rule.approvers),
        expires_s=min(ends, default=None),
        why=f"rule {', '.join(sorted(rule.name for rule in holding))}",
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
