"""Unit tests of rules in promtool's format: ours by our own runner and by the real promtool, a stranger's by ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.errors import BadCaseError
from alerts.evaluation.builtin import builtin_case_files, builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import AlertingRule, load_rule_files
from alerts.promql import parse
from alerts.promql.nodes import metric_names
from alerts.review.casefile import run_case_file
from alerts.review.explain import rule_views
from tests.fixtures import DATA, ROOT

RULES = DATA / "rules"
PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"

needs_promtool = pytest.mark.skipif(
    not Path(PROMTOOL).exists() and not os.environ.get("CI"),
    reason="promtool is not installed: apt-get install prometheus",
)


@pytest.mark.parametrize("path", builtin_case_files(), ids=lambda path: path.stem)
def test_our_rules_behave_as_their_cases_say(path: Path, tmp_path: Path) -> None:
    reports = [run_case_file(case) for case in cases_of_what_they_read(path, tmp_path)]
    assert [failure for report in reports for failure in report.failures] == []
    assert all(report.num_checks > 0 for report in reports)


def test_every_alert_of_ours_fires_in_a_case_and_is_silent_in_another() -> None:
    names = {rule.name for rule in alerting_rules()}
    fires, silent, never = set(), set(), set()
    for path in builtin_case_files():
        for test in yaml.safe_load(path.read_text())["tests"]:
            told = {check["alertname"] for check in test["alert_rule_test"] if check["exp_alerts"]}
            asked = {check["alertname"] for check in test["alert_rule_test"]}
            fires |= told
            never |= asked - told
            silent |= {check["alertname"] for check in test["alert_rule_test"] if not check["exp_alerts"]}
    assert fires == names
    assert silent == names
    assert never == names  # a whole story without it: just under the threshold, explained, or its signal is gone


def alerting_rules() -> list[AlertingRule]:
    groups = load_rule_files(builtin_rule_files())
    return [rule for group in groups for rule in group.rules if isinstance(rule, AlertingRule)]


@pytest.mark.parametrize("rule", alerting_rules(), ids=lambda rule: rule.name)
def test_every_alert_says_what_it_is_and_where_to_read_on(rule: AlertingRule) -> None:
    texts = {name: template.text for name, template in rule.annotations}
    assert {template.text for name, template in rule.labels if name == "severity"} <= {"page", "ticket"}
    assert texts.keys() - {"looks_back"} == {"summary", "description", "runbook_url"}
    assert "$value" in texts["summary"] + texts["description"]
    page, _, anchor = texts["runbook_url"].partition("#")
    headings = [line[3:].lower() for line in (ROOT / page).read_text().splitlines() if line.startswith("## ")]
    assert anchor == rule.name.lower()
    assert anchor in headings


# Whose arms wait differently and can't be told apart, and what is of the last scrape by then.
_LOOKS_BACK_BY_NO_FIXED_TIME = {"LLMOverload", "LLMGPUSoftwareThermal", "LLMGatewayQueue", "LLMGatewayPathSlow"}
_WAITS = re.compile(
    r"max_over_time\([^()]*\[\w+\]\) == 0|min_over_time\([^()]*\[\w+\]\) (>|==)|:changes == 0"
    r"|(age|wait)_seconds > \d"
)


@pytest.mark.parametrize("rule", alerting_rules(), ids=lambda rule: rule.name)
def test_a_rule_whose_expression_waits_says_how_far_it_looks_back(rule: AlertingRule) -> None:
    if rule.name not in _LOOKS_BACK_BY_NO_FIXED_TIME and _WAITS.search(" ".join(str(rule.query.text).split())):
        assert "looks_back" in {name for name, _ in rule.annotations}


def test_every_alert_has_the_reason_for_its_threshold_above_it() -> None:
    views = [view for view in rule_views(builtin_rule_files()) if view.kind == "alert"]
    assert [view.name for view in views if not view.reason] == []


def test_the_page_for_operators_lists_every_alert_as_it_is() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/alerts.md").read_text().splitlines() if line.startswith("| [LLM")]
    listed = {(row[1].strip()[1:].partition("]")[0], row[2].strip()) for row in rows}
    views = [view for view in rule_views(builtin_rule_files()) if view.kind == "alert"]
    assert listed == {(view.name, view.severity) for view in views}


def test_what_the_page_for_operators_says_of_an_alert_begins_with_its_severity_and_names_runbooks_that_exist() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| [LLM")]
    says = dict(re.findall(r"^## (\w+)\n\n(.+)", text, re.MULTILINE))
    pages = {path.stem for path in (ROOT / "runbooks/library").glob("*.md")}
    for row in rows:
        name, severity, first_step = row[1].strip()[1:].partition("]")[0], row[2].strip(), row[5].strip()
        assert first_step, name
        assert says[name].startswith(f"{severity}. "), name
        assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", first_step)) <= pages, name


@needs_promtool
@pytest.mark.parametrize("path", builtin_case_files(), ids=lambda path: path.stem)
def test_promtool_agrees_with_our_cases(path: Path, tmp_path: Path) -> None:
    cases = [str(case) for case in cases_of_what_they_read(path, tmp_path)]
    done = subprocess.run([PROMTOOL, "test", "rules", *cases], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def cases_of_what_they_read(path: Path, folder: Path) -> list[Path]:
    """Each test of the file as a file of its own, over the alerts that it asks for and what these read.

    Every rule of a file is evaluated at every second of every test: of 70 signals and 20 alerts most read a few.
    """
    document = yaml.safe_load(path.read_text())
    contents = [yaml.safe_load((path.parent / name).read_text()) for name in document["rule_files"]]
    rules = [rule for content in contents for group in content["groups"] for rule in group["rules"]]
    cases = []
    for number, test in enumerate(document["tests"]):
        kept = rules_read(rules, test)
        names = []
        for index, content in enumerate(contents):
            groups = [
                {**group, "rules": [rule for rule in group["rules"] if id(rule) in kept]} for group in content["groups"]
            ]
            names.append(f"{number}-rules-{index}.yaml")
            (folder / names[-1]).write_text(yaml.safe_dump({**content, "groups": groups}))
        cases.append(folder / f"{number}-{path.name}")
        cases[-1].write_text(yaml.safe_dump({**document, "rule_files": names, "tests": [test]}))
    return cases


def rules_read(rules: Sequence[dict[str, Any]], test: dict[str, Any]) -> set[int]:
    """Ids of the rules whose alerts or series the test asks for, and of those that they read."""
    recorded = {rule["record"] for rule in rules if "record" in rule}
    checks = [check["expr"] for check in test.get("promql_expr_test", ())]
    alerts = {check["alertname"] for check in test.get("alert_rule_test", ())}
    read = {name for expr in checks for name in names_in(expr, recorded)}
    kept: set[int] = set()
    while more := [rule for rule in rules if id(rule) not in kept and is_read(rule, alerts, read)]:
        kept |= {id(rule) for rule in more}
        read |= {name for rule in more for name in names_in(rule["expr"], recorded)}
    return kept


def is_read(rule: dict[str, Any], alerts: set[str], read: set[str]) -> bool:
    if "record" in rule:
        return rule["record"] in read
    return rule["alert"] in alerts or bool(read & {"ALERTS", "ALERTS_FOR_STATE"})


def names_in(expr: object, recorded: set[str]) -> set[str]:
    """The metrics that an expression reads; of a pattern those that it may mean of the recorded ones."""
    patterns = re.findall(r'__name__=~"([^"]+)"', str(expr))
    return metric_names(parse(str(expr)).root) | {n for n in recorded for one in patterns if re.fullmatch(one, n)}


@needs_promtool
def test_promtool_accepts_our_rule_files() -> None:
    files = [str(path) for path in [*builtin_signal_files(), *builtin_rule_files()]]
    done = subprocess.run([PROMTOOL, "check", "rules", *files], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def without_annotations(tmp_path: Path) -> Path:
    """The stranger's tests are written for its rules without annotations."""
    content = yaml.safe_load((RULES / "rules.yml").read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations")
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_strangers_cases_pass(without_annotations: Path) -> None:
    report = run_case_file(RULES / "tests.yaml", rule_files=[without_annotations])
    assert report.failures == ()
    assert report.num_checks == 32


def test_annotations_count_as_in_promtool() -> None:
    report = run_case_file(RULES / "tests.yaml", rule_files=[RULES / "rules.yml"])
    assert len(report.failures) == 19


def case(tmp_path: Path, text: str) -> Path:
    (tmp_path / "rules.yml").write_text("groups: [{name: g, rules: [{record: 'a:b', expr: sum(x)}]}]")
    path = tmp_path / "case.yml"
    path.write_text(text)
    return path


def test_expression_checks_compare_labels_and_values(tmp_path: Path) -> None:
    text = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - input_series: [{series: 'x{a="1"}', values: '0+1x5 _ stale'}, {series: 'x{a="2"}', values: 1x7}]
    promql_expr_test:
      - {expr: 'a:b', eval_time: 3m, exp_samples: [{labels: 'a:b', value: 4}]}
      - {expr: 'a:b', eval_time: 7m, exp_samples: [{labels: 'a:b', value: 1}]}
      - {expr: 'x', eval_time: 3m, exp_samples: [{labels: 'x{a="1"}', value: 3}]}
"""
    report = run_case_file(case(tmp_path, text))
    assert report.num_checks == 3
    (failure,) = report.failures
    assert "test 1: x at 3m: wanted" in failure


def test_reads_what_promtool_reads(tmp_path: Path) -> None:
    """Rules by an absolute path, a start in RFC 3339, samples without labels, infinity."""
    text = f"""
rule_files: ['{tmp_path / "rule*.yml"}']
evaluation_interval: 1m
tests:
- start_timestamp: 2026-01-01T00:00:00Z
  promql_expr_test:
  - {{expr: time(), eval_time: 1m, exp_samples: [{{value: 1767225660}}]}}
  - {{expr: 1 / 0, eval_time: 0, exp_samples: [{{labels: '{{}}', value: .inf}}]}}
"""
    report = run_case_file(case(tmp_path, text))
    assert (report.num_checks, report.failures) == (2, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tests: 5", "tests: wanted a list"),
        ("tests: []\nrule_files: [none.yml]", "rule_files: no file matches none.yml"),
        ("tests: [{input_series: [{series: x, values: 1+}], promql_expr_test: []}]", "test 1: '1+' is not a value"),
        ("tests: [{input_series: [{series: 'x{', values: '1'}]}]", "test 1: 'x{': expected a label name"),
        ("tests: [{input_series: [{series: x, values: '1x99999999'}]}]", "test 1: more than 1000000 values"),
        ("tests: [{interval: 5}]", "test 1: '5' is not a duration: write 5s for seconds"),
        ("tests: [{start_timestamp: noon}]", "start_timestamp: 'noon' is no timestamp"),
        (
            "tests: [{promql_expr_test: [{expr: x, eval_time: 0, exp_samples: [{histogram: '{{}}'}]}]}]",
            "x: native histograms are not supported",
        ),
        ("groups: []", "rules, no unit tests: fleetctl alerts check"),
        ("a: [", "line 1: expected the node content"),
        ("tests: [{intervall: 1m}]", "tests.0.intervall: unknown key"),
    ],
)
def test_bad_case_file_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadCaseError) as caught:
        run_case_file(case(tmp_path, text))
    assert reason in str(caught.value)
    assert "case.yml" in str(caught.value)
