from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import load_rule_file
from alerts.evaluation.template import BadTemplateError, parse_template
from alerts.series.store import SeriesStore
from tests.fixtures.alertmanager import NEEDS_PROMETHEUS


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("plain", 1.0, "plain"),
        ("{{ $labels.node }} {{ $labels.missing }}!", 1.0, "n1 !"),
        ("{{ .Labels.node }}/{{ .Value }}", 2.0, "n1/2"),
        ("{{ $value }}", 1234567.5, "1.2345675e+06"),
        ("{{ $value }}", 0.00001, "1e-05"),
        ("{{ $value }}", 100000.0, "100000"),
        ("{{ $value }}", math.inf, "+Inf"),
        ("{{ $value | humanize }}", 1234567.0, "1.235M"),
        ("{{ $value | humanize }}", 0.0123, "12.3m"),
        ("{{ $value | humanize1024 }}", 2048.0, "2ki"),
        ("{{ $value | humanizePercentage }}", 0.12345, "12.35%"),
        ("{{ $value | humanizeDuration }}", 0.2, "200ms"),
        ("{{ $value | humanizeDuration }}", 12.3456, "12.35s"),
        ("{{ $value | humanizeDuration }}", 3725.0, "1h 2m 5s"),
        ("{{ $value | humanizeDuration }}", 90061.0, "1d 1h 1m 1s"),
        ("{{ $value | humanizeDuration }}", -75.0, "-1m 15s"),
        ("{{ $value | humanizeTimestamp }}", 0.0, "1970-01-01 00:00:00 +0000 UTC"),
        ('{{ printf "%.2f" $value }}', 1.2345, "1.23"),
        ('{{ $value | printf "%5.1f|" }}', 1.25, "  1.2|"),
        ('{{ printf "%s=%v 100%%" $labels.node $value }}', 3.0, "n1=3 100%"),
        ("{{ (humanizePercentage $value) | toUpper }}", 0.5, "50%"),
        ('{{ reReplaceAll "n(.)" "node-$1" $labels.node }}', 1.0, "node-1"),
        ('{{ reReplaceAll "n" "$7" $labels.node }}', 1.0, "1"),
        ("a {{- /* said nothing */ -}} b", 1.0, "ab"),
        ("a {{- $value -}} b", 1.0, "a1b"),
    ],
)
def test_renders_as_prometheus_does(text: str, value: float, shown: str) -> None:
    assert parse_template(text).render({"node": "n1"}, value) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ if $value }}x", "if without end in {{ if $value }}"),
        ("x{{ end }}", "end without if, with or range in {{ end }}"),
        ("{{ if $value }}x{{ else }}y{{ else }}z{{ end }}", "if without end in {{ if $value }}"),
        ('{{ define "x" }}a{{ end }}', 'define is not supported in {{ define "x" }}'),
        ('{{ template "x" }}', 'template is not supported in {{ template "x" }}'),
        ("{{ range $i, $e := $x }}{{ end }}", "undefined variable $x in {{ range $i, $e := $x }}"),
        ("{{ with $x := 1 }}{{ end }}{{ $x }}", "undefined variable $x in {{ $x }}"),
        ("{{ $value nope }}", "unexpected 'nope' in {{ $value nope }}"),
        ("{{ $value | 5 }}", "a function must follow | in {{ $value | 5 }}"),
        ("{{ ; }}", "cannot read {{ ; }} at ';'"),
        ('{{ "a }}', "{{ without }}"),
        ("{{ if 1 }}" * 60 + "{{ end }}" * 60, "nested deeper than 50"),
        ("{{ $value | nope }}", "unknown function nope in {{ $value | nope }}"),
        ("{{ $value", "{{ without }}"),
        ("{{ $value | }}", "a function must follow | in {{ $value | }}"),
        ("{{ humanize }}", "humanize got 0 arguments in {{ humanize }}"),
        ("{{ (humanize $value }}", "( without ) in {{ (humanize $value }}"),
        ("{{ $valeu }}", "undefined variable $valeu in {{ $valeu }}"),
        ("{{ }}", "{{  }} is not complete"),
    ],
)
def test_refuses_what_it_cannot_render(text: str, reason: str) -> None:
    with pytest.raises(BadTemplateError) as caught:
        parse_template(text)
    assert str(caught.value) == reason


def test_text_where_a_number_is_wanted_is_an_error() -> None:
    with pytest.raises(BadTemplateError, match="'n1' is not a number"):
        parse_template("{{ humanize $labels.node }}").render({"node": "n1"}, 1.0)


# One annotation a line: what rule files in the wild use, and the corners of each function.
AS_PROMETHEUS = r"""
{{ $labels }}
{{ $value }} {{ .Value }} {{ $labels.node }} {{ .Labels.pool }} {{ $labels.missing }}|
{{ if gt $value 5.0 }}a{{ else }}b{{ end }}
{{ if lt $value 5.0 }}a{{ else if eq $labels.node "n1" }}two{{ else }}b{{ end }}
{{ with query "sort(load)" }}{{ . | first | value }}{{ end }}
{{ with query "none" }}x{{ else }}nothing{{ end }}
{{ range query "sort_desc(load)" }}[{{ .Labels.node }}={{ .Value }}]{{ end }}
{{ range $i, $e := query "sort(load)" }}{{ $i }}:{{ $e.Labels.node }} {{ end }}
{{ range $k, $v := $labels }}{{ $k }}={{ $v }};{{ end }}
{{ range query "none" }}x{{ else }}empty{{ end }}
{{ $x := 5 }}{{ $x }} {{ $x = 6 }}{{ $x }}
{{ printf "%.2f %s %d %q %v" $value "a" 5 "b" true }}
{{ printf "%5.1f|%-6s|%06.2f" 3.14159 "ab" $value }}
{{ query "load{node='n2'}" | first | label "node" }}
{{ query "load" | sortByLabel "node" | first | label "node" }}
{{ reReplaceAll "n(.)" "x$1" $labels.node }} {{ match "n." $labels.node }} {{ toUpper "ab" }} {{ title "ab cd" }}
{{ stripPort "a.b:80" }} {{ stripDomain "a.b.c:80" }} {{ stripDomain "10.0.0.1:80" }}
{{ humanize $value }} {{ humanize1024 2048.0 }} {{ humanizeDuration 3725.0 }} {{ humanizePercentage 0.123 }}
{{ eq 1 1 }} {{ ne "a" "b" }} {{ le 1 2 }} {{ not true }} {{ and 1 0 }} {{ or "" "x" }} {{ and true "y" }}
{{ len $labels }} {{ len "abc" }} {{ index $labels "node" }}
{{ (query "load{node='n1'}" | first).Value }}
{{ if and (eq $labels.node "n1") (gt $value 1.0) }}both{{ end }}
{{- " trimmed " -}} x
a {{/* comment }} */}} b {{- /* c */ -}} d
{{ "quoted \"x\"" }} {{ `raw` }} {{ "}}" }}
{{ $labels.node | toUpper | printf "<%s>" }}
{{ args 1 "b" }}
{{ with $labels.node }}{{ . }}{{ end }}
{{ with $n := $labels.node }}{{ $n }}{{ end }}
{{ $.Value }} {{ with 1 }}{{ $.Labels.node }}{{ end }}
{{ print 1 2 "a" "b" 3.5 }} {{ println "x" }}
{{ html "<a>" }} {{ urlquery "a b&c" }}
{{ graphLink "up == 0" }} {{ tableLink "up" }}
{{ parseDuration "1h30m" }}
{{ humanizeTimestamp 1435065584.128 }}
{{ true }} {{ 5 }} {{ 5.0 }} {{ 1e3 }} {{ 0x10 }} {{ -3 }}
{{ safeHtml "x" }} {{ toLower "AB" }}
{{ printf "%d" $value }}
{{ if $labels.missing }}y{{ else }}n{{ end }}
{{ printf "%s" }}
{{ printf "%s" "a" "b" }}
{{ eq $labels.node "a" "n1" }}
{{ $value | printf "%.1f%%" }}
{{ humanizePercentage $value }} {{ humanizeDuration 0.0001 }} {{ humanize 0.00012345 }} {{ humanize 1234567.0 }}
""".strip().split("\n")


@NEEDS_PROMETHEUS
def test_every_template_says_what_it_says_in_prometheus(tmp_path: Path) -> None:
    """promtool is given what we render as what it has to find."""
    texts = {f"t{index:02d}": text for index, text in enumerate(AS_PROMETHEUS)}
    rules = tmp_path / "rules.yml"
    rule = {"alert": "A", "expr": "load{node='n1'} > 1", "labels": {"x": "{{ $labels.pool }}"}, "annotations": texts}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    store = SeriesStore()
    values = {"n1": 7.25, "n2": 3.0}
    for node, value in values.items():
        store.append({"__name__": "load", "node": node, "pool": "p"}, 0.0, value)
    engine = RuleEngine(load_rule_file(rules), store)
    engine.tick(0.0)
    (alert,) = engine.alerts()
    series = [{"series": f'load{{node="{node}",pool="p"}}', "values": str(value)} for node, value in values.items()]
    labels = {"node": "n1", "pool": "p", "x": "p"}
    expected = {"exp_labels": labels, "exp_annotations": dict(alert.annotations)}
    check = {"eval_time": "0s", "alertname": "A", "exp_alerts": [expected]}
    case = {"rule_files": ["rules.yml"], "tests": [{"input_series": series, "alert_rule_test": [check]}]}
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case, allow_unicode=True))
    promtool = shutil.which("promtool") or "/usr/bin/promtool"
    told = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "case.yml")], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ gt $value 5 }}", "incompatible types for comparison: 7 and 5; write 5.0 for a float"),
        ('{{ query "none" | first }}', "query has nothing to ask here"),
        ("{{ range $value }}{{ end }}", "range can't iterate over 7"),
        ("{{ $labels.node.x }}", "nothing called x in n1"),
        ('{{ parseDuration "1d1d" }}', "'1d1d' is not a duration: units go from large to small"),
        ('{{ reReplaceAll "(" "" "x" }}', "bad regular expression"),
        ("{{ humanizeTimestamp 1e300 }}", ""),
        ("{{ index $labels 1 2 }}", "no index 2"),
        ('{{ range $k, $v := $labels }}{{ printf "%60000s" "x" }}{{ end }}', "gives more than 65536 characters"),
    ],
)
def test_a_value_that_cannot_be_taken_is_an_error_of_the_template(text: str, reason: str) -> None:
    with pytest.raises(BadTemplateError) as caught:
        parse_template(text).render({"node": "n1", "pool": "p"}, 7.0)
    assert reason in str(caught.value)


def test_names_that_only_prometheus_knows_are_empty() -> None:
    text = "{{ $externalLabels.cluster }}|{{ $externalURL }}|{{ externalURL }}|{{ pathPrefix }}|{{ .ExternalURL }}"
    assert parse_template(text).render({}, 1.0) == "||||"
