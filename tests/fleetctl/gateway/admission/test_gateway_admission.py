"""Admission without a network: keys, limits and what they cost, the queue for a seat, reload; on a clock of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fleetctl.gateway.admission.admission import Admission, Admitted
from fleetctl.gateway.admission.demand import Demand, Usage
from fleetctl.gateway.admission.shedding import ShedOrder
from fleetctl.gateway.admission.tenant import Tenant, TenantLimits
from fleetctl.gateway.admission.tenant_account import Refusal, TenantAccount
from fleetctl.gateway.admission.token_bucket import TokenBucket
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.kit.api_key import digest_of
from fleetctl.priority_class import PriorityClass
from fleetctl.settings.admission import AdmissionSettings

pytestmark = pytest.mark.anyio

BEARER = b"Bearer key-of-shop"


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def tenants_file(tmp_path: Path, limits: str = "{}", more: str = "", models: str = "[]") -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text(
        f"tenants:\n  shop:\n    models: {models}\n    limits: {limits}\n    keys:\n"
        f"      - sha256: {digest_of(b'key-of-shop').hex()}\n{more}"
    )
    return path


def opened(tmp_path: Path, clock: Clock, limits: str = "{}", *, models: str = "[]", **settings: float) -> Admission:
    return Admission(
        AdmissionSettings(**settings),
        tenants_file=tenants_file(tmp_path, limits, models=models),
        clock=clock,
        now=clock,
    )


def demand(number: int = 0, *, input_tokens: int = 10, output_tokens: int | None = 10, **more: object) -> Demand:
    return Demand(f"r{number}", "m", input_tokens, output_tokens, **more)  # type: ignore[arg-type]


async def admitted(admission: Admission, one: Demand | None = None) -> Admitted:
    account = admission.authenticate(BEARER)
    assert isinstance(account, TenantAccount)
    found = await admission.admit(account, one or demand())
    assert isinstance(found, Admitted), found
    return found


async def refused(admission: Admission, one: Demand | None = None) -> ErrorAnswer:
    account = admission.authenticate(BEARER)
    assert isinstance(account, TenantAccount)
    found = await admission.admit(account, one or demand())
    assert isinstance(found, ErrorAnswer)
    return found


# Keys


@pytest.mark.parametrize("header", [None, b"Bearer nobody", b"key-of-shop", b"Basic key-of-shop"])
async def test_without_a_known_key_nobody_comes_in(tmp_path: Path, header: bytes | None) -> None:
    admission = opened(tmp_path, Clock())
    answer = admission.authenticate(header)
    assert isinstance(answer, ErrorAnswer)
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert b"key-of-shop" not in answer.body()


async def test_without_a_tenants_file_everybody_is_one_tenant_without_limits() -> None:
    admission = Admission(AdmissionSettings())
    account = admission.authenticate(None)
    assert isinstance(account, TenantAccount)
    assert account.tenant.name == "anonymous"
    assert isinstance(await admission.admit(account, demand(input_tokens=10**9)), Admitted)
    assert admission.node_headers([(b"authorization", b"Bearer u")]) == [(b"authorization", b"Bearer u")]


async def test_a_key_of_ours_goes_to_no_node_which_gets_its_own(tmp_path: Path) -> None:
    path = tenants_file(tmp_path)
    sent = [(b"authorization", b"Bearer key-of-shop"), (b"x", b"y")]
    assert Admission(AdmissionSettings(), tenants_file=path).node_headers(sent) == [(b"x", b"y")]
    own = Admission(AdmissionSettings(), tenants_file=path, node_key="nodes").node_headers(sent)
    assert own == [(b"x", b"y"), (b"authorization", b"Bearer nodes")]


# Limits


@pytest.mark.parametrize(
    ("limits", "code", "after_s"),
    [
        ("{requests_per_min: 2}", "tenant_requests", 30),
        ("{input_tokens_per_min: 20}", "tenant_input_tokens", 30),
        ("{output_tokens_per_min: 20}", "tenant_output_tokens", 30),
        ("{output_tokens_per_min: 20, requests_per_min: 3, burst_s: 60}", "tenant_output_tokens", 30),
        ("{concurrency: 2}", "tenant_concurrency", 1),
    ],
)
async def test_a_limit_is_named_with_when_to_come_again(tmp_path: Path, limits: str, code: str, after_s: int) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock, limits)
    held = [await admitted(admission) for _ in range(2)]
    answer = await refused(admission)
    assert (answer.status, answer.code, answer.limit, answer.retry_after_s) == (429, code, code, after_s)
    assert (b"x-fleet-limit", code.encode()) in answer.headers()
    clock.at += after_s
    for one in held:
        one.release(Usage(10, 10))
    await admitted(admission)
    admission.check_integrity()


async def test_the_real_usage_replaces_the_estimate(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock, "{output_tokens_per_min: 600}")
    first = await admitted(admission, demand(output_tokens=500))
    assert (await refused(admission, demand(output_tokens=200))).code == "tenant_output_tokens"
    first.release(Usage(10, 20))
    (await admitted(admission, demand(output_tokens=500))).release(Usage(10, 1200))
    answer = await refused(admission, demand(output_tokens=1))
    assert answer.retry_after_s == 63, "what it took too much, at ten a second"
    assert admission.accounts["shop"].tokens == [20, 1220]


async def test_what_no_node_worked_on_costs_nothing_but_a_request(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), "{output_tokens_per_min: 60, requests_per_min: 10}")
    for _ in range(10):
        (await admitted(admission, demand(output_tokens=60))).release(None)
    assert (await refused(admission)).code == "tenant_requests"


async def test_a_request_larger_than_the_bucket_goes_in_when_it_is_full_and_is_paid_for(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock, "{input_tokens_per_min: 60, burst_s: 10}")
    (await admitted(admission, demand(input_tokens=100))).release(Usage(100, 1))
    assert (await refused(admission, demand(input_tokens=1))).retry_after_s == 91


async def test_released_twice_counts_once(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), "{concurrency: 5}")
    one = await admitted(admission)
    for _ in range(3):
        one.release(Usage(1, 1))
    assert admission.accounts["shop"].running == 0
    admission.check_integrity()


async def test_models_and_the_cap_of_one_answer(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), "{max_output_tokens: 100}", models='["m", "llama-*"]')
    assert (await admitted(admission, demand(output_tokens=None))).max_output_tokens == 100
    assert (await admitted(admission, demand(output_tokens=99))).max_output_tokens is None
    over = await refused(admission, demand(output_tokens=101))
    assert (over.status, over.code, over.param) == (400, "max_output_tokens", "max_tokens")
    for model in ("qwen", None):
        other = await refused(admission, demand()._replace(model=model))
        assert (other.status, other.code) == (403, "model_not_allowed")


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=60))
def test_a_tenant_never_gets_more_than_its_rate_its_burst_and_what_was_under_estimated(
    requests: list[tuple[float, int, int]],
) -> None:
    now = 0.0
    account = TenantAccount(Tenant("t", limits=TenantLimits(output_tokens_per_min=600, burst_s=30)), now)
    used = worst = 0
    for pause_s, asked, brought in requests:
        now += pause_s
        charge = account.charge_of(1, asked)
        if account.refusal_of(charge, now) is None:
            account.admit(charge)
            account.end(charge, Usage(1, brought))
            used += brought
            worst = max(worst, brought)
        account.check_integrity()
        assert used <= 300 + 10 * now + worst + 1e-6


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.01, 1)), max_size=30))
def test_a_share_never_holds_more_than_its_part(changes: list[tuple[float, float]]) -> None:
    bucket, now = TokenBucket(600, 60, 0.0), 0.0
    for pause_s, share in changes:
        now += pause_s
        bucket.use_share(share, now)
        assert bucket.level <= bucket.capacity == pytest.approx(max(1.0, 600 * share))


# Shedding


async def test_an_order_turns_lower_classes_away_until_it_expires(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock)
    admission.use_orders([ShedOrder("r-1", PriorityClass.STANDARD, clock.at + 30)])
    await admitted(admission), "standard is not below standard"
    admission.use_orders([ShedOrder("r-1", PriorityClass.CRITICAL, clock.at + 30)])
    answer = await refused(admission)
    assert (answer.status, answer.code, answer.limit, answer.retry_after_s) == (429, "shed", "shed", 30)
    clock.at += 30
    await admitted(admission)


@pytest.mark.parametrize(
    ("share", "tenants", "expected"), [(1.0, [], 1.0), (0.25, [], 0.25), (1.0, ["crawl"], 0.0), (1.0, ["shop"], 1.0)]
)
def test_an_order_takes_a_share_and_names_tenants(share: float, tenants: list[str], expected: float) -> None:
    order = ShedOrder("r", PriorityClass.STANDARD, 1.0, share, frozenset(tenants))
    shop = Tenant("shop", PriorityClass.BATCH)
    shed = [order.sheds(shop, f"request-{number}") for number in range(4000)]
    assert sum(shed) / 4000 == pytest.approx(expected, abs=0.03)
    assert shed == [order.sheds(shop, f"request-{number}") for number in range(4000)], "the same everywhere"


# The queue for a seat


async def filled(admission: Admission, seats: int) -> list[Admitted]:
    """As many at the nodes as these take: the next one was refused by all of them."""
    held = [await admitted(admission, demand(number)) for number in range(seats + 1)]
    lane = admission.queue.lane("")
    lane.seats.give_back()
    lane.seats.note_overload(admission.clock())
    held[-1]._lane = None
    held.pop().release(None)
    return held


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_finds_the_nodes_full_gets_the_next_seat(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock())
    held = await filled(admission, 2)
    waiting = asyncio.create_task(admitted(admission))
    await settle()
    assert admission.queue.num_waiting == 1
    held[0].release(None)
    (await waiting).release(None)
    held[1].release(None)
    admission.check_integrity()
    assert admission.queue.lane("").seats.outstanding == 0


async def test_who_waits_too_long_is_told_so(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), queue_limit_s=0.01)
    held = await filled(admission, 1)
    answer = await refused(admission)
    assert (answer.status, answer.code, answer.retry_after_s) == (429, "queue_limit", 1)
    assert admission.accounts["shop"].running == len(held)
    admission.check_integrity()


async def test_a_deadline_ends_the_wait(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock)
    await filled(admission, 1)
    answer = await refused(admission, demand(deadline_at=clock.at + 0.01))
    assert (answer.status, answer.code) == (504, "deadline_exceeded")


async def test_a_hang_up_leaves_nothing_behind(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock())
    held = await filled(admission, 1)
    for granted_too in (False, True):
        waiting = asyncio.create_task(admitted(admission))
        await settle()
        if granted_too:
            held.pop().release(None)  # the seat and the hang-up in one turn of the loop
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        admission.check_integrity()
        assert admission.queue.num_waiting == 0
        assert admission.accounts["shop"].running == len(held)
    assert admission.queue.lane("").seats.outstanding == 0


async def test_the_queue_is_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), max_waiting=2, max_waiting_bytes=2048)
    await filled(admission, 1)
    tasks = [asyncio.create_task(admitted(admission, demand(size_bytes=1000))) for _ in range(2)]
    await settle()
    assert (await refused(admission)).code == "queue_full", "two wait"
    tasks.pop().cancel()
    await settle()
    assert (await refused(admission, demand(size_bytes=1049))).code == "queue_full", "too large beside the other"
    assert (await refused(admission, demand(size_bytes=4000))).code == "queue_full", "too large alone"
    tasks.pop().cancel()
    await settle()
    admission.check_integrity()


async def test_one_that_every_node_refused_waits_again_before_others(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock)
    held = [await admitted(admission, demand(number)) for number in range(3)]
    again = asyncio.create_task(held[2].wait_again())
    await settle()
    later = asyncio.create_task(admitted(admission))
    await settle()
    assert admission.queue.num_waiting == 2
    held[0].release(None)
    assert await again is None
    assert not later.done()
    held[1].release(None)
    (await later).release(None)
    held[2].release(None)
    admission.check_integrity()


async def test_a_full_fleet_is_probed_by_time_when_nothing_of_ours_is_there(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock)
    one = await admitted(admission)
    again = asyncio.create_task(one.wait_again())
    await settle()
    admission.queue.sweep()
    assert not again.done()
    clock.at += 1.0
    admission.queue.sweep()
    assert await again is None
    one.note_seated()
    one.release(None)
    clock.at += 11
    admission.queue.sweep()
    assert admission.queue.lane("").seats.limit is None, "nobody waits: nothing is known any more"


async def test_a_limit_for_each_node_holds_from_the_start(tmp_path: Path) -> None:
    admission = Admission(AdmissionSettings(), most_outstanding=lambda lane: 2)
    account = admission.authenticate(None)
    assert isinstance(account, TenantAccount)
    tasks = [asyncio.create_task(admission.admit(account, demand(number))) for number in range(5)]
    await settle()
    assert admission.queue.num_waiting == 3
    for task in tasks:
        found = await task
        assert isinstance(found, Admitted)
        assert admission.queue.lane("").seats.outstanding <= 2
        found.release(None)
    admission.check_integrity()


async def test_with_the_queue_off_nobody_waits(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), queue_limit_s=0)
    one = await admitted(admission)
    assert await one.wait_again() is Refusal.QUEUE_LIMIT
    one.release(None)
    admission.check_integrity()


# Reload


async def test_a_changed_file_is_taken_up_and_what_was_used_stays_used(tmp_path: Path) -> None:
    clock = Clock()
    admission = opened(tmp_path, clock, "{output_tokens_per_min: 600}")
    held = await admitted(admission, demand(output_tokens=500))
    tenants_file(tmp_path, "{output_tokens_per_min: 1200}", "  crawl:\n")
    await admission.reload_if_changed()
    assert set(admission.accounts) == {"shop", "crawl"}
    assert admission.accounts["shop"].running == 1
    assert (await refused(admission, demand(output_tokens=250))).code == "tenant_output_tokens"
    held.release(None)
    await admitted(admission, demand(output_tokens=250))


async def test_a_bad_file_changes_nothing_and_is_told_once(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock())
    path = tmp_path / "tenants.yaml"
    good = path.read_text()
    path.write_text("tenants:\n  shop: 5\n")
    with capture_logs() as logs:
        await admission.reload_if_changed()
        await admission.reload_if_changed()
    assert [(one["event"], f"{path}:2: tenants.shop: " in one["error"]) for one in logs] == [
        ("tenants.not_reloaded", True)
    ]
    assert (admission.num_reloads["failed"], admission.reload_has_failed) == (1, True)
    await admitted(admission)
    path.unlink()
    await admission.reload_if_changed()
    await admitted(admission)
    path.write_text(good)
    await admission.reload_if_changed()
    assert (admission.num_reloads["loaded"], admission.reload_has_failed) == (1, False)


async def test_a_tenant_that_is_taken_out_comes_in_no_more_and_its_requests_end_in_order(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock())
    held = await admitted(admission)
    (tmp_path / "tenants.yaml").write_text("tenants:\n  crawl:\n")
    await admission.reload_if_changed()
    assert isinstance(admission.authenticate(BEARER), ErrorAnswer)
    held.release(Usage(1, 1))
    admission.check_integrity()


# What is shown


async def test_a_key_sees_its_own_row_and_this_machine_sees_all(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), "{output_tokens_per_min: 600}")
    tenants_file(tmp_path, "{output_tokens_per_min: 600}", "  crawl:\n")
    await admission.reload_if_changed()
    (await admitted(admission, demand(output_tokens=100))).release(Usage(3, 40))
    every = admission.as_json(None, may_see_all=True)
    own = admission.as_json(BEARER, may_see_all=False)
    assert every is not None
    assert own is not None
    assert [row["tenant"] for row in every["tenants"]] == ["shop", "crawl"]
    (row,) = own["tenants"]
    assert (row["tenant"], row["tokens"], row["left"]["output"], row["admitted"]) == (
        "shop",
        {"input": 3, "output": 40},
        560,
        1,
    )
    assert admission.as_json(None, may_see_all=False) is None
    assert "key-of-shop" not in str(every)
    assert digest_of(b"key-of-shop").hex() not in str(every)


# Several gateways


@pytest.mark.parametrize("num", [2, 3, 5])
async def test_gateways_share_a_limit_and_together_let_in_no_more(tmp_path: Path, num: int) -> None:
    clock = Clock()
    gateways = [opened(tmp_path, clock, "{requests_per_min: 60, concurrency: 10}") for _ in range(num)]
    for admission in gateways:
        admission.use_num_gateways(num)
    let_in = 0
    for _ in range(100):
        clock.at += 0.1
        for admission in gateways:
            account = admission.authenticate(BEARER)
            assert isinstance(account, TenantAccount)
            found = await admission.admit(account, demand())
            if isinstance(found, Admitted):
                let_in += 1
                found.release(None)
    assert 60 <= let_in <= 60 + 10
    assert sum(admission.accounts["shop"].max_running or 0 for admission in gateways) <= 10


async def test_a_number_of_gateways_that_changes_makes_no_tokens(tmp_path: Path) -> None:
    admission = opened(tmp_path, Clock(), "{requests_per_min: 60}")
    for num in (2, 1, 5, 1):
        admission.use_num_gateways(num)
    shown = admission.as_json(None, may_see_all=True)
    assert shown is not None
    assert shown["tenants"][0]["left"]["requests"] == 12
