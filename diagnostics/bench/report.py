"""The benchmark's figures as a page: how often right, how soon, how sure, and what was taken for what."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diagnostics.bench.calibration import fit_temperature, log_loss, modest_temperature, stated
from diagnostics.bench.judging import Result, Verdict
from diagnostics.evidence.score import TEMPERATURE

NO_CAUSE = "(none named)"
NOTHING_WRONG = "(nothing is wrong)"
_BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0001)


@dataclass(frozen=True, slots=True)
class Bin:
    """Verdicts of one band of stated probability."""

    low: float
    high: float
    count: int
    stated: float  # mean
    right: float  # share


def share(hits: int, total: int) -> str:
    """`93 % (41 of 44)`; a dash where there was nothing to judge."""
    return f"{100 * hits / total:.0f} % ({hits} of {total})" if total else "-"


def _temperatures(results: Sequence[Result], tuned: Sequence[Result]) -> str:
    """What fits the cases that were tuned on, and how that does on those that were not."""
    fitted, held_out = stated(tuned), stated(one for one in results if one.case.held_out)
    best, modest = fit_temperature(fitted, TEMPERATURE), modest_temperature(fitted, TEMPERATURE)
    text = (
        f"- Temperature, fitted on cases that are not held out: best {best:.2f}, the highest within one "
        f"standard error of it {modest:.2f}; in force {TEMPERATURE:.2f}."
    )
    if not held_out:
        return text
    tried = dict.fromkeys((TEMPERATURE, modest, best))
    losses = [f"{log_loss(held_out, TEMPERATURE / one):.3f} at {one:.2f}" for one in tried]
    return f"{text} Log loss on the held-out ones: {', '.join(losses)}."


def reliability(results: Iterable[Result]) -> list[Bin]:
    """How often verdicts were right, by how sure they said they were. Verdicts that name no cause have no part."""
    pairs = [
        (one.probability, bool(one.causes) and result.is_right(one))
        for result in results
        for one in result.judged
        if one.probability is not None
    ]
    found = []
    for low, high in itertools.pairwise(_BINS):
        own = [(p, right) for p, right in pairs if low <= p < high]
        if own:
            found.append(
                Bin(low, min(high, 1.0), len(own), sum(p for p, _ in own) / len(own), sum(r for _, r in own) / len(own))
            )
    return found


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Mean distance of what was stated from what was right, by number of verdicts."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.stated - one.right) for one in bins) / total if total else 0.0


def page(results: Sequence[Result], command: str) -> str:
    """The page's measured part, in Markdown."""
    ages = sorted({one.age_s for result in results for one in result.judged})
    main_ages = [age for age in ages if age in (30.0, 300.0, 900.0, 3600.0)]
    faulty = [one for one in results if not one.case.expect.none]
    healthy = [one for one in results if one.case.expect.none]
    held = [one for one in faulty if one.case.held_out]
    tuned = [one for one in faulty if not one.case.held_out]
    lines = [
        f"{len(results)} cases, {len(faulty)} with a fault ({len(held)} held out) and {len(healthy)} healthy changes; "
        f"made by `{command}`.",
        "",
        "| | top-1 | top-2 | " + " | ".join(f"top-1 at {_age(age)}" for age in main_ages) + " |",
        "|---|" + "---|" * (2 + len(main_ages)),
    ]
    for name, own in (("all faults", faulty), ("held out", held), ("not held out", tuned)):
        lines.append(_row(name, own, main_ages))
    lines += [
        _row(f"group {group}", [one for one in faulty if one.case.group == group], main_ages)
        for group in ("node", "pool", "fleet", "signals", "two")
    ]
    lines += [
        _row(f"engine {engine}", [one for one in faulty if engine in one.case.engines], main_ages)
        for engine in sorted({name for one in faulty for name in one.case.engines})
    ]
    two = [(one, verdict) for one in faulty if one.case.expect.both for verdict in one.judged]
    named = [one.named_s for one in faulty if one.named_s is not None]
    changed = [len(set(_firsts(one))) - 1 for one in faulty if one.judged]
    slow = sorted(verdict.took_s for one in results for verdict in one.verdicts)
    false_pages = [(one.case.name, one.false_pages) for one in results if one.false_pages]
    wrong = [(one.case.name, one.wrong_remedies) for one in results if one.wrong_remedies]
    late = [
        one.case.name
        for one in faulty
        if one.case.expect.alerts_within_s is not None
        and (one.first_alert_s is None or one.first_alert_s > one.case.expect.alerts_within_s)
    ]
    lines += [
        "",
        f"- Healthy changes: {share(sum(all(map(one.is_right, one.judged)) for one in healthy), len(healthy))} "
        f"without a named cause; {sum(bool(one.false_pages) for one in healthy)} with a page.",
        f"- False pages, of all cases: {len(false_pages)}"
        + (": " + "; ".join(f"{name} ({pages[0]})" for name, pages in false_pages) if false_pages else ""),
        f"- Two faults at once, both named: {share(sum(one.has_both(v) for one, v in two), len(two))}; "
        f"each by the first of its names: {sum(one.has_first_names(v) for one, v in two)}",
        f"- A drain or replace proposed where client, gateway, routing or probe is the cause: {len(wrong)}"
        + (": " + "; ".join(f"{name} ({what[0]})" for name, what in wrong) if wrong else ""),
        f"- First named right (median of {len(named)}): {_age(sorted(named)[len(named) // 2]) if named else '-'} "
        f"after the onset; never: {sum(one.named_s is None for one in faulty)}",
        f"- The verdict stays: {share(sum(one == 0 for one in changed), len(changed))} say the same at each age.",
        f"- Alerts later than the case asks: {', '.join(late) if late else 'none'}",
        f"- One verdict takes {1000 * slow[len(slow) // 2]:.0f} ms (median), {1000 * slow[-1]:.0f} ms of CPU at most, "
        "on fleets of three to eight nodes."
        if slow
        else "",
        f"- Calibration: expected calibration error {expected_calibration_error(reliability(results)):.3f}, see "
        "[the reliability plot](diagnosis-reliability.svg).",
        _temperatures(results, tuned),
        "",
        "| stated probability | verdicts | mean stated | right |",
        "|---|---|---|---|",
    ]
    for one in reliability(results):
        lines.append(f"| {one.low:.2f} to {one.high:.2f} | {one.count} | {one.stated:.2f} | {one.right:.2f} |")
    lines += ["", "### What was taken for what", "", "| expected | said | verdicts |", "|---|---|---|"]
    for (wanted, said), count in confusion(results).most_common(40):
        lines.append(f"| {wanted} | {said} | {count} |")
    lines += ["", "### By case", "", "| case | expected | " + " | ".join(map(_age, main_ages)) + " | first alert |"]
    lines.append("|---|---|" + "---|" * (len(main_ages) + 1))
    for result in results:
        cells = [_cell(result, age) for age in main_ages]
        expect = result.case.expect.in_words or ("nothing" if result.case.expect.none else "unknown")
        first = _age(result.first_alert_s) if result.first_alert_s is not None else "none"
        mark = " (held out)" if result.case.held_out else ""
        lines.append(f"| {result.case.name}{mark} | {expect} | " + " | ".join(cells) + f" | {first} |")
    return "\n".join(lines) + "\n"


def confusion(results: Iterable[Result]) -> Counter[tuple[str, str]]:
    """Wrong verdicts, by what was expected and what was said."""
    found: Counter[tuple[str, str]] = Counter()
    for result in results:
        expect = result.case.expect
        for one in result.judged:
            if not result.is_right(one):
                wanted = expect.in_words or (NOTHING_WRONG if expect.none else NO_CAUSE)
                found[wanted, said(one)] += 1
    return found


def said(verdict: Verdict) -> str:
    """Its first cause, or that it names none."""
    if verdict.causes:
        return verdict.causes[0]
    return NOTHING_WRONG if verdict.is_calm else NO_CAUSE


def reliability_svg(bins: Sequence[Bin]) -> str:
    """Stated against right, with the number of verdicts; the diagonal is a calibrated engine."""
    left, top, size = 60, 20, 320

    def at(x: float, y: float) -> tuple[float, float]:
        return left + size * x, top + size * (1 - y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + size + 40} {top + size + 60}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="Reliability of stated probabilities">',
        f'<rect width="100%" height="100%" fill="white"/><rect x="{left}" y="{top}" width="{size}" height="{size}" '
        'fill="none" stroke="#888"/>',
        f'<line x1="{left}" y1="{top + size}" x2="{left + size}" y2="{top}" stroke="#bbb" stroke-dasharray="4 4"/>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = at(tick, tick)
        parts.append(f'<text x="{x:.0f}" y="{top + size + 16}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{tick:g}</text>')
    for one in bins:
        x, y = at(one.stated, one.right)
        radius = min(16.0, 3 + one.count**0.5)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#2a6fdb" fill-opacity="0.6"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - radius - 3:.1f}" text-anchor="middle">{one.count}</text>')
    parts.append(f'<text x="{left + size / 2}" y="{top + size + 40}" text-anchor="middle">stated probability</text>')
    parts.append(
        f'<text x="16" y="{top + size / 2}" text-anchor="middle" transform="rotate(-90 16 {top + size / 2})">'
        "share that was right</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _row(name: str, own: Sequence[Result], ages: Sequence[float]) -> str:
    every = [(one, verdict) for one in own for verdict in one.judged]
    cells = [_share_of(every, lambda r, v: r.is_right(v)), _share_of(every, lambda r, v: r.is_near(v))]
    cells += [_share_of([(r, v) for r, v in every if v.age_s == age], lambda r, v: r.is_right(v)) for age in ages]
    return f"| {name} | " + " | ".join(cells) + " |"


def _share_of(pairs: Sequence[tuple[Result, Verdict]], holds: Callable[[Result, Verdict], bool]) -> str:
    return share(sum(holds(result, verdict) for result, verdict in pairs), len(pairs))


def _firsts(result: Result) -> list[str]:
    return [said(one) for one in result.judged]


def _cell(result: Result, age: float) -> str:
    for one in result.verdicts:
        if one.age_s == age:
            if age < result.case.expect.from_s:
                return f"({said(one)})"
            mark = "" if result.is_right(one) else " **wrong**" if not result.is_near(one) else " **second**"
            return f"{said(one)}{mark}"
    return ""


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if abs(seconds) < 120 else f"{seconds / 60:.0f} min"
