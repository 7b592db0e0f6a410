from __future__ import annotations

import random

import pytest

from alerts.promql import evaluate
from alerts.sample import is_stale_nan
from alerts.series.store import SeriesStore

TARGET = {"node": "n1", "pool": "chat", "engine": "vllm"}


def values(store: SeriesStore, expression: str, at: float) -> dict[tuple[tuple[str, str], ...], float]:
    return {tuple(sorted(s.labels.items())): s.value for s in evaluate(expression, store, at)}


def number(store: SeriesStore, expression: str, at: float) -> float | None:
    found = evaluate(expression, store, at)
    assert len(found) <= 1
    return found[0].value if found else None


def test_scrape_carries_the_targets_labels_and_renames_clashes() -> None:
    store = SeriesStore()
    store.ingest(TARGET, 'x{engine="0",model_name="m"} 7\n', 10.0)
    (sample,) = evaluate("x", store, 10.0)
    assert sample.labels == {
        "__name__": "x",
        "node": "n1",
        "pool": "chat",
        "engine": "vllm",
        "exported_engine": "0",
        "model_name": "m",
    }
    assert sample.value == 7.0
    assert sample.at == 10.0


def test_empty_target_label_counts_as_absent() -> None:
    store = SeriesStore()
    store.ingest({"node": "n1", "zone": ""}, 'x{zone="eu"} 1', 1.0)
    (sample,) = evaluate("x", store, 1.0)
    assert sample.labels["zone"] == "eu"


def test_point_counts_for_five_minutes() -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 0.0, 1.0)
    assert number(store, "x", 299.999) == 1.0
    assert number(store, "x", 300.0) is None


def test_series_missing_from_a_scrape_ends_at_once() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\ny 1\n", 1.0)
    store.ingest(TARGET, "x 1\n", 2.0)
    assert number(store, "x", 2.0) == 1.0
    assert number(store, "y", 2.0) is None
    assert number(store, "y", 1.5) == 1.0
    store.ingest(TARGET, "x 1\ny 3\n", 3.0)
    assert number(store, "y", 3.0) == 3.0


def test_failed_scrape_ends_every_series_and_up_is_zero() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1.0)
    assert number(store, "up", 1.0) == 1.0
    assert store.ingest(TARGET, None, 2.0) == 0
    assert number(store, "up", 2.0) == 0.0
    assert number(store, "x", 2.0) is None
    assert store.last_error(TARGET) == "scrape failed"


def test_unreadable_text_counts_as_a_failed_scrape_and_stores_nothing() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1.0)
    assert store.ingest(TARGET, "x 2\n<html>\n", 2.0) == 0
    assert number(store, "up", 2.0) == 0.0
    assert number(store, "x", 2.0) is None
    assert store.last_error(TARGET) == "metrics text refused: line 2: expected a metric name, found '<html>'"
    store.ingest(TARGET, "x 3\n", 3.0)
    assert store.last_error(TARGET) is None
    assert number(store, "x", 3.0) == 3.0


def test_forgotten_target_ends_with_up() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1.0)
    store.forget_target(TARGET)
    assert number(store, "up", 2.0) is None
    assert number(store, "x", 2.0) is None
    store.forget_target(TARGET)
    store.check_integrity()


def test_line_with_its_own_time_is_stored_there() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 5 7000\n", 10.0)
    (sample,) = evaluate("x", store, 10.0)
    assert sample.at == 7.0
    store.ingest(TARGET, "y 1\n", 11.0)
    assert number(store, "x", 11.0) == 5.0


def test_older_point_is_dropped_and_counted() -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 2.0, 2.0)
    store.append({"__name__": "x"}, 1.0, 1.0)
    assert store.dropped_samples == 1
    assert number(store, "x", 2.0) == 2.0


def test_full_store_drops_new_series_and_keeps_the_old_ones_growing() -> None:
    store = SeriesStore(max_series=2)
    for name in ("a", "b", "c"):
        store.append({"__name__": name}, 1.0, 1.0)
    store.append({"__name__": "a"}, 2.0, 5.0)
    assert store.num_series == 2
    assert store.dropped_samples == 1
    assert number(store, "a", 2.0) == 5.0
    store.check_integrity()


def test_old_points_and_series_are_forgotten() -> None:
    store = SeriesStore(retention_s=100.0)
    store.append({"__name__": "old"}, 0.0, 1.0)
    for at in range(0, 400, 10):
        store.append({"__name__": "new"}, float(at), 1.0)
    assert number(store, "count_over_time(new[1h])", 400.0) <= 20  # type: ignore[operator]
    assert [labels["__name__"] for labels, _ in store.dump(0.0, 400.0)] == ["new"]
    store.check_integrity()


def test_target_whose_series_were_forgotten_is_scraped_on() -> None:
    store = SeriesStore(retention_s=100.0)
    store.ingest(TARGET, "x 1\nrare 1\n", 0.0)
    for at in range(10, 400, 10):
        store.ingest(TARGET, "x 1\n", float(at))
    store.ingest(TARGET, "x 1\nrare 2\n", 400.0)
    assert number(store, "rare", 400.0) == 2.0
    assert number(store, "count(x)", 400.0) == 1.0
    store.check_integrity()


def test_points_of_one_series_are_bounded() -> None:
    store = SeriesStore(max_points=50)
    for at in range(300):
        store.append({"__name__": "x"}, float(at), 1.0)
    assert number(store, "count_over_time(x[1h])", 300.0) <= 50 + 60 + 16  # type: ignore[operator]


def test_dump_gives_points_between_and_the_end_of_a_series() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1.0)
    store.ingest(TARGET, "x 2\n", 2.0)
    store.ingest(TARGET, None, 3.0)
    dumped = {labels["__name__"]: points for labels, points in store.dump(2.0, 3.0)}
    assert dumped["x"][0] == (2.0, 2.0)
    assert dumped["x"][1][0] == 3.0
    assert is_stale_nan(dumped["x"][1][1])
    assert dumped["up"] == [(2.0, 1.0), (3.0, 0.0)]


def test_texts_of_vanished_series_do_not_pile_up() -> None:
    store = SeriesStore()
    for at in range(3000):
        store.ingest(TARGET, f'x{{request="{at}"}} 1\n', float(at))
    assert store.num_series <= 3600 + 3
    assert len(store._layouts._layouts) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_random_scrapes_keep_the_store_whole(seed: int) -> None:
    dice = random.Random(seed)
    store = SeriesStore(retention_s=50.0, max_series=40)
    targets = [{"node": f"n{i}"} for i in range(3)]
    for at in range(300):
        target = dice.choice(targets)
        match dice.randrange(8):
            case 0:
                store.ingest(target, None, float(at))
            case 1:
                store.forget_target(target)
            case 2:
                store.ingest(target, "broken{", float(at))
            case _:
                names = dice.sample("abcdefghij", dice.randrange(6))
                store.ingest(target, "".join(f"{name} {at}\n" for name in names), float(at))
                if all(any(store.dump(0.0, 1e9, names=[name])) for name in names):
                    assert store.last_error(target) is None
        store.check_integrity()


def test_window_asked_for_again_has_what_was_scraped_in_between() -> None:
    store, other = SeriesStore(), {"node": "n2"}
    store.ingest(TARGET, "x 1\ny 1\n", 1000.0)
    assert [number(store, f"count_over_time({name}[20s])", 1010.0) for name in "xy"] == [1, 1]
    store.ingest(TARGET, "x 2\ny 2\n", 1005.0)
    assert [number(store, f"count_over_time({name}[20s])", 1010.0) for name in "yx"] == [2, 2]
    store.ingest(other, "x 3\n", 1006.0)
    assert sorted(values(store, "count_over_time(x[20s])", 1010.0).values()) == [1, 2]
    for second in range(1010, 1310, 5):  # the oldest columns leave the head
        store.ingest(TARGET, f"x {second}\ny 2\n", float(second))
        num_points = min(24, len(range(1000, second + 1, 5)))
        assert number(store, "count_over_time(y[2m])", second + 1.0) == num_points
    store.forget_target(other)
    store.forget_target(TARGET)
    store.ingest({"node": "n3"}, "x 1\n", 8000.0)  # what was forgotten has left, and n3 may have its place
    assert number(store, "count_over_time(x[20s])", 8001.0) == 1
    store.check_integrity()
