"""Whether client, log and metrics of the node agree on how every request ended, and with which tokens. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engine.soak.client import Outcome

STATES = ("finished", "moved", "aborted", "failed", "refused", "invalid")
# What the node may say of a request that its client gave up: the answer may have been on its way.
AFTER_GIVING_UP = frozenset(STATES)
MAX_PROBLEMS = 20

Line = Mapping[str, Any]


class RequestAccounting:
    """All requests of a run. A closed request is checked once and dropped; only counts are kept."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, bool], Outcome] = {}
        self._lines: dict[tuple[str, bool], list[Line]] = defaultdict(list)
        self._moved: dict[str, Line] = {}
        self._answers: dict[str, tuple[int, ...]] = {}
        self._wrong: list[str] = []
        self.known_answers = 0  # that were compared
        self.endings: Counter[tuple[str, str]] = Counter()  # (kind, ending)
        self.states: Counter[str] = Counter()  # by the log
        self.choices = 0  # sequences that ended on this node
        self.tokens = 0  # generated on this node

    def record_outcome(self, outcome: Outcome) -> None:
        """How one request ended for its client."""
        self.endings[outcome.kind, outcome.ending] += 1
        self._open[outcome.request_id, outcome.is_continuation] = outcome

    def compare_answer(self, answer: str, outcome: Outcome) -> None:
        """An answer that must always have the same tokens; the first one of its name is what others are held to."""
        if outcome.ending != "finished":
            return
        wanted = self._answers.setdefault(answer, outcome.said)
        self.known_answers += 1
        if outcome.said != wanted or not wanted:
            same = next(
                (i for i, pair in enumerate(zip(outcome.said, wanted, strict=False)) if len(set(pair)) > 1), "?"
            )
            counts = f"{len(outcome.said)} tokens, {len(wanted)} wanted, token {same} is the first that differs"
            self._wrong.append(f"{outcome.request_id} ({outcome.kind}): not the answer of {answer} alone: {counts}")

    def record_log_line(self, line: Line) -> None:
        """One `request.finished` event of the node's log."""
        request_id, state, is_continued = str(line["request_id"]), str(line["state"]), bool(line["continued"])
        self._lines[request_id, is_continued].append(line)
        self.states[state] += 1
        tokens = int(line["tokens_out"] or 0)
        ended = [reason for reason in line["finish_reasons"] if reason is not None]
        choices = len(ended) if state == "moved" else int(line["choices"])
        if is_continued and (before := self._moved.pop(request_id, None)) is not None and line["choices"]:
            # What the first part generated and ended was counted there.
            tokens -= int(before["tokens_out"] or 0)
            choices -= sum(reason is not None for reason in before["finish_reasons"])
        if state == "moved":
            self._moved[request_id] = line
        self.tokens += tokens
        self.choices += choices

    def reconcile(self) -> list[str]:
        """Problems of all requests so far. Call when nothing is in flight."""
        problems, self._wrong = self._wrong, []
        for key, outcome in self._open.items():
            problems += _compare(outcome, self._lines.pop(key, []))
        for (request_id, _), lines in self._lines.items():
            if request_id.startswith("soak-"):
                problems.append(f"{request_id}: {len(lines)} lines in the log of a request that nobody sent")
        self._open.clear()
        self._lines.clear()
        return problems[:MAX_PROBLEMS]


def _compare(outcome: Outcome, lines: list[Line]) -> list[str]:
    who = f"{outcome.request_id} ({outcome.kind})"
    if outcome.ending == "cut":
        return [f"{who}: cut: {outcome.detail}"]
    if not lines and outcome.ending == "given_up" and outcome.status is None:
        return []  # it was given up before it reached the node
    if len(lines) != 1:
        return [f"{who}: {outcome.ending} for its client, but {len(lines)} terminal states in the log"]
    state = str(lines[0]["state"])
    if state not in (AFTER_GIVING_UP if outcome.ending == "given_up" else {outcome.ending}):
        return [f"{who}: {outcome.ending} for its client, {state} in the log"]
    if outcome.tokens is not None and outcome.tokens != lines[0]["tokens_out"]:
        return [f"{who}: {outcome.tokens} tokens in its usage, {lines[0]['tokens_out']} in the log"]
    return []


def compare_metrics(accounting: RequestAccounting, exposition: str) -> list[str]:
    """Problems between the log and the metrics. Call when nothing is in flight."""
    found: dict[str, float] = defaultdict(float)
    states: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == "engine_requests_total":
                states[sample.labels["state"]] = sample.value
            found[sample.name] += sample.value
    expected: list[tuple[str, float]] = [
        *((f"engine_requests_total of {state}", accounting.states[state]) for state in states),
        ("vllm:request_success_total", accounting.choices),
        ("vllm:e2e_request_latency_seconds_count", accounting.choices),
        ("vllm:request_generation_tokens_count", accounting.choices),
        ("vllm:generation_tokens_total", accounting.tokens),
        ("vllm:num_requests_running", 0),
        ("vllm:num_requests_waiting", 0),
        ("vllm:kv_cache_usage_perc", 0),
        ("engine_oldest_waiting_seconds", 0),
        ("engine_oldest_running_seconds", 0),
        ("engine_admission_rejected_total", accounting.states["refused"]),
    ]
    found.update({f"engine_requests_total of {state}": value for state, value in states.items()})
    return [f"{name} is {found[name]:g}, the log has {value:g}" for name, value in expected if found[name] != value] + [
        f"no state {state} in engine_requests_total" for state in accounting.states if state not in states
    ]


def values_of(exposition: str, names: Iterable[str]) -> dict[str, float]:
    """Sums of these series."""
    wanted = set(names)
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name in wanted:
                sums[sample.name] += sample.value
    return dict(sums)
