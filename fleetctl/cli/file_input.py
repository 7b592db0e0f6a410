"""Files that a person names on the command line: what can't be used is bad input, in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fleetctl.kit.errors import BadInputError

T = TypeVar("T")


def read_or_refuse(work: Callable[[], T]) -> T:
    """What `work` makes of files of alerts. Raises BadInputError for what can't be read or is wrong."""
    from alerts.errors import AlertsError

    try:
        return work()
    except AlertsError as error:
        raise BadInputError(str(error)) from error


def existing_files(files: Sequence[Path]) -> Sequence[Path]:
    """The same files. Raises BadInputError naming the first that is none."""
    for path in files:
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "no such file"
            raise BadInputError(f"{path}: {kind}", remedy="give the files themselves: *.yaml")
    return files
