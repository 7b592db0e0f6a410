"""Asks each node for its deep health now and then: whether the model still answers a known prompt as it should.

The node runs the prompt after all users, takes itself out of ready when the answer is wrong, and says so in every later
probe. Here it is asked for, and remembered when somebody last could look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.node_client import GoldenReport, NoAnswerError, NodeClient
from fleetctl.controller.records import Records
from fleetctl.wire import NodePhase

log = structlog.get_logger()

POLL_S = 0.5
RESULT_WAIT_S = 15.0  # for the prompt's turn at a busy node; without one the result is the one before, with its age
KNOWN_FOR_INTERVALS = 3.0  # a result that is older is no longer known
ASKED_ENGINE = "fleetctl"  # no other engine has such a check
ASKED_PHASES = frozenset({NodePhase.READY, NodePhase.CORDONED})
WRONG_OUTPUT = "wrong_output"  # a node that is not ready for this reason is asked too: when is it right again?
SOONER_S = 5.0  # until it is asked again, when asking began no new prompt: its own minute was not over


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """The last result of one node's instance. `checked_at`, Unix seconds, is when it was made; None: never."""

    instance: str | None
    asked_at: float
    is_right: bool | None = None
    checked_at: float | None = None
    detail: str = ""  # why it failed, or why it is not known

    def known(self, now: float, max_age_s: float) -> bool | None:
        """Whether the answer was right; None when that is too long ago, or was never known."""
        return None if self.checked_at is None or now - self.checked_at > max_age_s else self.is_right


class DeepChecks:
    """Owner of the last result of each node, and of the few checks that are under way."""

    def __init__(self, records: Records, fleet: Fleet, client: NodeClient, *, interval_s: float, at_once: int) -> None:
        """`interval_s`: between two checks of a node; `at_once`: checks under way in the whole fleet."""
        self._clock = records.clock
        self._metrics = records.metrics
        self._fleet = fleet
        self._client = client
        self._interval_s = interval_s
        self._at_once = at_once
        self._checks: dict[str, DeepCheck] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    @property
    def max_age_s(self) -> float:
        """A result older than this is not known any more."""
        return KNOWN_FOR_INTERVALS * self._interval_s

    def last(self, name: str) -> DeepCheck | None:
        """The last check of the node that runs now; None before the first."""
        return self._checks.get(name)

    async def ask_due_nodes(self) -> None:
        """Begin the checks that are due, as far as there is room; does not wait for them."""
        now = self._clock.now()
        states = {name: state for name, state in self._fleet.nodes.items() if may_be_asked(state)}
        for name in self._checks.keys() - self._fleet.nodes.keys():
            del self._checks[name]
        for name, state in states.items():
            if (check := self._checks.get(name)) is not None and check.instance != state.instance:
                del self._checks[name]  # another process: nothing is known of it
        room = self._at_once - len(self._under_way)
        for name in due_nodes(states, self._checks, self._under_way, now, self._interval_s)[: max(0, room)]:
            self._under_way[name] = asyncio.create_task(self._check(states[name]), name=f"deep-check-{name}")

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, state: NodeState) -> None:
        try:
            await self._ask(state)
        finally:
            del self._under_way[state.name]

    async def _ask(self, state: NodeState) -> None:
        before = self._checks.get(state.name)
        asked_at = self._clock.now()
        check = replace(before, asked_at=asked_at) if before else DeepCheck(state.instance, asked_at)
        self._checks[state.name] = check
        assert state.url is not None
        try:
            golden = await self._result(state.url)
        except NoAnswerError as error:
            check = replace(check, detail=f"could not look: {error}")
            self._metrics.deep_checks.labels(result="unknown").inc()
        else:
            check = _checked(check, golden, self._clock.now(), self._interval_s)
            result = "unknown" if check.is_right is None else ("passed" if check.is_right else "failed")
            self._metrics.deep_checks.labels(result=result).inc()
        if check.is_right is False and (before is None or before.is_right is not False):
            log.error("deep_check.failed", node=state.name, detail=check.detail)
        elif before is not None and before.is_right is False and check.is_right:
            log.info("deep_check.passed", node=state.name)
        self._checks[state.name] = check

    async def _result(self, url: str) -> GoldenReport:
        """What the node says once the prompt that this asked for was answered, or could not be in time."""
        waited_s = 0.0
        while True:
            golden = await self._client.deep_health(url)
            if not golden.is_running or waited_s >= RESULT_WAIT_S:
                return golden
            await self._clock.sleep(POLL_S)
            waited_s += POLL_S


def may_be_asked(state: NodeState) -> bool:
    """Whether the node can tell: it runs our engine, answers its probes, and neither loads, sleeps nor drains."""
    spec = state.row.spec
    answers = state.phase in ASKED_PHASES or (state.phase is NodePhase.NOT_READY and state.reason == WRONG_OUTPUT)
    return state.row.wanted and spec.engine == ASKED_ENGINE and answers and bool(state.url)


def due_nodes(
    names: Iterable[str], checks: Mapping[str, DeepCheck], under_way: Iterable[str], now: float, interval_s: float
) -> list[str]:
    """Those whose last check was begun an interval ago or never, the longest ago first. A clock set back makes none
    wait for yesterday to pass."""
    busy = set(under_way)

    def asked_at(name: str) -> float:
        return checks[name].asked_at if name in checks else -1.0

    due = [name for name in names if name not in busy and not 0 <= now - asked_at(name) < interval_s]
    return sorted(due, key=lambda name: (asked_at(name), name))


def _checked(check: DeepCheck, golden: GoldenReport, now: float, interval_s: float) -> DeepCheck:
    is_old = golden.age_s is None or golden.age_s > now - check.asked_at + SOONER_S
    if is_old and not golden.is_running and interval_s > SOONER_S:
        check = replace(check, asked_at=now - interval_s + SOONER_S)
    is_right = {"passed": True, "failed": False}.get(golden.result)
    checked_at = None if golden.age_s is None else now - golden.age_s
    return replace(check, is_right=is_right, checked_at=checked_at, detail=golden.detail)
