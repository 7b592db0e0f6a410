"""The moment of the past that is shown, and how it moves: pure, the clock is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetctl.tui.cell import Cell, Tone, clip, clock_time, day

WIDTH = 30
SPEEDS = (1.0, 10.0, 60.0)


@dataclass(slots=True)
class TimeSlider:
    """From `since` to `until`, Unix seconds. It begins where the recording does, and stands until it is played."""

    since: float
    until: float
    name: str  # what is shown
    ticks: Callable[[], float]  # a monotonic clock
    at: float = 0.0
    speed: float = 0.0  # seconds of the past a second; 0: it stands
    _moved: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.at = max(self.since, min(self.until, self.at or self.since))
        self._moved = self.ticks()

    def now(self) -> float:
        """The moment that is shown."""
        ticks = self.ticks()
        self.at = min(self.until, self.at + self.speed * (ticks - self._moved))
        self._moved = ticks
        if self.at >= self.until:
            self.speed = 0.0
        return self.at

    def move(self, seconds: float) -> None:
        """So much later, or earlier where negative, as far as the recording goes."""
        self.at = max(self.since, min(self.until, self.now() + seconds))

    def play(self) -> None:
        """Faster; after the fastest it stands; from the end it begins again."""
        now = self.now()
        if now >= self.until:
            self.at = self.since
        at = SPEEDS.index(self.speed) + 1 if self.speed in SPEEDS else 0
        self.speed = SPEEDS[at] if at < len(SPEEDS) else 0.0


def slider_cells(slider: TimeSlider) -> tuple[Cell, ...]:
    """What is shown, where it stands, and the keys."""
    now = slider.now()
    share = (now - slider.since) / (slider.until - slider.since) if slider.until > slider.since else 1.0
    knob = round(share * (WIDTH - 1))
    line = "─" * knob + "●" + "─" * (WIDTH - 1 - knob)
    pace = f"▶ {slider.speed:.0f}×" if slider.speed else "‖"
    return (
        Cell("REPLAY", Tone.WARN),
        Cell(f"{day(now)} {clock_time(now)}", Tone.STRONG),
        Cell(line, Tone.BUSY),
        Cell(pace),
        Cell(clip(slider.name, 40), Tone.DIM),
    )
