"""Runner for the script language of Prometheus' own PromQL tests (promqltest)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from alerts.duration import parse_duration_s
from alerts.errors import AlertsError
from alerts.notation import NativeHistogramError, parse_series, parse_values
from alerts.promql import evaluate_range, parse
from alerts.promql.evaluator import Moment
from alerts.promql.values import Matrix, Vector
from alerts.sample import STALE, LabelSet, is_stale
from alerts.store import SeriesStore

_EVAL_INSTANT = re.compile(r"eval(_\w+)? instant (?:at (\S+) )?(.*)", re.S)
_EVAL_RANGE = re.compile(r"eval(_\w+)? range from (\S+) to (\S+) step (\S+) (.*)", re.S)


@dataclass
class Outcome:
    """Lines of the evaluations that held, that failed, and that need what we do not support."""

    passed: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    unsupported: dict[int, str] = field(default_factory=dict)
    num_unchecked_annotations: int = 0


def seconds(text: str) -> float:
    """A duration of the script: it may have a sign, and may be a plain number."""
    bare = text.lstrip("+-")
    return parse_duration_s(bare, or_number=True) * (-1.0 if text.startswith("-") else 1.0)


def run_file(path: Path) -> Outcome:
    runner = _Runner()
    for number, block in _blocks(path.read_text()):
        runner.run(number, block)
    return runner.outcome


def _blocks(text: str):
    """(line number, lines) of each command; continuation lines are indented or start with expect/{/a name."""
    current: list[str] = []
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith("#"):
            continue
        if re.match(r"(load|load_with_nhcb|eval\w*|clear)\b", line):
            if current:
                yield start, current
            current, start = [bare], number
        elif not bare:
            if current:
                yield start, current
            current = []
        elif current:
            current.append(bare)
        else:
            raise AssertionError(f"line {number}: no command: {bare}")
    if current:
        yield start, current


class _Runner:
    def __init__(self) -> None:
        self.outcome = Outcome()
        self._clear()

    def _clear(self) -> None:
        self.store = SeriesStore(retention_s=1e9, max_points=10_000_000)
        self.has_native: list[str] = []
        self.has_nhcb = False

    def run(self, number: int, block: list[str]) -> None:
        head = block[0]
        if head == "clear":
            self._clear()
        elif head.startswith("load"):
            self._load(block)
        else:
            self._eval(number, block)

    def _load(self, block: list[str]) -> None:
        command, interval = block[0].split()
        step_s = seconds(interval)
        self.has_nhcb |= command == "load_with_nhcb"
        loaded = {}  # a series given twice in one load: the later line counts
        for line in block[1:]:
            labels, text = parse_series(line)
            loaded[labels] = text
        for labels, text in loaded.items():
            try:
                values = parse_values(text)
            except NativeHistogramError:
                self.has_native.append(labels.name)
                continue
            for index, value in enumerate(values):
                if value is not None:
                    self.store.append(labels.as_dict(), index * step_s, value)

    def _eval(self, number: int, block: list[str]) -> None:
        expects, rows, wants_fail, ordered, texts = (
            [],
            [],
            block[0].startswith("eval_fail"),
            block[0].startswith("eval_ordered"),
            [],
        )
        fail_message = None
        for line in block[1:]:
            if line.startswith("expect "):
                kind = line.removeprefix("expect ").strip()
                if kind.startswith("fail"):
                    wants_fail = True
                    message = re.match(r"fail\s+(msg|regex)\s*:\s*(.*)", kind)
                    if message:
                        fail_message = message.groups()
                elif kind.startswith("ordered"):
                    ordered = True
                elif kind.startswith("string"):
                    texts.append(kind.removeprefix("string").strip().strip('"`'))
                elif kind.startswith("range vector"):
                    texts.append(None)
                    self.range_vector = kind.split()
                else:
                    expects.append(kind)
            elif line.startswith(("expected_fail_message", "expected_fail_regexp")):
                kind, _, text = line.partition(" ")
                fail_message = ("msg" if kind.endswith("message") else "regex", text)
            else:
                rows.append(line)
        self.outcome.num_unchecked_annotations += len([e for e in expects if not e.startswith("no_")])
        expression = block[0]
        reason = self._why_unsupported(expression, rows)
        if reason:
            self.outcome.unsupported[number] = reason
            return
        try:
            problem = self._check(block[0], rows, ordered, texts)
        except AlertsError as error:
            message = str(error)
            if "not supported" in message:
                self.outcome.unsupported[number] = message
                return
            if wants_fail:
                kind, text = fail_message or ("regex", "")
                good = text == message if kind == "msg" else re.search(text, message) is not None
                problem = None if good else f"failed with {message!r}, wanted {text!r}"
            else:
                problem = f"failed: {message}"
        else:
            if wants_fail:
                problem = "did not fail"
        if problem:
            self.outcome.failed[number] = f"{expression}: {problem}"
        else:
            self.outcome.passed.append(number)

    def _why_unsupported(self, expression: str, rows: list[str]) -> str | None:
        if any("{{" in row for row in rows):
            return "native histograms: expected result"
        if any(re.search(rf"\b{re.escape(name)}\b", expression) for name in self.has_native if name):
            return "native histograms: input series"
        if self.has_native and "__name__=~" in expression:
            return "native histograms: input series"
        return None

    def _check(self, head: str, rows: list[str], ordered: bool, texts: list) -> str | None:
        ranged = _EVAL_RANGE.match(head)
        if ranged:
            _, start, end, step, expression = ranged.groups()
            bounds = [seconds(text) for text in (start, end, step)]
            got = {LabelSet.of(labels): points for labels, points in evaluate_range(expression, self.store, *bounds)}
            return _compare_range(got, rows, *bounds)
        match = _EVAL_INSTANT.match(head)
        assert match, head
        at = seconds(match.group(2))
        at_ms = round(at * 1000)
        value = Moment(self.store, at_ms, at_ms, at_ms, 0).evaluate(parse(match.group(3)).root)
        if isinstance(value, str):
            return None if texts == [value] else f"got {value!r}"
        if isinstance(value, float):
            wanted = float(parse_values(rows[0])[0])
            return None if _close(value, wanted) else f"got {value}, wanted {wanted}"
        if isinstance(value, Matrix):
            got = {
                labels: [
                    (t / 1000, v)
                    for t, v in zip(
                        value.times[value.starts[i] : value.starts[i + 1]],
                        value.values[value.starts[i] : value.starts[i + 1]],
                        strict=True,
                    )
                ]
                for i, labels in enumerate(value.labels)
            }
            words = self.range_vector
            return _compare_range(got, rows, *(seconds(words[i]) for i in (3, 5, 7)))
        assert isinstance(value, Vector)
        return _compare_vector(value, rows, ordered)


def _compare_vector(vector: Vector, rows: list[str], ordered: bool) -> str | None:
    wanted = []
    for row in rows:
        labels, text = _read_row(row)
        values = parse_values(text)
        wanted.append((labels, values[0]))
    got = list(zip(vector.labels, vector.values.tolist(), strict=True))
    if len({labels for labels, _ in got}) != len(got):
        return f"duplicate label sets in {got}"
    if ordered:
        same = [g[0] for g in got] == [w[0] for w in wanted]
        if not same:
            return f"order: got {got}, wanted {wanted}"
    found = dict(got)
    if set(found) != {labels for labels, _ in wanted}:
        return f"got {got}, wanted {wanted}"
    for labels, value in wanted:
        if not _close(found[labels], value):
            return f"{labels}: got {found[labels]!r}, wanted {value!r}"
    return None


def _compare_range(got: dict, rows: list[str], start: float, end: float, step: float) -> str | None:
    wanted = {}
    for row in rows:
        labels, text = _read_row(row)
        wanted[labels] = {
            round((start + i * step) * 1000): value
            for i, value in enumerate(parse_values(text))
            if value is not None and not is_stale(value)
        }
    if set(got) != set(wanted):
        return f"got series {sorted(map(repr, got))}, wanted {sorted(map(repr, wanted))}"
    for labels, points in got.items():
        found = {round(t * 1000): v for t, v in points}
        if set(found) != set(wanted[labels]):
            return f"{labels}: got points {found}, wanted {wanted[labels]}"
        for at, value in wanted[labels].items():
            if not _close(found[at], value):
                return f"{labels} at {at} ms: got {found[at]!r}, wanted {value!r}"
    return None


def _read_row(row: str) -> tuple[LabelSet, str]:
    if re.match(r"[-+.\d_]|NaN|Inf", row):
        return LabelSet.of({}), row
    return parse_series(row)


def _close(got: float, wanted: float) -> bool:
    """Prometheus' own tolerance: 1e-6 relative."""
    if math.isnan(got) or math.isnan(wanted):
        return math.isnan(got) and math.isnan(wanted)
    if got == wanted:
        return True
    total, difference = abs(got) + abs(wanted), abs(got - wanted)
    if got == 0 or wanted == 0 or total < 2.3e-308:
        return difference < 1e-6 * 2.3e-308 or (difference < 1e-12 and total < 1e-12)
    return difference / min(total, 1.7976931348623157e308) < 1e-6


__all__ = ["STALE", "Outcome", "run_file"]
