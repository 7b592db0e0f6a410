"""What is looked at where no alert fires: that all answer, that nobody waits. A calm scope has no cause to name.

A tree starts from a symptom: walked without one, it would name the cause that is left when nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.query import RunQuery
from diagnostics.scope import scope_text
from diagnostics.tree import Limit, Question, Tree
from diagnostics.walker import walk

NO_ALERT = Evidence("alerts", "Does an alert fire, or wait to fire?", "no", value=0.0, threshold=">= 1", unit="count")


def _question(name: str, ask: str, query: str, limit: Limit, unit: str) -> Question:
    return Question(name, ask, query, None, limit, unit, None, "continue", "continue", "continue")


# Read with the walker, as a tree without a verdict; yes is a symptom.
_SYMPTOMS = Tree(
    name="",
    title="Nothing is wrong",
    symptoms=(),
    stands_alone=frozenset(),
    max_age_s=60.0,
    questions=(
        _question("silent", "Does a node not answer?", "min(llm:up{{{scope}}})", Limit("<", 1), "count"),
        _question("waiting", "Do requests wait?", "max(llm:waiting{{{scope}}})", Limit(">=", 1), "count"),
        _question("wrong", "Are answers wrong?", "min(llm:output_ok{{{scope}}})", Limit("<", 1), "count"),
    ),
    verdicts={},
)
_OPTIONAL = frozenset({"wrong"})  # not every engine tells


def look_around(scope: Mapping[str, str], run_query: RunQuery, now: float) -> Diagnosis:
    """What holds where no alert fires: "nothing is wrong", with what was looked at; or what could not be seen.

    It names no cause. `confirmed`: everything answered, and nothing is a symptom.
    """
    found = walk(_SYMPTOMS, scope, run_query, now)
    evidence = (NO_ALERT, *(one for one in found.evidence if one.answer != "unknown" or one.question not in _OPTIONAL))
    unknown = tuple(f"{one.title} ({one.why_unknown})" for one in evidence if one.answer == "unknown")
    signs = [one.title for one in evidence if one.answer == "yes"]
    where = scope_text(scope)
    if unknown:
        title = f"Could not look at {where}: no alert fires, and not every signal could be read"
    elif signs:
        title = f"No alert fires for {where}, but: {' '.join(signs)} Yes"
    else:
        title = f"Nothing is wrong with {where}: no alert, no symptom"
    is_calm = not unknown and not signs
    return Diagnosis("", None, title, "confirmed" if is_calm else "unknown", evidence, (), unknown, now)
