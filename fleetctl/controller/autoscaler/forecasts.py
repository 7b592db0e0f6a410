"""What runs will do, predicted before they act; and how far earlier predictions were off, measured after they ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import sqlalchemy as sa

from alerts.series.store import SeriesStore
from fleetctl.controller.autoscaler.observation import MIN_REQUESTS, observe, read_histogram
from fleetctl.controller.autoscaler.prediction import (
    FleetChange,
    LongReroute,
    Prediction,
    predict,
    serving_of_models,
)
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.autoscaler.unknown import Unknown
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.node_values import node_matcher
from fleetctl.controller.records import Records
from fleetctl.controller.tables import events
from runbooks.errors import BadCommandError
from runbooks.run import Run, RunStatus
from runbooks.value import ThresholdUnit, parse_threshold
from runbooks.verb import Action

CHECKED = "prediction.checked"
KEPT_ERRORS = 50  # of earlier predictions
MEASURED_S = 60.0  # after its end, what came of a run is measured for so long
GIVEN_UP_S = 1800.0  # a run that takes longer is not measured: other things changed since
DRY_RUN_S = 600.0  # for so long the prediction of a dry run is one of the same run
MAX_KEPT = 200
PATIENCE_S = 15.0  # of who waits for a dry run
ASKED_AGAIN_S = 15.0  # what could not be predicted of a run that waits may be known by now

Runs = Callable[[Collection[str]], Awaitable[Sequence[Run]]]
"""Runs that wait or act, and those of these ids that have ended."""


@dataclass(frozen=True, slots=True)
class _Forecast:
    """Of one run. `nodes`: those that are to have the traffic once it is done, those that it adds left out."""

    found: Prediction | Unknown
    nodes: frozenset[str]
    at: float
    ended_at: float | None = None
    is_checked: bool = False


_Intent = tuple[tuple[tuple[str, str], ...], int, int, bool]
"""What a run is to do, whichever nodes it picks: verbs with targets, how many nodes leave and come, a reroute."""


@dataclass(frozen=True, slots=True)
class _Outlook:
    """`meant`: nodes whose traffic it is."""

    meant: frozenset[str]
    change: FleetChange
    intent: _Intent

    @property
    def left(self) -> frozenset[str]:
        """Nodes that are to have the traffic once it is done, those that it adds left out."""
        return self.meant - self.change.leave


class Forecasts:
    """Owner of the predictions of runs that wait or act, and of the errors of those that are over."""

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        store: SeriesStore,
        simulator: Simulator,
        runs: Runs,
        errors: Sequence[float],
        *,
        interval_s: float,
    ) -> None:
        """`errors`: of earlier predictions, oldest first. `interval_s`: of two scrapes, or more."""
        self._records = records
        self._clock = records.clock
        self._fleet = fleet
        self._store = store
        self._simulator = simulator
        self._runs = runs
        self._errors = list(errors)
        self._interval_s = interval_s
        self._forecasts: dict[str, _Forecast] = {}
        self._of_dry_runs: dict[_Intent, _Forecast] = {}

    @classmethod
    async def opened(
        cls, records: Records, fleet: Fleet, store: SeriesStore, simulator: Simulator, runs: Runs, *, interval_s: float
    ) -> Forecasts:
        """With the errors that the timeline has."""
        query = (
            sa.select(events.c.data).where(events.c.kind == CHECKED).order_by(events.c.seq.desc()).limit(KEPT_ERRORS)
        )
        stored = await records.database.read(lambda c: [row.data["error"] for row in c.execute(query)])
        return cls(records, fleet, store, simulator, runs, stored[::-1], interval_s=interval_s)

    async def words_of(self, run: Run) -> str:
        """What the run will do, for people; simulated now unless it was before. Empty when it moves no requests."""
        known = self._forecasts.get(run.id)
        if known is None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    known = await self._forecast(run)
            except TimeoutError:
                return f"not predicted: it took longer than {PATIENCE_S:g} s"
            if known is None:
                return ""
            outlook = self._outlook(run)
            if run.dry_run and outlook is not None:
                self._of_dry_runs.pop(outlook.intent, None)
                self._of_dry_runs[outlook.intent] = known
                while len(self._of_dry_runs) > MAX_KEPT:
                    del self._of_dry_runs[next(iter(self._of_dry_runs))]
        return self._words(known.found)

    def note_started(self, run: Run) -> None:
        """A run that was just asked for: what was predicted of its dry run is held against what comes of it.

        Most actions are over before the loop would see them run.
        """
        outlook = self._outlook(run)
        known = None if outlook is None else self._of_dry_runs.get(outlook.intent)
        if outlook is not None and known is not None and self._clock.now() - known.at <= DRY_RUN_S:
            self._forecasts.setdefault(run.id, replace(known, nodes=outlook.left))

    def known_words(self, run_id: str) -> str:
        """What was predicted of the run already; empty when nothing was."""
        known = self._forecasts.get(run_id)
        return "" if known is None else self._words(known.found)

    async def follow_runs(self) -> None:
        """One turn: predict what was proposed or begun since, and measure what ended."""
        now = self._clock.now()
        # Not all that ever ended: a fleet with a past has thousands, and this is asked every few seconds.
        for run in await self._runs([run_id for run_id, one in self._forecasts.items() if not one.is_checked]):
            known = self._forecasts.get(run.id)
            if (
                self._is_due(run, known, now)
                and not run.dry_run
                and run.status in (RunStatus.PROPOSED, RunStatus.APPROVED, RunStatus.RUNNING)
            ):
                forecast = await self._forecast(run)
                if forecast is not None:
                    self._forecasts[run.id] = forecast
            elif known is not None and not known.is_checked and run.status.is_terminal:
                await self._follow_ended(run, known, now)
        while len(self._forecasts) > MAX_KEPT:
            del self._forecasts[next(iter(self._forecasts))]

    def _is_due(self, run: Run, known: _Forecast | None, now: float) -> bool:
        """Whether to predict: not before a new controller has looked at its nodes, as it knows none till then; once,
        but for what was not known and waits still."""
        if self._fleet.looked_at is None:
            return False
        if known is None:
            return True
        is_waiting = run.status is RunStatus.PROPOSED and isinstance(known.found, Unknown)
        return is_waiting and not 0 <= now - known.at < ASKED_AGAIN_S

    async def _follow_ended(self, run: Run, known: _Forecast, now: float) -> None:
        if run.status is not RunStatus.SUCCEEDED or isinstance(known.found, Unknown) or now - known.at > GIVEN_UP_S:
            self._forecasts[run.id] = replace(known, is_checked=True)
            return
        if known.ended_at is None:
            self._forecasts[run.id] = replace(known, ended_at=now)
            return
        if now - known.ended_at < MEASURED_S:
            return
        self._forecasts[run.id] = replace(known, is_checked=True)
        meant = node_matcher(known.nodes)
        measured = read_histogram(self._store, "vllm:time_to_first_token_seconds", meant, now, MEASURED_S)
        p95_s = measured.quantile(0.95)
        if p95_s is None or p95_s <= 0 or measured.count < MIN_REQUESTS:
            return
        error = abs(known.found.after.ttft_p95_s - p95_s) / p95_s
        self._errors = [*self._errors, error][-KEPT_ERRORS:]
        words = (
            f"{run.title}: predicted p95 TTFT {known.found.after.ttft_p95_s:.2f} s, "
            f"measured {p95_s:.2f} s within {MEASURED_S:g} s of its end: off by {_percent(error)}"
        )
        data = {"predicted_s": known.found.after.ttft_p95_s, "measured_s": p95_s, "error": error}
        await self._records.timeline.append(CHECKED, words, run_id=run.id, incident_id=run.incident_id, data=data)

    async def _forecast(self, run: Run) -> _Forecast | None:
        """None when the run moves no requests between nodes."""
        outlook = self._outlook(run)
        if outlook is None:
            return None
        now = self._clock.now()
        if self._fleet.looked_at is None:
            return _Forecast(
                Unknown("the controller has just started, and has not looked at the nodes yet"), outlook.left, now
            )
        seen = observe(self._store, outlook.meant, now, interval_s=self._interval_s)
        found = seen if isinstance(seen, Unknown) else await predict(self._simulator, seen, outlook.change)
        return _Forecast(found, outlook.left, now)

    def _outlook(self, run: Run) -> _Outlook | None:
        actions = _actions(run)
        serving = frozenset(name for name, state in self._fleet.nodes.items() if state.is_serving)
        change = change_of(actions, serving, self._pools())
        if change == FleetChange():
            return None
        models = {name: state.row.spec.model for name, state in self._fleet.nodes.items()}
        touched = {name for action in actions if (effect := action.change) for name in (effect.taken_out | effect.adds)}
        touched |= {like for action in actions if (effect := action.change) for like in effect.creates.values() if like}
        meant = serving_of_models(models, serving, touched) if touched else serving
        change = replace(change, leave=change.leave & meant)
        verbs = tuple((action.verb.name, str(action.target)) for action in actions)
        return _Outlook(meant, change, (verbs, len(change.leave), change.add, change.reroute is not None))

    def _pools(self) -> dict[str, str]:
        return {name: state.row.spec.pool for name, state in self._fleet.nodes.items()}

    def _words(self, found: Prediction | Unknown) -> str:
        if isinstance(found, Unknown):
            return f"not predicted: {found.why}"
        if not self._errors:
            return f"{found.words}; no earlier prediction was measured"
        return (
            f"{found.words}; earlier predictions: median error {_percent(median(self._errors))} of {len(self._errors)}"
        )


def change_of(actions: Iterable[Action], serving: frozenset[str], pools: dict[str, str]) -> FleetChange:
    """What the actions together do to the serving nodes. A node that comes back is away while a run restarts it."""
    gone: set[str] = set()
    new: set[str] = set()
    reroute: LongReroute | None = None
    for action in actions:
        effect = action.change
        if effect is not None:
            gone |= effect.taken_out
            gone -= effect.adds
            new |= {name for name in effect.adds if name not in serving} | set(effect.creates)
            new -= effect.removes
        if action.verb.name == "reroute long-context":
            reroute = _reroute(action, serving - gone, pools) or reroute
    return FleetChange(frozenset(gone & serving), len(new), reroute)


def _reroute(action: Action, serving: frozenset[str], pools: dict[str, str]) -> LongReroute | None:
    """Only a threshold in tokens can be simulated."""
    unit, amount = parse_threshold(action.args["over"])
    if unit is not ThresholdUnit.TOKENS or not serving:
        return None
    if action.args["pool"] is not None:
        chosen = sorted(name for name in serving if pools.get(name) == action.args["pool"])
    else:
        count = max(1, min(len(serving) - 1, math.ceil(action.args["share"] * len(serving))))
        chosen = sorted(serving)[:count]
    return LongReroute(int(amount), tuple(chosen)) if chosen else None


def _actions(run: Run) -> list[Action]:
    """Those of its commands that this fleetctl knows."""
    found = []
    for step in run.do_steps:
        try:
            found.append(step.action)
        except BadCommandError:
            continue
    return found


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}".replace("%", " %")
