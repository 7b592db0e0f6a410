"""The black box keeps an incident whole, and a damaged file is noticed."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from alerts.sample import STALE_NAN
from diagnostics import blackbox
from diagnostics.blackbox import BadBlackBoxError, BlackBox, RecordedSeries, is_black_box, read, record_series, write
from diagnostics.record import Fate, Impact
from diagnostics.redaction import redacted
from tests.fixtures.incident import OPENED, make_record

SERIES = RecordedSeries(
    {"__name__": "llm:step_seconds:mean", "node": "node-2"},
    ((OPENED - 10, 0.05), (OPENED - 5, math.inf), (OPENED, -math.inf), (OPENED + 5, None)),
)


def make_box(**changes: Any) -> BlackBox:
    fields: dict[str, Any] = {
        "incident": make_record(),
        "written_at": OPENED + 95,
        "since": OPENED - 600,
        "until": OPENED + 95,
        "series": (SERIES,),
        "software": "fleetctl 0.1.0",
    }
    return BlackBox(**fields | changes)


def rewrite(path: Path, change: Any) -> None:
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    changed = change(lines)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in changed).encode()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "boxes" / "inc.blackbox.jsonl.gz"
    write(written, make_box())
    return written


def test_reads_back_what_was_written(path: Path) -> None:
    assert read(path) == make_box()


def test_a_box_is_known_by_its_first_line_whatever_its_name(path: Path, tmp_path: Path) -> None:
    other = path.rename(tmp_path / "copied")
    assert is_black_box(other)
    (tmp_path / "text").write_text("x 1 100\n# EOF\n")
    (tmp_path / "packed").write_bytes(gzip.compress(b"x 1 100\n# EOF\n"))
    (tmp_path / "json").write_bytes(gzip.compress(b'{"kind": "header"}\n'))
    other.write_bytes(other.read_bytes()[:20])
    for name in ("text", "packed", "json", "copied", "nothing"):
        assert not is_black_box(tmp_path / name)


def test_the_same_recording_gives_the_same_bytes_and_leaves_no_other_file(path: Path) -> None:
    before = path.read_bytes()
    write(path, make_box())

    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_old_file(path: Path) -> None:
    broken = make_box(series=(RecordedSeries({"__name__": "x"}, ((0.0, object()),)),))  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        write(path, broken)

    assert read(path) == make_box()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_tells_the_end_of_a_series_from_a_value_that_is_not_a_number(tmp_path: Path) -> None:
    dumped = [({"__name__": "b"}, [(1.0, 2.0), (2.0, STALE_NAN)]), ({"__name__": "a"}, [(1.0, math.nan)])]
    target = tmp_path / "x.gz"
    write(target, make_box(series=record_series(dumped)))

    first, second = read(target).series
    assert first.labels == {"__name__": "a"}
    assert first.points[0][1] is not None
    assert math.isnan(first.points[0][1])
    assert second.points == ((1.0, 2.0), (2.0, None))


def test_notices_a_file_cut_short(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadBlackBoxError, match="cut short"):
        read(path)

    path.write_bytes(whole)
    rewrite(path, lambda lines: lines[:-1])
    with pytest.raises(BadBlackBoxError, match="cut short after line"):
        read(path)

    path.write_bytes(whole)
    rewrite(path, lambda lines: lines[:3] + lines[4:])
    with pytest.raises(BadBlackBoxError, match="lines were written"):
        read(path)


DAMAGE = [
    ("another format", lambda ls: [ls[0] | {"format": "zip"}, *ls[1:]], "not a black box"),
    ("a newer version", lambda ls: [ls[0] | {"version": 2}, *ls[1:]], "version 2, this program reads 1"),
    ("no times", lambda ls: [ls[0] | {"since": None}, *ls[1:]], "line 1: since: not a time"),
    ("no incident", lambda ls: [ls[0], *ls[2:]], "line 2: alert before the incident"),
    ("incident field", lambda ls: [ls[0], ls[1] | {"opened_at": "x"}, *ls[2:]], "incident.opened_at"),
    ("labels", lambda ls: [*ls[:-2], ls[-2] | {"labels": {"a": 1}}, ls[-1]], "labels: not a map"),
    ("points", lambda ls: [*ls[:-2], ls[-2] | {"points": [[1]]}, ls[-1]], r"expected \[time, value\]"),
    ("value", lambda ls: [*ls[:-2], ls[-2] | {"points": [[1, "much"]]}, ls[-1]], "'much' is not a value"),
    ("time order", lambda ls: [*ls[:-2], ls[-2] | {"points": [[2, 1], [1, 1]]}, ls[-1]], "times must rise"),
    ("after the end", lambda ls: [*ls, {"kind": "alert"}], "text after the end"),
    ("not an object", lambda ls: [[1], *ls], "not a JSON object"),
    ("empty", lambda _: [], "empty"),
]


@pytest.mark.parametrize(("change", "message"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_refuses_a_damaged_file_and_says_where(path: Path, change: Any, message: str) -> None:
    rewrite(path, change)

    with pytest.raises(BadBlackBoxError, match=message) as caught:
        read(path)

    assert str(path) in str(caught.value)


def test_refuses_what_is_no_gzip_or_missing(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("hello")
    with pytest.raises(BadBlackBoxError, match="damaged"):
        read(plain)
    with pytest.raises(BadBlackBoxError, match="can't be read"):
        read(tmp_path / "missing")


def test_refuses_more_than_a_black_box_may_hold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox, "MAX_POINTS", 3)
    with pytest.raises(BadBlackBoxError, match="more than"):
        read(path)
    monkeypatch.setattr(blackbox, "MAX_LINE_BYTES", 50)
    with pytest.raises(BadBlackBoxError, match="larger than"):
        read(path)


def test_passes_over_lines_of_a_later_minor_version(path: Path) -> None:
    def add(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*lines[:-1], {"kind": "hologram"}, lines[-1] | {"lines": lines[-1]["lines"] + 1}]

    rewrite(path, add)
    assert read(path) == make_box()


def test_keeps_what_became_of_requests_and_what_else_happened(tmp_path: Path) -> None:
    record = make_record(around=[{"at": OPENED - 60, "kind": "node.started", "text": "node-9 started"}])
    box = make_box(incident=record, impact=Impact(lost=1, fates=[Fate(node="node-2", outcome="failed", count=1)]))
    write(tmp_path / "x.gz", box)
    assert read(tmp_path / "x.gz") == box


def test_reads_of_the_series_only_what_is_asked_for_and_checks_them_all(path: Path) -> None:
    assert read(path, keeps=lambda labels: False) == make_box(series=())
    rewrite(path, lambda lines: [*lines[:-2], lines[-2] | {"points": [[2, 1], [1, 1]]}, lines[-1]])
    with pytest.raises(BadBlackBoxError, match="times must rise"):
        read(path, keeps=lambda labels: False)


SECRETS = [
    "curl -H 'Authorization: Bearer abcdef0123456789' x",
    "flt-abcdefghijklmnopqrstuvwxyz",
    "postgresql://fleet:hunter2secret@db/x",
    "password=hunter2secret",
    "api_key: hunter2secret",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.hunter2secret",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_credential_leaves_with_the_file(tmp_path: Path, secret: str) -> None:
    record = make_record(timeline=[{"at": OPENED, "kind": "incident.commented", "text": f"ann: {secret}"}])
    write(tmp_path / "x.gz", make_box(incident=record))
    text = gzip.decompress((tmp_path / "x.gz").read_bytes()).decode()
    assert "[redacted]" in text
    for part in ("hunter2secret", "abcdef0123456789", "abcdefghijklmnop"):
        assert part not in text


def test_what_is_no_credential_stays_as_it_was(tmp_path: Path) -> None:
    text = (
        "tokens: 4 in flight, token count 3000; the secret of it is a fan; basic checks passed at http://node-2:8000/x"
    )
    assert redacted(text) == text
