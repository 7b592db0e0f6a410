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


def existing_files(paths: Sequence[Path]) -> Sequence[Path]:
    """The files, and those that lie in or below the folders. Raises BadInputError for a path that holds none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            within = sorted(one for one in path.rglob("*") if one.suffix in (".yaml", ".yml") and one.is_file())
            if not within:
                raise BadInputError(
                    f"{path}: no .yaml file in this folder", remedy="name a file, or a folder of .yaml files"
                )
            found += within
        elif path.is_file():
            found.append(path)
        else:
            raise BadInputError(f"{path}: no such file", remedy="name a file, or a folder of .yaml files")
    return found
