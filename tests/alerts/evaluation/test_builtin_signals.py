"""Our signals and alerts over what the engines really emit, scraped each second."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import load_rule_files
from alerts.labels import METRIC_NAME
from alerts.promql import evaluate
from alerts.promql.nodes import metric_names
from alerts.review.catalog import Metric, builtin_catalog
from alerts.series.store import SeriesStore
from engine.gpu.reading import GpuReading, GpuSnapshot, GpuState
from engine.gpu.series import COUNTERS, GAUGES, GpuCollector
from engine.node.metrics import NodeMetrics
from fleetctl.gateway.app import Gateway
from fleetctl.gateway.siblings.joined_views import WorkersNow
from fleetctl.gateway.siblings.metric_store import worker_families
from tests.fixtures import DATA

VLLM = DATA / "metrics" / "vllm_v1_full_qwen25_0.5b_2026-03.prom"

ENGINE_SIGNALS = [path for path in builtin_signal_files() if path.stem == "engine"]
# Names that the recorded exposition lacks: of older versions, and what vLLM shows only once it is used.
OTHER_VERSIONS = {
    "vllm:gpu_cache_usage_perc",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:num_requests_waiting_by_reason",
    "vllm:lora_requests_info",
    "http_requests_total",
    *(
        f"vllm:{name}_{part}"
        for name in ("time_in_queue_requests", "time_per_output_token_seconds")
        for part in ("sum", "count", "bucket")
    ),
}
# Of vLLM with a KV connector, an offload tier or NaN counting; the recorded server has none.
SWITCHED_ON = {
    "vllm:corrupted_requests_total",
    "vllm:kv_offload_load_bytes_total",
    "vllm:kv_offload_load_time_total",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "vllm:nixl_xfer_time_seconds_count",
    "vllm:nixl_xfer_time_seconds_sum",
    "vllm:num_requests_kv_fetch_by_stage",
}


def target(node: str, engine: str = "fleetctl") -> dict[str, str]:
    return {
        "node": node,
        "pool": "chat",
        "model": "m",
        "engine": engine,
        "zone": "z",
        "revision": "r1",
        "instance": f"{node}:1",
        "job": "llm-node",
    }


class Fleet:
    """Nodes with the engine's own metrics objects, driven second by second."""

    def __init__(self, count: int = 3, scrape_every_s: int = 1) -> None:
        self.nodes = {f"n{i}": NodeMetrics(model_name="m", max_model_len=4096) for i in range(1, count + 1)}
        self.store = SeriesStore()
        self.engine = RuleEngine(load_rule_files([*builtin_signal_files(), *builtin_rule_files()]), self.store)
        self.now = 1_700_000_000.0
        self.scrape_every_s = scrape_every_s
        self.fired: list[tuple[float, str, str]] = []

    def second(self, step_s: dict[str, float], busy: float = 0.8, first_token_s: float = 0.03) -> None:
        """Each node spends `busy` of the second in decode steps of the given length and starts two requests."""
        self.now += 1.0
        for name, metrics in self.nodes.items():
            for _ in range(max(1, round(busy / step_s[name]))):
                metrics.step.labels(model_name="m", engine="0", kind="decode").observe(step_s[name])
                metrics.iteration.observe(4)
                metrics.generation_tokens.inc(4)
            for _ in range(2):
                metrics.ttft.observe(first_token_s)
                metrics.success.labels(model_name="m", engine="0", finished_reason="stop").inc()
            metrics.running.set(2)
            if self.now % self.scrape_every_s == 0:
                self.store.ingest(target(name), metrics.exposition().decode(), self.now)
        for change in self.engine.tick(self.now):
            if change.alert.state == "firing":
                self.fired.append((self.now, change.alert.name, change.alert.labels["node"]))


@pytest.mark.parametrize("engine", ["fleetctl", "vllm"])
def test_every_metric_that_a_signal_reads_is_emitted(engine: str, tmp_path: Path) -> None:
    store = SeriesStore()
    metrics = NodeMetrics(model_name="m", max_model_len=4096)
    cards = GpuSnapshot(GpuState.OK, at=0.0, gpus=(GpuReading(0, values={"ecc_dbe_volatile": 0}),))
    metrics.registry.register(GpuCollector(lambda now: cards))
    metrics.drain.labels(state="draining").set(0)
    metrics.limits.labels(limit="max_num_seqs").set(8)
    store.ingest(target("a"), metrics.exposition().decode(), 1.0)
    store.ingest(target("b", "vllm"), VLLM.read_text(), 1.0)
    emitted = {labels[METRIC_NAME] for labels, _ in store.dump(0.0, 2.0)}
    ours = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])
    recorded = {rule.name for group in ours for rule in group.rules if rule.kind == "record"}
    groups = load_rule_files([*ENGINE_SIGNALS, *builtin_rule_files()])
    read = {name for group in groups for rule in group.rules for name in metric_names(rule.query.root)} - {""}
    of_gateway = {
        "gateway_fail_open",
        "gateway_inflight_requests",
        "gateway_lost_requests_total",
        "gateway_node_ejected",
        "gateway_oldest_wait_seconds",
        "gateway_poison_requests_total",
        "gateway_queue_oldest_wait_seconds",
        "gateway_reload_failed",
        "gateway_requests_total",
        "gateway_retry_budget_exhausted_total",
        "gateway_store_failures_total",
        "gateway_supervisor_silent_seconds",
        "gateway_table_age_seconds",
        "gateway_tenant_requests_total",
        "gateway_tenants_reload_failed",
        "gateway_ttft_seconds_count",
        "gateway_ttft_seconds_sum",
        "gateway_worker_deaths_total",
    }
    assert of_gateway <= gateway_families(tmp_path)
    of_overflow = {"gateway_overflow_budget_left_ratio", "gateway_overflow_requests_total"}  # where it is configured
    of_controller = {
        "fleet_node_process_up",
        "fleet_node_output_ok",
        "fleet_node_phase",
        "fleet_machine_problems",
        "fleet_gateway_deaths_total",
        "controller_discovery_problems",
        "controller_storage_ok",
        "controller_leader",
        "controller_last_takeover_timestamp_seconds",
        "controller_standbys",
        "controller_heartbeat_age_seconds",
        "controller_peers_wanted",
        "controller_audit_intact",
        "controller_breaker_open",
        "controller_pool_start_failures",
        "controller_rollout_state",
        "controller_rollout_transition_age_seconds",
        "controller_rollout_waits_for_person",
        "controller_autoscaler_reversals",
        "fleetctl_receiver_failing",
    }
    assert read - emitted - recorded == OTHER_VERSIONS | SWITCHED_ON | of_gateway | of_overflow | of_controller


def test_golden_prompt_and_block_check_of_our_engine_are_both_its_output() -> None:
    cases: list[tuple[str | None, bool | None, list[float]]] = [
        (None, None, []),
        ("passed", None, [1.0]),
        ("passed", False, [0.0]),
        ("failed", True, [0.0]),
        ("error", None, []),
        ("error", True, [1.0]),
    ]
    for golden, integrity, wanted in cases:
        metrics, store = NodeMetrics(model_name="m", max_model_len=4096), SeriesStore()
        if golden is not None:
            metrics.note_golden(golden)
        if integrity is not None:
            metrics.note_integrity(integrity)
        store.ingest(target("a"), metrics.exposition().decode(), 1.0)
        RuleEngine(load_rule_files(ENGINE_SIGNALS), store).tick(1.0)
        assert [sample.value for sample in evaluate("llm:output_ok", store, 1.0)] == wanted, (golden, integrity)


def test_catalog_names_what_our_node_and_gateway_emit(tmp_path: Path) -> None:
    registry = NodeMetrics(model_name="m", max_model_len=4096).registry
    readings = {name for name, _ in (*GAUGES.values(), *COUNTERS.values())} | {"DCGM_FI_DEV_XID_ERRORS"}
    node = {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}
    silent = {"vllm:num_requests_waiting_by_reason"}  # declared, but no reason is ever counted
    catalog = builtin_catalog()
    known = set(catalog.emitted_by(["fleetctl"]))
    families = known | {metric.family for name in known if isinstance(metric := catalog.find(name), Metric)}
    assert (node | readings) - silent <= families
    assert {name for name in known if name.startswith(("vllm:", "DCGM_"))} <= {
        *readings,
        *(f"{name}{part}" for name in node - silent for part in ("", "_bucket", "_sum", "_count")),
    }
    known = set(catalog.emitted_by(["gateway"]))
    assert gateway_families(tmp_path) <= known | {name.removesuffix("_bucket") for name in known}


def gateway_families(run_dir: Path) -> set[str]:
    """Names of what a gateway with its default settings emits."""
    gateway = Gateway(controller_url="http://127.0.0.1:1", controller_token=None, node_token="t", run_dir=run_dir)
    now = WorkersNow(
        1, wanted=1, serving=1, retiring=0, deaths=0, reloads=0, reload_error=None, supervisor_silent_s=1.0
    )
    families = [*gateway.metrics.registry.collect(), *worker_families(now)]
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {f"{one.name}{ending}" for one in families for ending in endings.get(one.type, ("",))}


def test_no_two_rules_write_the_same_series() -> None:
    """Prometheus would refuse the second sample of a moment, and our store drop and count it."""
    store = SeriesStore()
    metrics = NodeMetrics(model_name="m", max_model_len=4096)
    values = {"temperature": 40.0, "row_remap_failure": 0, "ecc_dbe_volatile": 0, "clock_events": 0, "nvlinks_down": 0}
    cards = GpuSnapshot(GpuState.OK, at=0.0, gpus=(GpuReading(0, values=values, xids={13: 1}),))
    metrics.registry.register(GpuCollector(lambda now: cards))
    metrics.note_golden("passed")
    engine = RuleEngine(load_rule_files([*builtin_signal_files(), *builtin_rule_files()]), store)
    for at in range(60, 160, 5):
        metrics.drain.labels(state="draining").set(0)
        metrics.ttft.observe(0.1)
        metrics.success.labels(model_name="m", engine="0", finished_reason="stop").inc()
        metrics.preemptions.inc()
        store.ingest(target("a"), metrics.exposition().decode(), float(at))
        store.ingest(target("b", "vllm"), VLLM.read_text(), float(at))
        for engine_name, file in (
            ("sglang", "sglang_datadog_v0.5.10.prom"),
            ("triton", "trtllm_triton_inflight.prom"),
            ("vllm", "dcgm_kops_L4_scrape1.prom"),
        ):
            store.ingest(target(file, engine_name), (VLLM.parent / file).read_text(), float(at))
        engine.tick(float(at))
    assert engine.failures() == {}
    assert store.dropped_samples == 0


def test_canonical_series_carry_the_nodes_labels_and_nothing_of_the_engine() -> None:
    fleet = Fleet()
    for _ in range(30):
        fleet.second(dict.fromkeys(fleet.nodes, 0.02))
    wanted = {"node": "n1", "pool": "chat", "model": "m", "engine": "fleetctl", "zone": "z", "revision": "r1"}
    for name, value in {
        "llm:up": 1.0,
        "llm:running": 2.0,
        "llm:waiting": 0.0,
        "llm:kv_ratio": 0.0,
        "llm:ttft_seconds:mean": 0.03,
        "llm:step_seconds:mean": 0.02,
        "llm:requests:rate": 2.0,
        "llm:generation_tokens:rate": 160.0,
        "llm:preemptions:rate": 0.0,
        "llm:errors:rate": 0.0,
        "llm:oldest_waiting_seconds": 0.0,
        "llm:decode_steps:rate": 40.0,
        "llm:steps:rate": 40.0,
        "llm:first_tokens:rate": 2.0,
    }.items():
        (sample,) = evaluate(f'{name}{{node="n1"}}', fleet.store, fleet.now)
        assert sample.labels == {METRIC_NAME: name, **wanted}
        assert sample.value == pytest.approx(value, rel=1e-6), name
    (p99,) = evaluate('llm:ttft_seconds:p99{node="n1"}', fleet.store, fleet.now)
    (p95,) = evaluate('llm:ttft_seconds:p95{node="n1"}', fleet.store, fleet.now)
    assert 0.02 < p95.value < p99.value <= 0.04
    (age,) = evaluate('llm:deploy_age_seconds{node="n1"}', fleet.store, fleet.now)
    assert age.value != 0.0


def test_what_did_not_happen_is_absent_and_not_zero() -> None:
    fleet = Fleet()
    for _ in range(30):
        fleet.second(dict.fromkeys(fleet.nodes, 0.02))
    for name in ("llm:prefix_hit_ratio", "llm:queue_seconds:mean", "llm:itl_seconds:mean", "llm:prompt_tokens:mean"):
        assert evaluate(name, fleet.store, fleet.now) == []


def test_cold_vllm_gives_its_gauges_and_no_latency() -> None:
    store = SeriesStore()
    engine = RuleEngine(load_rule_files(builtin_signal_files()), store)
    for at in range(1, 31):
        store.ingest(target("b", "vllm"), VLLM.read_text(), float(at))
        engine.tick(float(at))
    assert engine.failures() == {}
    assert [s.value for s in evaluate("llm:running", store, 30.0)] == [0.0]
    assert [s.value for s in evaluate("llm:kv_ratio", store, 30.0)] == [0.0]
    assert evaluate("llm:ttft_seconds:mean", store, 30.0) == []
    assert evaluate("llm:step_seconds:mean", store, 30.0) == []


@pytest.mark.parametrize(("busy", "scrape_every_s"), [(0.2, 5), (0.8, 1)])
def test_node_that_turns_ten_times_slower_is_named_within_25_seconds(busy: float, scrape_every_s: int) -> None:
    fleet = Fleet(scrape_every_s=scrape_every_s)
    healthy = dict.fromkeys(fleet.nodes, 0.02)
    for _ in range(40):
        fleet.second(healthy, busy)
    assert fleet.fired == []
    start = fleet.now
    for _ in range(25):
        fleet.second({**healthy, "n2": 0.2}, busy)
    assert [(name, node) for _, name, node in fleet.fired] == [("LLMNodeSlow", "n2")]
    assert fleet.fired[0][0] - start <= 25.0


@pytest.mark.parametrize("seed", range(2))
def test_stays_silent_on_a_loaded_machine(seed: int) -> None:
    """Each second every node's step takes between once and four times its best, as when cores are shared."""
    dice = random.Random(seed)
    fleet = Fleet()
    for _ in range(90):
        step_s = {name: 0.015 * dice.choice([1, 1, 1.5, 2, 3, 4]) for name in fleet.nodes}
        fleet.second(step_s, busy=dice.uniform(0.1, 0.9), first_token_s=dice.uniform(0.02, 0.2))
    assert fleet.fired == []
    assert fleet.engine.failures() == {}
