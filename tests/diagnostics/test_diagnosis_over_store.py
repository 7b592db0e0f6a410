"""Trees over a real series store, and a recorded incident run again through real rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from alerts.evaluation.rules import RuleGroup, load_rule_files
from alerts.labels import LabelSet
from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.blackbox import BlackBox, read, record_series, write
from diagnostics.cause import builtin_causes
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import diagnose as judge
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query
from diagnostics.replay import replay
from diagnostics.tree import Tree
from diagnostics.tree_file import builtin_tree_files, load_trees
from diagnostics.value_format import format_value
from tests.fixtures.incident import make_record

BEGIN = 1_700_000_000.0
NODES = ("node-1", "node-2", "node-3")
SCOPE = {"node": "node-2", "pool": "default"}

# Values of a calm node.
CALM = {
    "up": 1.0,
    "llm:up": 1.0,
    "fleet_node_process_up": 1.0,
    "llm:core_up": 1.0,
    "llm:core_stuck": 0.0,
    "llm:output_ok": 1.0,
    "llm:core_deaths:increase": 0.0,
    "llm:running": 4.0,
    "llm:waiting": 0.0,
    "llm:kv_ratio": 0.4,
    "llm:ttft_seconds:mean": 0.2,
    "llm:queue_seconds:mean": 0.01,
    "llm:step_seconds:mean": 0.02,
    "llm:prompt_tokens:mean": 300.0,
    "llm:prompt_tokens:p99": 900.0,
    "llm:prefix_hit_ratio": 0.6,
    "llm:first_prompt_tokens:mean": 300.0,
    "llm:prompt_tokens:rate": 900.0,
    "llm:first_tokens:rate": 3.0,
    "llm:preemptions:rate": 0.0,
    "llm:requests:rate": 3.0,
    "llm:arrivals:rate": 3.0,
    "llm:steps:rate": 20.0,
    "llm:gpu_unhealthy": 0.0,
    "llm:deploy_age_seconds": 90_000.0,
}


@pytest.fixture(scope="module")
def trees() -> dict[str, Tree]:
    return load_trees(builtin_tree_files())


def fill(
    store: SeriesStore,
    begin: float,
    end: float,
    changes: Mapping[str, Mapping[str, float]],
    step_s: float = 5.0,
    **labels: str,
) -> None:
    """A point every `step_s` per node and series: calm, but for `changes` of node ("*" for all) to series to value."""
    times = np.arange(round(begin * 1000), round(end * 1000) + 1, round(step_s * 1000), dtype=np.int64)
    for node in NODES:
        for name, value in (CALM | dict(changes.get("*", {})) | dict(changes.get(node, {}))).items():
            found = LabelSet.of({"__name__": name, "node": node, "pool": "default", **labels})
            store.append_points(found, times, np.full(len(times), value))


def diagnose(tree: Tree, changes: Mapping[str, Mapping[str, float]], scope: Mapping[str, str] = SCOPE) -> Diagnosis:
    """Thirty-five calm minutes, then half a minute of `changes`."""
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 2100, {}, step_s=20)
    fill(store, BEGIN + 2105, BEGIN + 2135, changes)
    seen_s = changes.get("gateway", {}).get("seen_s", 0.2)
    for index in range(428):  # as many first tokens each five seconds as seconds in them
        at = 5.0 * index
        for name, value in (("sum", 0.2 * min(at, 2105) + seen_s * max(at - 2105, 0)), ("count", at)):
            store.append({"__name__": f"gateway_ttft_seconds_{name}"}, BEGIN + at, value)
    return judge(builtin_knowledge(), [tree], scope, store, BEGIN + 2136, BEGIN + 2110)


CASES: list[tuple[str, str | None, dict[str, dict[str, float]]]] = [
    ("latency", "slow_node", {"node-2": {"llm:step_seconds:mean": 0.07, "llm:queue_seconds:mean": 0.9}}),
    ("latency", "slow_node", {"node-2": {"llm:step_seconds:mean": 0.07}}),
    ("latency", "prefix_cache_broken", {"*": {"llm:prefix_hit_ratio": 0.1}}),
    ("latency", "overload", {"*": {"llm:queue_seconds:mean": 0.9, "llm:arrivals:rate": 8.0}}),
    ("latency", "overload", {"*": {"llm:queue_seconds:mean": 0.9}}),
    ("latency", "long_prompts", {"*": {"llm:prompt_tokens:mean": 900.0, "llm:prompt_tokens:p99": 1800.0}}),
    (
        "latency",
        "long_prompts",
        {"*": {"llm:prefix_hit_ratio": 0.2, "llm:prompt_tokens:rate": 2700.0, "llm:first_prompt_tokens:mean": 900.0}},
    ),
    ("latency", "long_context_outlier", {"node-2": {"llm:prompt_tokens:mean": 4000.0, "llm:prompt_tokens:p99": 99e3}}),
    ("latency", "long_context_outlier", {"node-2": {"llm:longest_prompt_tokens": 99e3, "llm:step_seconds:mean": 0.07}}),
    ("latency", "kv_pressure", {"node-2": {"llm:kv_ratio": 0.99, "llm:running": 10.0}}),
    ("latency", "kv_pressure", {"node-2": {"llm:preemptions:rate": 0.6}}),
    ("latency", "kv_leak", {"node-2": {"llm:kv_ratio": 0.99}}),
    ("latency", "gpu_fault", {"node-2": {"llm:gpu_unhealthy": 1.0}}),
    ("latency", "bad_deploy", {"node-2": {"llm:deploy_age_seconds": 600.0, "llm:ttft_seconds:mean": 0.6}}),
    ("latency", None, {"node-2": {"llm:deploy_age_seconds": 600.0}}),  # and nothing is worse than before
    ("gpu", "gpu_thermal", {"node-2": {"llm:gpu_throttled_hw_thermal": 0.0, "llm:gpu_throttled_sw_thermal": 1.0}}),
    ("gpu", "gpu_ecc", {"node-2": {"llm:gpu_uncorrected_ecc:increase": 0.0, "llm:gpu_row_remap_failed": 1.0}}),
    ("gpu", "gpu_lost", {"node-2": {"llm:gpu_cards_missing": 1.0, "llm:gpu_count": 7.0}}),
    ("gpu", None, {"node-2": {"llm:gpu_cards_missing": 1.0}}),  # it computes, so it lost its readings only
    ("latency", "downstream", {"gateway": {"seen_s": 1.4}}),
    ("latency", None, {}),
    ("capacity", "overload", {"*": {"llm:arrivals:rate": 9.0, "llm:kv_ratio": 0.93, "llm:queue_seconds:mean": 0.9}}),
    ("node", "node_down", {"node-2": {"llm:up": 0.0}}),
    ("node", "downstream", {"*": {"llm:up": 0.0}}),
    ("node", "core_hung", {"node-2": {"llm:steps:rate": 0.0}}),
    ("output", "wrong_output", {"node-2": {"llm:output_ok": 0.0}}),
    ("output", "quality_drop", {"*": {"llm:output_ok": 0.0}}),
    ("cache", "prefix_cache_broken", {"*": {"llm:prefix_hit_ratio": 0.1}}),
    (
        "cache",
        None,
        {"node-2": {"llm:prefix_hit_ratio": 0.1, "llm:deploy_age_seconds": 60.0}},
    ),  # and nobody waits for it
    (
        "cache",
        "cold_cache",
        {
            "*": {"llm:ttft_seconds:mean": 0.4},
            "node-2": {"llm:prefix_hit_ratio": 0.1, "llm:deploy_age_seconds": 60.0},
        },
    ),
]


@pytest.mark.parametrize(("name", "cause", "changes"), CASES, ids=[f"{n}-{c}-{i}" for i, (n, c, _) in enumerate(CASES)])
def test_finds_the_cause_in_real_series(
    trees: dict[str, Tree], name: str, cause: str | None, changes: dict[str, dict[str, float]]
) -> None:
    found = diagnose(trees[name], changes)

    assert found.cause == cause
    gaps = [gap for gap in found.not_known if "does not answer: its last numbers" not in gap]
    assert gaps == []
    assert all(one.age_s is not None and one.age_s <= 6 for one in found.evidence if one.answer != "unknown")


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        # Hits that are gone and nobody feels would be miscounted ones: what is computed in their place takes its time.
        ("prefix_cache_broken", {"llm:prefix_hit_ratio": 0.1, "llm:ttft_seconds:mean": 0.4}),
        ("overload", {"llm:queue_seconds:mean": 0.9, "llm:arrivals:rate": 8.0}),
        ("long_prompts", {"llm:prompt_tokens:mean": 900.0}),
    ],
)
def test_the_past_does_not_contain_what_it_is_compared_with(
    trees: dict[str, Tree], cause: str, changes: dict[str, float]
) -> None:
    store = SeriesStore(retention_s=3 * 3600)
    fill(store, BEGIN, BEGIN + 600, {}, step_s=20)
    for minutes in (1, 45):
        end = BEGIN + 620 + 60 * minutes
        fill(store, end - 2600 if minutes > 1 else BEGIN + 620, end, {"*": changes}, step_s=20)

        found = judge(builtin_knowledge(), [trees["latency"]], SCOPE, store, end, BEGIN + 640)

        assert found.cause == cause


def fill_upgraded(store: SeriesStore, minutes: int, *, is_labelled: bool = True) -> float:
    """An engine upgrade at `BEGIN` + 2400 s, after which prefixes are evicted too soon. Returns the time at the end."""
    upgraded, end = BEGIN + 2400, BEGIN + 2460 + 60 * minutes
    at = BEGIN
    while at <= end:
        is_new = at >= upgraded
        changes = {
            "llm:prefix_hit_ratio": 0.45 if at >= upgraded + 30 else 0.72,
            "llm:ttft_seconds:mean": 0.34 if at >= upgraded + 30 else 0.18,
            "llm:deploy_age_seconds": at - upgraded + 20 if is_new else 90_000.0,
        }
        for node in NODES:
            labels = {"node": node, "pool": "default"}
            if is_labelled:
                labels["revision"] = "v0.4.2" if is_new else "v0.4.1"
            for name, value in (CALM | changes).items():
                store.append({"__name__": name, **labels}, at, value)
                if at == upgraded and is_labelled:
                    store.append({"__name__": name, **labels, "revision": "v0.4.1"}, at, STALE_NAN)
        at += 20
    return end


@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_upgrade_that_breaks_the_prefix_cache_is_named_with_its_rollback_then_and_later(
    trees: dict[str, Tree], minutes: int
) -> None:
    store = SeriesStore(retention_s=3 * 3600)
    end = fill_upgraded(store, minutes)

    found = judge(builtin_knowledge(), [trees["latency"]], {"pool": "default"}, store, end, BEGIN + 2450)

    assert found.cause == "prefix_by_upgrade"
    assert builtin_causes()[found.cause].page == "rollback-pool"


def test_where_no_label_tells_of_the_upgrade_a_cold_cache_is_as_good_a_word_until_it_should_have_filled(
    trees: dict[str, Tree],
) -> None:
    found = []
    for minutes in (1, 5, 10, 60):
        store = SeriesStore(retention_s=3 * 3600)
        end = fill_upgraded(store, minutes, is_labelled=False)
        found.append(judge(builtin_knowledge(), [trees["latency"]], {"pool": "default"}, store, end, BEGIN + 2450))

    first = found[0]
    assert {first.cause, first.runner_up} == {"cold_cache", "prefix_by_upgrade"}
    assert first.probability is not None
    assert first.probability < 0.75
    assert first.tells_apart.startswith("Does the hit ratio stand still since the last start")
    assert "rollback-pool" in builtin_causes()["cold_cache"].no_page
    assert [one.cause for one in found[1:]] == ["prefix_by_upgrade"] * 3


def test_a_zone_of_one_pool_is_asked_about_that_pool(trees: dict[str, Tree]) -> None:
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 2100, {}, step_s=20, zone="a")
    overrun = {"*": {"llm:queue_seconds:mean": 0.9, "llm:arrivals:rate": 8.0}}
    fill(store, BEGIN + 2105, BEGIN + 2135, overrun, zone="a")

    found = judge(builtin_knowledge(), [trees["capacity"]], {"zone": "a"}, store, BEGIN + 2136, BEGIN + 2110)

    assert found.cause == "overload"


def test_an_idle_peer_does_not_hide_the_slow_node(trees: dict[str, Tree]) -> None:
    idle = {"llm:step_seconds:mean": float("nan")}
    found = diagnose(trees["latency"], {"node-1": idle, "node-2": {"llm:step_seconds:mean": 0.07}})

    assert (found.cause, found.confidence) == ("slow_node", "confirmed")


def test_does_not_blame_a_node_when_all_slow_down_together(trees: dict[str, Tree]) -> None:
    found = diagnose(trees["latency"], {"*": {"llm:step_seconds:mean": 0.07, "llm:ttft_seconds:mean": 3.0}})

    assert found.cause != "slow_node"
    assert "slow_node" in found.ruled_out


def test_a_series_that_ended_is_unknown_and_one_that_stopped_is_stale(trees: dict[str, Tree]) -> None:
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 100, {"node-2": {"llm:step_seconds:mean": 0.07}})
    store.append({"__name__": "llm:queue_seconds:mean", "node": "node-2", "pool": "default"}, BEGIN + 101, STALE_NAN)

    ended = judge(builtin_knowledge(), [trees["latency"]], SCOPE, store, BEGIN + 102, None)
    assert ended.cause == "slow_node"

    old = judge(builtin_knowledge(), [trees["latency"]], SCOPE, store, BEGIN + 200, None)
    assert (old.cause, old.confidence) == (None, "unknown")
    assert all(one.answer == "unknown" for one in old.evidence)


@pytest.mark.parametrize(
    ("up", "answer", "share"),
    [
        ((1, 1, 1), "no", 0.0),
        ((1, 0, 1), "no", 1 / 3),
        ((0, 0, 1), "yes", 2 / 3),
        ((0, 1), "no", 0.0),
        ((0, 0), "yes", 1.0),
    ],
)
def test_the_share_of_a_pool_that_is_silent_is_what_a_reader_can_count(
    up: tuple[float, ...], answer: str, share: float
) -> None:
    store = SeriesStore()
    for number, value in enumerate(up, 1):
        store.append({"__name__": "llm:up", "node": f"node-{number}", "pool": "default"}, BEGIN, value)
    question = builtin_knowledge().questions["most_silent"]
    found = read_all([question], SCOPE, store_query(store, BEGIN + 1), AskedAt(BEGIN + 1, BEGIN))["most_silent"]

    assert (found.answer, found.value) == (answer, pytest.approx(share))


def test_what_the_controller_and_gateways_know_of_a_dead_node_is_evidence() -> None:
    store = SeriesStore()
    fill(store, BEGIN - 600, BEGIN, {})
    fill(store, BEGIN + 5, BEGIN + 60, {"node-2": {"llm:up": 0.0}})
    for told_at in (BEGIN - 90, BEGIN + 60):
        labels = {"__name__": "fleet_change_timestamp_seconds", "kind": "restart", **SCOPE}
        store.append(labels, told_at, BEGIN - 100)
    known = builtin_knowledge().questions
    asked = AskedAt(BEGIN + 60, BEGIN)
    found = read_all([known["restarted_by_us"], known["ttft_up"]], SCOPE, store_query(store, BEGIN + 60), asked)

    assert (found["restarted_by_us"].answer, found["restarted_by_us"].why_unknown) == ("yes", "")
    assert found["ttft_up"].why_unknown == "node-2 does not answer: its last numbers are no evidence"


@pytest.mark.parametrize(
    ("changed_at", "is_told", "answer", "said"),
    [
        (BEGIN - 95, True, "yes", "95 s before it began"),
        (BEGIN + 9, True, "yes", "9 s after it began"),
        (BEGIN - 1800, True, "no", "30 min 00 s before it began"),
        (None, True, "no", "none on record"),
        (None, False, "unknown", "unknown"),
    ],
)
def test_a_change_that_nobody_made_is_a_no_where_a_controller_tells_and_unknown_elsewhere(
    changed_at: float | None, is_told: bool, answer: str, said: str
) -> None:
    store = SeriesStore()
    fill(store, BEGIN - 1860, BEGIN + 60, {})
    for at in range(-1800, 61, 5):
        if is_told:
            phase = {"__name__": "fleet_node_phase", "phase": "ready", **SCOPE}
            store.append(phase, BEGIN + at, 1.0)
        if changed_at is not None and BEGIN + at >= changed_at:
            store.append(
                {"__name__": "fleet_change_timestamp_seconds", "kind": "restart", **SCOPE}, BEGIN + at, changed_at
            )
    question = builtin_knowledge().questions["restarted_by_us"]
    found = read_all([question], SCOPE, store_query(store, BEGIN + 60), AskedAt(BEGIN + 60, BEGIN))["restarted_by_us"]

    assert found.answer == answer
    assert format_value(found.value, found.unit) == said


@pytest.mark.parametrize(
    ("went_back_at", "answer"),
    [(BEGIN - 480, "no"), (BEGIN - 1000, "yes"), (BEGIN + 240, "yes"), (None, "yes")],
)
@pytest.mark.parametrize("of_node", [{}, {"node": "node-5"}])
def test_a_rollout_that_went_back_before_it_began_is_no_deploy(
    of_node: dict[str, str], went_back_at: float | None, answer: str
) -> None:
    """A lying node was "bad_deploy", and nothing treated it: an unready canary had gone back 8 min before."""
    store, asked_at = SeriesStore(), BEGIN + 300
    fill(store, BEGIN - 1860, asked_at, {})
    told = {"deploy" if of_node else "rollout": BEGIN - 960, "rollback": went_back_at}
    for at in range(-1800, 301, 5):
        for kind, changed_at in told.items():
            if changed_at is not None and BEGIN + at >= changed_at:
                of = {"pool": "default", **(of_node if kind == "deploy" else {})}
                change = {"__name__": "fleet_change_timestamp_seconds", "kind": kind, **of}
                store.append(change, BEGIN + at, changed_at)
    question = builtin_knowledge().questions["changed_deploy"]
    asked = AskedAt(asked_at, BEGIN)
    found = read_all([question], {"pool": "default"}, store_query(store, asked_at), asked)["changed_deploy"]
    assert found.answer == answer


@pytest.mark.parametrize(
    ("ok", "revisions", "is_alone"),
    [
        ((1.0, 0.0, 1.0), ("r1", "r1", "r1"), True),
        ((1.0, 0.0, 1.0), ("r1", "r2", "r1"), False),  # a canary: what it alone has is its revision first
        ((1.0, 0.0, 1.0), ("r1", "r2", "r2"), False),  # wrong now and then, as all of its revision may be
        ((0.0, 0.0, 0.0), ("r1", "r1", "r1"), False),
        ((1.0, 1.0, 1.0), ("r1", "r1", "r1"), False),
        ((1.0, 0.0, 1.0), ("", "", ""), False),  # nobody tells which revision runs
    ],
)
@pytest.mark.parametrize("scope", [SCOPE, {"pool": "default"}])
def test_a_node_is_wrong_alone_where_others_of_its_revision_are_right(
    ok: tuple[float, ...], revisions: tuple[str, ...], is_alone: bool, scope: dict[str, str]
) -> None:
    store = SeriesStore()
    for node, value, revision in zip(NODES, ok, revisions, strict=True):
        of = {"node": node, "pool": "default", **({"revision": revision} if revision else {})}
        store.append({"__name__": "llm:output_ok", **of}, BEGIN, value)
    question = builtin_knowledge().questions["wrong_alone"]
    found = read_all([question], scope, store_query(store, BEGIN), AskedAt(BEGIN, BEGIN))["wrong_alone"]
    assert (found.answer == "yes") is is_alone


def test_of_a_fleet_of_a_minute_it_is_known_that_nobody_restarted_it() -> None:
    """A slow node of the demo stayed "likely" for four minutes: that it was being restarted was not ruled out."""
    store = SeriesStore()
    fill(store, BEGIN - 30, BEGIN + 30, {})
    for at in range(-30, 31, 5):
        store.append({"__name__": "fleet_node_phase", "phase": "ready", **SCOPE}, BEGIN + at, 1.0)
    known = builtin_knowledge().questions
    asked = AskedAt(BEGIN + 30, BEGIN, kept_since=BEGIN - 30)
    found = read_all([known["restarted_by_us"], known["changed_deploy"]], SCOPE, store_query(store, BEGIN + 30), asked)
    assert (found["restarted_by_us"].answer, found["changed_deploy"].answer) == ("no", "unknown")


@pytest.mark.parametrize(
    ("started_at", "asked_at", "answer"),
    [(BEGIN + 60, BEGIN + 150, "yes"), (BEGIN + 60, BEGIN + 380, "no"), (BEGIN - 200, BEGIN + 60, "no")],
)
def test_a_node_is_just_back_for_five_minutes_after_a_start_that_came_after_it_began(
    started_at: float, asked_at: float, answer: str
) -> None:
    store = SeriesStore()
    for at in np.arange(BEGIN - 300, asked_at + 1, 5):
        for node, age_s in (("node-1", 90_000.0), ("node-2", at - started_at if at >= started_at else 90_000.0)):
            labels = {"__name__": "llm:deploy_age_seconds", "node": node, "pool": "default"}
            store.append(labels, float(at), age_s)
    question = builtin_knowledge().questions["back_lately"]
    found = read_all([question], {"pool": "default"}, store_query(store, asked_at), AskedAt(asked_at, BEGIN))

    assert found["back_lately"].answer == answer


def test_several_answers_and_a_failing_query_are_unknown() -> None:
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 10, {})
    ask = store_query(store, BEGIN + 10)

    assert ask("llm:up").why_unknown == "3 series answer where one was expected"
    assert ask("nothing").why_unknown == "no series has data"
    assert ask("llm:up * on(pool) llm:up").why_unknown.startswith("the query failed: ")


RULES = """
groups:
  - name: sample
    interval: 5s
    rules:
      - record: slow:ratio
        expr: >-
          llm:step_seconds:mean / on(pool) group_left quantile by (pool) (0.5, llm:step_seconds:mean)
      - alert: LLMNodeSlow
        expr: slow:ratio > 2.5
        for: 10s
        labels: {severity: page}
        annotations: {summary: "{{ $labels.node }} is slower than its peers"}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> list[RuleGroup]:
    path = tmp_path_factory.mktemp("rules") / "sample.yaml"
    path.write_text(RULES, "utf-8")
    return load_rule_files([path])


def record_incident(path: Path) -> BlackBox:
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 120, {})
    fill(store, BEGIN + 125, BEGIN + 185, {"node-2": {"llm:step_seconds:mean": 0.07}})
    fill(store, BEGIN + 190, BEGIN + 240, {})
    box = BlackBox(
        incident=make_record(scope=SCOPE),
        written_at=BEGIN + 240,
        since=BEGIN,
        until=BEGIN + 240,
        series=record_series(store.dump(BEGIN, BEGIN + 240)),
        software="test",
    )
    write(path, box)
    return read(path)


def test_a_recorded_incident_gives_the_same_verdict_again(
    tmp_path: Path, rules: list[RuleGroup], trees: dict[str, Tree]
) -> None:
    box = record_incident(tmp_path / "box.gz")

    result = replay(box, rules, trees, builtin_knowledge())

    assert [(firing.name, firing.labels["node"]) for firing in result.firings] == [("LLMNodeSlow", "node-2")]
    assert 135 <= result.firings[0].at - BEGIN <= 140
    verdict = result.diagnosis_for(box.incident)
    assert verdict is not None
    assert box.incident.diagnosis is not None
    assert verdict.cause == box.incident.diagnosis.cause == "slow_node"
    assert [incident.status for incident in result.incidents] == ["resolved"]
    assert result.incidents[0].title == "node-2 is slower than its peers"


def test_the_replay_uses_the_recorded_signals_unless_told_to_compute_them(
    tmp_path: Path, rules: list[RuleGroup], trees: dict[str, Tree]
) -> None:
    box = record_incident(tmp_path / "box.gz")
    calm = [
        ({"__name__": "slow:ratio", "node": node, "pool": "default"}, [(BEGIN + t, 1.0) for t in range(0, 240, 5)])
        for node in NODES
    ]
    lying = BlackBox(box.incident, box.written_at, box.since, box.until, (*box.series, *record_series(calm)))

    assert replay(lying, rules, trees, builtin_knowledge()).firings == ()
    assert len(replay(lying, rules, trees, builtin_knowledge(), recompute=True).firings) == 1


def test_nothing_fires_in_a_calm_recording(rules: list[RuleGroup], trees: dict[str, Tree]) -> None:
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 60, {})
    box = BlackBox(make_record(), BEGIN, BEGIN, BEGIN + 60, record_series(store.dump(BEGIN, BEGIN + 60)))

    result = replay(box, rules, trees, builtin_knowledge())

    assert (result.firings, result.incidents) == ((), ())
    assert result.diagnosis_for(box.incident) is None


def test_what_others_lead_to_is_named_second(trees: dict[str, Tree]) -> None:
    """Prompts that share nothing fill the cache: it is not the cache that is to be mended."""
    lost = {"llm:prefix_hit_ratio": 0.1, "llm:kv_ratio": 0.99, "llm:preemptions:rate": 2.0}
    found = diagnose(trees["capacity"], {"*": lost}, {"pool": "default"})
    assert (found.cause, found.also) == ("prefix_cache_broken", "preemption_thrash")
