"""Where series lie: the head as it grows, places that are given again, and series that move to a group of their own."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from structlog.testing import CapturingLogger

from alerts.labels import LabelSet
from alerts.matcher import Matcher
from alerts.promql import evaluate
from alerts.sample import MISSING, is_stale_nan
from alerts.series.chunk import PackedChunk, PlainChunk, find_rows, merge_chunks
from alerts.series.head import HEAD_POINTS, HeadBlock
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

TARGET = {"node": "n1"}
X = LabelSet.of({"__name__": "x"})
X_OF_TARGET = LabelSet.of({"__name__": "x", **TARGET})
NAMED_X = (Matcher("__name__", "=", "x"),)
X_OR_Y = (Matcher("__name__", "=~", "x|y"),)


def numbered(name: str, number: int) -> LabelSet:
    return LabelSet.of({"__name__": name, "n": str(number)})


def points(store: SeriesStore, name: str) -> list[tuple[float, float | str]]:
    """All points of the one series of this name; a staleness marker as "stale"."""
    ((_, found),) = store.dump(0.0, 1e9, names=[name])
    return [(at, "stale" if is_stale_nan(value) else value) for at, value in found]


def found_by(store: SeriesStore, matchers: tuple[Matcher, ...]) -> list[str]:
    return sorted(series.labels.get("n") for series in store.select(matchers).series)


# -- the head ------------------------------------------------------------------------------------------------------


def test_series_beyond_the_first_size_of_the_head_keep_their_points() -> None:
    store = SeriesStore()
    for at in range(1, 4):
        for number in range(700):
            assert store.append_at(numbered("x", number), at * 1000, float(number * at))
    for labels, found in store.dump(0.0, 1e9):
        number = int(labels["n"])
        assert found == [(float(at), float(number * at)) for at in range(1, 4)]
    assert store.num_series == 700
    assert sum(sample.value for sample in evaluate("x", store, 3.0)) == 3.0 * sum(range(700))
    store.check_integrity()


def test_series_of_one_scrape_beyond_the_first_size_of_the_head_keep_their_points() -> None:
    store = SeriesStore()
    for at in range(1, 4):
        store.ingest(TARGET, "".join(f'x{{n="{number}"}} {number + at}\n' for number in range(100 * at)), float(at))
    by_number = {int(labels["n"]): found for labels, found in store.dump(0.0, 1e9, names=["x"])}
    assert len(by_number) == 300
    for number, found in by_number.items():
        assert found == [(float(at), float(number + at)) for at in range(1 + number // 100, 4)]


def test_bytes_of_the_head_are_those_of_its_series_and_of_the_times_of_its_groups() -> None:
    head, store = HeadBlock(), SeriesStore()
    of_times = head.times.nbytes + head.fill.nbytes + head.chunks_until_ms.nbytes
    assert head.num_bytes == store.num_bytes == of_times
    for number in range(3):
        store.append_at(numbered("x", number), 1000, 1.0)
    assert store.num_bytes == of_times + 3 * HEAD_POINTS * 8
    store.append_points(numbered("x", 0), array("q", range(2000, 3000)), array("d", [1.0] * 1000))
    assert store.num_bytes > of_times + 3 * HEAD_POINTS * 8 + 8 * 1000


def test_place_of_a_series_that_was_forgotten_is_given_again_without_its_points() -> None:
    store, other = SeriesStore(retention_s=60.0), {"node": "n2"}
    store.ingest(other, "y 7\nz 8\n", 1.0)
    for at in range(10, 31, 10):
        store.ingest(TARGET, "x 1\n", float(at))
    store.forget_target(other)
    for at in range(40, 161, 10):
        store.ingest(TARGET, "x 1\n", float(at))
    assert store.num_series == 4
    before = store.num_bytes
    store.ingest(TARGET, "x 1\nw 2\n", 170.0)
    assert points(store, "w") == [(170.0, 2.0)]
    assert [sample.value for sample in evaluate("count_over_time(w[10m])", store, 170.0)] == [1.0]
    store.ingest({"node": "n3"}, "v 3\n", 171.0)
    assert points(store, "v") == [(171.0, 3.0)]
    assert store.num_bytes == before  # all of them lie where others did
    store.check_integrity()


# -- series that two write -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scrapes", [1, 10, 40])
def test_scraped_series_that_another_appends_to_keeps_its_points_and_is_seen_where_it_lies_now(scrapes: int) -> None:
    store = SeriesStore()
    for at in range(1, scrapes + 1):
        store.ingest(TARGET, f"x {at}\ny {-at}\n", float(at))
    assert [sample.value for sample in evaluate("x", store, float(scrapes))] == [scrapes]
    assert len(store.select(X_OR_Y)) == 2
    assert store.append_at(X_OF_TARGET, scrapes * 1000 + 500, 99.0)
    store.append_at(X, 1000, 0.0)
    assert len(store.select(X_OR_Y)) == 3
    assert sorted(sample.value for sample in evaluate("x", store, scrapes + 0.5)) == [0.0, 99.0]
    store.check_integrity()
    store.ingest(TARGET, "x 70\ny -70\n", scrapes + 1.0)
    (found,) = store.dump(0.0, 1e9, names=["x"], wanted=lambda labels: labels.get("node") == "n1")
    expected = [(float(at), float(at)) for at in range(1, scrapes + 1)]
    assert found[1] == [*expected, (scrapes + 0.5, 99.0), (scrapes + 1.0, 70.0)]
    assert points(store, "y") == [(at, -value) for at, value in expected] + [(scrapes + 1.0, -70.0)]
    store.check_integrity()


def test_series_of_two_that_a_rule_records_is_appended_to_without_an_end_of_the_other() -> None:
    store = SeriesStore()
    appender, both = store.appender(), LabelColumn([numbered("x", 1), numbered("x", 2)])
    appender.set_series(both, lambda: both)
    store.append_column(appender, 1000, np.array([1.0, 2.0]))
    assert store.append_at(numbered("x", 1), 2000, 3.0)
    assert sorted(sample.value for sample in evaluate("x", store, 2.0)) == [2.0, 3.0]
    appender.set_series(both, lambda: both)
    store.append_column(appender, 3000, np.array([4.0, 5.0]))
    assert sorted(sample.value for sample in evaluate("x", store, 3.0)) == [4.0, 5.0]
    assert store.dropped_samples == 0
    store.check_integrity()


def test_series_of_a_target_lie_together_as_they_come_and_go() -> None:
    store = SeriesStore()

    def groups() -> int:
        return len({id(series.group) for series in store.select((Matcher("node", "=", "n1"),)).series})

    for at, names in enumerate(("xy", "xyz", "xz", "xw", "xyw"), 1):
        store.ingest(TARGET, "".join(f"{name} 1\n" for name in names), float(at))
        assert groups() == 1
    store.forget_target(TARGET)
    store.append_at(X, 100_000, 1.0)  # a minute later the store looks through what it has
    store.ingest(TARGET, "x 1\ny 1\n", 101.0)
    assert groups() == 1


def test_selection_of_several_metrics_sees_a_series_move_while_another_one_leaves() -> None:
    store = SeriesStore(retention_s=60.0)
    store.append_at(numbered("y", 1), 0, 1.0)
    store.append_at(numbered("y", 2), 50_000, 2.0)
    store.ingest({}, "x 5\nz 6\n", 59.0)
    assert len(store.select(X_OR_Y)) == 3
    assert store.append_at(X, 61_000, 7.0)  # x moves, and of y the oldest is forgotten
    found = store.select(X_OR_Y)
    assert sorted(zip(*found.newest(61_000, 0)[1:2], strict=True)) == [(2.0,), (7.0,)]


def test_selection_sees_that_one_series_came_while_another_one_left() -> None:
    store = SeriesStore(retention_s=60.0)
    store.append_at(numbered("x", 1), 0, 1.0)
    store.append_at(numbered("x", 2), 50_000, 2.0)
    assert found_by(store, NAMED_X) == ["1", "2"]
    version = store.names_version
    store.append_at(numbered("x", 3), 61_000, 3.0)
    assert found_by(store, NAMED_X) == ["2", "3"]
    assert store.names_version == version


def test_selection_knows_whether_its_series_are_of_one_metric_and_whether_a_target_gave_them() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\ny 1\n", 1.0)
    one, several = store.select(NAMED_X).labels, store.select(X_OR_Y).labels
    assert (one.has_one_name, several.has_one_name) == (True, False)
    assert one.without_names().is_distinct
    assert not several.without_names().is_distinct
    store.append_at(numbered("recorded", 1), 1000, 1.0)
    recorded = store.select((Matcher("__name__", "=", "recorded"),)).labels
    assert (one.is_wide, several.is_wide, recorded.is_wide) == (True, True, False)


def test_selector_whose_metric_is_gone_finds_nothing_and_finds_it_again() -> None:
    store = SeriesStore(retention_s=60.0)
    store.append_at(numbered("x", 1), 0, 1.0)
    assert found_by(store, NAMED_X) == found_by(store, X_OR_Y) == ["1"]
    store.append_at(numbered("z", 1), 61_000, 1.0)
    assert found_by(store, NAMED_X) == found_by(store, X_OR_Y) == []
    store.append_at(numbered("x", 2), 62_000, 1.0)
    assert found_by(store, NAMED_X) == found_by(store, X_OR_Y) == ["2"]
    assert len(store.select((Matcher("__name__", "=", "x"), Matcher("__name__", "!=", "x")))) == 0
    assert len(store.select((Matcher("n", "=~", "1|2"),))) == 2


# -- how long ------------------------------------------------------------------------------------------------------


def test_points_are_kept_for_longer_from_then_on_and_never_for_less() -> None:
    store = SeriesStore(retention_s=60.0)
    appender, recorded = store.appender(keep_s=600.0), LabelColumn([numbered("recorded", 1)])

    def append(at: int) -> None:
        store.append_at(X, at * 1000, float(at))
        appender.set_series(recorded, lambda: recorded)
        store.append_column(appender, at * 1000, np.array([float(at)]))

    append(0)
    store.keep_at_least(300.0)
    store.keep_at_least(10.0)
    store.append_at(numbered("later", 1), 1000, 1.0)
    for at in range(30, 301, 30):
        append(at)
    assert [at for at, _ in points(store, "x")] == [float(at) for at in range(30, 301, 30)]
    assert points(store, "later") == [(1.0, 1.0)]
    append(600)
    append(660)
    assert points(store, "x")[0][0] > 300.0
    assert points(store, "recorded")[0][0] == 90.0
    assert store.retention_ms == 300_000


def test_many_points_at_once_move_the_time_by_which_older_ones_are_forgotten() -> None:
    store = SeriesStore(retention_s=60.0)
    old = LabelSet.of({"__name__": "old"})
    store.append_points(old, array("q", [0, 1000]), array("d", [1.0, 2.0]))
    store.append_points(X, array("q", [0, 30_000, 200_000]), array("d", [1.0, 2.0, 3.0]))
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 1e9)] == ["x"]


def test_matrix_moves_the_time_by_which_older_points_are_forgotten() -> None:
    store = SeriesStore(retention_s=60.0)
    store.append_matrix([LabelSet.of({"__name__": "old"})], np.array([0, 1000]), np.ones((1, 2)))
    store.append_matrix([X], np.array([0, 30_000, 200_000]), np.ones((1, 3)))
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 1e9)] == ["x"]


def test_points_that_are_dropped_add_up() -> None:
    store = SeriesStore(max_series=1)
    two, values = array("q", [1000, 2000]), array("d", [1.0, 2.0])
    store.append_points(X, two, values)
    store.append_points(numbered("y", 1), two, values)
    store.append_points(numbered("y", 1), two, values)
    assert store.dropped_samples == 4
    store.append_points(X, two, values)
    assert store.dropped_samples == 6
    store.append_matrix([numbered("y", 1), numbered("y", 2)], np.array([1000, 2000]), np.ones((2, 2)))
    assert store.dropped_samples == 10
    store.append_matrix([], np.array([1000]), np.ones((0, 1)))
    store.append_matrix([X], np.empty(0, dtype=np.int64), np.ones((1, 0)))
    assert store.dropped_samples == 10
    assert points(store, "x") == [(1.0, 1.0), (2.0, 2.0)]


def test_store_keeps_an_hour_of_a_million_series_unless_told_otherwise() -> None:
    store = SeriesStore()
    assert (store.retention_ms, store.max_series, store.max_points) == (3_600_000, 1_000_000, 20_000)
    assert store.max_bytes == 1 << 30


def test_failed_target_keeps_its_error_when_its_series_are_gone_and_a_forgotten_one_leaves_nothing() -> None:
    store, other = SeriesStore(retention_s=60.0), {"node": "n2"}
    for target in (TARGET, other):
        store.ingest(target, None, 0.0)
    store.forget_target(other)
    store.append_at(X, 100_000, 1.0)
    assert store.num_series == 1
    assert store.last_error(TARGET) == "scrape failed"
    assert [owner.labels.as_dict() for owner in store._targets.values()] == [TARGET]


@pytest.mark.parametrize(("spacing_s", "num_points"), [(4, 16), (5, 8)])
def test_chunk_spans_at_most_an_eighth_of_the_retention(spacing_s: int, num_points: int) -> None:
    store = SeriesStore(retention_s=480.0)
    for at in range(0, 60 * spacing_s, spacing_s):
        store.append_at(X, at * 1000, float(at))
    (series,) = store.select(NAMED_X).series
    assert series.group is not None
    assert max(len(chunk.times) for chunk in series.group.chunks) == num_points


def test_history_that_just_fits_is_kept_and_a_byte_less_cuts_the_oldest_chunk() -> None:
    values, labels = np.random.default_rng(3).random(512), numbered("x", 1)

    def kept_within(max_bytes: int) -> int:
        store = SeriesStore(max_bytes=max_bytes, retention_s=1e6)
        store.append_points(labels, np.arange(512) * 1000, values)
        store.append_at(numbered("y", 1), 600_000, 1.0)
        return sum(len(found) for _, found in store.dump(0.0, 1e9, names=["x"]))

    whole = SeriesStore()
    before = whole.num_bytes
    whole.append_points(labels, np.arange(512) * 1000, values)
    num_bytes = whole.num_bytes - before - HEAD_POINTS * 8
    assert kept_within(num_bytes) == 512
    assert 256 <= kept_within(num_bytes - 1) < 512
    assert 256 <= kept_within(num_bytes * 3 // 4) < 512
    assert kept_within(1) == 0


def test_points_beyond_the_retention_go_also_where_bytes_would_allow_them() -> None:
    store = SeriesStore(max_bytes=4000, retention_s=60.0)
    store.append_points(X, np.arange(256) * 1000, np.random.default_rng(3).random(256))
    store.append_at(numbered("y", 1), 260_000, 1.0)
    store.append_at(numbered("z", 1), 330_000, 1.0)
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 1e9)] == ["z"]


def test_recording_holds_values_as_they_are_and_another_store_packs_them() -> None:
    packed, plain = SeriesStore(), SeriesStore(is_recording=True)
    for store in (packed, plain):
        store.append_matrix([X], np.arange(1000), np.ones((1, 1000)))
    assert plain.num_bytes == packed.num_bytes + 1000 * 8 - 8 * (8 + 1)  # eight chunks of one value and its kind


def test_full_store_is_logged_once_until_a_series_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = CapturingLogger()
    monkeypatch.setattr("alerts.series.store.log", logged)
    store = SeriesStore(max_series=1, retention_s=60.0)
    store.append_at(numbered("x", 1), 0, 1.0)
    assert logged.calls == []
    for at_ms in (1000, 2000, 3000):
        store.append_at(numbered("x", 2), at_ms, 1.0)
    assert [call.args for call in logged.calls] == [("store.full",)]
    store.append_at(numbered("x", 2), 70_000, 1.0)
    store.append_at(numbered("x", 2), 71_000, 1.0)
    store.ingest({"n": "3"}, "x 1\n", 72.0)
    assert [call.args for call in logged.calls] == [("store.full",)] * 2
    assert [call.kwargs["refused"] for call in logged.calls] == [
        repr(numbered(name, n)) for name, n in (("x", 2), ("up", 3))
    ]


def test_a_target_whose_labels_never_repeat_takes_nobody_elses_room(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = CapturingLogger()
    monkeypatch.setattr("alerts.series.store.log", logged)
    store = SeriesStore(max_series=30, max_target_series=10)
    for at in range(20):
        store.ingest({"n": "churning"}, f'running 2\nlast{{request="{at}"}} 1\n', float(at))
        store.ingest({"n": "well"}, "".join(f"x{i} 1\n" for i in range(5)), float(at))
    assert store.num_series == 10 + 5 + 3  # up and the like
    assert [call.args for call in logged.calls] == [("store.target_full",)]
    found = evaluate('count_over_time(running[1m]) and on (n) up{n="churning"} == 1', store, 20.0)
    assert [sample.value for sample in found] == [20.0]
    store.check_integrity()


def test_a_target_whose_text_cannot_be_read_is_logged_when_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = CapturingLogger()
    monkeypatch.setattr("alerts.series.store.log", logged)
    store = SeriesStore()
    for at, text in enumerate(("<html>", "<html>", "x 1\n", "<html>", None, "<html>")):
        store.ingest({"n": "1"}, text, float(at))
    assert [call.args for call in logged.calls] == [("scrape.refused",)] * 3


def test_history_that_is_cut_for_bytes_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = CapturingLogger()
    monkeypatch.setattr("alerts.series.store.log", logged)
    store = SeriesStore(max_bytes=2000, retention_s=1e6)
    for at in range(0, 1200, 2):
        store.append_at(X, at * 1000, at / 7)
    assert [call.args for call in logged.calls] == [("store.history_cut",)]


# -- spacing -------------------------------------------------------------------------------------------------------


def test_typical_spacing_of_a_single_series_and_of_thousands() -> None:
    store = SeriesStore()
    store.append_points(X, array("q", [100_000, 105_000]), array("d", [1.0, 1.0]))
    assert store.typical_spacing_s() == 5.0
    labels = [numbered("x", number) for number in range(2500)]
    store.append_matrix(labels, np.array([0, 15_000, 30_000]), np.ones((2500, 3)))
    assert store.typical_spacing_s() == 15.0


def test_typical_spacing_of_a_recording_with_holes_is_that_of_its_runs() -> None:
    store = SeriesStore(retention_s=1e6, is_recording=True)
    runs = [begin + step for begin in (0, 9_000_000, 30_000_000) for step in range(0, 60_000, 15_000)]
    for number in range(5):
        store.append_points(numbered("x", number), array("q", runs), array("d", [1.0] * len(runs)))
    assert store.typical_spacing_s() == 15.0


# -- chunks --------------------------------------------------------------------------------------------------------


def test_rows_of_a_chunk_are_found_by_ref() -> None:
    times = np.array([1000, 2000])
    chunk = PackedChunk(np.array([2, 5, 9]), times, np.arange(6.0).reshape(3, 2))
    there, rows = find_rows(chunk, np.array([0, 2, 3, 9, 12]))
    assert (there.tolist(), rows.tolist()) == ([1, 3], [0, 2])
    assert chunk.read(rows, 1, 2).tolist() == [[1.0], [5.0]]
    assert [found.tolist() for found in find_rows(chunk, np.array([0, 12]))] == [[], []]


def test_chunk_without_series_has_no_rows_and_merges_into_times_alone() -> None:
    none, one = np.empty(0, dtype=np.intp), np.array([4])
    empty = PackedChunk(none, np.array([1000, 2000]), np.empty((0, 2)))
    assert [(found.tolist(), found.dtype) for found in find_rows(empty, np.array([0, 4]))] == [([], np.intp)] * 2
    merged = merge_chunks(empty, PackedChunk(one, np.array([3000]), np.array([[7.0]])))
    assert (merged.refs.tolist(), merged.times.tolist()) == ([4], [1000, 2000, 3000])
    values = merged.read(np.array([0]), 0, 3)
    assert values[0, 2] == 7.0
    assert values[:, :2].tobytes() == np.full((1, 2), MISSING).tobytes()


def test_plain_chunk_reads_rows_in_the_order_that_is_asked_for() -> None:
    values = np.arange(12.0).reshape(3, 4)
    chunk = PlainChunk(np.array([0, 1, 2]), np.arange(4), values)
    assert chunk.read(np.array([0, 1, 2]), 1, 3).tolist() == values[:, 1:3].tolist()
    assert chunk.read(np.array([2, 0]), 0, 2).tolist() == values[[2, 0], :2].tolist()
    assert chunk.read(np.array([0, 1]), 0, 4).tolist() == values[:2].tolist()
    assert chunk.num_bytes == 12 * 8 + 4 * 8


@pytest.mark.parametrize(
    ("step", "num_bytes"),
    [(0, 0), (1, 1), (127, 1), (-127, 1), (128, 2), (32767, 2), (-32767, 2), (32768, 4), (0.1, 8)],
)
def test_point_takes_as_many_bytes_as_its_step_needs(step: float, num_bytes: int) -> None:
    values = np.array([[0.0, step, 2 * step], [5.0, 5.0, 5.0], [0.1, 0.2, 0.3]])
    chunk = PackedChunk(np.arange(3), np.arange(3), values)
    num_points = 3 if num_bytes > 2 else 2
    assert chunk.num_bytes == 3 * 8 + 3 * (8 + 1) + num_points * num_bytes + 3 * 8
    assert chunk.read(np.arange(3), 0, 3).tobytes() == values.tobytes()


def test_bytes_of_a_packed_chunk_count_its_times_and_its_refs() -> None:
    times, values = np.arange(50), np.arange(150.0).reshape(3, 50)
    counted, scattered = PackedChunk(np.arange(3), times, values), PackedChunk(np.array([1, 5, 7]), times, values)
    assert scattered.num_bytes == counted.num_bytes + 3 * 4
    assert counted.num_bytes == 50 * 8 + 3 * (8 + 1 + 49)  # times; each row's first value, kind, and steps of a byte
    assert (counted.refs.tolist(), scattered.refs.tolist()) == ([0, 1, 2], [1, 5, 7])
