"""A tree's questions put to a series store. The controller and the replay ask in the same way."""

from __future__ import annotations

from alerts.errors import BadExpressionError, QueryError
from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from diagnostics.walker import Answer, Ask


def ask_store(store: SeriesStore, at: float) -> Ask:
    """Answers from `store` as of Unix time `at`. No series, several series and a refused query are all unknown."""

    def ask(query: str) -> Answer:
        try:
            samples = evaluate(query, store, at)
        except (BadExpressionError, QueryError) as error:
            return Answer(None, None, f"the query failed: {error}")
        if not samples:
            return Answer(None, None, "no series has data")
        if len(samples) > 1:
            return Answer(None, None, f"{len(samples)} series answer where one was expected")
        return Answer(samples[0].value, samples[0].at)

    return ask
