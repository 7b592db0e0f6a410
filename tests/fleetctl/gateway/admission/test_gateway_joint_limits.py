"""Limits that the workers of one gateway hold together: never over them in sum, and whole for who is at one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.admission.admission import Admission, Admitted
from fleetctl.gateway.admission.demand import Demand, Usage
from fleetctl.gateway.admission.tenant import Tenant, TenantLimits
from fleetctl.gateway.admission.tenant_account import Charge, TenantAccount
from fleetctl.gateway.nodes.retry_budget import RetryBudget
from fleetctl.kit.api_key import digest_of
from fleetctl.kit.shared_counters import CounterMemory, SharedCounters
from fleetctl.settings.admission import AdmissionSettings

pytestmark = pytest.mark.anyio

PER_MIN, BURST_S, CONCURRENCY = 6000, 10.0, 5
BURST_TOKENS = PER_MIN / 60 * BURST_S
SHOP = Tenant("shop", limits=TenantLimits(PER_MIN, PER_MIN, PER_MIN, CONCURRENCY, burst_s=BURST_S))
EXCHANGE_EVERY_S = 0.25


@pytest.fixture
def memory() -> Iterator[CounterMemory]:
    with closing(CounterMemory()) as made:
        yield made


@dataclass
class Worker:
    """One worker's account, and the requests that it let in and that have not ended."""

    account: TenantAccount
    slot: int
    running: list[Charge] = field(default_factory=list)


class Gateway:
    """Workers of one gateway on one clock, each of which may die and be replaced."""

    def __init__(self, memory: CounterMemory, num: int) -> None:
        self.memory = memory
        self.now = 1000.0
        self.input_tokens = self.output_tokens = self.requests = 0.0  # let in, less what was given back
        self.workers = [self._started() for _ in range(num)]

    def _started(self) -> Worker:
        slot = self.memory.claim()
        assert slot is not None
        row = SharedCounters(self.memory.fd, slot).row("shop")
        assert row is not None
        account = TenantAccount(SHOP, self.now)
        account.join(row, self.now)
        return Worker(account, slot)

    @property
    def num_running(self) -> int:
        return sum(len(worker.running) for worker in self.workers)

    def wait(self, seconds: float) -> None:
        """Time passes; workers exchange what they counted as they do, four times a second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + EXCHANGE_EVERY_S)
            for worker in self.workers:
                worker.account.exchange(self.now)

    def ask(self, index: int, tokens: float = 1.0) -> bool:
        """Whether a request is let in."""
        worker, charge = self.workers[index], Charge(tokens, tokens)
        if worker.account.refusal_of(charge, self.now) is not None:
            return False
        worker.account.admit(charge)
        worker.running.append(charge)
        self.requests += 1
        self.input_tokens += tokens
        self.output_tokens += tokens
        return True

    def end(self, index: int, used: float) -> None:
        """The oldest request there ends and used this share of what it was charged."""
        worker = self.workers[index]
        if worker.running:
            charge = worker.running.pop(0)
            output = int(charge.output_tokens * used)
            worker.account.end(charge, Usage(int(charge.input_tokens), output))
            self.output_tokens -= charge.output_tokens - output
            self.input_tokens -= charge.input_tokens - int(charge.input_tokens)

    def kill(self, index: int) -> None:
        """The worker ends at once, and another one takes its place: what it had in flight is gone."""
        self.memory.release(self.workers[index].slot)
        self.workers[index] = self._started()


index = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), index, st.floats(0.5, BURST_TOKENS)),
        st.tuples(st.just("ask"), index, st.floats(0.5, 50)),
        st.tuples(st.just("end"), index, st.floats(0, 1)),
        st.tuples(st.just("kill"), index, st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.floats(0.01, 8)),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_workers_never_let_in_more_than_the_limit_in_sum(done: list[tuple[str, int, float]]) -> None:
    with closing(CounterMemory()) as memory:
        gateway = Gateway(memory, 4)
        for what, at, amount in done:
            match what:
                case "ask":
                    gateway.ask(at, amount)
                case "end":
                    gateway.end(at, amount)
                case "kill":
                    gateway.kill(at)
                case _:
                    gateway.wait(amount)
            may = BURST_TOKENS + (gateway.now - 1000.0) * PER_MIN / 60 + 1e-6
            assert gateway.input_tokens <= may
            assert gateway.output_tokens <= may
            assert gateway.requests <= may
            assert gateway.num_running <= CONCURRENCY


@settings(max_examples=15, deadline=None)
@given(st.lists(index, min_size=40, max_size=40))
def test_a_tenant_gets_its_whole_limit_wherever_its_connections_are(where: list[int]) -> None:
    with closing(CounterMemory()) as memory:
        gateway = Gateway(memory, 4)
        for at in where:
            while gateway.ask(at, 10.0):
                gateway.end(at, 1.0)
            gateway.wait(1.0)
        rate = PER_MIN / 60
        late = rate * EXCHANGE_EVERY_S + 10  # what fills while a full bucket has not heard of a take, and one request
        assert gateway.input_tokens == pytest.approx(BURST_TOKENS + (len(where) - 1) * rate, abs=late)


def test_one_connection_gets_all_seats_and_the_next_worker_none(memory: CounterMemory) -> None:
    gateway = Gateway(memory, 4)
    assert [gateway.ask(2) for _ in range(6)] == [True] * CONCURRENCY + [False]
    assert not gateway.ask(0)
    gateway.end(2, 1.0)
    assert gateway.ask(0), "at once, not when somebody has told it"


def test_a_dead_workers_seats_are_free_and_its_use_is_not_forgotten(memory: CounterMemory) -> None:
    gateway = Gateway(memory, 1)
    for _ in range(CONCURRENCY):
        assert gateway.ask(0, BURST_TOKENS / CONCURRENCY)
    gateway.kill(0)
    assert not gateway.ask(0, BURST_TOKENS), "a replaced worker does not begin with a full bucket"
    gateway.wait(1.0)
    assert [gateway.ask(0, 20.0) for _ in range(6)] == [True] * 5 + [False]


def test_without_room_for_one_more_process_there_is_no_slot(memory: CounterMemory) -> None:
    slots = [memory.claim() for _ in range(257)]
    assert slots[-1] is None
    assert len(set(slots[:-1])) == 256
    memory.release(slots[7] or 0)
    assert memory.claim() == slots[7]


def test_memory_of_another_layout_is_not_used(tmp_path: Path) -> None:
    with (tmp_path / "other").open("wb+") as file, pytest.raises(ValueError, match="layout"):
        SharedCounters(file.fileno(), 0)


def opened(tmp_path: Path, limits: str, *, num: int, memory: CounterMemory | None) -> list[Admission]:
    """The admission of each of `num` workers, on a clock that stands."""
    path = tmp_path / "tenants.yaml"
    digest = digest_of(b"key").hex()
    path.write_text(f"tenants:\n  shop:\n    limits: {limits}\n    keys:\n      - sha256: {digest}\n")
    return [
        Admission(
            AdmissionSettings(),
            tenants_file=path,
            counters=None if memory is None else SharedCounters(memory.fd, memory.claim() or 0),
            num_workers=num,
            clock=lambda: 1000.0,
        )
        for _ in range(num)
    ]


async def let_in(admission: Admission) -> int:
    """How many requests come in one after the other."""
    account = admission.authenticate(b"Bearer key")
    assert isinstance(account, TenantAccount)
    count = 0
    while isinstance(await admission.admit(account, Demand(f"r{count}", "m", 10, 10)), Admitted):
        count += 1
    return count


@pytest.mark.parametrize("limits", ["{requests_per_min: 60, burst_s: 12}", "{concurrency: 12}"])
@pytest.mark.parametrize(("num_gateways", "all_of_them"), [(1, 12), (3, 4)])
async def test_workers_hold_their_gateways_part_together(
    tmp_path: Path, memory: CounterMemory, limits: str, num_gateways: int, all_of_them: int
) -> None:
    workers = opened(tmp_path, limits, num=4, memory=memory)
    for admission in workers:
        admission.use_num_gateways(num_gateways)
    assert [await let_in(admission) for admission in workers] == [all_of_them, 0, 0, 0]


async def test_without_shared_counters_each_worker_holds_its_part(tmp_path: Path) -> None:
    workers = opened(tmp_path, "{concurrency: 12}", num=4, memory=None)
    for admission in workers:
        admission.use_num_gateways(1)
    assert [await let_in(admission) for admission in workers] == [3, 3, 3, 3]


def test_workers_retry_within_one_budget(memory: CounterMemory) -> None:
    budgets = []
    for _ in range(3):
        budget = RetryBudget(share=0.2, floor=6)
        row = SharedCounters(memory.fd, memory.claim() or 0).row("retries")
        assert row is not None
        budget.join(row)
        budgets.append(budget)
    for _ in range(50):
        budgets[0].note_answered(5.0)
    assert [sum(budget.withdraw(5.5) for _ in range(20)) for budget in budgets[1:]] == [16, 0]
    assert [budget.left(5.5) for budget in budgets] == [0.0] * 3
    assert budgets[0].left(16.0) == 6.0, "the others' answers and retries are as old as ours"


def test_gateways_divide_the_floor_and_each_has_one() -> None:
    budget = RetryBudget(share=0.2, floor=20)
    budget.use_num_sharing(4)
    assert budget.left(5.0) == 5.0
    budget.use_num_sharing(100)
    assert budget.left(5.0) == 1.0
    nothing = RetryBudget(share=0.2, floor=0)
    nothing.use_num_sharing(2)
    assert nothing.left(5.0) == 0.0
