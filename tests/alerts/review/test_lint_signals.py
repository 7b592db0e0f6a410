"""Signals files: a metric that nobody emits, or that another engine emits, is an error before it records nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_signal_files
from alerts.review.catalog import CATALOG_FILE
from alerts.review.lint import UNREADABLE, Finding, lint_files
from alerts.review.name_pattern import names_of_pattern


def lint(tmp_path: Path, expr: str, *, engines: str | None = "vllm", record: str = "llm:x") -> list[Finding]:
    path = tmp_path / "mine.yaml"
    directive = "" if engines is None else f"# Ours.\n# engines: {engines}\n"
    path.write_text(f"{directive}groups:\n- name: g\n  rules:\n  - record: {record}\n    expr: '{expr}'\n")
    return lint_files([path])


@pytest.mark.parametrize("path", builtin_signal_files(), ids=lambda path: path.stem)
def test_builtin_signals_file_names_its_engines_and_reads_what_they_emit(path: Path) -> None:
    assert lint_files([path]) == []


def test_built_in_signals_file_with_an_invented_metric_is_refused(tmp_path: Path) -> None:
    source = next(path for path in builtin_signal_files() if path.stem == "tgi")
    path = tmp_path / "tgi.yaml"
    path.write_text(source.read_text().replace("(tgi_queue_size)", "(tgi_queue_length)", 1))
    findings = lint_files([path])
    assert [(f.check, f.severity, f.group, f.rule) for f in findings] == [
        ("dead-metric", "error", "signals_tgi", "llm:waiting")
    ]
    assert "tgi_queue_length: tgi does not emit this" in str(findings[0])


@pytest.mark.parametrize(
    ("engines", "expr", "says"),
    [
        ("vllm", "sum(invented_depth)", "invented_depth: vllm does not emit this"),
        ("vllm", "sum(vllm:num_requests_runing)", "did you mean vllm:num_requests_running?"),
        ("vllm", "sum(invented_depth)", "add it to metrics_catalog.yaml (vllm) with its source"),
        ("triton", "sum(nv_invented)", "nv_invented: triton does not emit this"),
        ("fleetctl", "sum(engine_core_upp)", "did you mean engine_core_up?"),
        ("vllm", "sum(sglang:num_running_reqs)", "sglang emits it, not vllm"),
        ("dcgm", "sum(engine_gpu_fault)", "fleetctl emits it, not dcgm"),
        ("fleetctl", "sum(vllm:lora_requests_info)", "vllm emits it, not fleetctl"),
        ("sglang, tgi", "sum(vllm:num_requests_running)", "fleetctl and vllm emit it, not sglang and tgi"),
        ("sglang", 'sum({__name__=~"sglang[:_]num_runing_reqs"})', "did you mean sglang:num_running_reqs?"),
        ("fleetctl", 'sum({__name__=~"engine_(golden|invented)_ok"})', "engine_invented_ok: fleetctl does not"),
        ("vllm", 'sum({__name__=~"nobody_.+"})', "nobody_.+: vllm does not emit this"),
        ("tgi", "sum(tgi_queue_size) / sum(tgi_invented)", "tgi_invented"),
        ("tgi", "tgi_queue_size unless tgi_invented", "tgi_invented"),
        ("tgi", "rate(tgi_invented[5m])", "tgi_invented"),
        ("vllm", "sum(http_requests_invented_total)", "http_requests_invented_total: vllm does not"),
    ],
)
def test_metric_that_its_engine_does_not_emit_is_dead(tmp_path: Path, engines: str, expr: str, says: str) -> None:
    dead = [finding for finding in lint(tmp_path, expr, engines=engines) if finding.check == "dead-metric"]
    assert len(dead) == 1
    assert (dead[0].severity, dead[0].group, dead[0].rule) == ("error", "g", "llm:x")
    assert says in str(dead[0])


@pytest.mark.parametrize(
    ("engines", "expr"),
    [
        ("vllm", "sum(vllm:num_requests_running)"),
        ("fleetctl", "sum(vllm:num_requests_running)"),
        ("vllm", "sum(vllm_num_requests_running or vllm:num_requests_running)"),
        ("sglang", 'sum({__name__=~"sglang[:_]num_running_reqs"})'),
        ("trtllm", 'sum({__name__=~"(trtllm_)?num_requests_running"})'),
        ("dcgm, fleetctl", "sum(DCGM_FI_DEV_GPU_TEMP) + sum(engine_gpu_fault)"),
        ("vllm", "rate(http_requests_total[5m])"),
        ("fleetctl", "time() - process_start_time_seconds"),
        ("vllm", 'sum(up{engine="vllm"})'),
        ("vllm", "sum(llm:running)"),
        ("vllm", 'sum({__name__=~"vllm:num_requests_.+"})'),
        ("vllm", "vector(1)"),
    ],
)
def test_metric_that_an_engine_of_the_file_emits_is_alive(tmp_path: Path, engines: str, expr: str) -> None:
    assert [f for f in lint(tmp_path, expr, engines=engines) if f.severity == "error"] == []


def test_series_that_a_rule_of_another_file_records_is_alive(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("groups: [{name: h, rules: [{record: 'mine:depth', expr: up}]}]")
    assert [f.check for f in lint(tmp_path, "sum(mine:depth)")] == ["dead-metric"]
    assert lint_files([tmp_path / "mine.yaml", other]) == []


@pytest.mark.parametrize(
    ("expr", "is_asked"),
    [
        ("sum(invented_depth)", True),
        ('sum({__name__=~"vllm:.+"})', True),
        ('sum({__name__!="up",job="a"})', True),
        ("sum(llm:running)", False),
        ("sum(up)", False),
        ("vector(1)", False),
    ],
)
def test_signals_file_must_say_which_engine_it_reads(tmp_path: Path, expr: str, is_asked: bool) -> None:
    findings = [f for f in lint(tmp_path, expr, engines=None) if f.check == "no-engine"]
    assert len(findings) == int(is_asked)
    if is_asked:
        assert "write `# engines: NAME` above `groups:`" in str(findings[0])
        assert "vllm, sglang, tgi, llamacpp, trtllm, triton, dcgm, fleetctl, controller, gateway" in str(findings[0])


def test_recording_rule_that_is_no_signal_needs_no_engine(tmp_path: Path) -> None:
    assert lint(tmp_path, "sum(my_depth)", engines=None, record="team:depth") == []


@pytest.mark.parametrize(
    ("engines", "says"), [("vlm", "vlm: no engine of the metrics catalog"), ("", "names no engine")]
)
def test_engine_that_the_catalog_does_not_know_is_an_error_at_its_line(tmp_path: Path, engines: str, says: str) -> None:
    (finding,) = lint(tmp_path, "sum(invented_depth)", engines=engines)
    assert (finding.check, finding.severity, finding.line) == ("unknown-engine", "error", 2)
    assert says in finding.message


@pytest.mark.parametrize("folder", [".", ".."])
def test_catalog_beside_the_file_or_above_it_brings_an_engine_of_ones_own(tmp_path: Path, folder: str) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    catalog = (signals / folder / "metrics_catalog.yaml").resolve()
    catalog.write_text(
        "namespaces:\n  'acme_':\n    engine: acme\n    versions: '2'\n    source: their manual\n"
        "    families:\n      queue_depth: gauge requests\n"
    )
    assert lint(signals, "sum(acme_queue_depth)", engines="acme") == []
    (dead,) = lint(signals, "sum(acme_queue_dept)", engines="acme")
    assert "did you mean acme_queue_depth?" in str(dead)
    catalog.write_text(catalog.read_text().replace("queue_depth", "queue_dept"))
    assert lint(signals, "sum(acme_queue_dept)", engines="acme") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("    source: their manual\n", ""), "namespaces.acme_.source: missing"),
        (("gauge requests", "guage requests"), "namespaces.acme_.families.queue_depth"),
        (("versions", "version"), "namespaces.acme_.versions: missing"),
        (("namespaces:", "namespaces: ["), "metrics_catalog.yaml"),
    ],
)
def test_broken_catalog_is_a_finding_with_its_place(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    text = (
        "namespaces:\n  'acme_':\n    engine: acme\n    versions: '2'\n    source: their manual\n"
        "    families:\n      queue_depth: gauge requests\n"
    )
    (tmp_path / "metrics_catalog.yaml").write_text(text.replace(*change))
    findings = lint(tmp_path, "sum(vllm:num_requests_running)")
    assert [(f.check, f.severity) for f in findings] == [(UNREADABLE, "error")]
    assert says in str(findings[0])


def test_copy_of_our_own_catalog_changes_nothing(tmp_path: Path) -> None:
    shutil.copy(CATALOG_FILE, tmp_path)
    assert lint(tmp_path, "sum(vllm:num_requests_running)") == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("up", ["up"]),
        ("a[:_]b", ["a:b", "a_b"]),
        ("(x_)?y", ["y", "x_y"]),
        ("(?:a|b)c", ["ac", "bc"]),
        ("a|b", ["a", "b"]),
        ("ERRORS?", ["ERROR", "ERRORS"]),
        ("a|a", ["a"]),
        ("", [""]),
        ("(a|b|c|d)(a|b|c|d)(a|b|c|d)", [a + b + c for a in "abcd" for b in "abcd" for c in "abcd"]),
        *((pattern, None) for pattern in ("a.*", "a+", "[^a]", "[a-z]", "(a", "a)", "[", "[]", "a{2}", "é")),
        ("(a|b|c|d)(a|b|c|d)(a|b|c|d)e?", None),
    ],
)
def test_names_of_a_pattern_are_listed_when_they_are_few(pattern: str, names: list[str] | None) -> None:
    assert names_of_pattern(pattern) == names
