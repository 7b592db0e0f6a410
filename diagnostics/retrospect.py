"""What alerts, incidents and verdicts there would have been over a past that is already in a store.

Rules are evaluated over the whole time as arrays; incidents then follow alert by alert, as the controller makes them.
The benchmark and diagnosis over a Prometheus look back in this one way.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alerts.arrays import Floats, Times
from alerts.evaluation.rules import RuleGroup
from alerts.history.backtest import Backtest, Firing, alive_groups, in_order, run_backtest
from alerts.series.store import SeriesStore
from diagnostics.grouping import Kinds, group_alerts
from diagnostics.incident import FiredAlert, Incident, clear, has_alert, is_over, looks_back_s, resolve
from diagnostics.scope import Nodes

QUIET_S = 60.0  # an incident is over when its alerts have been resolved for so long
_ANSWERS_FOR_S = 30.0  # an alert of a node that does not answer stays, until it has answered for so long


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    alert: FiredAlert


class Retrospect:
    """The past of a store, looked at again from `start` to `end` (Unix seconds). Recorded series are added to it."""

    def __init__(
        self,
        store: SeriesStore,
        groups: Sequence[RuleGroup],
        nodes: Nodes,
        start: float,
        end: float,
        *,
        kinds: Kinds | None = None,
        step_s: float = 5.0,
        steps: Times | None = None,
        expected_until: Callable[[FiredAlert], float] = lambda alert: -math.inf,
    ) -> None:
        """`nodes`: where each node is. `steps`: when rules are evaluated (milliseconds), None: each `step_s`.

        `expected_until`: to then (Unix seconds) an alert only says what is done on purpose, and opens nothing; one that
        still fires by then opens what it would have, as in a controller, which asks at each tick.
        """
        self._store = store
        self._nodes = nodes
        self._kinds = kinds
        self._incidents: dict[str, Incident] = {}
        self.backtest: Backtest = run_backtest(
            in_order(alive_groups(groups, store.has_any)), store, start, end, step_s=step_s, steps=steps
        )
        answers = _answers(store, start, end)
        self._events = sorted(_events(self.backtest.firings, answers, expected_until), key=lambda event: event.at)
        self._done = 0
        self._now = start

    def incidents_at(self, now: float) -> list[Incident]:
        """The incidents as they were at that time, resolved ones included. Times must rise from call to call."""
        while self._done < len(self._events) and self._events[self._done].at <= now:
            at = self._events[self._done].at
            arrivals = []
            while self._done < len(self._events) and self._events[self._done].at == at:
                alert = self._events[self._done].alert
                self._done += 1
                self._close(at)
                if alert.state == "resolved":
                    self._clear(alert, at)
                else:
                    arrivals.append(alert)
            if arrivals:
                self._incidents |= group_alerts(arrivals, self._incidents.values(), at, self._nodes, self._kinds)
        self._close(now)
        return list(self._incidents.values())

    def _clear(self, alert: FiredAlert, at: float) -> None:
        for key, incident in self._incidents.items():
            if has_alert(incident, alert) and incident.resolved_at is None:
                self._incidents[key] = clear(incident, alert.fingerprint, at)

    def _close(self, now: float) -> None:
        for key, incident in self._incidents.items():
            if is_over(incident, now, quiet_s=QUIET_S):
                self._incidents[key] = resolve(incident, (incident.cleared_at or now) + QUIET_S)


def _events(
    firings: Iterable[Firing],
    answers: Mapping[str, tuple[Floats, Floats]],
    expected_until: Callable[[FiredAlert], float],
) -> list[_Event]:
    found = []
    for firing in firings:
        alert = _fired(firing)
        began = max(firing.fired_at, expected_until(alert))
        if firing.resolved_at is not None and firing.resolved_at <= began:
            continue
        found.append(_Event(began, alert))
        if firing.resolved_at is None:
            continue
        at = _known_at(answers.get(firing.labels.get("node", "")), firing.resolved_at)
        if at is not None:
            found.append(_Event(at, replace(alert, state="resolved", resolved_at=at)))
    return found


def _fired(firing: Firing) -> FiredAlert:
    identity = repr((firing.alert, sorted(firing.labels.items())))
    return FiredAlert(
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
        name=firing.alert,
        severity=firing.severity,
        state="firing",
        labels=firing.labels,
        summary=firing.summary,
        value=firing.value,
        active_at=firing.active_at,
        fired_at=firing.fired_at,
        looks_back_s=looks_back_s(firing.looks_back),
    )


def _answers(store: SeriesStore, start: float, end: float) -> dict[str, tuple[Floats, Floats]]:
    """Of each node, when it was scraped and whether it answered. Shapes: (scrapes,) each."""
    found: dict[str, tuple[Floats, Floats]] = {}
    for labels, points in store.dump(start, end, names=("llm:up",)):
        if node := labels.get("node"):
            times, values = (np.array(part, dtype=np.float64) for part in zip(*points, strict=True))
            if node in found:
                times, values = np.concatenate((found[node][0], times)), np.concatenate((found[node][1], values))
                order = np.argsort(times, kind="stable")
                times, values = times[order], values[order]
            found[node] = (times, values)
    return found


def _known_at(answers: tuple[Floats, Floats] | None, at: float) -> float | None:
    """When an alert without a value since then is known to be over: a node that does not answer does not say so."""
    if answers is None:
        return at
    times, values = answers
    later = np.flatnonzero(times >= at - _ANSWERS_FOR_S)
    since: float | None = None
    for index in later.tolist():
        if values[index] == 1:
            since = float(times[index]) if since is None else since
            if times[index] >= at and times[index] - since >= _ANSWERS_FOR_S - 5:
                return max(at, float(times[index]))
        else:
            since = None
    return None
