from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerts.errors import BadRuleError
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import AlertingRule, load_rule_files
from alerts.promql import parse
from alerts.promql.nodes import Binary, Node, Selector, Subquery, children
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.query import sample_query
from tests.fixtures import DATA, ROOT


def refused(tmp_path: Path, text: str) -> str:
    """The error, without the directory of the test."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(BadRuleError) as caught:
        load_rule_files([path])
    return str(caught.value).replace(f"{tmp_path}/", "")


def group(rule: str) -> str:
    return f"groups:\n- name: ttft\n  rules:\n  - {{record: a, expr: b}}\n  - {rule}\n"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("{record: a, expr: foo(b)}", "unknown function foo()"),
        ("{expr: b}", "needs one of record and alert"),
        ("{record: a, alert: b, expr: c}", "needs one of record and alert"),
        ("{record: a}", "expr: missing"),
        ("{record: a-b, expr: c}", "'a-b' is not a metric name"),
        ("{record: a, expr: c, for: 5m}", "for, keep_firing_for and annotations belong to alerts only"),
        ("{alert: A, expr: b, fro: 5m}", "fro: unknown key"),
        ("{alert: A, expr: b, for: 5x}", "for: '5x' is not a duration such as 500ms, 30s, 5m, 1h30m or 1d12h"),
        (
            "{alert: A, expr: b, for: 1h1d}",
            "for: '1h1d' is not a duration: units go from large to small, each once, as in 1d12h",
        ),
        ("{alert: A, expr: b, for: 5}", "for: '5' is not a duration: write 5s for seconds"),
        ("{alert: A, expr: b, for: .inf}", "for: '.inf' is not a duration such as 500ms, 30s, 5m, 1h30m or 1d12h"),
        ("{alert: A, expr: b, for: [1]}", "for: wanted text; put it in quotes"),
        ("{alert: A, expr: {a: b}}", "expr: wanted text; put it in quotes"),
        ("{alert: A, expr: }", "expr: empty"),
        ("hello", "wanted a mapping"),
        ("{alert: A, expr: 'b[5m]'}", "the expression gives no single value per series"),
        ("{alert: A, expr: b, labels: {a-b: c}}", "'a-b' is not a label name"),
        ("{alert: A, expr: b, annotations: {s: '{{ x }}'}}", "annotation s: unknown function x in {{ x }}"),
        ("{alert: A, expr: b, annotations: {s: '{{ if $value }}'}}", "annotation s: if without end in {{ if $value }}"),
    ],
)
def test_bad_rule_is_named_by_file_group_and_number(tmp_path: Path, rule: str, reason: str) -> None:
    message = refused(tmp_path, group(rule))
    assert message.startswith("mine.yaml: group ttft, rule 2")
    assert re.sub(r"^mine\.yaml: group ttft, rule 2(?: \S+?)?: ", "", message) == reason


def test_bad_rule_is_named_by_its_name_too(tmp_path: Path) -> None:
    reason = refused(tmp_path, group("{alert: Slow, expr: 'raate(b[5m])'}"))
    assert reason == "mine.yaml: group ttft, rule 2 Slow: unknown function raate(): did you mean rate()?"


def test_text_is_kept_as_it_is_written_and_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "groups:\n- name: g\n  rules:\n  - &base\n    alert: A\n    expr: up == 0\n    for: 1d12h\n"
        "    keep_firing_for: 90s\n"
        "    labels: &labels {severity: page, version: 1.50, on: true, day: 2026-01-01, team: }\n"
        "  - <<: *base\n    alert: B\n    labels: {<<: *labels, severity: ticket}\n"
    )
    ((a, b),) = [loaded.rules for loaded in load_rule_files([path])]
    assert isinstance(a, AlertingRule)
    assert isinstance(b, AlertingRule)
    assert {name: template.text for name, template in a.labels} == {
        "severity": "page",
        "version": "1.50",
        "on": "true",
        "day": "2026-01-01",
        "team": "",
    }
    assert (b.name, b.for_s, b.keep_firing_for_s) == ("B", 129600.0, 90.0)
    assert {name: template.text for name, template in b.labels}["severity"] == "ticket"


def test_files_of_other_systems_load(tmp_path: Path) -> None:
    """Windows line ends, a byte order mark, UTF-16, and nothing at all."""
    text = "groups:\r\n- name: g\r\n  rules:\r\n  - {alert: A, expr: up == 0}\r\n"
    path = tmp_path / "mine.yaml"
    for content in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16")):
        path.write_bytes(content)
        assert len(load_rule_files([path])[0].rules) == 1
    for nothing in ("", "# nothing\n", "groups:\n"):
        path.write_text(nothing)
        assert load_rule_files([path]) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "mine.yaml, line 1: expected the node content, but found '<stream end>'"),
        ("groups: [{name: a, name: b}]", "mine.yaml, line 1: 'groups[0].name' is given twice; keep one"),
        ("groups: 5", "mine.yaml: groups: wanted a list"),
        ("rules: []", "mine.yaml: no rule file: it has no list `groups`"),
        ("groups: []\nrules: []", "mine.yaml: rules: unknown key"),
        ("groups: [{name: a}, {name: a}]", "mine.yaml: group a: a second group of this name"),
        ("groups: [{rules: []}]", "mine.yaml: group 1: name: missing"),
        (
            "groups: [{name: a, interval: fast}]",
            "mine.yaml: group a: interval: 'fast' is not a duration such as 500ms, 30s, 5m, 1h30m or 1d12h",
        ),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    assert refused(tmp_path, text) == reason


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRuleError, match=r"nothing\.yaml: cannot be read"):
        load_rule_files([tmp_path / "nothing.yaml"])


def test_error_in_one_of_our_files_names_it_from_the_package_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = [path for path in builtin_rule_files() if path.name == "latency.yaml"]
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"groups: [{name: ttft, rules: [{record: a, expr: foo(b)}]}]")
    with pytest.raises(BadRuleError) as caught:
        load_rule_files([path])
    assert str(caught.value) == "rules/latency.yaml: group ttft, rule 1 a: unknown function foo()"


def _or_of_names(node: Node) -> bool:
    return (
        isinstance(node, Binary)
        and node.op == "or"
        and isinstance(node.lhs, Selector)
        and isinstance(node.rhs, Selector)
    )


def test_no_window_of_ours_is_over_one_name_or_another() -> None:
    """A function drops the names: a node that told first the one and then the other failed the rule."""

    def fails(node: Node) -> bool:
        return (isinstance(node, Subquery) and _or_of_names(node.expr)) or any(map(fails, children(node)))

    rules = [
        rule for group in load_rule_files([*builtin_signal_files(), *builtin_rule_files()]) for rule in group.rules
    ]
    assert [rule.name for rule in rules if fails(rule.query.root)] == []
    queries = {one.id: sample_query(one.query) for one in builtin_knowledge().questions.values()}
    assert [name for name, query in queries.items() if fails(parse(query).root)] == []


def test_a_strangers_rule_file_loads() -> None:
    (loaded,) = load_rule_files([DATA / "rules" / "rules.yml"])
    assert len(loaded.rules) == 15
    first = loaded.rules[0]
    assert isinstance(first, AlertingRule)
    assert (first.name, first.for_s) == ("NvidiaGpuExporterCollectionFailing", 600.0)


def test_every_alert_of_ours_says_what_a_person_needs() -> None:
    for loaded in load_rule_files(builtin_rule_files()):
        for rule in loaded.rules:
            if not isinstance(rule, AlertingRule):
                continue
            labels = {name: template.text for name, template in rule.labels}
            texts = {name: template.text for name, template in rule.annotations}
            assert labels["severity"] in ("page", "ticket"), rule.name
            assert set(texts) - {"looks_back"} == {"summary", "description", "runbook_url"}, rule.name
            assert "$value" in texts["summary"] + texts["description"], rule.name
            assert texts["runbook_url"] == f"docs/alerts.md#{rule.name.lower()}"


def test_every_alert_of_ours_is_documented() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    headings = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    rules = [rule for loaded in load_rule_files(builtin_rule_files()) for rule in loaded.rules]
    assert headings == {rule.name for rule in rules if isinstance(rule, AlertingRule)}


def test_series_are_recorded_under_the_canonical_prefix_only() -> None:
    files = [*builtin_signal_files(), *builtin_rule_files()]
    names = {rule.name for loaded in load_rule_files(files) for rule in loaded.rules if rule.kind == "record"}
    assert all(name.startswith("llm:") for name in names)
