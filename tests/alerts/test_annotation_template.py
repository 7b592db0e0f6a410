from __future__ import annotations

import math

import pytest

from alerts.template import BadTemplateError, parse_template


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
        ("a {{- /* said nothing */ -}} b", 1.0, "ab"),
        ("a {{- $value -}} b", 1.0, "a1b"),
    ],
)
def test_renders_as_prometheus_does(text: str, value: float, shown: str) -> None:
    assert parse_template(text).render({"node": "n1"}, value) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ if $value }}x{{ end }}", "if is not supported in {{ if $value }}"),
        ('{{ query "up" | first | value }}', 'query is not supported in {{ query "up" | first | value }}'),
        ("{{ $value | nope }}", "unknown function nope in {{ $value | nope }}"),
        ("{{ $value", "{{ without }}"),
        ("{{ $value | }}", "a function must follow | in {{ $value | }}"),
        ("{{ humanize }}", "humanize got 0 arguments in {{ humanize }}"),
        ("{{ (humanize $value }}", "( without ) in {{ (humanize $value }}"),
        ("{{ $valeu }}", "cannot read {{ $valeu }} at '$valeu'"),
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
