"""The autoscaler's loop: looks at every pool, says what it would do, and does it where people let it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.controller.autoscaler.judgement import (
    Bounds,
    Direction,
    Judgement,
    Memory,
    PoolLoad,
    judge,
    scheduled_floor,
)
from fleetctl.controller.autoscaler.observation import MIN_REQUESTS, WINDOW_S, observe
from fleetctl.controller.autoscaler.pool_policy import PoolPolicy, read_policies, store_policies
from fleetctl.controller.autoscaler.prediction import FleetChange, predict
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.autoscaler.unknown import Unknown
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.node_values import fresh_values, node_matcher
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.autoscaler import AutoscalerSettings
from fleetctl.wire.autoscaler import AutoscalerPool, AutoscalerRequest
from fleetctl.wire.pool import Pool
from runbooks.errors import RunbookError
from runbooks.ports import PoolOwner
from runbooks.run import Run, RunStatus

log = structlog.get_logger()

AUTOSCALER = PoolOwner.AUTOSCALER.value
WORTH_TELLING_RATIO = 0.25  # of the size that was advised last
AGAIN_S = 60.0  # between two checks of a scale-in, and after a refusal
MAX_STARTS = 5  # the last of them say how long a start takes

VALUES = (
    "llm:kv_ratio",
    "llm:running",
    "llm:waiting",
    'engine_limit{limit="max_num_seqs"}',
    "llm:arrivals:rate",
    "llm:requests:rate",
)

Act = Callable[[str, str], Awaitable[Run]]
"""A run of one command, given the command and the reason; guards may refuse it."""


class _Values(NamedTuple):
    """What VALUES say, each by node: fresh values alone."""

    kv_ratio: Mapping[str, float]
    running: Mapping[str, float]
    waiting: Mapping[str, float]
    seats: Mapping[str, float]
    arriving: Mapping[str, float]
    ending: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Judged:
    """The last word on a pool."""

    load: PoolLoad
    bounds: Bounds
    judgement: Judgement
    check: str
    at: float
    acts: bool  # it scales the pool itself


class Autoscaling:
    """Owner of the policies and of what is remembered of each pool."""

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        pools: Callable[[], Awaitable[Sequence[Pool]]],
        store: SeriesStore,
        act: Act,
        simulator: Simulator,
        limits: AutoscalerSettings,
        policies: dict[str, PoolPolicy],
        *,
        stale_after_s: float,
    ) -> None:
        """`stale_after_s`: a value that is older is not known."""
        self._records = records
        self._clock = records.clock
        self._fleet = fleet
        self._pools = pools
        self._store = store
        self._act = act
        self._simulator = simulator
        self._limits = limits
        self._policies = policies
        self._stale_after_s = stale_after_s
        self._memories: dict[str, Memory] = {name: policy.memory for name, policy in policies.items()}
        self._judged: dict[str, _Judged] = {}
        self._told: dict[str, tuple[Direction, int]] = {}
        self._checked: dict[str, tuple[float, int, bool, str]] = {}
        self._not_before: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._start_s: list[float] = []

    @classmethod
    async def opened(
        cls,
        records: Records,
        fleet: Fleet,
        pools: Callable[[], Awaitable[Sequence[Pool]]],
        store: SeriesStore,
        act: Act,
        simulator: Simulator,
        limits: AutoscalerSettings,
        *,
        stale_after_s: float,
    ) -> Autoscaling:
        """With the policies that the database has."""
        policies = await records.database.read(read_policies)
        return cls(records, fleet, pools, store, act, simulator, limits, policies, stale_after_s=stale_after_s)

    async def judge_pools(self) -> None:
        """One turn: judge every pool; scale those that are the autoscaler's and whose mode is `act`."""
        self._time_starts()
        pools = await self._pools()
        told = self._read_values()
        for pool in pools:
            await self._judge_pool(pool, told)
        for name in self._judged.keys() - {pool.name for pool in pools}:
            del self._judged[name]
        self._records.metrics.tell_autoscaler(
            {name: judged.judgement.size for name, judged in self._judged.items()},
            {name: self._memories[name].reversals(self._clock.now()) for name in self._judged},
        )

    async def views(self) -> list[AutoscalerPool]:
        """Every pool with its policy and the last word on it."""
        return [self._view(pool) for pool in await self._pools()]

    def words_of(self, pool: str) -> str:
        """What it does to the pool, or what somebody else would have to do, and why; empty when it would leave the size
        as it is."""
        judged = self._judged.get(pool)
        if judged is None or judged.judgement.direction is Direction.HOLD:
            return ""
        size, why = judged.judgement.size, judged.judgement.why
        return f"scales to {size} nodes: {why}" if judged.acts else f"only advises {size} nodes: {why}"

    async def configure(self, name: str, request: AutoscalerRequest) -> AutoscalerPool:
        """Set a pool's bounds and mode; what the request leaves out stays. Raises BadInputError."""
        pool = next((pool for pool in await self._pools() if pool.name == name), None)
        if pool is None:
            raise BadInputError(f"there is no pool {name[:100]}", remedy="fleetctl get pools")
        before = self._policies.get(name, PoolPolicy())
        policy = replace(
            before,
            mode=request.mode or before.mode,
            least=before.least if request.min is None else request.min,
            most=before.most if request.max is None else request.max,
        )
        if policy.most is not None and policy.least > policy.most:
            raise BadInputError(f"--min {policy.least} is more than --max {policy.most}", remedy="give both")
        await self._keep(name, policy)
        words = (
            f"pool {name}: {policy.mode}, {policy.least} to {policy.bounds(self._limits).most} nodes, by {request.by}"
        )
        await self._records.timeline.append("autoscaler.set", words, data={"pool": name})
        return self._view(pool)

    async def _judge_pool(self, pool: Pool, told: _Values) -> None:
        now = self._clock.now()
        policy = self._policies.get(pool.name, PoolPolicy())
        bounds = policy.bounds(self._limits)
        load = self._load(pool, told)
        lead_s = self._limits.start_s if load.start_s is None else load.start_s
        floor = scheduled_floor(self._limits.schedules, pool.name, now, lead_s)
        memory = self._memories.get(pool.name, policy.memory)
        judgement = judge(load, bounds, self._limits, memory, now, floor=floor)
        check = ""
        if judgement.needs_check:
            allowed, check = await self._check_shrinking(pool, judgement, bounds, now)
            if not allowed:
                judgement = replace(
                    judgement, direction=Direction.HOLD, size=load.wanted, why=f"{judgement.why}; {check}"
                )
        self._memories[pool.name] = judgement.memory
        acts = policy.mode == "act" and pool.owner == AUTOSCALER
        self._judged[pool.name] = _Judged(load, bounds, judgement, check, now, acts)
        if judgement.direction is Direction.HOLD:
            self._told.pop(pool.name, None)
        elif acts:
            await self._scale(pool, policy, judgement, check, now)
        else:
            await self._advise(pool, judgement, check)

    async def _advise(self, pool: Pool, judgement: Judgement, check: str) -> None:
        """Said once, and again where it comes to another direction or to a size that is a quarter off: a queue that
        goes to and fro a little is no news."""
        advice = judgement.direction, judgement.size
        if not is_news(self._told.get(pool.name), advice):
            return
        self._told[pool.name] = advice
        words = (
            f"pool {pool.name}: would scale from {pool.wanted} to {judgement.size}: {_with(judgement.why, check)};"
            f" it only advises: fleetctl scale {pool.name} --to {judgement.size}"
        )
        await self._records.timeline.append(
            "autoscaler.advised", words, data={"pool": pool.name, "from": pool.wanted, "to": judgement.size}
        )

    async def _scale(self, pool: Pool, policy: PoolPolicy, judgement: Judgement, check: str, now: float) -> None:
        if pool.held_by is not None or now < self._not_before.get(pool.name, -math.inf):
            return
        command = f"scale {pool.name} --to {judgement.size} --from {pool.wanted}"
        try:
            run = await self._act(command, _with(judgement.why, check))
        except RunbookError as error:
            await self._tell_refused(pool, command, str(error), now)
            return
        if run.status is RunStatus.REFUSED:
            await self._tell_refused(pool, command, run.error, now)
            return
        memory = judgement.memory.with_move(judgement.direction, now)
        self._memories[pool.name] = memory
        stored = replace(policy, last_out_at=memory.last_out_at, last_in_at=memory.last_in_at, moves=memory.moves)
        await self._keep(pool.name, stored)
        self._records.metrics.autoscaler_runs.labels(pool=pool.name, direction=judgement.direction.value).inc()
        words = f"pool {pool.name}: scales from {pool.wanted} to {judgement.size}: {_with(judgement.why, check)}"
        await self._records.timeline.append(
            "autoscaler.scaled",
            words,
            run_id=run.id,
            data={"pool": pool.name, "from": pool.wanted, "to": judgement.size},
        )

    async def _tell_refused(self, pool: Pool, command: str, why: str, now: float) -> None:
        self._not_before[pool.name] = now + AGAIN_S
        await self._records.timeline.append(
            "autoscaler.refused",
            f"{command} was refused: {why}; asked again in {AGAIN_S:g} s",
            data={"pool": pool.name},
        )

    async def _check_shrinking(self, pool: Pool, judgement: Judgement, bounds: Bounds, now: float) -> tuple[bool, str]:
        """Whether what is left would carry today's traffic with one more loss, and the words for it."""
        known = self._checked.get(pool.name)
        if known is not None and known[1] == judgement.size and now - known[0] < AGAIN_S:
            return known[2], known[3]
        allowed, words = await self._simulate_shrinking(pool, judgement, bounds)
        self._checked[pool.name] = now, judgement.size, allowed, words
        return allowed, words

    async def _simulate_shrinking(self, pool: Pool, judgement: Judgement, bounds: Bounds) -> tuple[bool, str]:
        serving = sorted(self._serving(pool.name))
        num_gone = pool.wanted - judgement.size
        has_spare = judgement.size > 1
        if not has_spare and bounds.least > 1:
            return False, "one more loss would leave no node"
        meant = node_matcher(serving)
        now = self._clock.now()
        came = evaluate(f"sum(increase(engine_requests_admitted_total{{{meant}}}[{WINDOW_S:g}s]))", self._store, now)
        if came and math.isfinite(came[0].value) and came[0].value < MIN_REQUESTS:
            return True, f"{came[0].value:.0f} requests in {WINDOW_S / 60:.0f} min: nothing to simulate"
        seen = observe(self._store, serving, now)
        if isinstance(seen, Unknown):
            return False, f"not predicted: {seen.why}"
        leave = frozenset(serving[-(num_gone + has_spare) :])
        found = await predict(self._simulator, seen, FleetChange(leave=leave), slo_ttft_s=self._limits.ttft_slo_s)
        if isinstance(found, Unknown):
            return False, f"not predicted: {found.why}"
        what = "with one more loss" if has_spare else "with one node"
        words = f"{what} {found.words}, the limit is {self._limits.ttft_slo_s:g} s"
        return found.after.ttft_p95_s <= self._limits.ttft_slo_s, words

    def _load(self, pool: Pool, told: _Values) -> PoolLoad:
        serving = self._serving(pool.name)
        kv, running, waiting, seats, arriving, ending = told
        tells_seats = any(name in seats for name in serving)
        taken = [running[name] / seats[name] for name in serving if name in running and seats.get(name)]
        if not serving:
            return PoolLoad(pool.wanted, None if pool.unknown else 0, None, None, None)
        return PoolLoad(
            wanted=pool.wanted,
            serving=None if pool.unknown else len(serving),
            kv_ratio=_mean([kv[name] for name in serving if name in kv], len(serving)),
            seat_ratio=_mean(taken, len(serving)),
            waiting=_total(waiting, serving),
            start_s=sorted(self._start_s)[len(self._start_s) // 2] if self._start_s else None,
            tells_seats=tells_seats,
            arriving_per_s=_total(arriving, serving),
            ending_per_s=_total(ending, serving),
        )

    def _read_values(self) -> _Values:
        """Of all nodes at once: a turn asks the store as often with a hundred pools as with one."""
        now = self._clock.now()
        found = (fresh_values(evaluate(text, self._store, now), now, self._stale_after_s) for text in VALUES)
        return _Values(*found)

    def _serving(self, pool: str) -> set[str]:
        return {
            name
            for name, state in self._fleet.nodes.items()
            if state.row.spec.pool == pool and state.row.wanted and state.is_serving
        }

    def _time_starts(self) -> None:
        """How long nodes take from wanted to ready, of those that were seen on their way."""
        now = self._clock.now()
        wanted = {name: state for name, state in self._fleet.nodes.items() if state.row.wanted}
        for name, state in wanted.items():
            created_at = state.row.created_at
            if not state.is_serving and name not in self._starting and now - created_at < self._limits.trend_s:
                self._starting[name] = created_at
            elif state.is_serving and name in self._starting:
                self._start_s = [*self._start_s, max(0.0, now - self._starting.pop(name))][-MAX_STARTS:]
        for name in self._starting.keys() - wanted.keys():
            del self._starting[name]

    async def _keep(self, name: str, policy: PoolPolicy) -> None:
        self._policies[name] = policy
        policies = dict(self._policies)
        await self._records.database.write(lambda c: store_policies(c, policies))

    def _view(self, pool: Pool) -> AutoscalerPool:
        policy, judged = self._policies.get(pool.name, PoolPolicy()), self._judged.get(pool.name)
        bounds = policy.bounds(self._limits)
        memory = self._memories.get(pool.name, policy.memory)
        view = AutoscalerPool(
            pool=pool.name,
            mode=policy.mode,
            owner=pool.owner,
            acts=policy.mode == "act" and pool.owner == AUTOSCALER,
            min=bounds.least,
            max=bounds.most,
            wanted=pool.wanted,
            last_out_at=memory.last_out_at,
            last_in_at=memory.last_in_at,
            reversals=memory.reversals(self._clock.now()),
        )
        if judged is None:
            return view
        load, judgement = judged.load, judged.judgement
        return view.model_copy(
            update={
                "direction": judgement.direction.value,
                "size": judgement.size,
                "why": judgement.why,
                "check": judged.check,
                "judged_at": judged.at,
                "kv_ratio": load.kv_ratio,
                "seat_ratio": load.seat_ratio,
                "waiting": load.waiting,
                "start_s": load.start_s,
            }
        )


def _mean(values: Sequence[float], count: int) -> float | None:
    """None unless there is a value of each."""
    return sum(values) / count if count and len(values) == count else None


def _total(values: Mapping[str, float], nodes: Collection[str]) -> float | None:
    """None unless there is a value of each."""
    return sum(values[name] for name in nodes) if values.keys() >= set(nodes) else None


def _with(why: str, check: str) -> str:
    return f"{why}; {check}" if check else why


def is_news(before: tuple[Direction, int] | None, advice: tuple[Direction, int]) -> bool:
    """Whether somebody who was told `before` has to be told this direction and size."""
    if before is None or before[0] is not advice[0]:
        return True
    return abs(advice[1] - before[1]) >= max(1.0, before[1] * WORTH_TELLING_RATIO)
