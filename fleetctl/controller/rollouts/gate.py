"""The gate: is the new revision worse than the stable one, on the same traffic at the same time? Pure, for any look.

Each signal is a share of bad requests (too slow, failed, not from the prefix cache). Two hypotheses meet at one
boundary, `margin` more bad requests than the stable revision has: "no worse than that" and "at least that much worse".
Against each an e-process grows; the first is rejected (fail) when its e-value reaches 1/alpha, the second (pass) at
1/beta. However often one looks, a revision that is no worse fails with a probability of at most alpha (Ville's
inequality), and one that is worse by more than the margin passes with at most beta.

A block of new requests multiplies an e-value by P(block | alternative) / P(block | projection), where the projection is
the point of the hypothesis with the least KL divergence from the alternative: an e-variable for every convex hypothesis
on the two shares (Turner and Grünwald, "Exact anytime-valid confidence intervals for contingency tables and beyond",
Statistics & Probability Letters 198, 2023; the same by concavity of the log of its expectation). Alternatives are a
fixed mixture around the stable share that was measured before the block. Values between 0 and 1, such as the part of a
prompt that was cached, count as fractions of bad requests: by the inequality of the means the e-value stays one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

ALTERNATIVES = (0.08, 0.2, 0.4, 0.7, 0.95)  # how far between the boundary and the end
MIN_STABLE = 50.0  # requests of the stable revision, before which nobody knows what is usual
EPS = 1e-6


class Verdict(StrEnum):
    """What the gate says."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    NOT_ENOUGH = "not_enough"


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests, and how many of them were bad; fractions where a request is bad in part."""

    bad: float = 0.0
    total: float = 0.0

    @property
    def share(self) -> float | None:
        """Of the bad ones; None without a request."""
        return self.bad / self.total if self.total > 0 else None

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(self.bad + other.bad, self.total + other.total)


@dataclass(frozen=True, slots=True)
class SignalLimits:
    """One signal's boundary: a new revision may have `margin` more bad requests than the stable one, as a share.

    `what` says what a bad request is, in words. `fixed_stable`: the share to compare with where none is measured.
    """

    name: str
    what: str
    margin: float
    fixed_stable: float | None = None


@dataclass(frozen=True, slots=True)
class SignalEvidence:
    """What was counted of one signal in this step, and its e-processes: the log of one e-value per alternative."""

    new: Tally = field(default_factory=Tally)
    stable: Tally = field(default_factory=Tally)
    prior: Tally = field(default_factory=Tally)  # the stable revision's, before the step: what is usual
    harm: tuple[float, ...] = (0.0,) * len(ALTERNATIVES)
    fine: tuple[float, ...] = (0.0,) * len(ALTERNATIVES)
    fine_at_most: float = -math.inf  # the highest log e-value ever: a verdict once given stays
    harm_at_most: float = -math.inf

    def plus(self, new: Tally, stable: Tally, limits: SignalLimits) -> SignalEvidence:
        """The evidence with one more block: what came since the last look, of both revisions."""
        usual = self.prior.plus(self.stable)
        counted = replace(self, new=self.new.plus(new), stable=self.stable.plus(stable))
        if new.total <= 0 or (limits.fixed_stable is None and usual.total < MIN_STABLE):
            return counted  # what is not tested is learnt from
        p = (usual.bad + 0.5) / (usual.total + 1.0) if limits.fixed_stable is None else limits.fixed_stable
        p = min(1 - 2 * EPS - limits.margin, max(EPS, p))
        bound = p + limits.margin
        worse = [bound + k * (1 - bound) for k in ALTERNATIVES]
        better = [bound * (1 - k) for k in ALTERNATIVES]
        harm = tuple(e + _log_e(new, stable, q, p, limits) for e, q in zip(self.harm, worse, strict=True))
        fine = tuple(e + _log_e(new, stable, q, p, limits) for e, q in zip(self.fine, better, strict=True))
        return replace(
            counted,
            harm=harm,
            fine=fine,
            harm_at_most=max(self.harm_at_most, log_mean_exp(harm)),
            fine_at_most=max(self.fine_at_most, log_mean_exp(fine)),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which knows no infinity."""
        tallies = {name: [tally.bad, tally.total] for name, tally in (("new", self.new), ("stable", self.stable))}
        return {
            **tallies,
            "prior": [self.prior.bad, self.prior.total],
            "harm": list(self.harm),
            "fine": list(self.fine),
            "at_most": [max(-1e9, self.harm_at_most), max(-1e9, self.fine_at_most)],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SignalEvidence:
        """What `to_json` gave."""
        harm_at_most, fine_at_most = document["at_most"]
        return cls(
            Tally(*document["new"]),
            Tally(*document["stable"]),
            Tally(*document["prior"]),
            tuple(document["harm"]),
            tuple(document["fine"]),
            fine_at_most,
            harm_at_most,
        )


@dataclass(frozen=True, slots=True)
class SignalReport:
    """One signal's verdict with its numbers. `missing`: what it waits for, in words; empty: nothing."""

    name: str
    verdict: Verdict
    words: str
    new: Tally
    stable: Tally
    missing: str = ""
    more_requests: int | None = None  # of the new revision, at its present shares; None: not to be said
    harm_e: float = 1.0
    fine_e: float = 1.0


@dataclass(frozen=True, slots=True)
class GateReport:
    """The verdict over all signals: any that fails fails, all that are asked must pass."""

    verdict: Verdict
    words: str
    signals: tuple[SignalReport, ...] = ()


def judge(
    evidence: Mapping[str, SignalEvidence],
    asked: Sequence[SignalLimits],
    unknown: Mapping[str, str],
    *,
    alpha: float,
    beta: float,
) -> GateReport:
    """The verdict on a step. `unknown`: signals that can't be read now, to why: they pass nothing and fail nothing.

    `alpha` is for all signals of the step together, `beta` for each.
    """
    alpha_each = alpha / max(1, len(asked))
    num_seen = max((one.new.total for one in evidence.values()), default=0.0)
    reports = tuple(
        _report(
            limits,
            evidence.get(limits.name, SignalEvidence()),
            unknown.get(limits.name, ""),
            alpha_each,
            beta,
            num_seen,
        )
        for limits in asked
    )
    failed = [report for report in reports if report.verdict is Verdict.FAIL]
    if failed:
        return GateReport(Verdict.FAIL, "; ".join(report.words for report in failed), reports)
    if reports and all(report.verdict is Verdict.PASS for report in reports):
        return GateReport(Verdict.PASS, "; ".join(report.words for report in reports), reports)
    waiting = [f"{report.name}: {report.missing}" for report in reports if report.missing]
    return GateReport(Verdict.NOT_ENOUGH, f"not enough yet: {'; '.join(waiting) or 'no signal is asked'}", reports)


def _report(
    limits: SignalLimits, seen: SignalEvidence, unknown: str, alpha: float, beta: float, num_seen: float
) -> SignalReport:
    """`num_seen`: requests of the new revision, by the signal that tells most of them."""
    usual = seen.prior.plus(seen.stable)
    numbers = _numbers(limits, seen, usual)
    verdict, words, missing, more = Verdict.NOT_ENOUGH, numbers, "", None
    if seen.harm_at_most >= -math.log(alpha):
        verdict = Verdict.FAIL
        words = f"{numbers}: worse by more than the {_points(limits.margin)} allowed"
    elif unknown:
        missing = unknown
    elif seen.fine_at_most >= -math.log(beta):
        verdict, words = Verdict.PASS, f"{numbers}: not worse by {_points(limits.margin)}"
    elif limits.fixed_stable is None and usual.total >= MIN_STABLE and (usual.share or 0.0) + limits.margin >= 1.0:
        verdict, words = Verdict.PASS, f"{numbers}: nothing could be worse by {_points(limits.margin)}"
    elif limits.fixed_stable is None and usual.total < MIN_STABLE:
        missing = f"{usual.total:.0f} requests of the stable revision, {MIN_STABLE:.0f} say what is usual"
    elif seen.new.total <= 0:
        missing = (
            f"none of the new revision's {num_seen:.0f} requests tells of it: none got so far, or it is not counted"
            if num_seen > 0
            else "no request of the new revision yet"
        )
    else:
        more = _more_requests(limits, seen, usual, beta)
        missing = f"{seen.new.total:.0f} requests of the new revision, " + (
            f"about {more} more" if more is not None else "and it is close to the boundary"
        )
    return SignalReport(
        limits.name,
        verdict,
        words,
        seen.new,
        usual,
        missing,
        more,
        harm_e=_exp(seen.harm_at_most),
        fine_e=_exp(seen.fine_at_most),
    )


def _numbers(limits: SignalLimits, seen: SignalEvidence, usual: Tally) -> str:
    new = "no request" if seen.new.share is None else f"{seen.new.share:.1%} of {seen.new.total:.0f} requests"
    if limits.fixed_stable is not None:
        return f"{limits.name}: {new} {limits.what}"
    old = "nothing known" if usual.share is None else f"{usual.share:.1%} of {usual.total:.0f} of the stable revision"
    return f"{limits.name}: {new} {limits.what}, {old}"


def _points(margin: float) -> str:
    return f"{margin * 100:.3g} points"


def _more_requests(limits: SignalLimits, seen: SignalEvidence, usual: Tally, beta: float) -> int | None:
    """How many more requests of the new revision pass it, were all of them as those so far; None: they would not."""
    p = (usual.bad + 0.5) / (usual.total + 1.0) if limits.fixed_stable is None else limits.fixed_stable
    q = (seen.new.bad + 0.5) / (seen.new.total + 1.0)
    if q >= p + limits.margin:
        return None
    per_request = kl(q, min(1 - EPS, p + limits.margin))
    needed = -math.log(beta) + math.log(len(ALTERNATIVES)) - max(0.0, log_mean_exp(seen.fine))
    return max(1, math.ceil(needed / per_request)) if per_request > 1e-4 else None


def _log_e(new: Tally, stable: Tally, q: float, p: float, limits: SignalLimits) -> float:
    """The log of the block's factor for the alternative (q, p), against its projection on the boundary."""
    if limits.fixed_stable is not None:
        return _log_ratio(new, q, p + limits.margin)
    null_new, null_stable = project(q, p, new.total, stable.total, limits.margin)
    return _log_ratio(new, q, null_new) + _log_ratio(stable, p, null_stable)


def project(q: float, p: float, num_new: float, num_stable: float, margin: float) -> tuple[float, float]:
    """The point (x + margin, x) with the least KL divergence from (q, p), weighted with the numbers of requests."""
    low, high = EPS, 1.0 - margin - EPS

    def slope(x: float) -> float:
        y = x + margin
        return num_new * ((1 - q) / (1 - y) - q / y) + num_stable * ((1 - p) / (1 - x) - p / x)

    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    x = (low + high) / 2
    return x + margin, x


def _log_ratio(tally: Tally, alternative: float, null: float) -> float:
    good = tally.total - tally.bad
    return tally.bad * math.log(alternative / null) + good * math.log((1 - alternative) / (1 - null))


def kl(p: float, q: float) -> float:
    """Kullback-Leibler divergence of two Bernoulli distributions, in nats."""
    parts = [(p, q), (1 - p, 1 - q)]
    return sum(a * math.log(a / b) for a, b in parts if a > 0)


def log_mean_exp(logs: Sequence[float]) -> float:
    """The log of the mean of the exponentials."""
    top = max(logs)
    return top + math.log(sum(math.exp(one - top) for one in logs) / len(logs))


def _exp(log_value: float) -> float:
    return math.exp(max(-700.0, min(700.0, log_value)))
