"""What this package raises. Every error names the thing and, where there is one, the next thing to do.

    RunbookError
    ├── BadPageError            a page file is wrong: `file:line: what; remedy`
    ├── BadCommandError         a fleetctl command is wrong
    ├── BadInputError           an input of a runbook is missing, unknown or of the wrong type
    ├── NotFoundError           no such runbook or run
    ├── ConflictError           the run is not in a state that allows this; holds the run as it stands (in `run`)
    │   ├── AlreadyDecidedError     somebody answered first
    │   └── IdempotencyConflictError  the key was used for a different request
    ├── IllegalTransitionError  a bug: the transitions table forbids this move
    └── StaleEpochError         another controller took over: this one must stop

`TemporaryError` and `PermanentError`, which effects raise, are in `ports`.
"""

from __future__ import annotations


class RunbookError(Exception):
    """`remedy` is the next thing to do, or None."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class BadPageError(RunbookError):
    """What is wrong with a page, and where. `line` counts from 1, 0 where the whole file is meant."""

    def __init__(self, file: str, line: int, reason: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}", remedy=remedy)
        self.file = file
        self.line = line
        self.reason = reason


class BadCommandError(RunbookError):
    """The message names the wrong word, the remedy what was probably meant."""


class BadInputError(RunbookError):
    """The message names the input, where it is known, and what is wrong with its value."""


class NotFoundError(RunbookError):
    """There is no runbook or run of this name."""


class IllegalTransitionError(RunbookError):
    """A bug: a run or step was moved to where the transitions table does not lead."""


class StaleEpochError(RunbookError):
    """Another controller claimed the journal: the process must end."""
