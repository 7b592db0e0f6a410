"""The store at its borders: what is counted, what is kept to the millisecond, and who is refused when it is full."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from alerts.labels import LabelSet
from alerts.matcher import Matcher
from alerts.promql import evaluate
from alerts.sample import is_stale_nan
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

TARGET = {"node": "n1"}
X = LabelSet.of({"__name__": "x"})
Y = LabelSet.of({"__name__": "y"})


def points(store: SeriesStore, name: str) -> list[tuple[float, float | str]]:
    """All points of the one series of this name; a staleness marker as "stale"."""
    ((_, found),) = store.dump(0.0, 1e9, names=[name])
    return [(at, "stale" if is_stale_nan(value) else value) for at, value in found]


def of_scrape(store: SeriesStore, name: str) -> list[float | str]:
    return [value for _, value in points(store, name)]


# -- one scrape ----------------------------------------------------------------------------------------------------


def test_scrape_tells_how_many_samples_it_had_and_how_many_series_were_new() -> None:
    store = SeriesStore()
    assert store.ingest(TARGET, "x 1\ny 2\n", 1.0) == 2
    assert store.ingest(TARGET, "x 1\ny 2\n", 2.0) == 2
    assert store.ingest(TARGET, "x 1\nz 2\nw 3\n", 3.0) == 3
    assert store.ingest(TARGET, None, 4.0) == 0
    assert of_scrape(store, "up") == [1.0, 1.0, 1.0, 0.0]
    assert of_scrape(store, "scrape_samples_scraped") == [2.0, 2.0, 3.0, 0.0]
    assert of_scrape(store, "scrape_series_added") == [2.0, 0.0, 2.0, 0.0]
    assert store.num_series == 3 + 4
    assert store.dropped_samples == 0


def test_line_with_a_time_of_its_own_counts_as_scraped() -> None:
    store = SeriesStore()
    assert store.ingest(TARGET, "x 1 1000\ny 2\n", 5.0) == 2
    assert of_scrape(store, "scrape_samples_scraped") == [2.0]
    assert points(store, "x") == [(1.0, 1.0)]
    assert store.ingest(TARGET, "x 1 1000\ny 2\n", 6.0) == 1  # x at 1 s is there already
    assert store.dropped_samples == 1


def test_scrape_at_an_instant_that_was_scraped_is_dropped_and_counted() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 5.0)
    assert store.ingest(TARGET, "x 2\n", 5.0) == 0
    assert store.dropped_samples == 4  # x, up and the two of the scrape itself
    assert store.ingest(TARGET, "x 2\n", 4.999) == 0
    assert store.dropped_samples == 8
    assert points(store, "x") == [(5.0, 1.0)]


def test_same_line_twice_in_one_scrape_is_one_sample() -> None:
    store = SeriesStore()
    assert store.ingest(TARGET, "x 1\nx 2\n", 1.0) == 1
    assert points(store, "x") == [(1.0, 1.0)]
    assert store.dropped_samples == 1


def test_failed_first_scrape_leaves_up_at_zero_and_nothing_else() -> None:
    store = SeriesStore()
    assert store.ingest(TARGET, None, 1.0) == 0
    assert of_scrape(store, "up") == [0.0]
    assert store.num_series == 3


def test_two_targets_with_one_series_both_go_on() -> None:
    store = SeriesStore()
    for at in (1.0, 3.0, 5.0):
        store.ingest({"node": "n1"}, 'x{exported="a"} 1\n', at)
        store.ingest({"node": "n2"}, "y 1\n", at + 1.0)
    store.append({"__name__": "y", "node": "n1"}, 2.5, 7.0)
    store.ingest({"node": "n1"}, 'x{exported="a"} 1\ny 8\n', 7.0)
    store.ingest({"node": "n1"}, 'x{exported="a"} 1\n', 8.0)
    (found,) = [p for labels, p in store.dump(0.0, 9.0, names=["y"]) if labels["node"] == "n1"]
    assert [at for at, _ in found] == [2.5, 7.0, 8.0]
    assert is_stale_nan(found[2][1])
    store.check_integrity()


def test_target_that_is_not_known_has_no_error_and_is_forgotten_without_one() -> None:
    store = SeriesStore()
    assert store.last_error(TARGET) is None
    store.forget_target(TARGET)
    assert store.num_series == 0


def test_forgotten_target_has_no_error_and_its_series_are_stale_right_after_their_last_sample() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1.0)
    store.ingest(TARGET, None, 2.0)
    store.forget_target(TARGET)
    assert store.last_error(TARGET) is None
    assert points(store, "up") == [(1.0, 1.0), (2.0, 0.0), (2.001, "stale")]
    assert points(store, "x") == [(1.0, 1.0), (2.0, "stale")]
    store.ingest(TARGET, "x 4\n", 4.0)
    assert points(store, "x") == [(1.0, 1.0), (2.0, "stale"), (4.0, 4.0)]
    store.forget_target(TARGET)
    assert points(store, "x")[-1] == (4.001, "stale")


# -- single series -------------------------------------------------------------------------------------------------


def test_appended_point_is_taken_only_when_it_is_newer() -> None:
    store = SeriesStore()
    assert store.append_at(X, 1000, 1.0) is True
    assert store.append_at(X, 1000, 2.0) is False
    assert store.append_at(X, 999, 2.0) is False
    assert store.append_at(X, 1001, 3.0) is True
    assert store.dropped_samples == 2
    assert points(store, "x") == [(1.0, 1.0), (1.001, 3.0)]


def test_many_points_of_a_series_go_on_after_its_last_one() -> None:
    store = SeriesStore()
    store.append_points(X, array("q", [1000, 2000]), array("d", [1.0, 2.0]))
    store.append_points(X, array("q", [1000, 2000, 2001, 3000]), array("d", [9.0, 9.0, 3.0, 4.0]))
    assert points(store, "x") == [(1.0, 1.0), (2.0, 2.0), (2.001, 3.0), (3.0, 4.0)]
    assert store.dropped_samples == 2
    store.append_points(X, array("q", [3000]), array("d", [9.0]))
    store.append_points(X, array("q"), array("d"))
    assert store.dropped_samples == 3
    assert store.bounds() == (1.0, 3.0)


def test_points_that_do_not_fit_are_counted() -> None:
    store = SeriesStore(max_series=1)
    store.append_points(X, array("q", [1000]), array("d", [1.0]))
    store.append_points(Y, array("q", [1000, 2000, 3000]), array("d", [1.0, 2.0, 3.0]))
    assert (store.num_series, store.dropped_samples) == (1, 3)
    store.append_matrix([LabelSet.of({"__name__": "z"})], np.array([1000, 2000]), np.ones((1, 2)))
    assert (store.num_series, store.dropped_samples) == (1, 5)


def test_matrix_of_which_a_part_fits_keeps_that_part() -> None:
    store = SeriesStore(max_series=2)
    labels = [LabelSet.of({"__name__": name}) for name in "abc"]
    store.append_matrix(labels, np.array([1000, 2000]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert (store.num_series, store.dropped_samples) == (2, 2)
    assert points(store, "b") == [(1.0, 3.0), (2.0, 4.0)]


@pytest.mark.parametrize("labels", [[X, Y], [Y, Y]], ids=["known", "twice"])
def test_matrix_with_a_series_that_is_there_goes_on_series_by_series(labels: list[LabelSet]) -> None:
    store = SeriesStore()
    store.append_points(X, array("q", [1000]), array("d", [1.0]))
    store.append_matrix(labels, np.array([1000, 2000]), np.array([[7.0, 8.0], [5.0, 6.0]]))
    if labels == [X, Y]:
        assert points(store, "x") == [(1.0, 1.0), (2.0, 8.0)]
        assert points(store, "y") == [(1.0, 5.0), (2.0, 6.0)]
        assert store.dropped_samples == 1
    else:
        assert points(store, "y") == [(1.0, 7.0), (2.0, 8.0)]
        assert store.dropped_samples == 2
    store.check_integrity()


def test_stale_marker_comes_after_the_last_point_and_once() -> None:
    store = SeriesStore()
    store.mark_stale(X, 1000)
    assert store.num_series == 0
    store.append_at(X, 1000, 1.0)
    store.mark_stale(X, 1000)
    store.mark_stale(X, 999)
    assert points(store, "x") == [(1.0, 1.0)]
    store.mark_stale(X, 1001)
    store.mark_stale(X, 1002)
    assert points(store, "x") == [(1.0, 1.0), (1.001, "stale")]
    assert store.dropped_samples == 0


# -- what a rule records -------------------------------------------------------------------------------------------


def test_recorded_series_that_was_refused_is_taken_when_there_is_room() -> None:
    store = SeriesStore(max_series=2, retention_s=60.0)
    store.append_at(LabelSet.of({"__name__": "old"}), 1000, 1.0)
    appender, column = store.appender(), LabelColumn([X, Y])
    assert appender.set_series(column, lambda: column) == 1
    store.append_column(appender, 2000, np.array([1.0, 2.0]))
    assert store.dropped_samples == 1
    for at_ms in range(62_000, 200_000, 30_000):
        appender.set_series(column, lambda: column)
        store.append_column(appender, at_ms, np.array([1.0, 2.0]))
    assert sorted(labels["__name__"] for labels, _ in store.dump(0.0, 1e9)) == ["x", "y"]
    store.check_integrity()


def test_recorded_series_that_is_given_no_more_is_stale_at_that_time() -> None:
    store = SeriesStore()
    appender, both, one = store.appender(), LabelColumn([X, Y]), LabelColumn([Y])
    assert appender.set_series(both, lambda: both) == 2
    store.append_column(appender, 1000, np.array([1.0, 2.0]))
    assert appender.set_series(both, lambda: both) == 0
    assert appender.set_series(one, lambda: one) == 0
    store.append_column(appender, 2000, np.array([3.0]))
    store.append_column(appender, 3000, np.array([4.0]))
    assert points(store, "x") == [(1.0, 1.0), (2.0, "stale")]
    assert points(store, "y") == [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    assert appender.set_series(both, lambda: both) == 1
    store.append_column(appender, 4000, np.array([5.0, 6.0]))
    assert points(store, "x")[-1] == (4.0, 5.0)


# -- reading -------------------------------------------------------------------------------------------------------


def test_dump_has_both_borders_and_the_names_and_labels_that_are_asked_for() -> None:
    store = SeriesStore()
    for name in ("x", "y"):
        for at in (1.0, 2.0, 3.0):
            store.append({"__name__": name, "a": name * 2}, at, at)
    assert [p for _, p in store.dump(1.0, 2.0, names=["x"])] == [[(1.0, 1.0), (2.0, 2.0)]]
    assert [p for _, p in store.dump(1.001, 2.999, names=["x"])] == [[(2.0, 2.0)]]
    assert list(store.dump(2.001, 2.999)) == []
    assert list(store.dump(0.0, 9.0, names=["z"])) == []
    assert [labels["a"] for labels, _ in store.dump(0.0, 9.0, wanted=lambda one: one.get("a") == "yy")] == ["yy"]
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 9.0, names=["y", "x"])] == ["y", "x"]


def test_bounds_are_the_oldest_and_the_newest_point_of_any_series() -> None:
    store = SeriesStore()
    assert store.bounds() is None
    store.append_at(X, 5000, 1.0)
    assert store.bounds() == (5.0, 5.0)
    store.append_at(Y, 2000, 1.0)
    store.append_at(Y, 9500, 1.0)
    assert store.bounds() == (2.0, 9.5)


def test_typical_spacing_is_the_lower_median_of_series_with_two_points() -> None:
    store = SeriesStore()
    assert store.typical_spacing_s() is None
    store.append_at(X, 0, 1.0)
    assert store.typical_spacing_s() is None
    store.append_points(Y, array("q", [0, 20_000, 50_000]), array("d", [1.0] * 3))
    assert store.typical_spacing_s() == 20.0
    store.append_points(LabelSet.of({"__name__": "z"}), array("q", [0, 30_000]), array("d", [1.0] * 2))
    assert store.typical_spacing_s() == 20.0
    store.append_points(LabelSet.of({"__name__": "w"}), array("q", [0, 25_000]), array("d", [1.0] * 2))
    assert store.typical_spacing_s() == 25.0


def test_names_version_changes_with_the_first_and_the_last_series_of_a_metric() -> None:
    store = SeriesStore(retention_s=10.0)
    versions = [store.names_version]
    store.append_at(X, 1000, 1.0)
    versions.append(store.names_version)
    store.append_at(LabelSet.of({"__name__": "x", "a": "b"}), 1000, 1.0)
    assert store.names_version == versions[-1]
    assert store.has_any(["y", "x"])
    assert not store.has_any(["y"])
    assert not store.has_any([])
    store.append_at(Y, 100_000, 1.0)
    assert not store.has_any(["x"])
    assert len({*versions, store.names_version}) == 3


def test_selector_sees_a_series_that_came_after_it_was_first_asked() -> None:
    store = SeriesStore()
    named = (Matcher("__name__", "=", "x"),)
    anyone = (Matcher("__name__", "=~", "x|y"), Matcher("a", "!=", "no"))
    assert len(store.select(named)) == 0
    store.append_at(X, 1000, 1.0)
    assert (len(store.select(named)), len(store.select(anyone))) == (1, 1)
    assert store.select(named) is store.select(named)
    store.append_at(LabelSet.of({"__name__": "x", "a": "b"}), 1000, 1.0)
    store.append_at(LabelSet.of({"__name__": "x", "a": "no"}), 1000, 1.0)
    store.append_at(Y, 1000, 1.0)
    assert (len(store.select(named)), len(store.select(anyone))) == (3, 3)
    assert len(store.select_any([named, anyone])) == 4
    assert len(store.select_any([])) == 0


# -- forgetting ----------------------------------------------------------------------------------------------------


def test_history_is_looked_through_once_a_minute() -> None:
    store = SeriesStore(retention_s=1.0)
    store.append_at(X, 0, 1.0)
    store.append_at(Y, 59_999, 1.0)
    assert store.num_series == 2
    store.append_at(Y, 60_000, 1.0)
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 1e9)] == ["y"]


def test_point_of_exactly_the_retention_is_forgotten_and_a_younger_one_is_not() -> None:
    store = SeriesStore(retention_s=60.0)
    for at_ms in (0, 1, 60_000):
        store.append_at(X, at_ms, float(at_ms))
    assert points(store, "x") == [(0.001, 1.0), (60.0, 60_000.0)]


def test_recording_forgets_nothing() -> None:
    store = SeriesStore(retention_s=10.0, max_points=20, is_recording=True)
    for at in range(0, 10_000, 10):
        store.append_at(X, at * 1000, float(at))
    assert len(points(store, "x")) == 1000


def test_series_that_does_not_fit_is_taken_when_others_have_left() -> None:
    store = SeriesStore(max_series=1, retention_s=30.0)
    store.append_at(X, 0, 1.0)
    assert not store.append_at(Y, 30_000, 1.0)
    assert not store.append_at(Y, 61_000, 1.0)  # this is what makes the store look
    assert store.append_at(Y, 61_001, 1.0)
    assert (store.num_series, store.dropped_samples) == (1, 2)


def test_when_bytes_are_short_the_oldest_history_of_all_series_goes() -> None:
    small, large = SeriesStore(max_bytes=4096, retention_s=1e6), SeriesStore(retention_s=1e6)
    values = np.random.default_rng(7).random((4, 600))
    for store in (small, large):
        labels = LabelColumn([LabelSet.of({"__name__": name}) for name in "abcd"])
        appender = store.appender()
        for at in range(600):
            appender.set_series(labels, lambda labels=labels: labels)  # type: ignore[misc]
            store.append_column(appender, at * 1000, values[:, at])
    assert len(points(large, "a")) == 600
    kept = points(small, "a")
    assert kept == points(large, "a")[-len(kept) :]
    assert 24 <= len(kept) < 400
    assert [len(points(small, name)) for name in "bcd"] == [len(kept)] * 3
    assert small.num_bytes < large.num_bytes
    small.check_integrity()


def test_head_and_chunks_together_give_every_point_once() -> None:
    store = SeriesStore()
    for at in range(1, 200):
        store.ingest(TARGET, f"x {at}\n" + (f"y {at}\n" if at % 3 else ""), float(at))
    assert points(store, "x") == [(float(at), float(at)) for at in range(1, 200)]
    found = points(store, "y")
    assert [p for p in found if p[1] != "stale"] == [(float(at), float(at)) for at in range(1, 200) if at % 3]
    assert [at for at, value in found if value == "stale"] == [float(at) for at in range(3, 200, 3)]
    for window_s in (1, 23, 24, 25, 31, 32, 33, 100, 198):
        (sample,) = evaluate(f"count_over_time(x[{window_s}s])", store, 199.0)
        assert sample.value == window_s
        (old,) = evaluate(f"sum_over_time(x[{window_s}s] offset 1s)", store, 199.0)
        assert old.value == sum(range(199 - window_s, 199))
    for at in (10.0, 150.0, 167.0, 168.0, 175.0, 198.5):
        (sample,) = evaluate("x", store, at)
        assert (sample.value, sample.at) == (float(int(at)), float(int(at)))
