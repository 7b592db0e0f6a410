"""What carrying a run needs from outside, in one place: journal, effects, lookup, clock, events and limits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import structlog

from runbooks.breaker import Breaker, BreakerLimits, UnaskedEnd, breaker_of, judge_breaker
from runbooks.budget import WINDOW_S, ActionBudget, Ages, Disruption, judge_budget
from runbooks.fleet_view import FleetView
from runbooks.guard import DEFAULT_FLOOR_RATIO, Ruling
from runbooks.journal import Journal
from runbooks.ports import Clock, Effects, Lookup, NodeRoom
from runbooks.restraint import judge_cleared, judge_freezes
from runbooks.run import ACTIVE, ENDED_BY_ITSELF, Run, RunStatus, StepRecord, taken_out

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

OnEvent = Callable[[str, str, Run, dict[str, Any]], None]
"""Called with kind (`run.started`), one line of text, the run as it is, and facts; after the commit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often things are tried. Times in seconds."""

    max_attempts: int = 5  # temporary errors of one step
    max_begins: int = 50  # of one step, crashes included: a step that kills its controller must end too
    approval_ttl_s: float = 3600.0
    capacity_floor_ratio: float = DEFAULT_FLOOR_RATIO
    budget: ActionBudget = field(default_factory=ActionBudget)
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    back_off_s: float = 1.0  # doubles with each temporary error
    back_off_max_s: float = 30.0
    guard_wait_s: float = 20.0  # a guard that says no or unknown is asked again this long: signals lag
    poll_s: float = 1.0
    lookup_limit_s: float = 10.0  # a lookup that takes longer is unknown
    step_margin_s: float = 120.0  # an effect that hangs this long beyond its own time is tried again


USUAL_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Context:
    """One for each executor: what its runs are carried with."""

    journal: Journal
    effects: Effects
    lookup: Lookup
    clock: Clock
    on_event: OnEvent
    limits: Limits
    thread: ThreadPoolExecutor
    """Where the journal writes. Who writes to the same SQLite file must share it: two writers starve each other."""

    ages: Ages = field(default_factory=Ages)
    """Of what the journal has of the last hour."""

    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from a guard's look to the begin of its step: two runs can't both take the last spare node."""

    async def stored(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A journal method's result, from the journal's own thread; log context goes along."""
        work = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def fleet(self) -> FleetView:
        """What is known of the fleet now; a lookup that fails or hangs is "could not look"."""
        nodes = await self._look("nodes", self.lookup.nodes())
        serving = await self._look("serving_nodes", self.lookup.serving_nodes())
        changes = await self._look("wanted_changes", self.lookup.wanted_changes())
        classes = await self._look("priority_classes", self.lookup.priority_classes())
        ways_out = await self._look("ways_out", self.lookup.ways_out())
        revisions = await self._look("revisions", self.lookup.revisions())
        return FleetView.of(nodes, serving, changes, classes, ways_out, revisions)

    async def rooms(self) -> Mapping[str, NodeRoom] | None:
        """What each node holds and could hold now; None: could not look."""
        return await self._look("rooms", self.lookup.rooms())

    async def restraint_on(self, run: Run, fleet: FleetView) -> Ruling:
        """Whether something keeps the run from acting now, unless a person overrides it."""
        freezes = await self._look("freezes", self.lookup.freezes())
        ruling = judge_freezes(run.targets, fleet, freezes, self.clock.now())
        if ruling.allows and run.incident_id is not None:
            ruling = judge_cleared(await self._look("cleared_at", self.lookup.cleared_at(run.incident_id)))
        if ruling.allows and run.is_automatic and run.incident_id is not None:
            ruling = judge_breaker(await self.breaker(), run.id)
        return await self.budget_ruling(run, run.do_steps, fleet) if ruling.allows else ruling

    async def breaker(self) -> Breaker:
        """Whether automation's last runs helped."""
        now = self.clock.now()
        ended = await self.stored(self.journal.unasked, ENDED_BY_ITSELF)
        active = await self.stored(self.journal.unasked, ACTIVE)
        ages_s = {run.id: self.ages.age_s(run.id, run.updated_at, now) for run in ended}
        newest = sorted(ended, key=lambda run: ages_s[run.id])
        ends = [UnaskedEnd(run.id, run.status is RunStatus.SUCCEEDED, ages_s[run.id]) for run in newest]
        return breaker_of(ends, [run.id for run in active], self.limits.breaker)

    async def budget_ruling(self, run: Run, steps: Iterable[StepRecord], fleet: FleetView) -> Ruling:
        """Whether the hour's budget has room for what these steps take out."""
        nodes = taken_out(steps)
        if not nodes:
            return judge_budget(nodes, (), fleet, self.limits.budget)
        now = self.clock.now()
        stored = await self.stored(self.journal.disruptions, now - WINDOW_S)
        recent = [Disruption(one.run_id, one.node, self.ages.age_s(one, one.at, now)) for one in stored]
        by_automation = run.is_automatic
        return judge_budget(nodes, recent, fleet, self.limits.budget, run_id=run.id, by_automation=by_automation)

    async def evaluate(self, expression: str) -> float | None:
        """The expression's value now; None is unknown."""
        return await self._look("evaluate", self.lookup.evaluate(expression))

    def emit(self, kind: str, text: str, run: Run, **data: Any) -> None:
        """Log and pass on what has happened. A listener that fails does not stop the run."""
        log.info(kind, run_id=run.id, text=text, status=run.status.value)
        try:
            self.on_event(kind, text, run, data)
        except Exception as error:
            log.error("run.listener_failed", run_id=run.id, kind=kind, error=str(error), exc_info=True)

    def close(self) -> None:
        """Finish what the journal was asked, and end its thread."""
        self.thread.shutdown(wait=True)

    async def _look(self, what: str, answer: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(self.limits.lookup_limit_s):
                return await answer
        except Exception as error:  # noqa: BLE001 - could not look, whatever the reason: unknown, never a yes
            log.warning("lookup.failed", what=what, error=str(error) or type(error).__name__)
            return None
