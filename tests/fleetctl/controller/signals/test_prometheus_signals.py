"""A real Prometheus as the source of signals, beside our own scrapes of the same nodes: the same alerts fire."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from alerts.evaluation.alert import AlertChange
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, load_rule_file
from alerts.history.backtest import widened
from alerts.promql import evaluate
from alerts.promql.nodes import Node, RangeSelector, children
from alerts.series.store import SeriesStore
from fleetctl.controller.content.load import load_content
from fleetctl.controller.controller import open_controller
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.signals.prometheus_signals import PrometheusSignals, rules_for
from fleetctl.controller.signals.scrape_slots import ScrapeTarget, SlotScraper
from fleetctl.kit.clock import SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.fetch import Fetcher
from fleetctl.settings.signals import PrometheusSettings
from tests.fixtures.alertmanager import NEEDS_PROMETHEUS
from tests.fixtures.controller import make_config, running_fleet, stop_all, tell_node
from tests.fixtures.prometheus_server import running_prometheus

DEADLINE_S = 90.0
# What basic authentication in Prometheus wants: bcrypt of "secret-pw".
HASHED = "$2b$04$abcdefghijklmnopqrstuupq3UgSFm/Sf2R51R2/ze3/qhiAEzuKO"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    NEEDS_PROMETHEUS,
]

RULES = """
groups:
  - name: test
    interval: 1s
    rules:
      - record: llm:waiting
        expr: sum by (node, pool) (vllm:num_requests_waiting)
      - record: llm:requests:rate
        expr: sum by (node, pool) (rate(requests_total[4s]))
      - alert: Queue
        expr: llm:waiting > 5
        for: 2s
        labels: {severity: page}
        annotations: {summary: "{{ $labels.node }} waits {{ $value }}"}
      - alert: Busy
        expr: llm:requests:rate > 1 and on (node) llm:waiting
        labels: {severity: ticket}
      - alert: Down
        expr: up{pool="p"} == 0
        for: 1s
        labels: {severity: page}
"""


class Nodes:
    """Two nodes' metrics; `waiting` is what they say, None that they fail."""

    def __init__(self) -> None:
        self.waiting: dict[str, int | None] = {"n1": 9, "n2": 0}
        self.began_at = time.monotonic()

    async def metrics(self, request: web.Request) -> web.Response:
        waiting = self.waiting[request.match_info["node"]]
        if waiting is None:
            return web.Response(status=500)
        total = int((time.monotonic() - self.began_at) * 20)
        return web.Response(text=f'vllm:num_requests_waiting {waiting}\nrequests_total{{code="200"}} {total}\n')


@asynccontextmanager
async def serving(nodes: Nodes) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{node}/metrics", nodes.metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def labels_of(node: str) -> dict[str, str]:
    return {"node": node, "pool": "p", "instance": node, "job": "llm"}


def targets_of(port: int) -> list[dict[str, Any]]:
    return [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{node}/metrics", **labels_of(node)}}
        for node in ("n1", "n2")
    ]


class Nothing:
    """Stands for the gateway's scraper when there is no gateway."""

    def __init__(self) -> None:
        self.last_success_at: dict[str, float] = {}
        self.problems: dict[str, str] = {}

    async def collect(self) -> None: ...

    def known_until(self, now: float) -> float | None:
        return now


class Side:
    """Rules over one source, as the controller runs them."""

    def __init__(self, groups: list[RuleGroup]) -> None:
        self.store = SeriesStore()
        self.engine = RuleEngine(groups, self.store, clear_after_s=2.0)

    def states(self) -> dict[tuple[str, str], str]:
        return {(one.name, one.labels["node"]): str(one.state) for one in self.engine.alerts()}

    def tick(self, until: float | None) -> list[AlertChange]:
        return self.engine.mark_all_unknown(time.time()) if until is None else self.engine.tick(until)


async def until(look: Callable[[], bool], step: Callable[[], Any], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, what()
        await step()
        await anyio.sleep(0.2)


def ours(store: SeriesStore, port: int) -> tuple[SlotScraper, dict[str, ScrapeTarget]]:
    fetcher = Fetcher(timeout_s=2.0, max_bytes=10_000)
    targets = {n: ScrapeTarget(f"http://127.0.0.1:{port}/{n}/metrics", labels_of(n)) for n in ("n1", "n2")}
    return SlotScraper(
        store, fetcher, SystemClock(), interval_s=1.0, stale_after_s=10.0, told=lambda well: None
    ), targets


async def test_same_alerts_fire_from_both_sources_and_lost_sight_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    groups = load_rule_file(path)
    nodes = Nodes()
    with ExitStack() as stack:
        async with serving(nodes) as port:
            url, process = stack.enter_context(running_prometheus(tmp_path / "prometheus", targets_of(port)))
            settings = PrometheusSettings(
                url=url, interval_s=1, scrape_interval_s=1, timeout_s=2, match='job="llm"', labels={"engine": "vllm"}
            )
            read, scraped = Side(widened(groups, 4)), Side(groups)
            signals = PrometheusSignals(settings, groups, read.store, SystemClock(), ControllerMetrics(), Nothing())
            scraper, targets = ours(scraped.store, port)
            slot = 0

            async def step() -> None:
                nonlocal slot
                if int(time.time()) != slot:
                    slot = int(time.time())
                    await scraper.scrape_round(targets)
                await signals.collect()
                scraped.tick(time.time())
                read.tick(signals.known_until(time.time()))

            def both(wanted: dict[tuple[str, str], str]) -> bool:
                return all(
                    side.states().get(key, "inactive") == state
                    for side in (read, scraped)
                    for key, state in wanted.items()
                )

            def told() -> object:
                return read.states(), scraped.states(), signals.problem, (tmp_path / "prometheus" / "log").read_text()

            firing = {("Queue", "n1"): "firing", ("Busy", "n1"): "firing", ("Busy", "n2"): "firing"}
            await until(lambda: both({**firing, ("Queue", "n2"): "inactive", ("Down", "n1"): "inactive"}), step, told)
            (sample,) = evaluate('vllm:num_requests_waiting{node="n1"}', read.store, time.time())
            assert sample.labels["engine"] == "vllm"
            assert sample.labels["job"] == "llm"
            assert 0 < time.time() - sample.at < 10
            assert abs(signals.last_success_at["n1"] - sample.at) < 5

            nodes.waiting["n1"] = None  # its scrapes fail: down, and what it said before is not clear but unknown
            await until(lambda: both({("Down", "n1"): "firing", ("Queue", "n1"): "unknown"}), step, told)
            nodes.waiting["n1"] = 0
            await until(lambda: both({("Down", "n1"): "resolved", ("Queue", "n1"): "resolved"}), step, told)

            nodes.waiting["n1"] = 9
            await until(lambda: both({("Queue", "n1"): "firing"}), step, told)
            process.kill()
            await until(lambda: read.states()["Queue", "n1"] == "unknown", step, told)
            assert signals.known_until(time.time()) is None
            assert "Prometheus at" in signals.problem
            assert set(read.states().values()) <= {"unknown", "resolved"}
            assert scraped.states()["Queue", "n1"] == "firing"
            await signals.stop()
            await scraper.stop()


async def test_recorded_series_are_read_over_tls_with_a_password(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    await anyio.run_process(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(tmp_path / "key.pem"),
            "-out",
            str(tmp_path / "cert.pem"),
        ],
    )
    (tmp_path / "password").write_text("secret-pw\n")
    web_config = {
        "tls_server_config": {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")},
        "basic_auth_users": {"reader": HASHED},
    }
    common = {"interval_s": 1, "scrape_interval_s": 1, "recorded": True}
    signals: PrometheusSignals
    async with serving(Nodes()) as port:
        with running_prometheus(tmp_path / "prometheus", targets_of(port), web_config=web_config, rules=rules) as (
            url,
            _,
        ):
            good = {"ca_file": tmp_path / "cert.pem", "username": "reader", "password_file": tmp_path / "password"}
            store = SeriesStore()
            only_alerts = [
                replace(group, rules=tuple(rule for rule in group.rules if rule.kind == "alert"))
                for group in load_rule_file(rules)
            ]
            signals = PrometheusSignals(
                PrometheusSettings(url=url, **common, **good),
                only_alerts,
                store,
                SystemClock(),
                ControllerMetrics(),
                Nothing(),
            )
            engine = RuleEngine(only_alerts, store)

            async def step() -> None:
                await signals.collect()
                if (at := signals.known_until(time.time())) is not None:
                    engine.tick(at)

            def fired() -> bool:
                return {"Queue", "Busy"} <= {one.name for one in engine.alerts() if one.state == "firing"}

            await until(fired, step, lambda: (signals.problem, [one.name for one in engine.alerts()]))
            assert {labels["__name__"] for labels, _ in store.dump(0, 1e12)} >= {"up", "llm:waiting", "ALERTS"}
            assert not any(store.dump(0, 1e12, names=["vllm:num_requests_waiting", "requests_total"]))
            await signals.stop()
            for wrong, words in (
                ({"ca_file": good["ca_file"]}, "401"),
                ({"username": "reader", "password_file": good["password_file"]}, "certificate"),
            ):
                refused = PrometheusSignals(
                    PrometheusSettings(url=url, **common, **wrong),
                    only_alerts,
                    store,
                    SystemClock(),
                    ControllerMetrics(),
                    Nothing(),
                )
                await refused.collect()
                assert words in refused.problem.lower()
                assert "secret-pw" not in refused.problem
                assert refused.known_until(time.time()) is None


async def test_controller_reads_its_nodes_signals_from_prometheus(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path / "first")) as first:
            addresses = {name: str(state.url).removeprefix("http://") for name, state in first.fleet.nodes.items()}
            targets = [
                {"targets": [address], "labels": {"name": name, "pool": "default", "model": "demo", "job": "llm-node"}}
                for name, address in addresses.items()
            ]
            with running_prometheus(tmp_path / "prometheus", targets) as (url, process):
                settings = PrometheusSettings(
                    url=url,
                    interval_s=1,
                    scrape_interval_s=1,
                    timeout_s=2,
                    labels={"node": "$name", "engine": "fleetctl"},
                )
                async with open_controller(
                    make_config(tmp_path / "second", prometheus=settings, nodes=1), first.effects.provider
                ) as controller:

                    def running() -> list[float]:
                        found = evaluate('llm:running{node="node-1"}', controller.store, time.time())
                        return [sample.value for sample in found]

                    async def step() -> None:
                        await controller.loops.run_turn("scrape")
                        await controller.loops.run_turn("alerts")

                    await tell_node(first, "node-1", held=4)
                    seen = controller.signals.last_success_at  # Prometheus finds one target later than the other
                    await until(
                        lambda: running() == [4.0] and seen.keys() >= addresses.keys(),
                        step,
                        lambda: (running(), seen, addresses),
                    )
                    assert not controller.scraper.last_success_at  # it does not scrape nodes itself
                    age_s = time.time() - controller.signals.last_success_at["node-1"]
                    assert 0 < age_s < 10
                    answer = controller.inquiry.diagnose("latency", {"node": "node-1", "pool": "default"})
                    assert answer.tree == "latency"
                    process.kill()
                    await until(lambda: controller.signals.known_until(time.time()) is None, step, running)
    finally:
        stop_all(tmp_path / "first")
        stop_all(tmp_path / "second")


async def test_a_prometheus_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    groups = load_rule_file(path)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = PrometheusSettings(url=url, timeout_s=0.3, interval_s=1)
        signals = PrometheusSignals(settings, groups, SeriesStore(), SystemClock(), ControllerMetrics(), Nothing())
        await until(lambda: bool(signals.problem), signals.collect, lambda: signals.problem)
        assert "timed out" in signals.problem.lower()
        assert signals.known_until(time.time()) is None


def test_files_and_matchers_that_can_not_work_are_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    groups = load_rule_file(path)

    def start(**given: Any) -> None:
        settings = PrometheusSettings(url="https://prometheus:9090", **given)
        PrometheusSignals(settings, groups, SeriesStore(), SystemClock(), ControllerMetrics(), Nothing())

    with pytest.raises(BadInputError, match=r"signals.prometheus.ca_file: .*No such file"):
        start(ca_file=tmp_path / "none.pem")
    with pytest.raises(BadInputError, match=r"signals.prometheus.match: 'job='"):
        start(match="job=")
    with pytest.raises(BadInputError, match="none: No such file"):
        start(username="a", password_file=tmp_path / "none")


def test_built_in_rules_get_windows_that_fit_the_scrapes() -> None:
    windows = _windows(rules_for(PrometheusSettings(url="http://p:9090", scrape_interval_s=30), load_content()))
    assert min(windows) == 120_000
    assert max(windows) > 120_000


def test_signals_that_prometheus_records_are_not_recorded_again() -> None:
    rules = [
        rule
        for group in rules_for(PrometheusSettings(url="http://p", recorded=True), load_content())
        for rule in group.rules
    ]
    assert not [rule.name for rule in rules if rule.name in {"llm:waiting", "llm:ttft_seconds:mean"}]
    assert rules


def _windows(groups: list[RuleGroup]) -> list[int]:
    def of(node: Node) -> list[int]:
        own = [node.range_ms] if isinstance(node, RangeSelector) else []
        return own + [found for child in children(node) for found in of(child)]

    recording = [rule for group in groups for rule in group.rules if rule.kind == "record"]
    return [window for rule in recording for window in of(rule.query.root)]
