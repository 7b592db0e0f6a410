"""What `query` in a template asks: one place for rules that run and rules that are tried on a past."""

from __future__ import annotations

from alerts.evaluation.template_functions import QuerySample
from alerts.promql import evaluate
from alerts.series.store import SeriesStore


def query_at(expression: str, store: SeriesStore, at: float) -> list[QuerySample]:
    """The series of an instant query at `at` (Unix seconds). Raises AlertsError."""
    return [QuerySample(one.labels, one.value) for one in evaluate(expression, store, at)]
