"""What the reviewer of rule files finds, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.review.lint import UNREADABLE, Finding, lint_files
from tests.fixtures import DATA

RULES = DATA / "rules"


def lint(tmp_path: Path, expr: str, *, extra: str = "", for_: str = "5m", severity: str = "ticket") -> list[Finding]:
    wait = f"for: {for_}" if for_ else ""
    path = tmp_path / "rules.yml"
    path.write_text(
        f"groups:\n- name: g\n  rules:\n  - alert: A\n    expr: |\n      {expr}\n    {wait}\n"
        f"    labels: {{severity: {severity}}}\n    annotations: {{summary: 'x{extra}'}}\n"
    )
    return lint_files([path])


def checks(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.severity, finding.check) for finding in findings}


@pytest.mark.parametrize(
    ("expr", "severity", "check", "says"),
    [
        ("increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0", "error", "xid-change", "13 to 31 counts 18"),
        ("DCGM_FI_DEV_XID_ERRORS > 0", "error", "xid-level", "for ever"),
        ("rate(vllm:num_preemptions[5m]) > 1", "error", "dead-metric", "did you mean vllm:num_preemptions_total"),
        ("vllm:gpu_cache_usage_perc > 0.9", "error", "removed-metric", "gone since 0.12; use vllm:kv_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc > 90", "error", "ratio-as-percent", "compare with 0.9"),
        ("max by (pod) (vllm:kv_cache_usage_perc) * 100 < 0.5", "error", "percent-as-ratio", "compare with 50"),
        ("DCGM_FI_DEV_GPU_UTIL < 0.3", "error", "percent-as-ratio", "compare with 30"),
        (
            "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 2000",
            "error",
            "seconds-as-milliseconds",
            "compare with 2",
        ),
        (
            "rate(vllm:time_to_first_token_seconds_sum[5m]) / rate(vllm:time_to_first_token_seconds_count[5m]) > 2000",
            "error",
            "seconds-as-milliseconds",
            "compare with 2",
        ),
        (
            "histogram_quantile(0.9, sum by (le) (rate(nv_inference_first_response_histogram_ms_bucket[5m]))) > 2",
            "warning",
            "milliseconds-as-seconds",
            "compare with 2000",
        ),
        ("vllm_num_requests_waiting > 5", "warning", "escaped-name", "the engine says vllm:num_requests_waiting"),
        ("rate(vllm:request_success_total{reason='error'}[5m]) > 1", "error", "wrong-label", "finished_reason"),
        ("rate(vllm:num_requests_running[5m]) > 1", "error", "rate-of-gauge", "this is a gauge"),
        ("vllm:generation_tokens_total > 100", "error", "raw-counter", "use rate(vllm:generation_tokens_total[5m])"),
        ("sum(my_errors_total) > 100", "warning", "raw-counter", "since the process started"),
        (
            "avg(vllm:e2e_request_latency_seconds_sum) / avg(vllm:e2e_request_latency_seconds_count) > 5",
            "error",
            "lifetime-mean",
            "divide rate() by rate()",
        ),
        ("sum(tgi_request_success) / sum(tgi_request_count) < 0.9", "error", "lifetime-mean", "a bad hour drowns"),
        ("histogram_quantile(0.9, rate(x_bucket[5m])) > 1", "warning", "quantile-per-series", "sum by (le"),
        ("histogram_quantile(0.9, sum by (pod) (rate(x_bucket[5m]))) > 1", "error", "no-le", "add le"),
        ("histogram_quantile(0.9, sum without (le) (rate(x_bucket[5m]))) > 1", "error", "no-le", "without (le)"),
        (
            "histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_sum[5m]))) > 1",
            "error",
            "no-le",
            "_bucket",
        ),
        ("histogram_quantile(95, sum by (le) (rate(x_bucket[5m]))) > 1", "error", "quantile-range", "use 0.95"),
        (
            "avg(histogram_quantile(0.9, sum by (le, pod) (rate(x_bucket[5m])))) > 1",
            "warning",
            "quantile-of-averages",
            "average of quantiles",
        ),
        (
            "quantile(0.99, rate(vllm:e2e_request_latency_seconds_sum[5m]) / "
            "rate(vllm:e2e_request_latency_seconds_count[5m])) > 9",
            "warning",
            "quantile-of-averages",
            "hides the slow requests",
        ),
        ("sum by (pod) (up) / on (model_name) group_left () up > 1", "error", "aggregated-away", "model_name"),
        ("DCGM_FI_DEV_GPU_TEMP{Hostname='a'} > 90", "warning", "renamed-label", "hostname"),
        ("DCGM_FI_DEV_FB_TOTAL > 1", "warning", "off-by-default", "counter file"),
        ("max by (node) (DCGM_FI_DEV_CLOCKS_EVENT_REASONS) > 0", "error", "bits-as-level", "x % 128 >= 64"),
        ("llm:slo_errors:ratio_rate1h > 5", "error", "ratio-as-percent", "compare with 0.05"),
        (
            "histogram_quantile(0.9, sum by (le) (llm:ttft_seconds:bucket_rate)) > 3000",
            "error",
            "seconds-as-milliseconds",
            "compare with 3",
        ),
        ("histogram_quantile(0.9, sum by (pool) (llm:ttft_seconds:bucket_rate)) > 3", "error", "no-le", "add le"),
        ("rate(llm:waiting[5m]) > 1", "error", "rate-of-gauge", "this is a gauge"),
        ("sum(gateway_requests_total) > 10", "error", "raw-counter", "use rate(gateway_requests_total[5m])"),
        ("up == bool 0", "error", "always-true", "leave `bool` out"),
        ("llm:kv_percent > 0.9", "error", "dead-metric", "our signals"),
        ("tgi_request_count_total > 1", "error", "dead-metric", "did you mean tgi_request_count"),
        ("X and 128 != bool 0", "error", "syntax", "scalar"),
        ("foo(up) > 1", "error", "syntax", "unknown function foo()"),
        ("up >", "error", "syntax", ""),
    ],
)
def test_defect_is_named_with_its_remedy(tmp_path: Path, expr: str, severity: str, check: str, says: str) -> None:
    findings = lint(tmp_path, expr)
    assert (severity, check) in checks(findings), findings
    assert any(says in str(finding) for finding in findings if finding.check == check)
    assert all(finding.line == 6 and finding.group == "g" and finding.rule == "A" for finding in findings)


@pytest.mark.parametrize(
    "expr",
    [
        "vllm:kv_cache_usage_perc > 0.95 and vllm:num_requests_waiting > 0",
        "vllm:kv_cache_usage_perc > 0.9 or vllm:gpu_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc * 100 > 90",
        "DCGM_FI_DEV_GPU_UTIL / 100 > 0.5",
        "histogram_quantile(0.95, sum by (le, pod) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 2",
        "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) * 1000 > 2000",
        "sum(rate(tgi_request_failure[5m])) / (sum(rate(tgi_request_success[5m])) > 0) > 0.05",
        "rate(nv_trt_llm_general_metrics{general_type='iteration_counter'}[5m]) == 0",
        "changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0",
        "llm:gpu_throttled_hw_thermal == 1",
        "histogram_quantile(0.9, sum by (le, pool) (llm:ttft_seconds:bucket_rate)) > 3",
        "llm:pool_ttft_seconds:median > 3",
        "absent(vllm:request_success_total)",
        "up unless vllm:generation_tokens_total",
        "count(vllm:generation_tokens_total) < 3",
        "node_memory_MemFree_bytes < 1e9",
        "my_errors_total > 0",
    ],
)
def test_sound_rule_has_no_findings(tmp_path: Path, expr: str) -> None:
    assert lint(tmp_path, expr) == []


@pytest.mark.parametrize(
    ("expr", "is_missing"),
    [
        ("up == 0", True),
        ("llm:waiting > 80", True),
        ("rate(x_total[1m]) > 1", True),
        ("increase(x_total[10m]) > 0", False),
        ("time() - last_backup_seconds > 300", False),
        ("gpu_recovery_action > 0", False),
        ("remap_failure == 1", False),
    ],
)
def test_missing_for_is_named_unless_the_condition_lasts_by_itself(tmp_path: Path, expr: str, is_missing: bool) -> None:
    findings = lint(tmp_path, expr, for_="")
    assert (("warning", "no-for") in checks(findings)) is is_missing
    assert all(finding.line == 4 for finding in findings if finding.check == "no-for")


@pytest.mark.parametrize("expr", ["DCGM_FI_DEV_GPU_UTIL > 95", "vllm:kv_cache_usage_perc > 0.9"])
def test_page_for_a_healthy_state_is_questioned_and_a_ticket_is_not(tmp_path: Path, expr: str) -> None:
    assert {check for _, check in checks(lint(tmp_path, expr, severity="critical"))} & {
        "busy-is-healthy",
        "full-is-normal",
    }
    assert lint(tmp_path, expr) == []


def test_text_with_a_label_that_is_aggregated_away_is_questioned(tmp_path: Path) -> None:
    findings = lint(tmp_path, "sum by (pool) (llm:running) > 5", extra="{{ $labels.node }}")
    assert checks(findings) == {("warning", "lost-label")}
    assert lint(tmp_path, "sum by (pool) (llm:running) > 5", extra="{{ $labels.pool }} {{ $labels.severity }}") == []


def test_four_of_five_alerts_of_a_real_file_are_dead(tmp_path: Path) -> None:
    """The names of a rule file seen in public: it loads in Prometheus and says nothing."""
    exprs = {
        "Down": 'up{job="vllm-server"} == 0',
        "Latency": "histogram_quantile(0.95, sum by (le) (rate(vllm_request_duration_seconds_bucket[5m]))) > 10",
        "Memory": "vllm_gpu_memory_usage_bytes / vllm_gpu_memory_total_bytes > 0.95",
        "Errors": "rate(vllm_request_errors_total[5m]) / rate(vllm_requests_total[5m]) > 0.05",
        "OOM": "increase(vllm_gpu_oom_total[5m]) > 0",
    }
    rules = "".join(f"  - alert: {name}\n    expr: {expr!r}\n    for: 2m\n" for name, expr in exprs.items())
    path = tmp_path / "vllm.yml"
    path.write_text(f"groups:\n- name: vllm-server\n  rules:\n{rules}")
    findings = lint_files([path])
    assert {f.rule for f in findings if f.check == "dead-metric"} == set(exprs) - {"Down"}


def test_good_public_rules_have_no_findings() -> None:
    assert lint_files([RULES / "rules.yml"]) == []


def test_our_own_rules_have_no_findings() -> None:
    assert lint_files([*builtin_signal_files(), *builtin_rule_files()]) == []


def test_name_recorded_in_another_file_is_known(tmp_path: Path) -> None:
    records, reads = tmp_path / "a.yml", tmp_path / "b.yml"
    records.write_text("groups: [{name: a, rules: [{record: 'vllm:mine', expr: up}]}]")
    reads.write_text("groups: [{name: b, rules: [{alert: B, expr: 'vllm:mine > 3', for: 5m}]}]")
    assert lint_files([records, reads]) == []
    assert checks(lint_files([reads])) == {("error", "dead-metric")}


def test_every_bad_rule_is_named_and_not_only_the_first(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(
        "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: foo(x)\n"
        "  - alert: B\n    exp: up\n  - alert: C\n    expr: up == 0\n"
    )
    findings = lint_files([path])
    assert [(f.rule, f.line, f.check) for f in findings] == [("A", 5, "syntax"), ("B", 6, "syntax"), ("C", 8, "no-for")]


@pytest.mark.parametrize("text", ["[1, 2]", "groups: 5", "a: 1", "groups: [5]", "groups: [{name: g, rules: 7}]"])
def test_what_is_no_rule_file_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yml"
    path.write_text(text)
    assert [f.severity for f in lint_files([path])] == ["error"]


def test_a_file_of_unit_tests_is_sent_to_the_command_for_them() -> None:
    (finding,) = lint_files([RULES / "tests.yaml"])
    assert (finding.severity, finding.check) == ("error", UNREADABLE)
    assert "fleetctl alerts test" in finding.message


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"groups: [", 1, "expected the node content"),
        (b"groups:\n- name: g\n\trules: []\n", 3, "indent with spaces"),
        (b"groups: []\n---\ngroups: []\n", 2, "a second document, which Prometheus would ignore"),
        (b"\xff\x00\x01", 1, "cannot be read as YAML"),
        (b"groups:\n- name: caf\xe9\n", 1, "cannot be read as YAML"),
        (b"groups: []\x00", 1, "cannot be read as YAML"),
        (b"- a\n", 1, "no rule file"),
        (b"kind: PrometheusRule\nspec: {groups: []}\n", 1, "take what stands under its `spec`"),
        (b"groups: " + b"[" * 3000, 1, "nested too deeply"),
        (b"groups: []\n#" + b"x" * 5_000_000, 1, "larger than 4 MiB"),
    ],
)
def test_what_is_no_rule_file_is_one_finding_and_the_others_are_reviewed(
    tmp_path: Path, content: bytes, line: int, says: str
) -> None:
    path, other = tmp_path / "x.yml", tmp_path / "y.yml"
    path.write_bytes(content)
    other.write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0}]}]")
    found = lint_files([path, other])
    assert [(finding.check, finding.line) for finding in found] == [(UNREADABLE, line), ("no-for", 1)]
    assert says in found[0].message
    assert "\n" not in str(found[0])


def test_what_is_wrong_with_a_group_is_told_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text(
        "groups:\n- name: a\n  limit: many\n  rules: []\n- name: b\n  rules: {x: y}\n- hello\n- name: a\n"
        "  rules:\n  - {record: x, expr: sum(}\n"
    )
    assert [(f.line, f.group, f.message) for f in lint_files([path])] == [
        (2, "a", "limit: wanted a whole number"),
        (5, "b", "rules: wanted a list"),
        (7, "", "wanted a mapping"),
        (8, "a", "a second group of this name"),
        (10, "a", "unclosed left parenthesis"),
    ]
