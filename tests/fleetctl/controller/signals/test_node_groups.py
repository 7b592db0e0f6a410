"""Pools, zones, models and revisions from scraped metrics of real engines' shapes, through the signal rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from alerts.evaluation.engine import RuleEngine
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent
from fleetctl.controller.signals.node_groups import NodeGroups
from fleetctl.kit.clock import Clock
from fleetctl.providers.cost import NodeCosts
from fleetctl.wire.group import GroupBy, NodeGroup
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import make_spec
from tests.fixtures.driven import DrivenClock
from tests.fixtures.signals import GROUPS, START, histogram

L = 'model_name="q"'
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"


class SmallFleet:
    """Nodes as the fleet loop saw them; looked at now."""

    def __init__(self, clock: DrivenClock) -> None:
        self.clock = clock
        self.nodes: dict[str, NodeState] = {}
        self.unseen: set[str] = set()

    def add(self, name: str, **facts: Any) -> None:
        phase = facts.pop("phase", NodePhase.READY)
        spec = replace(make_spec(name), **{"pool": "chat", "zone": "a", "revision": "r1", "engine": "vllm", **facts})
        row = NodeRow(spec, True, True, RouteIntent.ACTIVE, Role.MEMBER, "http://x", None, 0.0, 0.0)
        self.nodes[name] = NodeState(row, phase, "", 0.0)

    def seen_at(self, name: str) -> float:
        return self.clock.now() - (60.0 if name in self.unseen else 0.0)


class Rig:
    """A small fleet whose nodes are scraped every 5 s through our signal rules."""

    def __init__(self) -> None:
        self.clock = DrivenClock(START)
        self.fleet = SmallFleet(self.clock)
        self.store = SeriesStore()
        self.rules = RuleEngine(GROUPS, self.store)
        costs = NodeCosts({"hgx-h100": 98.0, "NVIDIA L4": 0.8})
        self.groups = NodeGroups(
            cast(Fleet, self.fleet), self.store, cast(Clock, self.clock), costs, stale_after_s=10.0
        )
        self.series: dict[str, dict[str, tuple[float, float]]] = {}
        self.gauges: dict[str, str] = {}

    def node(
        self,
        name: str,
        *,
        ttft_s: float,
        itl_s: float,
        tokens_per_s: float,
        requests_per_s: float,
        running: int = 0,
        kv: float = 0.0,
        preemptions_per_s: float = 0.0,
        hits_per_s: float = 0.0,
        gauges: str = "",
        **facts: Any,
    ) -> None:
        self.fleet.add(name, **facts)
        bounds = (0.1, 0.5, 1.0, 2.5, 5.0)
        self.series[name] = {
            **histogram(TTFT, L, requests_per_s, ttft_s, bounds),
            **histogram(ITL, L, tokens_per_s, itl_s, bounds),
            f'vllm:request_success_total{{{L},finished_reason="stop"}}': (0.0, requests_per_s),
            f"vllm:generation_tokens_total{{{L}}}": (0.0, tokens_per_s),
            f"vllm:prompt_tokens_total{{{L}}}": (0.0, 10 * tokens_per_s),
            f"vllm:num_preemptions_total{{{L}}}": (0.0, preemptions_per_s),
            f"vllm:prefix_cache_queries_total{{{L}}}": (0.0, 10 * tokens_per_s),
            f"vllm:prefix_cache_hits_total{{{L}}}": (0.0, hits_per_s),
        }
        self.gauges[name] = (
            f"vllm:num_requests_running{{{L}}} {running}\nvllm:num_requests_waiting{{{L}}} 0\n"
            f"vllm:kv_cache_usage_perc{{{L}}} {kv}\n{gauges}"
        )

    def drive(self, seconds: int = 60, silent: frozenset[str] = frozenset()) -> None:
        for _ in range(0, seconds, 5):
            self.clock.move(5.0)
            now = self.clock.now()
            for name, series in self.series.items():
                spec = self.fleet.nodes[name].row.spec
                labels = {
                    **{key: getattr(spec, key) for key in ("pool", "model", "engine", "zone", "revision")},
                    "node": name,
                    "instance": f"{name}:1",
                    "job": "llm",
                }
                text = "".join(f"{one} {first + per_s * (now - START)}\n" for one, (first, per_s) in series.items())
                self.store.ingest(labels, None if name in silent else text + self.gauges[name], now)
            self.rules.tick(now)
        assert self.rules.failures() == {}

    def group(self, by: GroupBy, name: str) -> NodeGroup:
        return next(one for one in self.groups.groups(by) if one.name == name)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.node(
        "busy",
        ttft_s=2.0,
        itl_s=0.05,
        tokens_per_s=900.0,
        requests_per_s=9.0,
        running=9,
        kv=0.9,
        preemptions_per_s=0.9,
        hits_per_s=900.0,
    )
    made.node("calm", ttft_s=0.05, itl_s=0.01, tokens_per_s=100.0, requests_per_s=1.0, running=1, kv=0.1, zone="b")
    return made


def test_sums_are_summed_and_means_weighted_by_what_they_are_means_of(rig: Rig) -> None:
    rig.drive()
    group = rig.group(GroupBy.POOL, "chat")
    load = group.load
    assert (group.nodes, group.ready, group.unknown) == (2, 2, 0)
    assert (load.running.value, load.running.known, load.running.of) == (10.0, 2, 2)
    assert load.tokens_per_s.value == pytest.approx(1000.0)
    assert load.itl_s.value == pytest.approx(0.9 * 0.05 + 0.1 * 0.01)
    assert load.ttft_s.value == pytest.approx(0.9 * 2.0 + 0.1 * 0.05)
    assert load.prefix_hit_ratio.value == pytest.approx(0.09)
    assert load.preemption_ratio.value == pytest.approx(0.09)
    assert load.preemptions_per_s.value == pytest.approx(0.9)
    assert load.kv_ratio.value == pytest.approx(0.5)
    assert load.kv_ratio_max.value == pytest.approx(0.9)


def test_ttft_p95_is_of_the_pooled_histogram_whichever_way_the_fleet_is_cut(rig: Rig) -> None:
    rig.drive()
    for by, name in ((GroupBy.POOL, "chat"), (GroupBy.MODEL, "demo"), (GroupBy.REVISION, "r1")):
        p95 = rig.group(by, name).load.ttft_p95_s
        # 10 % are below 0.1 s, 90 % between 1 and 2.5 s.
        assert p95.value == pytest.approx(1.0 + 1.5 * (0.95 - 0.1) / 0.9)
        assert (p95.known, p95.of) == (2, 2)
    assert rig.group(GroupBy.ZONE, "b").load.ttft_p95_s.value == pytest.approx(0.095)
    assert [one.name for one in rig.groups.groups(GroupBy.ZONE)] == ["a", "b"]


def test_a_node_that_falls_silent_is_counted_as_not_known(rig: Rig) -> None:
    rig.drive()
    rig.fleet.unseen.add("calm")
    rig.drive(seconds=30, silent=frozenset({"calm"}))
    group = rig.group(GroupBy.POOL, "chat")
    assert (group.nodes, group.ready, group.unknown) == (2, 1, 1)
    load = group.load
    assert (load.running.value, load.running.known, load.running.of) == (9.0, 1, 2)
    assert (load.ttft_p95_s.known, load.ttft_p95_s.of) == (1, 2)
    assert rig.group(GroupBy.ZONE, "b").load.running.value is None


def test_a_node_without_traffic_has_nothing_to_average_and_is_not_unknown(rig: Rig) -> None:
    rig.node("idle", ttft_s=0.1, itl_s=0.01, tokens_per_s=0.0, requests_per_s=0.0)
    rig.drive()
    load = rig.group(GroupBy.POOL, "chat").load
    assert (load.running.known, load.running.of) == (3, 3)
    for mean in (load.itl_s, load.ttft_s, load.preemption_ratio, load.ttft_p95_s):
        assert (mean.known, mean.of) == (2, 2)


def test_cards_are_told_with_clocks_heat_throttling_ecc_and_the_numbers_of_xids(rig: Rig) -> None:
    def card(gpu: int, heat: int, clock: int, reasons: int, ecc: int, xid: int) -> str:
        on = f'{{gpu="{gpu}",modelName="NVIDIA H100 80GB HBM3"}}'
        return (
            f"DCGM_FI_DEV_GPU_TEMP{on} {heat}\nDCGM_FI_DEV_SM_CLOCK{on} {clock}\n"
            f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{on} {reasons}\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{on} {ecc}\n"
            f"DCGM_FI_DEV_XID_ERRORS{on} {xid}\nDCGM_FI_DEV_POWER_USAGE{on} 9223372036854775794\n"
        )

    rig.node(
        "hot",
        ttft_s=0.1,
        itl_s=0.01,
        tokens_per_s=1.0,
        requests_per_s=1.0,
        gauges=card(0, 91, 1200, 64, 2, 79) + card(1, 60, 1980, 0, 0, 0),
        facts={"host": "h7", "sku": "hgx-h100"},
    )
    rig.drive()
    first, second = rig.groups.gpus()
    assert (first.node, first.gpu, first.host, first.sku, first.zone) == ("hot", "0", "h7", "hgx-h100", "a")
    assert first.card == "NVIDIA H100 80GB HBM3"
    assert (first.temperature_c, first.sm_clock_hz, first.throttled) == (91.0, 1.2e9, ["hw_thermal"])
    assert (first.ecc_uncorrected, first.xids, first.power_w) == (2.0, [79], None)
    assert (second.throttled, second.xids, second.faults) == ([], [], None)
    cards = rig.group(GroupBy.POOL, "chat").load.gpus
    assert (cards.cards, cards.nodes_known, cards.nodes) == (2, 1, 3)
    assert (cards.hottest_c, cards.slowest_clock_hz, cards.ecc_uncorrected) == (91.0, 1.2e9, 2.0)
    assert (cards.throttled, cards.throttle_known, cards.xids) == ({"hw_thermal": 1}, 2, [79])


def test_stopped_nodes_are_in_no_group_and_an_unknown_zone_is_a_group_of_its_own(rig: Rig) -> None:
    rig.fleet.add("found", zone="")
    state = rig.fleet.nodes["calm"]
    rig.fleet.nodes["calm"] = replace(state, row=replace(state.row, wanted=False))
    rig.drive()
    assert [(one.name, one.nodes) for one in rig.groups.groups(GroupBy.ZONE)] == [("", 1), ("a", 1)]


def test_cost_is_of_the_nodes_whose_sku_has_a_price_and_a_million_tokens_cost_their_share(rig: Rig) -> None:
    more = {"ttft_s": 0.1, "itl_s": 0.01, "requests_per_s": 1.0, "pool": "paid"}
    rig.node("dear", tokens_per_s=1500.0, facts={"sku": "hgx-h100"}, **more)
    rig.node("cheap", tokens_per_s=500.0, gauges='DCGM_FI_DEV_GPU_TEMP{gpu="0",modelName="NVIDIA L4"} 50\n', **more)
    rig.node("other", tokens_per_s=9000.0, facts={"sku": "unheard-of"}, **more)
    rig.drive()
    load = rig.group(GroupBy.POOL, "paid").load
    assert (load.cost_per_hour.value, load.cost_per_hour.known, load.cost_per_hour.of) == (pytest.approx(98.8), 2, 3)
    assert load.cost_per_mtok.value == pytest.approx(98.8 / (2000 * 3600) * 1e6)
    assert rig.groups.cost_of("other") is None
    assert rig.group(GroupBy.POOL, "chat").load.cost_per_hour.value is None, "unknown is not free"
