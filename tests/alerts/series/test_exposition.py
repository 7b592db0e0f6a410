from __future__ import annotations

import math

import pytest

from alerts.errors import BadExpositionError
from alerts.series.exposition import parse
from alerts.series.store import SeriesStore
from tests.fixtures import DATA

METRICS = DATA / "metrics"

NUM_SAMPLES = {
    "dcgm_kops_L4_scrape1.prom": 23,
    "dcgm_readme_blank_sentinel.prom": 3,
    "sglang_datadog_v0.5.10.prom": 43,
    "trtllm_triton_inflight.prom": 20,
    "vllm_v1_full_qwen25_0.5b_2026-03.prom": 395,
}


@pytest.mark.parametrize("name", sorted(NUM_SAMPLES))
def test_reads_every_line_of_a_real_engine(name: str) -> None:
    text = (METRICS / name).read_text()
    lines = parse(text)
    assert len(lines) == NUM_SAMPLES[name]
    assert len(lines) == sum(1 for line in text.splitlines() if line.strip() and not line.startswith("#"))


@pytest.mark.parametrize("name", sorted(NUM_SAMPLES))
def test_second_scrape_finds_the_same_series_by_their_text(name: str) -> None:
    text = (METRICS / name).read_text()
    store = SeriesStore()
    assert store.ingest({"node": "a"}, text, 1.0) == NUM_SAMPLES[name]
    count = store.num_series
    assert store.ingest({"node": "a"}, text, 2.0) == NUM_SAMPLES[name]
    assert store.num_series == count
    store.check_integrity()


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("up 1", {"__name__": "up"}, 1.0),
        ("up\t1", {"__name__": "up"}, 1.0),
        ('a{b="c"} 2.5e3', {"__name__": "a", "b": "c"}, 2500.0),
        ('a { b = "c" , } 2', {"__name__": "a", "b": "c"}, 2.0),
        ('a{b="x \\"y\\" \\\\ \\n} z"} 2', {"__name__": "a", "b": 'x "y" \\ \n} z'}, 2.0),
        ('{"my.metric",b="c"} 1', {"__name__": "my.metric", "b": "c"}, 1.0),
        ("a:b_total +Inf", {"__name__": "a:b_total"}, math.inf),
        ('a{b=""} -Inf', {"__name__": "a"}, -math.inf),
        ("a 0x1p-2", {"__name__": "a"}, 0.25),
    ],
)
def test_reads_a_line(line: str, labels: dict[str, str], value: float) -> None:
    (read,) = parse(line + "\n")
    assert read.labels.as_dict() == labels
    assert read.value == value


def test_reads_nan() -> None:
    (read,) = parse("a NaN")
    assert math.isnan(read.value)


def test_timestamp_is_milliseconds_in_the_text_format_and_seconds_in_openmetrics() -> None:
    assert parse("a 1 1700000000123")[0].at_ms == 1700000000123
    assert parse("a 1 1700000000.123\n# EOF\n")[0].at_ms == 1700000000123


def test_exemplar_is_left_out() -> None:
    (read,) = parse('a_bucket{le="1"} 5 # {trace_id="x y"} 0.5 1700000000.1\n# EOF')
    assert read.value == 5.0
    assert read.series_text is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a 1\nb", "line 2: has no value"),
        ("a 1\nb x", "line 2: 'x' is not a number"),
        ("a 1_0", "line 1: '1_0' is not a number"),
        ('a{b="c} 1', "line 1: the value of label b is not a closed, quoted string"),
        ('a{b="c",b="d"} 1', "line 1: label b is given twice"),
        ('a{b="c"', "line 1: expected , or } after label b, found the end of the line"),
        ("a{b=c} 1", "line 1: the value of label b is not a closed, quoted string"),
        ('a{b="\\q"} 1', "line 1: unknown escape \\q"),
        ("a 1 2 3", "line 1: unexpected text after the value: '3'"),
        ("a 1 x", "line 1: 'x' is not a timestamp"),
        ('{b="c"} 1', "line 1: has labels but no metric name"),
        ("<html>", "line 1: expected a metric name, found '<html>'"),
        ("a-b 1", "line 1: expected a space after the metric name, found '-b 1'"),
        ("a" * 70_000, "line 1: longer than 65536 characters"),
    ],
)
def test_malformed_text_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(BadExpositionError) as caught:
        parse(text)
    assert str(caught.value) == reason
