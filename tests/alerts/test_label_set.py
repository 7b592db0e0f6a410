"""Equal labels are one object, and what nobody uses any more does not stay."""

from __future__ import annotations

from alerts.labels import LabelSet


def number_of_sets() -> int:
    return len(LabelSet._interned)


def test_equal_labels_are_one_object() -> None:
    made = LabelSet.of({"a": "1", "b": "2", "c": ""})
    assert made is LabelSet.of([("b", "2"), ("a", "1")])
    assert made.drop(("b",)) is LabelSet.of({"a": "1"}) is made.keep(("a",))


def test_labels_that_come_and_go_do_not_pile_up() -> None:
    kept = [LabelSet.of({"kept": str(number)}) for number in range(100)]
    before = number_of_sets()
    for number in range(50_000):
        LabelSet.of({"gone": str(number)}).having((("more", "1"),))
    assert number_of_sets() < 2 * before + 20_000
    assert all(entry is LabelSet.of({"kept": str(number)}) for number, entry in enumerate(kept))


def test_set_that_only_a_derived_one_holds_on_to_stays_the_same_object() -> None:
    parent = LabelSet.of({"parent": "1", "x": "1"})
    child = parent.drop(("x",))
    for number in range(20_000):
        LabelSet.of({"also_gone": str(number)})
    assert parent.drop(("x",)) is child is LabelSet.of({"parent": "1"})
