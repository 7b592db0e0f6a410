"""What is looked at where no alert fires: the questions marked `symptom`. A calm scope has no cause to name.

Where there is a symptom and no rule to tell of it (a fleet that only a Prometheus knows), its causes are scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.evidence.judge import TRAFFIC, judge
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.evidence.symptom_onset import AGED_S, asked_at, kept_since, onset_of_series
from diagnostics.query import store_query
from diagnostics.scope import scope_text
from diagnostics.tree import Tree

LOOK_BACK_S = 7200.0  # a change that is an hour old is still one, and has an hour of past before it
# Of a change that is long over, splits minutes before it fit nearly as well; it left its past no earlier than this.
EARLIER_S = 60.0
YOUNG_FOR_S = 1800.0

NO_ALERT = Evidence("alerts", "Does an alert fire, or wait to fire?", "no", value=0.0, threshold=">= 1", unit="count")


def look_around(
    knowledge: Knowledge, trees: Mapping[str, Tree], scope: Mapping[str, str], store: SeriesStore, now: float
) -> Diagnosis:
    """What holds where no alert fires: "nothing is wrong" with what was looked at, a cause of the symptoms that are
    seen, or what could not be seen.

    `confirmed` without a cause: everything that can be told was told, and nothing is a symptom. Symptoms are read
    against the time before the last change that lasts: an hour later the last half hour is as bad as now.
    """
    symptoms = [one for one in knowledge.questions.values() if one.symptom]
    series = [template for tree in trees.values() for template in tree.onset]
    since = kept_since(store)
    # Of a record that is old enough, its first minutes are no past that anything could have changed from.
    known = since + AGED_S if since is not None and now - since >= YOUNG_FOR_S else -math.inf
    onset = onset_of_series(series, scope, store, now, now, LOOK_BACK_S, known)
    if onset.at >= now:  # what is slow, full or fails is as ever: so what users send is looked at
        onset = onset_of_series(TRAFFIC, scope, store, now, now, LOOK_BACK_S, known)
    onset = replace(onset, early=max(onset.early, onset.at - EARLIER_S))
    readings = read_all(symptoms, scope, store_query(store, now), asked_at(onset, store, now))
    shown = (
        NO_ALERT,
        *(readings[one.id] for one in symptoms if readings[one.id].answer != "unknown" or not one.optional),
    )
    unknown = tuple(f"{one.title} ({one.why_unknown})" for one in shown if one.answer == "unknown")
    signs = [one for one in shown if one.answer == "yes"]
    where = scope_text(scope)
    if signs:
        found = judge(knowledge, (), [one.question for one in signs], scope, store, now, onset, readings)
        if found.cause is None and found.confidence == "confirmed":
            return found
        seen = " ".join(f"{one.title} Yes." for one in signs)
        return found if found.cause else replace(found, title=f"No alert fires for {where}, but: {seen} {found.title}")
    if unknown:
        title = f"Could not look at {where}: no alert fires, and not every signal could be read"
    else:
        title = f"Nothing is wrong with {where}: no alert, no symptom"
    return Diagnosis("", None, title, "unknown" if unknown else "confirmed", shown, (), unknown, now)
