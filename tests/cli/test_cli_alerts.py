"""`fleetctl alerts`: what a person and a script get, with exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alerts.content import builtin_case_files, builtin_rule_files, builtin_signal_files
from alerts.store import SeriesStore
from diagnostics import blackbox
from fleetctl.cli.app import run

NOW = 1_700_000_100.0
RULES = """
groups:
- name: g
  rules:
  # Above five it is too much.
  #
  # 30s: twice the scrape interval.
  - alert: TooMuch
    expr: x > 5 and on () vector(1)
    for: 30s
    labels: {severity: page}
    annotations: {summary: "{{ $labels.node }} has {{ $value }}"}
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yml"
    path.write_text(RULES)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    values = [0, 0, 9, 9, 9, 9, 0, 0]
    lines = [f'x{{node="a"}} {value} {NOW + 15 * index}' for index, value in enumerate(values)]
    path = tmp_path / "x.om"
    path.write_text("\n".join([*lines, "# EOF", ""]))
    return path


def fleetctl(*args: str | Path) -> int:
    return run([str(arg) for arg in args])


def test_check_of_our_own_rules_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "check", *builtin_signal_files(), *builtin_rule_files()) == 0
    assert capsys.readouterr().out == ""


def test_check_names_place_and_remedy_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(RULES.replace("x > 5", "rate(vllm:num_preemptions[5m]) > 5"))
    assert fleetctl("alerts", "check", path) == 1
    text = capsys.readouterr().out
    assert text.startswith(f"{path}:9: g, TooMuch: error: vllm:num_preemptions: no vllm")
    assert "did you mean vllm:num_preemptions_total?" in text


def test_check_gives_scripts_every_finding_as_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(RULES.replace("    for: 30s\n", ""))
    assert fleetctl("alerts", "check", path, "-o", "json") == 0  # a warning is no failure
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["check"] == "no-for"
    assert finding["severity"] == "warning"
    assert finding["file"] == str(path)


@pytest.mark.parametrize("content", [None, "groups: ["])
def test_check_of_what_cannot_be_read_is_bad_input(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yml"
    if content is not None:
        path.write_text(content)
    assert fleetctl("alerts", "check", path) == 2
    assert "x.yml" in capsys.readouterr().err


def test_test_runs_promtools_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "test", builtin_case_files()[0]) == 0
    assert "ok" in capsys.readouterr().out


def test_test_fails_with_what_was_wanted(tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.yml"
    path.write_text(
        f"rule_files: [{rules.name}]\ntests:\n- interval: 15s\n  input_series: [{{series: 'x', values: '9x9'}}]\n"
        "  alert_rule_test: [{eval_time: 1m, alertname: TooMuch, exp_alerts: []}]\n"
    )
    assert fleetctl("alerts", "test", path) == 1
    assert "TooMuch at 1m: wanted [], got" in capsys.readouterr().out


def test_list_shows_severity_and_wait(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "list", "--rules", rules) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["TooMuch", "page", "30s", "g", "x"]


def test_explain_gives_the_reason_and_says_that_the_present_is_not_known(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = fleetctl(
        "--controller", "http://127.0.0.1:1", "alerts", "explain", "TooMuch", "--rules", rules, "-o", "json"
    )
    assert code == 0
    (view,) = json.loads(capsys.readouterr().out)
    assert view["reason"] == "Above five it is too much.\n\n30s: twice the scrape interval."
    assert view["subject"] == "x"
    assert view["for_s"] == 30.0
    assert "127.0.0.1:1" in view["current"]["unknown"]


def test_explain_of_an_unknown_name_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "explain", "Nothing") == 2
    assert "fleetctl alerts list" in capsys.readouterr().err


def test_coverage_has_every_engine_and_no_engine_can_tell_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "coverage", "-o", "json") == 0
    rows = {row.pop("signal"): row for row in json.loads(capsys.readouterr().out)}
    serving = ["fleetctl", "vllm", "sglang", "tgi", "trtllm", "triton"]
    assert all(rows["llm:up"][engine] and rows["llm:running"][engine] for engine in serving)
    assert [engine for engine in serving if rows["llm:ttft_seconds:mean"][engine]] == [
        "fleetctl", "vllm", "sglang", "trtllm", "triton",
    ]  # fmt: skip
    assert not rows["llm:kv_ratio"]["tgi"]
    assert not rows["llm:preemptions:rate"]["triton"]
    assert rows["llm:waiting_capacity"]["vllm"]
    assert not rows["llm:waiting_capacity"]["trtllm"]
    assert rows["llm:gpu_row_remap_pending"]["fleetctl"]
    assert rows["llm:gpu_unhealthy"]["dcgm"]
    assert not rows["llm:gpu_tensor_active_ratio"]["fleetctl"]
    assert rows["llm:step_seconds:mean"]["vllm"]
    assert [e for e, tells in rows["llm:gpu_temperature_celsius"].items() if tells] == ["fleetctl", "dcgm"]


def test_backtest_of_a_recording_counts_pages_and_lead(
    rules: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = f"{NOW + 75}..{NOW + 100}"
    code = fleetctl("alerts", "backtest", rules, "--from", recording, "--incident", window, "-o", "json")
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    (firing,) = result["firings"]
    assert (firing["fired_at"], firing["resolved_at"]) == (NOW + 60, NOW + 90)
    assert firing["summary"] == "a has 9"
    assert result["alerts"][0]["lead_s"] == 15.0


def test_backtest_table_reads_like_a_report(rules: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("alerts", "backtest", rules, "--from", recording) == 0
    got = capsys.readouterr()
    assert "TooMuch" in got.out
    assert "2023-11-14 22:16:00Z" in got.out
    assert "points every 15s" in got.err


def test_backtest_reads_a_black_box(tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SeriesStore(retention_s=1e9)
    for index, value in enumerate([0, 9, 9, 9, 9, 0]):
        store.append({"__name__": "x", "node": "a"}, NOW + 15 * index, value)
    from diagnostics.record import IncidentRecord

    required = {"id": "i", "title": "t", "status": "open", "severity": "page", "opened_at": NOW, "scope": {}}
    record = IncidentRecord.model_validate(required)
    path = tmp_path / f"i{blackbox.SUFFIX}"
    series = blackbox.record_series(store.dump(NOW - 1, NOW + 999))
    blackbox.write(path, blackbox.BlackBox(record, NOW + 200, NOW, NOW + 100, series))
    assert fleetctl("alerts", "backtest", rules, "--from", path, "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["firings"]) == 1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], 2),
        (["--from", "x.om", "--prometheus", "http://127.0.0.1:1"], 2),
        (["--from", "missing.om"], 2),
        (["--from", "RECORDING", "--incident", "yesterday"], 2),
        (["--from", "RECORDING", "--step", "0s"], 2),
        (["--prometheus", "http://127.0.0.1:1", "--since", "1h", "--timeout", "1s"], 4),
    ],
)
def test_backtest_without_a_usable_past_says_so(
    args: list[str], code: int, rules: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(recording) if arg == "RECORDING" else arg for arg in args]
    assert fleetctl("alerts", "backtest", rules, *given) == code
    assert "error:" in capsys.readouterr().err


def test_recording_without_the_rules_metrics_is_unknown_and_not_silent(
    tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.om"
    path.write_text("other 1 100\n# EOF\n")
    assert fleetctl("alerts", "backtest", rules, "--from", path) == 4
    assert "no series that these rules read" in capsys.readouterr().err


def test_rule_that_needs_its_own_past_is_refused(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yml"
    path.write_text("groups: [{name: g, rules: [{record: 'a:b', expr: 'a:b or x'}]}]")
    assert fleetctl("alerts", "backtest", path, "--from", recording) == 2
    assert "a:b" in capsys.readouterr().err
