"""Runs one command of this machine to its end, within a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fleetctl.kit.errors import UnreachableError

MAX_WORDS_CHARS = 300


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it wrote."""

    status: int
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """The last line of its complaint, else its exit status."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:MAX_WORDS_CHARS] if lines else f"exit status {self.status}"


def run(words: Sequence[str], timeout_s: float) -> Done:
    """The command at its end. Raises UnreachableError when it can't be run, or gives no answer in time: then it and
    what it started are ended here; what it began elsewhere may go on."""
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UnreachableError(
            f"{words[0]}: {error.strerror or error}", remedy="providers.hosts.connect: install it, or name another one"
        ) from error
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise UnreachableError(f"{words[0]}: no answer within {timeout_s:g} s") from None
    return Done(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))
