"""What this package raises. Every error names the thing and, where there is one, the next thing to do.

    RunbookError
    ├── BadPageError            a page file is wrong: `file:line: what; remedy`
    ├── BadCommandError         a fleetctl command is wrong
    ├── BadInputError           an input of a runbook is missing, unknown or of the wrong type
    ├── NotFoundError           no such runbook or run
    ├── ConflictError           the run is not in a state that allows this; holds the run as it stands
    │   ├── AlreadyDecidedError     somebody answered first
    │   └── IdempotencyConflictError  the key was used for a different request
    ├── IllegalTransitionError  a bug: the transitions table forbids this move
    └── StaleEpochError         another controller took over: this one must stop

`TemporaryError` and `PermanentError`, which effects raise, are in `ports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runbooks.run import Run


class RunbookError(Exception):
    """`remedy` is the next thing to do, or None."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class BadPageError(RunbookError):
    """The message starts with `file:line:`."""


class BadCommandError(RunbookError):
    pass


class BadInputError(RunbookError):
    pass


class NotFoundError(RunbookError):
    pass


class ConflictError(RunbookError):
    """`run` is the run as it stands, so that a caller can show what holds instead."""

    def __init__(self, message: str, run: Run, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.run = run


class AlreadyDecidedError(ConflictError):
    pass


class IdempotencyConflictError(ConflictError):
    pass


class IllegalTransitionError(RunbookError):
    pass


class StaleEpochError(RunbookError):
    pass
