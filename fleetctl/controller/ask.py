"""One value from the series store: what trees, guards and verifications ask."""

from __future__ import annotations

from alerts.promql import BadExpressionError, evaluate
from alerts.store import SeriesStore
from diagnostics.walker import Answer, Ask


def ask_at(store: SeriesStore, now: float) -> Ask:
    """Bind a store and a time. The result answers an expression that gives exactly one value."""

    def ask(expression: str) -> Answer:
        try:
            samples = evaluate(expression, store, now)
        except BadExpressionError as error:
            return Answer(None, None, f"the query can't be evaluated: {error}")
        if not samples:
            return Answer(None, None, "no data")
        if len(samples) > 1:
            return Answer(None, None, f"{len(samples)} values where one was expected")
        return Answer(samples[0].value, samples[0].at)

    return ask
