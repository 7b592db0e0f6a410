"""Asks each node for its deep health now and then: whether the model still answers a known prompt as it should.

Our engine runs the prompt itself, takes itself out of ready when the answer is wrong, and says so in every later probe.
Other engines are asked to complete a prompt of ours (`foreign_check.py`), and what they say is voted on by their pool
(`known_answers.py`): one that is wrong, or computes nothing, is not ready by our word (`why_out`) until it is well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import structlog

from fleetctl.controller.database import StorageLostError, get_meta, put_meta
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.foreign_check import ASLEEP, CORE_STUCK, Finding, ForeignCheck
from fleetctl.controller.nodes.known_answers import AnswerKey, KnownAnswers
from fleetctl.controller.nodes.node_answers import GoldenReport, NoAnswerError, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import RouteIntent
from fleetctl.controller.records import Records
from fleetctl.engines.answer_vote import Verdict
from fleetctl.engines.kind import Can
from fleetctl.engines.table import engine_kind
from fleetctl.kit.errors import FleetctlError
from fleetctl.wire.node import NodePhase
from runbooks.ability import Ability

log = structlog.get_logger()

POLL_S = 0.5
RESULT_WAIT_S = 15.0  # for the prompt's turn at a busy node; without one the result is the one before, with its age
KNOWN_FOR_INTERVALS = 3.0  # a result that is older is no longer known
ASKED_PHASES = frozenset({NodePhase.READY, NodePhase.CORDONED})
WRONG_OUTPUT = "wrong_output"  # a node that is not ready for this reason is asked too: when is it right again?
OUT_REASONS = frozenset({WRONG_OUTPUT, CORE_STUCK, ASLEEP})  # as this
SOONER_S = 5.0  # until it is asked again, when asking began no new prompt, or when it is out
WRONG_NODES = "wrong_nodes"
"""Key of the stored checks of nodes of other engines that answer wrong: a new controller does not route to them."""


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """The last result of one node's instance. `checked_at`, Unix seconds, is when it was made; None: never."""

    instance: str | None
    asked_at: float
    is_right: bool | None = None
    checked_at: float | None = None
    detail: str = ""  # why it failed, or why it is not known
    out: str = ""  # why a node of another engine can't serve, a word of phases; it does not say so itself

    def known(self, now: float, max_age_s: float) -> bool | None:
        """Whether the answer was right; None when that is too long ago, or was never known. One that is out for it is
        wrong until it is right, however seldom it can be asked."""
        if self.out == WRONG_OUTPUT:
            return False
        return None if self.checked_at is None or now - self.checked_at > max_age_s else self.is_right


class DeepChecks:
    """Owner of the last result of each node, and of the few checks that are under way."""

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        client: NodeClient,
        foreign: ForeignCheck,
        answers: KnownAnswers,
        *,
        interval_s: float,
        at_once: int,
        wrong: Mapping[str, DeepCheck] | None = None,
    ) -> None:
        """`interval_s`: between two checks of a node; `at_once`: checks under way in the whole fleet; `wrong`: checks
        of nodes that were wrong when an earlier controller ended."""
        self._clock = records.clock
        self._metrics = records.metrics
        self._database = records.database
        self._fleet = fleet
        self._client = client
        self._foreign = foreign
        self._answers = answers
        self._interval_s = interval_s
        self._at_once = at_once
        self._checks: dict[str, DeepCheck] = dict(wrong or {})
        self._stored_wrong = frozenset(self._checks)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def opened(
        cls,
        records: Records,
        fleet: Fleet,
        client: NodeClient,
        foreign: ForeignCheck,
        *,
        interval_s: float,
        at_once: int,
    ) -> DeepChecks:
        """With what the database has."""
        answers = await KnownAnswers.opened(records, KNOWN_FOR_INTERVALS * interval_s)
        stored = await records.database.read(lambda c: get_meta(c, WRONG_NODES)) or {}
        wrong = {name: DeepCheck(**check) for name, check in stored.items()}
        return cls(records, fleet, client, foreign, answers, interval_s=interval_s, at_once=at_once, wrong=wrong)

    @property
    def max_age_s(self) -> float:
        """A result older than this is not known any more."""
        return KNOWN_FOR_INTERVALS * self._interval_s

    def last(self, name: str) -> DeepCheck | None:
        """The last check of the node that runs now; None before the first."""
        return self._checks.get(name)

    def is_right(self, name: str, now: float) -> bool | None:
        """Whether the node answers as it should; None: that is not known, or not any more."""
        check = self._checks.get(name)
        return None if check is None else check.known(now, self.max_age_s)

    def why_out(self, name: str) -> str:
        """Why the node can't serve, though its health says that it is ready; empty: nothing is known against it."""
        check = self._checks.get(name)
        return check.out if check is not None else ""

    async def ask_due_nodes(self) -> None:
        """Begin the checks that are due, as far as there is room; does not wait for them."""
        now = self._clock.now()
        states = {name: state for name, state in self._fleet.nodes.items() if may_be_asked(state)}
        for name in [name for name in self._checks if self._is_another(name)]:
            del self._checks[name]
            self._answers.forget(name)
            self._foreign.forget(name)
        room = self._at_once - len(self._under_way)
        for name in due_nodes(states, self._checks, self._under_way, now, self._interval_s)[: max(0, room)]:
            self._under_way[name] = asyncio.create_task(self._check(states[name]), name=f"deep-check-{name}")

    def _is_another(self, name: str) -> bool:
        """Whether the node is gone, or another process is there. Not known before the first look at the fleet."""
        state = self._fleet.nodes.get(name)
        return bool(self._fleet.nodes) if state is None else state.instance != self._checks[name].instance

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
        try:
            if engine_kind(state.row.spec.engine).is_own:
                assert state.url is not None
                check = _checked(check, await self._result(state.url), self._clock.now(), self._interval_s)
            else:
                check = await self._foreign_result(state, check)
        except (NoAnswerError, NotAllowedError) as error:
            check = replace(check, detail=f"could not look: {error}")
            self._metrics.deep_checks.labels(result="unknown").inc()
        else:
            result = "unknown" if check.is_right is None else ("passed" if check.is_right else "failed")
            self._metrics.deep_checks.labels(result=result).inc()
        if check.is_right is False and (before is None or before.is_right is not False):
            log.error("deep_check.failed", node=state.name, detail=check.detail)
        elif before is not None and before.is_right is False and check.is_right:
            log.info("deep_check.passed", node=state.name)
        if check.out:
            check = replace(check, asked_at=self._again_soon())
        self._checks[state.name] = check
        if check.out != (before.out if before else ""):
            await self._tell(state.name)

    async def _foreign_result(self, state: NodeState, check: DeepCheck) -> DeepCheck:
        """The check with what one question, and a vote on it, says. What was wrong stays wrong until it is right: a
        vote that says nothing lets nobody back. Raises NoAnswerError, NotAllowedError."""
        finding = await self._foreign.ask(state)
        if finding.answer is not None and check.out != WRONG_OUTPUT:
            key = AnswerKey.of(state.row.spec)
            judged = (await self._answers.judge(state.name, key, finding.answer))[state.name]
            if judged.verdict is Verdict.WRONG:  # once more: one odd answer is no fault
                finding = await self._foreign.ask(state)
        if finding.answer is None:
            is_still_wrong = check.out == WRONG_OUTPUT
            return replace(check, detail=finding.detail, out=check.out if is_still_wrong else finding.reason)
        return await self._voted(state, check, finding)

    async def _voted(self, state: NodeState, check: DeepCheck, finding: Finding) -> DeepCheck:
        assert finding.answer is not None
        ruling = await self._answers.judge(state.name, AnswerKey.of(state.row.spec), finding.answer)
        for peer, one in ruling.items():
            standing = self._checks.get(peer)
            if peer == state.name or standing is None or standing.out:
                continue
            if one.verdict is Verdict.WRONG:  # it is asked again first
                self._checks[peer] = replace(standing, asked_at=self._clock.now() - self._interval_s)
            elif one.verdict is Verdict.RIGHT and standing.is_right is None and standing.checked_at is not None:
                self._checks[peer] = replace(standing, is_right=True, detail="")
        judged, now = ruling[state.name], self._clock.now()
        if judged.verdict is Verdict.UNKNOWN and check.out == WRONG_OUTPUT:
            return replace(check, detail=f"it was wrong, and now {judged.why}")
        is_right = {Verdict.RIGHT: True, Verdict.WRONG: False, Verdict.UNKNOWN: None}[judged.verdict]
        out = WRONG_OUTPUT if is_right is False else ""
        return replace(check, is_right=is_right, checked_at=now, detail=judged.why, out=out)

    def _again_soon(self) -> float:
        """When it would have been asked, so that its turn comes soon."""
        return self._clock.now() - max(0.0, self._interval_s - SOONER_S)

    async def _tell(self, name: str) -> None:
        """The table says it at once, and the next controller knows it."""
        wrong = {name: asdict(check) for name, check in self._checks.items() if check.out == WRONG_OUTPUT}
        try:
            if wrong.keys() != self._stored_wrong:
                await self._database.write(lambda c: put_meta(c, WRONG_NODES, wrong))
                self._stored_wrong = frozenset(wrong)
            await self._fleet.observe_node(name)
        except (StorageLostError, FleetctlError) as error:  # the next look at the node tells it
            log.warning("deep_check.not_told", node=name, reason=str(error))

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
    """Whether the node can tell: it has a known prompt, answers its probes, and neither loads, sleeps nor leaves."""
    row, kind = state.row, engine_kind(state.row.spec.engine)
    if not row.wanted or not state.url or not isinstance(kind.abilities[Ability.DEEP_CHECK], Can):
        return False
    if state.phase in ASKED_PHASES:
        return kind.is_own or (bool(row.spec.model) and row.route is not RouteIntent.LEAVING)
    reasons = {WRONG_OUTPUT} if kind.is_own else OUT_REASONS
    return state.phase is NodePhase.NOT_READY and state.reason in reasons


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
