"""What shadows found: how far copies of requests were answered as the requests were. Sums only, no text."""

from __future__ import annotations

import statistics
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric

from fleetctl.gateway.requests.answer_text import AnswerText
from fleetctl.traffic_rule import ShadowSpec, TrafficRule

Json = dict[str, Any]

MAX_RULES = 50  # reports are kept when their rule has ended
MAX_SAMPLES = 512
MAX_EXAMPLES = 10
AGREEMENT_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


class ShadowResult(StrEnum):
    """What became of one copy."""

    COMPARED = "compared"  # text, length and TTFT
    MEASURED = "measured"  # length and TTFT only: neither greedy nor seeded, so that other words say nothing
    USER_ENDED = "user_ended"  # the user's own answer failed, was refused or was hung up on
    TOO_LONG = "too_long"  # an answer is longer than what is kept of one
    REFUSED = "refused"  # 429 or 503
    FAILED = "failed"  # any other error, a cut, silence
    DROPPED = "dropped"  # as many were in flight as may be
    NO_NODE = "no_node"  # the pool or revision has none that takes requests
    SAME_NODES = "same_nodes"  # the user's request went to this very pool or revision

    @property
    def is_error(self) -> bool:
        """Whether it speaks against what is shadowed."""
        return self in (ShadowResult.REFUSED, ShadowResult.FAILED)

    @property
    def was_sent(self) -> bool:
        """Whether a node was asked."""
        return self not in (ShadowResult.DROPPED, ShadowResult.NO_NODE, ShadowResult.SAME_NODES)


class Comparison(NamedTuple):
    """`agreement`: characters that both answers begin with, as a share of the longer one; the mean over choices."""

    agreement: float
    is_exact: bool


def compare_texts(users: Sequence[str], shadows: Sequence[str]) -> Comparison:
    """How far two answers agree, choice by choice. A choice that only one of them has agrees in nothing."""
    if not users and not shadows:
        return Comparison(1.0, True)
    ratios = [
        _prefix_ratio(users[i], shadows[i]) if i < min(len(users), len(shadows)) else 0.0
        for i in range(max(len(users), len(shadows)))
    ]
    return Comparison(statistics.fmean(ratios), tuple(users) == tuple(shadows))


def _prefix_ratio(one: str, other: str) -> float:
    longer, shorter = max(len(one), len(other)), min(len(one), len(other))
    if not longer or one == other:
        return 1.0
    return next((at for at in range(shorter) if one[at] != other[at]), shorter) / longer


@dataclass(slots=True)
class _Report:
    rule: TrafficRule
    is_removed: bool = False
    results: Counter[ShadowResult] = field(default_factory=Counter)
    num_exact: int = 0
    agreement_sum: float = 0.0
    num_counted: int = 0  # copies of which both lengths are known
    user_tokens: int = 0
    shadow_tokens: int = 0
    user_ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    shadow_ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    differing: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EXAMPLES))

    def told(self, now: float) -> Json:
        """Its sums, as they can be added to those of other workers."""
        rule = self.rule
        assert isinstance(rule.spec, ShadowSpec)
        return {
            "rule": rule.id,
            "orders": rule.spec.words,
            "made_by": rule.made_by,
            "made_at": rule.made_at,
            "expires_at": rule.expires_at,
            "in_force": not self.is_removed and rule.is_in_force(now),
            "exact": self.num_exact,
            "agreement_sum": self.agreement_sum,
            "counted": self.num_counted,
            "user_tokens": self.user_tokens,
            "shadow_tokens": self.shadow_tokens,
            "user_ttft_s": list(self.user_ttft_s),
            "shadow_ttft_s": list(self.shadow_ttft_s),
            "results": {result.value: self.results[result] for result in ShadowResult},
            "differing": list(self.differing),
        }


class ShadowReports:
    """The reports of the last shadows, and `gateway_shadow_*`. Threading: event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reports: OrderedDict[str, _Report] = OrderedDict()
        self._requests = CounterMetric(
            "gateway_shadow_requests_total",
            "Copies of requests that shadows sent, or left out, by what became of them.",
            ["result"],
            registry=registry,
        )
        self._agreement = Histogram(
            "gateway_shadow_agreement_ratio",
            "Share of the longer answer that a user's and its copy's answer begin with.",
            buckets=AGREEMENT_BUCKETS,
            registry=registry,
        )
        for result in ShadowResult:
            self._requests.labels(result.value)

    def keep_rules(self, rules: Iterable[TrafficRule]) -> None:
        """The shadows in force. A rule that was made anew, with the same id, begins a new report.

        One that is not among them was removed or has expired: its report stays.
        """
        known = {rule.id: rule for rule in rules}
        for rule in known.values():
            report = self._reports.get(rule.id)
            if report is None or (report.rule.made_at, report.rule.spec) != (rule.made_at, rule.spec):
                self._reports[rule.id] = _Report(rule)
                self._reports.move_to_end(rule.id)
            while len(self._reports) > MAX_RULES:
                self._reports.popitem(last=False)
        for report in self._reports.values():
            report.is_removed = report.rule.id not in known

    def note(self, rule_id: str, result: ShadowResult) -> None:
        """One copy has ended, or was left out."""
        self._requests.labels(result.value).inc()
        if (report := self._reports.get(rule_id)) is not None:
            report.results[result] += 1

    def note_comparison(self, rule_id: str, request_id: str, user: AnswerText, shadow: AnswerText) -> None:
        """The texts of a copy and of its request."""
        agreement, is_exact = compare_texts(user.texts, shadow.texts)
        self._agreement.observe(agreement)
        if (report := self._reports.get(rule_id)) is not None:
            report.agreement_sum += agreement
            report.num_exact += is_exact
            if not is_exact:
                report.differing.append(request_id)

    def note_lengths(self, rule_id: str, user: AnswerText, shadow: AnswerText) -> None:
        """How many tokens both have, where both are known."""
        report = self._reports.get(rule_id)
        if report is not None and user.num_tokens is not None and shadow.num_tokens is not None:
            report.num_counted += 1
            report.user_tokens += user.num_tokens
            report.shadow_tokens += shadow.num_tokens

    def note_ttft(self, rule_id: str, user_s: float, shadow_s: float) -> None:
        """Seconds until the first event of both streams."""
        if (report := self._reports.get(rule_id)) is not None:
            report.user_ttft_s.append(user_s)
            report.shadow_ttft_s.append(shadow_s)

    def told(self, now: float) -> list[Json]:
        """What this worker found, for `joined_shadows`; the newest shadow first. `now`: Unix seconds."""
        return [report.told(now) for report in reversed(self._reports.values())]


def joined_shadows(parts: Sequence[Sequence[Json]]) -> Json:
    """The body of `GET /gateway/shadow` of all workers, of which each told its sums; the newest shadow first.

    A rule that was made anew begins a new report: what a worker found by the older one is left out.
    """
    found: dict[str, list[Json]] = {}
    for told in (one for part in parts for one in part):
        known = found.setdefault(told["rule"], [])
        if known and told["made_at"] > known[0]["made_at"]:
            known.clear()
        if not known or told["made_at"] == known[0]["made_at"]:
            known.append(told)
    reports = sorted(found.values(), key=lambda same: same[0]["made_at"], reverse=True)
    return {"shadows": [_joined_report(same) for same in reports]}


def _joined_report(same: Sequence[Json]) -> Json:
    first = same[0]
    results = {result: sum(one["results"][result] for one in same) for result in ShadowResult}
    exact, agreement, counted, user_tokens, shadow_tokens = (
        sum(one[key] for one in same) for key in ("exact", "agreement_sum", "counted", "user_tokens", "shadow_tokens")
    )
    num_compared = results[ShadowResult.COMPARED]
    newest_first = (one for row in zip_longest(*(reversed(told["differing"]) for told in same)) for one in row if one)
    return {
        **{key: first[key] for key in ("rule", "orders", "made_by", "made_at", "expires_at")},
        "in_force": any(one["in_force"] for one in same),
        "requests": sum(count for result, count in results.items() if result.was_sent),
        "compared": num_compared,
        "measured_only": results[ShadowResult.MEASURED],
        "exact": exact,
        "mean_agreement": agreement / num_compared if num_compared else None,
        "mean_tokens": {
            "user": user_tokens / counted if counted else None,
            "shadow": shadow_tokens / counted if counted else None,
        },
        "ttft_p50_s": {
            "user": _median(sample for one in same for sample in one["user_ttft_s"]),
            "shadow": _median(sample for one in same for sample in one["shadow_ttft_s"]),
        },
        "errors": sum(count for result, count in results.items() if result.is_error),
        "results": {result.value: count for result, count in results.items()},
        "differing": list(islice(newest_first, MAX_EXAMPLES))[::-1],
    }


def _median(samples: Iterable[float]) -> float | None:
    values = list(samples)
    return statistics.median(values) if values else None
