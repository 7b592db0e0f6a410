"""Files of targets that other programs write, read anew when they change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from fleetctl.discovery.source import SourceError, Target, targets_of
from fleetctl.settings.targets import MAX_TARGETS, FileTargets

SUFFIXES = (".json", ".yaml", ".yml")
MAX_FILE_BYTES = 32 * 1024 * 1024


class _Stamp(NamedTuple):
    """What changes when a file does. Written in place within one tick of the clock: its size may tell."""

    inode: int
    size: int
    changed_ns: int


class FileSource:
    """The files of some patterns. One that can't be read, or is half written, keeps what it said before."""

    def __init__(self, settings: FileTargets) -> None:
        self._patterns = settings.files
        self.name = f"file {', '.join(settings.files)}"
        self.interval_s = settings.refresh_interval
        self._stamps: dict[str, _Stamp] = {}
        self._targets: dict[str, list[Target]] = {}

    async def read(self) -> Sequence[Target]:
        """As the files are now. Raises SourceError naming the file."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Target]:
        paths = sorted({path for pattern in self._patterns for path in _matching(pattern)})
        if not paths:
            # As long as none ever was there somebody has mistyped it; later, whoever writes them is at work.
            raise SourceError(f"{self.name}: there is no such file")
        for gone in self._targets.keys() - set(paths):
            del self._targets[gone]
            self._stamps.pop(gone, None)
        problems: list[str] = []
        for path in paths:
            try:
                self._read_file(path)
            except SourceError as error:
                problems.append(str(error))
        if problems:
            raise SourceError("; ".join(problems[:3]))
        found = [target for path in paths for target in self._targets[path]]
        if len(found) > MAX_TARGETS:
            raise SourceError(f"{self.name}: lists more than {MAX_TARGETS} targets")
        return found

    def _read_file(self, path: str) -> None:
        if not path.endswith(SUFFIXES):
            raise SourceError(f"{path}: expected a name that ends with {', '.join(SUFFIXES)}")
        try:
            stat = Path(path).stat()
            stamp = _Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._stamps.get(path) == stamp:
                return
            if stat.st_size > MAX_FILE_BYTES:
                raise SourceError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
        try:
            groups = json.loads(text) if path.endswith(".json") else yaml.load(text, Loader=_LOADER)  # noqa: S506
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            kind = "JSON" if path.endswith(".json") else "YAML"
            raise SourceError(f"{path}: not {kind}: {' '.join(str(error).split())[:300]}") from error
        self._targets[path] = targets_of(groups or [], path)
        self._stamps[path] = stamp


def _matching(pattern: str) -> list[str]:
    path = Path(pattern)
    return (
        [str(one) for one in path.parent.glob(path.name)] if "*" in path.name else ([pattern] if path.exists() else [])
    )


# libyaml's loader is safe as the other one, and eight times as fast: a thousand targets are half a megabyte.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
