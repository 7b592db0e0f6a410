"""`fleetctl alerts`: what a person and a script get, with exit codes."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_case_files, builtin_rule_files, builtin_signal_files
from alerts.series.store import SeriesStore
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
    printed = capsys.readouterr()
    assert "x.yml" in printed.out + printed.err


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


def test_tests_that_want_no_annotations_say_so_and_can_leave_them_out(
    tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.yml"
    path.write_text(
        "rule_files: [elsewhere.yml]\ntests:\n- interval: 15s\n  input_series: [{series: 'x', values: '9x9'}]\n"
        "  alert_rule_test: [{eval_time: 1m, alertname: TooMuch, exp_alerts: [{exp_labels: {severity: page}}]}]\n"
    )
    assert fleetctl("alerts", "test", path) == 2
    assert "give the rules with --rules" in capsys.readouterr().err
    assert fleetctl("alerts", "test", path, "--rules", rules) == 1
    assert "fires as wanted, but with annotations" in capsys.readouterr().out
    assert fleetctl("alerts", "test", path, "--rules", rules, "--ignore-annotations") == 0


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
        "fleetctl",
        "vllm",
        "sglang",
        "trtllm",
        "triton",
    ]
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


BAD_FILES = {
    "binary": b"\x00\x01\xff" * 100,
    "latin-1": b"groups:\n- name: caf\xe9\n",
    "tabs": b"groups:\n\t- name: g\n",
    "two documents": b"groups: []\n---\ngroups: []\n",
    "deep": b"groups: " + b"[" * 3000,
    "a list": b"- a\n",
    "a manifest": b"kind: PrometheusRule\nspec: {groups: []}\n",
    "too large": b"groups: []\n#" + b"x" * 5_000_000,
    "a tag": b"groups: !!python/object/apply:os.system ['true']\n",
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
@pytest.mark.parametrize(
    "words",
    [
        ("check", "FILE"),
        ("test", "FILE"),
        ("list", "--rules", "FILE"),
        ("explain", "A", "--rules", "FILE"),
        ("backtest", "FILE", "--from", "RECORDING"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_no_rule_file_is_exit_code_2_and_one_line_that_names_it(
    tmp_path: Path, recording: Path, words: tuple[str, ...], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yml"
    path.write_bytes(content)
    given = {"FILE": path, "RECORDING": recording}
    assert fleetctl("alerts", *(given.get(word, word) for word in words)) == 2
    printed = capsys.readouterr()
    assert len([line for line in (printed.out + printed.err).splitlines() if "bad.yml" in line]) == 1


@pytest.mark.parametrize("words", [("check", "EMPTY"), ("test", "nothing.yml"), ("list", "--rules", "EMPTY")])
def test_a_folder_without_files_or_nothing_is_refused(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleetctl("alerts", *(tmp_path if word == "EMPTY" else word for word in words)) == 2
    assert "of .yaml files" in capsys.readouterr().err


def test_a_folder_stands_for_the_files_in_and_below_it(
    tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more" / "deep").mkdir(parents=True)
    for name in ("a.yaml", "deep/b.yml", "deep/notes.txt"):
        (tmp_path / "more" / name).write_bytes(rules.read_bytes())
    assert fleetctl("alerts", "check", tmp_path / "more") == fleetctl("alerts", "check", rules)
    assert "2 files:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prometheus", "http://127.0.0.1:1", "--token-file", "none"), "--token-file: none: No such file"),
        (("--prometheus", "http://127.0.0.1:1", "--ca-file", "none"), "--ca-file: none: no such file"),
        (("--prometheus", "prometheus:9090"), "is no HTTP URL"),
        (("--prometheus", "http://127.0.0.1:1", "--since", "20y"), "--since: more than 3660 days back"),
        (("--prometheus", "http://127.0.0.1:1", "--since", "1h1d"), "units go from large to small"),
        (("--from", "RECORDING", "--incident", "5..nan"), "not START..END"),
    ],
)
def test_a_wrong_option_of_backtest_is_named(
    rules: Path, recording: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleetctl("alerts", "backtest", rules, *(recording if word == "RECORDING" else word for word in words)) == 2
    assert says in capsys.readouterr().err


def test_numbers_that_json_has_not_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yml").write_text("groups: [{name: g, rules: [{alert: A, expr: x != 5}]}]")
    (tmp_path / "x.om").write_text('x{a="1"} NaN 1700000000\nx{a="2"} +Inf 1700000000\n# EOF\n')
    assert fleetctl("alerts", "backtest", tmp_path / "r.yml", "--from", tmp_path / "x.om", "-o", "json") == 0

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    result = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert {firing["value"] for firing in result["firings"]} == {"NaN", "+Inf"}


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yml"
    path.write_text('groups: [{name: "g\\e[31m", rules: [{alert: "A\\e]0;x\\a", expr: "up +", for: 1m}]}]')
    assert fleetctl("alerts", "check", path) == 1
    text = path.read_text().replace('"up +"', "up")
    path.write_text(text)
    assert fleetctl("alerts", "list", "--rules", path) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "A\\x1b]0;x\\x07" in out


@pytest.fixture
def controller() -> Iterator[str]:
    """Answers as a controller does: x on three cards of two nodes, of which one waits to fire and one fires."""

    def sample(node: str, gpu: str, value: float) -> dict[str, object]:
        return {"labels": {"__name__": "x", "node": node, "gpu": gpu}, "value": value}

    everything = [sample("b", "0", 2.0), sample("a", "1", 9.0), sample("a", "0", 8.0), sample("c", "0", 7.0)]

    def alert(node: str, gpu: str, state: str, active_at: float, fired_at: float | None) -> dict[str, object]:
        labels = {"alertname": "TooMuch", "severity": "page", "node": node, "gpu": gpu}
        return {
            "fingerprint": node + gpu,
            "name": "TooMuch",
            "severity": "page",
            "state": state,
            "labels": labels,
            "active_at": active_at,
            "fired_at": fired_at,
        }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urllib.parse.urlparse(self.path)
            answer: object
            if url.path == "/v1/alerts":
                answer = [
                    alert("a", "0", "pending", NOW - 10, None),
                    alert("c", "0", "firing", NOW - 90, NOW - 60),
                    {**alert("b", "0", "firing", NOW - 90, NOW - 60), "name": "Other"},
                ]
            else:
                above = ">" in urllib.parse.parse_qs(url.query)["expr"][0]
                answer = {"at": NOW, "samples": everything[1:] if above else everything}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_explain_shows_each_places_value_its_state_and_when_it_would_fire(
    rules: Path, controller: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleetctl("--controller", controller, "alerts", "explain", "TooMuch", "--rules", rules) == 0
    rows = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()]
    table = rows[rows.index(["WHERE", "VALUE", "CONDITION", "ALERT"]) :]
    assert table[1:5] == [
        ["a gpu=0", "8", "true", "pending for 10s, fires in 20s"],
        ["a gpu=1", "9", "true", "would fire in 30s"],
        ["b", "2", "false", "-"],
        ["c", "7", "true", "firing for 60s"],
    ]


def test_explain_tells_scripts_the_same(rules: Path, controller: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleetctl("--controller", controller, "alerts", "explain", "TooMuch", "--rules", rules, "-o", "json") == 0
    (view,) = json.loads(capsys.readouterr().out)
    places = {(one["labels"]["node"], one["labels"]["gpu"]): one for one in view["current"]["where"]}
    assert places["a", "0"]["fires_at"] == NOW + 20
    assert (places["c", "0"]["state"], places["c", "0"]["since"]) == ("firing", NOW - 60)
    assert (places["b", "0"]["holds"], places["b", "0"]["fires_at"]) == (False, None)
