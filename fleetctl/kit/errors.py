"""Errors a person reads, each with the exit code that scripts rely on.

FleetctlError        1  failed
├── BadInputError    2  the request is wrong: name the path and the remedy
├── RefusedError     3  a guard said no
└── UnreachableError 4  could not look: unknown, not healthy and not failed
"""

from __future__ import annotations


class FleetctlError(Exception):
    """`remedy` is the next thing to do, best as a command."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class BadInputError(FleetctlError):
    """The request is wrong: the message names the place."""

    exit_code = 2


class RefusedError(FleetctlError):
    """A guard, or a person, said no."""

    exit_code = 3


class UnreachableError(FleetctlError):
    """Could not look: what is asked about is unknown."""

    exit_code = 4
