"""Files that are replaced as a whole: a reader, or the next start, finds the old text or the new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Put the text in place for the owner's eyes alone, folders included. Nothing is left of a write that fails.

    `is_durable`: it has reached the disk when this returns. Raises OSError naming `path`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            Path(scratch).replace(path)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        if is_durable:
            _sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write that fails names no file


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
