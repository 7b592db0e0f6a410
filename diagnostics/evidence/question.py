"""A question: one thing an engineer would look at, named once, whatever causes and trees speak of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from diagnostics.tree import Limit
from diagnostics.value_format import format_value


@dataclass(frozen=True, slots=True)
class Question:
    """One PromQL query with its limit. What an answer means is said by the causes."""

    id: str
    ask: str  # in words
    query: str  # PromQL template, one value
    pool_query: str | None  # asked instead when the scope names no node
    when: Limit  # yes
    unless: Limit | None  # no; between the two it is unknown. None: what is not yes is no
    unit: str
    because: str  # why this limit
    base: float = 0.05  # how often it is yes where a cause says nothing of it
    lag_s: float = 0.0  # so long after the onset a no is too early
    max_age_s: float = 60.0  # an older value is no evidence
    optional: bool = False  # not everybody can tell: unknown is no gap
    certain: bool = False  # what its yes rules out is not even doubted: it says that nobody is hurt
    symptom: bool = False  # what is looked at where no alert fires
    is_told_always: bool = True  # no: its number is what is asked for only where it is yes (a condition is in it)
    past: Literal["traffic", "facts", "none"] = "traffic"  # what it needs to have been there before the onset
    file: str = ""  # where it is defined, for errors
    line: int = 0

    @property
    def threshold(self) -> str:
        """The limit of a yes with its unit, e.g. "> 200 ms"."""
        unit = "seconds" if self.unit == "before_onset" else self.unit
        return f"{self.when.comparison} {format_value(self.when.bound, unit)}"

    def template(self, scope: Mapping[str, str]) -> str:
        """The query as it is asked of this scope."""
        return self.query if self.pool_query is None or scope.get("node") else self.pool_query

    def compares_with_past(self, scope: Mapping[str, str]) -> bool:
        """Whether the answer for this scope hangs on what was before the onset."""
        return "{{before}}" in self.template(scope)

    def needs_past(self, scope: Mapping[str, str]) -> bool:
        """Whether something must have been there before the onset; not for a record right from its first line."""
        return self.past != "none" and any(time in self.template(scope) for time in ("{{onset}}", "{{before}}"))

    def is_of_facts(self, scope: Mapping[str, str]) -> bool:
        """Whether what it compares with is there without traffic too: which nodes, which limits, what was changed."""
        return self.past == "facts" or "{{onset}}" in self.template(scope)
