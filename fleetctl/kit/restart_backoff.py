"""When a process that ended by itself is started again: at once, and later each time while it does not stay up."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 60.0
STAYED_UP_S = 60.0  # a start that lived for so long was no part of a crash loop
LOOP_ENDS = 3  # ends in a row without staying up


class RestartBackoff:
    """One process's ends and starts. Times are Unix seconds."""

    def __init__(self) -> None:
        self.ends_in_row = 0
        self.due_at: float | None = None  # of the next start; None: it runs, as far as is known
        self._started_at: float | None = None

    @property
    def is_looping(self) -> bool:
        """Whether it ends again and again."""
        return self.ends_in_row >= LOOP_ENDS

    def note_ended(self, now: float) -> None:
        """It was found ended."""
        if self._started_at is None or now - self._started_at >= STAYED_UP_S:
            self.ends_in_row = 0
        self.ends_in_row += 1
        delay_s = 0.0 if self.ends_in_row == 1 else min(LONGEST_S, FIRST_S * 2.0 ** min(self.ends_in_row - 2, 16))
        self.due_at = now + delay_s

    def note_started(self, now: float) -> None:
        """It was started again."""
        self._started_at, self.due_at = now, None
