from __future__ import annotations

from pathlib import Path

import pytest

from alerts.content import builtin_rule_files, builtin_signal_files
from alerts.errors import BadRuleError
from alerts.rules import AlertingRule, load_rule_files

DATA = Path(__file__).parent / "data"


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
        ("{record: a}", "expr: Field required"),
        ("{record: a-b, expr: c}", "'a-b' is not a metric name"),
        ("{record: a, expr: c, for: 5m}", "for, keep_firing_for and annotations belong to alerts only"),
        ("{alert: A, expr: b, fro: 5m}", "fro: unknown key"),
        ("{alert: A, expr: b, for: 5x}", "for: '5x' is not a duration such as 30s, 5m or 1h30m"),
        ("{alert: A, expr: 'b[5m]'}", "the expression gives no single value per series"),
        ("{alert: A, expr: b, labels: {a-b: c}}", "'a-b' is not a label name"),
        ("{alert: A, expr: b, annotations: {s: '{{ x }}'}}", "annotation s: unknown function x in {{ x }}"),
        ("{alert: A, expr: b, annotations: {s: '{{ if $value }}'}}",
         "annotation s: if is not supported in {{ if $value }}"),
    ],
)  # fmt: skip
def test_bad_rule_is_named_by_file_group_and_number(tmp_path: Path, rule: str, reason: str) -> None:
    message = refused(tmp_path, group(rule))
    assert message.startswith("mine.yaml: group ttft, rule 2")
    assert message.removeprefix("mine.yaml: group ttft, rule 2").lstrip(": ") == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "mine.yaml, line 1: expected the node content, but found '<stream end>'"),
        ("groups: [{name: a, name: b}]", "mine.yaml, line 1: key 'name' is given twice"),
        ("groups: 5", "mine.yaml: groups: Input should be a valid list"),
        ("rules: []", "mine.yaml: rules: unknown key"),
        ("groups: [{name: a}, {name: a}]", "mine.yaml: group a: a second group of this name"),
        ("groups: [{rules: []}]", "mine.yaml: group 1: name: Field required"),
        ("groups: [{name: a, interval: fast}]",
         "mine.yaml: group a: interval: 'fast' is not a duration such as 30s, 5m or 1h30m"),
    ],
)  # fmt: skip
def test_bad_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    assert refused(tmp_path, text) == reason


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRuleError, match=r"nothing\.yaml: cannot be read"):
        load_rule_files([tmp_path / "nothing.yaml"])


def test_error_in_one_of_our_files_names_it_from_the_package_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = [path for path in builtin_rule_files() if path.name == "latency.yaml"]
    monkeypatch.setattr(
        Path, "read_text", lambda self, encoding: "groups: [{name: ttft, rules: [{record: a, expr: foo(b)}]}]"
    )
    with pytest.raises(BadRuleError) as caught:
        load_rule_files([path])
    assert str(caught.value) == "rules/latency.yaml: group ttft, rule 1: unknown function foo()"


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
            assert set(texts) == {"summary", "description", "runbook_url"}, rule.name
            assert "$value" in texts["summary"] + texts["description"], rule.name
            assert texts["runbook_url"] == f"docs/alerts.md#{rule.name.lower()}"


def test_every_alert_of_ours_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    headings = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    rules = [rule for loaded in load_rule_files(builtin_rule_files()) for rule in loaded.rules]
    assert headings == {rule.name for rule in rules if isinstance(rule, AlertingRule)}


def test_series_are_recorded_under_the_canonical_prefix_only() -> None:
    files = [*builtin_signal_files(), *builtin_rule_files()]
    names = {rule.name for loaded in load_rule_files(files) for rule in loaded.rules if rule.kind == "record"}
    assert all(name.startswith("llm:") for name in names)
