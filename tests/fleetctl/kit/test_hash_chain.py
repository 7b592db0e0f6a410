"""Rows that hold each other: whatever is done to them is found at the first row that is touched."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.kit.hash_chain import BrokenChain, ChainLink, follow_chain, meets_head, next_hash

Row = tuple[dict[str, Any], str]


def written(texts: list[str], after: ChainLink = ChainLink()) -> list[Row]:  # noqa: B008 - frozen
    rows: list[Row] = []
    for text in texts:
        fields = {"seq": after.seq + 1, "text": text}
        after = ChainLink(after.seq + 1, next_hash(after.hash, fields))
        rows.append((fields, after.hash))
    return rows


def head_of(rows: list[Row]) -> ChainLink:
    return ChainLink(rows[-1][0]["seq"], rows[-1][1])


def broken_at(rows: list[Row], head: ChainLink, after: ChainLink = ChainLink()) -> int | None:  # noqa: B008 - frozen
    found = follow_chain(rows, after)
    broken = found if isinstance(found, BrokenChain) else meets_head(found, head)
    return None if broken is None else broken.seq


texts = st.lists(st.text(max_size=20), min_size=2, max_size=12)


@given(texts, st.data())
def test_rows_as_they_were_written_hold_from_any_link_on(given_texts: list[str], data: st.DataObject) -> None:
    rows = written(given_texts)
    cut = data.draw(st.integers(0, len(rows) - 1))
    after = head_of(rows[:cut]) if cut else ChainLink()
    assert broken_at(rows[cut:], head_of(rows), after) is None


@given(texts, st.data())
def test_the_first_row_that_was_edited_removed_or_added_is_named(given_texts: list[str], data: st.DataObject) -> None:
    rows = written(given_texts)
    at = data.draw(st.integers(0, len(rows) - 1))
    how = data.draw(st.sampled_from(["edited", "removed", "added", "swapped in with a hash of its own"]))
    fields, own_hash = rows[at]
    forged = list(rows)
    if how == "edited":
        forged[at] = ({**fields, "text": fields["text"] + "x"}, own_hash)
    elif how == "removed":
        del forged[at]
    elif how == "added":
        forged.insert(at, (fields, own_hash))
    else:
        before = rows[at - 1][1] if at else ChainLink().hash
        changed = {**fields, "text": fields["text"] + "x"}
        forged[at] = (changed, next_hash(before, changed))
    found = broken_at(forged, head_of(rows))
    # A row that was made anew fits what is before it: the one after it tells, or the head.
    expected = {"added": at + 2, "edited": at + 1, "removed": at + 1}.get(how, min(at + 2, len(rows)))
    assert found == expected


@given(texts, st.integers(1, 3))
def test_a_chain_that_was_cut_off_at_its_end_is_missed_by_its_head(given_texts: list[str], num_cut: int) -> None:
    rows = written(given_texts)
    left = rows[: max(0, len(rows) - num_cut)]
    assert broken_at(left, head_of(rows)) == len(left) + 1
