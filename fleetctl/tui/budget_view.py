"""Error budgets as lines of *Now*: which one burns, how fast, and how long a month's would last at that rate. Pure."""

from __future__ import annotations

from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, span
from fleetctl.tui.snapshot import Budget

PERIOD_S = 30 * 86_400.0  # of the objectives, as the burn rates of alerts/rules/slo.yaml count it
FAST = 14.4  # 2 % of the month's budget in an hour: where that file pages
LEAST_TOLD = 0.05  # a lower rate is no news
BURNS = 1.0  # from here on the budget is gone before its period is

Row = tuple[Cell, ...]


def budget_section(budgets: tuple[Budget, ...] | None) -> StorySection:
    """Those that burn, the fastest first; one line where none does, or nothing is known."""
    if budgets is None:
        return StorySection(Cell("Error budgets are not known: the controller did not say.", Tone.WARN))
    told = [one for one in budgets if one.worst is not None]
    if not told:
        return StorySection(Cell("Error budgets are not known: too few minutes of traffic were counted.", Tone.DIM))
    burning = sorted((one for one in told if _burns(one)), key=lambda one: -(one.worst or 0.0))
    if not burning:
        first = max(told, key=lambda one: one.worst or 0.0)
        calm = "No error budget burns"
        if (first.worst or 0.0) >= LEAST_TOLD:
            calm += f": the highest rate is {_times(first.worst)}, {first.pool} {first.slo}"
        return StorySection(Cell(calm, Tone.DIM))
    titles = ("pool", "objective", "kept", "5m", "1h", "6h", "a month's budget")
    rows: list[Row] = [tuple(Cell(title, Tone.DIM, right=1 < at < 6) for at, title in enumerate(titles))]
    is_fast = any(_tone(one.worst) is Tone.BAD for one in burning)
    heading = "Error budgets that burn (1× uses up exactly the month's)"
    return StorySection(Cell(heading, Tone.BAD if is_fast else Tone.WARN), (*rows, *map(_row, burning)))


def _burns(one: Budget) -> bool:
    """Now, or over the hour: what is over by now stays until the hour is."""
    return any(value is not None and value >= BURNS for value in (one.burn_5m, one.burn_1h))


def _row(one: Budget) -> Row:
    burns = (
        (value, Cell(_times(value), _tone(value), right=True)) for value in (one.burn_5m, one.burn_1h, one.burn_6h)
    )
    return (
        Cell(one.pool, Tone.STRONG),
        Cell(one.slo),
        Cell(UNKNOWN if one.objective is None else f"{one.objective:.4g}", right=True),
        *(cell for _, cell in burns),
        Cell(_lasts(one)),
    )


def _lasts(one: Budget) -> str:
    """At the rate of the longest window that is known and burns; what was used before is not known here."""
    value, over = next(
        (
            (burn, over)
            for burn, over in ((one.burn_1h, "the hour's"), (one.burn_5m, "the last minutes'"))
            if burn is not None and burn >= BURNS
        ),
        (None, ""),
    )
    return UNKNOWN if value is None else f"lasts {span(PERIOD_S / value)} at {over} rate"


def _tone(value: float | None) -> Tone:
    if value is None:
        return Tone.DIM
    return Tone.BAD if value >= FAST else Tone.WARN if value >= BURNS else Tone.PLAIN


def _times(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}×" if value >= 99.95 else f"{value:.3g}×"
