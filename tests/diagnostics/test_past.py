"""The seeds' incident on a fleet that only has vLLM's metrics, asked of a real Prometheus: what the store says too."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from alerts.evaluation.rules import RuleGroup
from alerts.history.prometheus_source import RangeSeries, metric_selectors, selector_of
from alerts.history.recording import read_recordings, recording_store
from alerts.labels import METRIC_NAME
from alerts.native_name import spellings
from alerts.sample import is_stale_nan
from alerts.series.store import SeriesStore
from diagnostics.bench.case import HERE, load_case
from diagnostics.bench.recording import ONSET, record
from diagnostics.evidence.reading import DAY_S
from diagnostics.other_days import against_other_days
from diagnostics.past import Past, asked_of, rows_of_store
from fleetctl.cli.app import run
from fleetctl.controller.content.load import load_content
from tests.fixtures.alertmanager import NEEDS_PROMETHEUS, PROMETHEUS, server

PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"
OUR_LABELS = {"node", "pool", "model", "zone", "revision", "engine"}


def as_a_stranger_has_it(
    store: SeriesStore, shift_s: float, kept: frozenset[str] = frozenset(), vllm: str = "vllm:"
) -> Iterator[str]:
    """OpenMetrics text of what a plain Prometheus would hold: without any label of ours, but for those `kept`.

    `vllm`: how the names of vLLM begin there.
    """
    for labels, points in store.dump(0, 1e12):
        name = labels.pop(METRIC_NAME).replace("vllm:", vllm)
        plain = {key.removeprefix("exported_"): value for key, value in labels.items() if key not in OUR_LABELS - kept}
        told = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(plain.items()))
        later_s = shift_s if name == "process_start_time_seconds" else 0.0
        for at, value in points:
            if not is_stale_nan(value):
                yield f"{name}{{{told}}} {value + later_s} {at + shift_s:.3f}"
    yield "# EOF\n"


def store_of(name: str) -> SeriesStore:
    case = load_case(HERE / "cases" / f"{name}.yaml")
    return record(case.model_copy(update={"step_s": 15.0, "gpu": False})).store


@dataclass(frozen=True)
class Recorded:
    text: Path
    yesterday: Path  # the same fall a day before
    onset: float
    upgrade: Path  # the fall after an upgrade, three days before, of vLLM under Ray Serve
    upgrade_onset: float


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    store = store_of("prefix-seeds-vllm")
    shift_s = (time.time() - 3700 - ONSET) // 300 * 300  # the same seconds of a minute in every run
    upgrade_shift_s = shift_s - 3 * DAY_S
    folder = tmp_path_factory.mktemp("incident")
    found = Recorded(
        folder / "fleet.om",
        folder / "yesterday.om",
        ONSET + shift_s,
        folder / "upgrade.om",
        ONSET + upgrade_shift_s,
    )
    found.text.write_text("\n".join(as_a_stranger_has_it(store, shift_s)), "utf-8")
    found.yesterday.write_text("\n".join(as_a_stranger_has_it(store, shift_s - DAY_S)), "utf-8")
    upgrade = store_of("prefix-seeds-upgrade-vllm")
    found.upgrade.write_text(
        "\n".join(as_a_stranger_has_it(upgrade, upgrade_shift_s, frozenset({"revision"}), vllm="ray_vllm_")), "utf-8"
    )
    return found


@pytest.fixture(scope="module")
def url(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    for text in (recorded.text, recorded.yesterday, recorded.upgrade):
        subprocess.run(
            [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
            check=True,
            capture_output=True,
            timeout=120,
        )
    (folder / "prometheus.yml").write_text("{}")
    places = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with server(PROMETHEUS, folder, *places, "--storage.tsdb.retention.time=10y") as found:
        yield found


@NEEDS_PROMETHEUS
@pytest.mark.parametrize(("is_upgrade", "cause"), [(True, "prefix_by_upgrade"), (False, "prefix_cache_broken")])
def test_a_real_prometheus_gives_the_verdicts_of_the_store_at_1_10_and_60_minutes(
    recorded: Recorded, url: str, capsys: pytest.CaptureFixture[str], is_upgrade: bool, cause: str
) -> None:
    content = load_content()
    store = recording_store()
    read_recordings([recorded.upgrade if is_upgrade else recorded.text], store, lambda name: True)
    onset = recorded.upgrade_onset if is_upgrade else recorded.onset
    times = [onset + 60 * minutes for minutes in (1, 10, 60)]
    of_store = Past(list(rows_of_store(store))).diagnose(
        content.groups, content.knowledge, content.trees, content.no_tree, {}, times, 6300.0
    )

    for at, expected in zip(times, of_store, strict=True):
        code = run(["diagnose", "--prometheus", url, "--at", f"{at:.0f}", "--last", "105m", "-o", "json"])

        told = json.loads(capsys.readouterr().out)
        assert [one["cause"] for one in told] == [one.diagnosis.cause for one in expected.said]
        assert (told[0]["cause"], code) == (cause, 0)
        # A Prometheus tells of no deploy: what the series show of it, and of what prompts share.
        changes = " / ".join(told[0]["changes"])
        assert ("revision v1 → v2 of node-1:8000, node-2:8000" in changes) is is_upgrade
        assert "start of node-" not in changes
        assert (
            at - onset < 600 or is_upgrade or "prompts as long as before share 72 % → 45 % of their tokens" in changes
        )


def test_the_upgrade_of_the_seeds_has_its_rollback_as_remedy() -> None:
    assert load_content().causes["prefix_by_upgrade"].page == "rollback-pool"


@NEEDS_PROMETHEUS
@pytest.mark.parametrize(
    ("after_onset_s", "only", "code", "says"),
    [
        (600, "", 0, "confidence"),
        (-300, "", 1, "Nothing is wrong with"),
        (600, '__name__=~"up|ray_vllm_num_requests_running"', 4, "unknown"),
    ],
    ids=["a cause is named", "nothing is wrong", "not known"],
)
def test_the_exit_code_says_whether_a_cause_is_named(
    recorded: Recorded,
    url: str,
    capsys: pytest.CaptureFixture[str],
    after_onset_s: float,
    only: str,
    code: int,
    says: str,
) -> None:
    at = recorded.upgrade_onset + after_onset_s

    assert run(["diagnose", "--prometheus", url, "--at", f"{at:.0f}", "--last", "30m", "--only", only]) == code
    assert says in capsys.readouterr().out


@NEEDS_PROMETHEUS
def test_a_fall_is_held_against_this_hour_of_the_days_that_a_prometheus_has(
    recorded: Recorded, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = recorded.onset + 3000

    run(["diagnose", "--prometheus", url, "--at", f"{at:.0f}", "--last", "105m", "-o", "json"])

    (told,) = json.loads(capsys.readouterr().out)
    usual = {one["question"]: one["usual"] for one in told["evidence"] if one["answer"] == "yes"}
    assert usual["prefix_hit_fell"].startswith("against this hour yesterday no, ")
    assert usual["prefix_hit_fell"].endswith(", a week ago unknown: no history")
    assert not any(one["usual"] for one in told["evidence"] if one["answer"] != "yes")


def test_of_two_faults_at_once_each_incident_tells_its_own_in_the_past_too() -> None:
    """Both named both: a node that is slow, and a pool that another node's death made smaller."""
    content = load_content()
    past = Past(list(rows_of_store(store_of("two-slow-nodes-vllm"))))
    (verdict,) = past.diagnose(
        content.groups, content.knowledge, content.trees, content.no_tree, {}, [ONSET + 900], 3600.0
    )
    told = {(one.incident.scope.get("node", ""), one.diagnosis.cause) for one in verdict.said if one.incident}
    assert told == {("", "capacity_lost"), ("node-2", "slow_node"), ("node-6", "node_down")}
    assert {one.diagnosis.also for one in verdict.said} == {None}


def test_of_other_days_only_what_was_asked_is_read(recorded: Recorded) -> None:
    content = load_content()
    store = recording_store()
    read_recordings([recorded.text], store, lambda name: True)
    past = Past(list(rows_of_store(store)))
    at = recorded.onset + 3000
    (verdict,) = past.diagnose(content.groups, content.knowledge, content.trees, content.no_tree, {}, [at], 6300.0)
    read: list[tuple[float, float]] = []
    names: set[str] = set()

    def nothing(groups: Sequence[RuleGroup], start: float, end: float) -> list[RangeSeries]:
        read.append((start - at, end - at))
        names.update(metric_selectors(groups))
        return []

    found = against_other_days(past, verdict, {}, content.groups, content.knowledge, nothing)

    assert [one.diagnosis.cause for one in found.said] == [one.diagnosis.cause for one in verdict.said]
    assert [end for _, end in read] == [900 - 7 * DAY_S, 900 - DAY_S]
    assert all(end - start <= 3600 for start, end in read)
    assert selector_of(spellings("vllm:prefix_cache_hits_total"), op="=~") in names
    assert 2 < len(names) < len(metric_selectors(content.groups)) / 3
    unknown = "against this hour yesterday unknown: no history, a week ago unknown: no history"
    assert {one.usual for one in found.said[0].diagnosis.evidence} == {"", unknown}


def test_settings_that_no_rule_reads_are_read_where_a_question_asks_for_them() -> None:
    content = load_content()
    names = metric_selectors([*content.groups, asked_of(content.knowledge)])
    assert selector_of(spellings("vllm:cache_config_info"), op="=~") in names
    assert '{__name__="fleet_change_timestamp_seconds"}' in names


def test_a_recording_is_asked_in_the_same_way(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    at = recorded.onset - 300

    code = run(["diagnose", "--from", str(recorded.text), "--at", f"{at:.0f}", "--pool", "engine", "--last", "30m"])

    told = capsys.readouterr().out
    assert code == 1
    assert "Nothing is wrong with pool engine" in told


def test_a_place_that_is_not_in_the_past_is_refused(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["diagnose", "--from", str(recorded.text), "--node", "node-9:8000"])

    assert code == 2
    assert "there is no node 'node-9:8000'" in capsys.readouterr().err
