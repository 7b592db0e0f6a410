"""Named processes of one machine: started once, found again after our own death, stopped without leftovers.

Each name has a run folder `<root>/<name>/` with `spec.json` (written before the start), `lock`, `pid`, `log`, `exit`.
The child inherits an flock on `lock`, so "is it running" is answered by the kernel: the lock is free if and only if the
process is gone, whoever started it. The child writes its own `pid` before it becomes the program, so that no crash of
ours can leave a process without a record. A shell in a session of its own waits for it, then writes `exit`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.kit.whole_file import write_whole

LOG_LINE_BYTES = 2048  # read for each line asked for, and no less than
LOG_READ_BYTES = 64 * 1024
LOG_ROTATE_BYTES = 50 * 1024 * 1024
STDERR_NOISE = re.compile(r"^\s*$")

# $0 is the pid file. The shell's pid is the program's, because exec keeps it.
_RECORD_PID_THEN_EXEC = 'echo $$ > "$0.tmp" && mv "$0.tmp" "$0" && exec "$@"'

# $0 is the exit file, $1 the instance, $2 the pid file. The lock comes as stdin and goes to the program alone, which
# gets a session of its own: what is sent to its group does not reach the shell that waits for it.
_START_AND_WAIT = f"""
exec 8<&0 0</dev/null
instance="$1"; pid_file="$2"; shift 2
setsid /bin/sh -c '{_RECORD_PID_THEN_EXEC}' "$pid_file" "$@" &
exec 8<&- >/dev/null 2>&1
wait $!
echo "$instance $?" > "$0.tmp" && mv "$0.tmp" "$0"
"""
_MADE_AT_START = frozenset({"argv", "url", "started_at", "instance"})  # keys of a record; others are facts
_SIGNALLED = 128  # a shell's status of what a signal ended is this and the signal's number


@dataclass(frozen=True, slots=True)
class ProcessView:
    """What is known of one name, now. None: nothing runs, or there is no record."""

    name: str
    running: bool
    pid: int | None
    instance: str | None  # made anew for each start: unlike a pid it is never used twice
    url: str | None
    started_at: float | None
    log_path: Path
    exit_status: int | None = None  # its code, or minus the signal that ended it; None: it runs, or that is not known


class ProcessTable:
    """The run folders under one root. Methods are quick and may be called from any process.

    Raises FleetctlError when a process can't be started or stopped, BadInputError when the folder can't be used.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        """Names that have a run folder, running or not."""
        if not self._root.is_dir():
            return []
        return sorted(p.name for p in self._root.iterdir() if (p / "spec.json").exists() or (p / "pid").exists())

    def running(self) -> list[str]:
        """Names whose process lives."""
        return [name for name in self.names() if self._is_locked(name)]

    def observe(self, name: str) -> ProcessView:
        """One name, now."""
        folder = self._root / name
        spec = _read_json(folder / "spec.json")
        running = self._is_locked(name)
        pid = _read_pid(folder / "pid") if running else None
        return ProcessView(
            name=name,
            running=running,
            pid=pid,
            # A process that was started before 0.2 has no identity but its pid.
            instance=None if pid is None else str(spec.get("instance", f"pid-{pid}")),
            url=spec.get("url"),
            started_at=spec.get("started_at"),
            log_path=folder / "log",
            exit_status=None if running else _read_exit(folder / "exit", spec.get("instance")),
        )

    def spec(self, name: str) -> dict[str, Any]:
        """The record written before the last start; empty when there is none or it is half written."""
        return _read_json(self._root / name / "spec.json")

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        url: str,
        env: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Start `argv` under `name`. Returns False, and changes nothing, when the name runs already."""
        folder = self._root / name
        _make_folder(folder)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # The pid goes first: without one, nobody takes the new record for the identity of what ran before.
            (folder / "pid").unlink(missing_ok=True)
            instance = uuid.uuid4().hex[:12]
            spec = {
                "argv": list(argv),
                "url": url,
                "started_at": time.time(),
                "instance": instance,
                **(facts or {}),
            }
            write_whole(folder / "spec.json", json.dumps(spec, indent=1))
            _rotate(folder / "log")
            with (folder / "log").open("ab") as log:
                try:
                    # setsid --fork: a session of its own, adopted by init, so that it is neither our zombie when it
                    # ends nor hit by our terminal's Ctrl-C.
                    shell = ["setsid", "--fork", "/bin/sh", "-c", _START_AND_WAIT, str(folder / "exit"), instance]
                    subprocess.run(
                        [*shell, str(folder / "pid"), *argv],
                        check=True,
                        stdin=lock,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **(env or {})},
                    )
                except (OSError, subprocess.CalledProcessError) as error:
                    raise FleetctlError(f"{name}: can't start {argv[0]}: {error}") from error
            return True
        except OSError as error:  # a full disk most of all: the process could not even say so in its log
            raise FleetctlError(
                f"{error.filename or folder}: {error.strerror or error}",
                remedy="free space on that disk, or choose another folder with --state-dir",
            ) from error
        finally:
            os.close(lock)  # the program holds its own copy: the lock lives as long as it does

    def start_again(self, name: str) -> bool:
        """Start `name` by its record, with our environment but for settings in it. Returns False when it runs already.

        Raises FleetctlError without a record of it.
        """
        spec = self.spec(name)
        argv = spec.get("argv")
        if not isinstance(argv, list) or not argv:
            raise FleetctlError(f"{name}: there is no record of how it was started", remedy="fleetctl up")
        facts = {key: value for key, value in spec.items() if key not in _MADE_AT_START}
        words = [str(word) for word in argv]
        return self.start(name, words, url=str(spec.get("url", "")), env=environment_without_settings(), facts=facts)

    def stop(self, name: str, grace_s: float) -> bool:
        """SIGTERM to the group, wait `grace_s`, SIGKILL. Returns False when the name did not run."""
        if not self._is_locked(name):
            return False
        pid = self._wait_for_pid(name)
        if pid is None:
            raise FleetctlError(f"{name}: runs, but its pid is not recorded in {self._root / name / 'pid'}")
        _signal_group(pid, signal.SIGTERM)
        if not self._wait_gone(name, grace_s):
            _signal_group(pid, signal.SIGKILL)
            if not self._wait_gone(name, 10.0):
                raise FleetctlError(f"{name}: pid {pid} does not die, even by SIGKILL")
        _signal_group(pid, signal.SIGKILL)  # whatever of its group outlived the leader
        return True

    def forget(self, name: str) -> None:
        """Remove the run folder of a name that does not run."""
        if not self._is_locked(name):
            shutil.rmtree(self._root / name, ignore_errors=True)

    def trim_logs(self, max_bytes: int) -> int:
        """Begin logs anew that have grown beyond that, the old text in `log.1`; how many. Raises OSError (a full disk).

        Processes go on writing to the file that they have: it is copied, then emptied. A line may be lost between both.
        """
        trimmed = 0
        for name in self.names():
            log = self._root / name / "log"
            with suppress(FileNotFoundError):
                if log.stat().st_size <= max_bytes:
                    continue
                _copy_tail(log, log.with_suffix(".1"), max_bytes)
                os.truncate(log, 0)
                trimmed += 1
        return trimmed

    def log_tail(self, name: str, lines: int = 20) -> list[str]:
        """The last lines a process wrote; empty when there is no log."""
        return list(self.read_log(name, lines)[0])

    def read_log(self, name: str, lines: int, after: str | None = None) -> tuple[tuple[str, ...], str]:
        """Up to `lines` of the log, and a cursor for the next call: the last ones, or those after that cursor."""
        try:
            with (self._root / name / "log").open("rb") as file:
                status = os.fstat(file.fileno())
                begin = _offset_of(after, status)
                if begin is None:
                    return _last_lines(file, status, lines)
                return _next_lines(file, status, begin, lines)
        except OSError:
            return (), after or ""

    def _is_locked(self, name: str) -> bool:
        try:
            lock = os.open(self._root / name / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(lock)

    def _wait_gone(self, name: str, timeout_s: float) -> bool:
        for _ in _poll(timeout_s):
            if not self._is_locked(name):
                return True
        return not self._is_locked(name)

    def _wait_for_pid(self, name: str) -> int | None:
        for _ in _poll(2.0):  # between the fork and the shell's first line there is no record yet
            pid = _read_pid(self._root / name / "pid")
            if pid is not None or not self._is_locked(name):
                return pid
        return None


def environment_without_settings() -> dict[str, str]:
    """What hides our settings variables from a child: its settings are all in the file that its command names."""
    return {"FLEETCTL_CONFIG": "", **{key: "" for key in os.environ if key.startswith("FLEETCTL_")}}


@contextmanager
def exclusive(path: Path, message: str) -> Iterator[None]:
    """Hold the one lock at `path`, or raise BadInputError with `message`."""
    _make_folder(path.parent)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(message) from None
        yield
    finally:
        os.close(lock)


def _poll(timeout_s: float, interval_s: float = 0.02) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        yield
        time.sleep(interval_s)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_exit(path: Path, instance: object) -> int | None:
    """How the instance ended. What the shell did not live to write, or wrote of another one, is not known."""
    try:
        whose, status = path.read_text().split()
        code = int(status)
    except (OSError, ValueError):
        return None
    if whose != instance:
        return None
    return _SIGNALLED - code if code > _SIGNALLED else code


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInputError(
            f"{folder}: {error.strerror or error}", remedy="choose another folder with --state-dir"
        ) from error


def _last_lines(file: BinaryIO, status: os.stat_result, lines: int) -> tuple[tuple[str, ...], str]:
    """The end of the file; a line that is still being written is told as far as it goes."""
    begin = max(0, status.st_size - max(LOG_READ_BYTES, lines * LOG_LINE_BYTES))
    file.seek(begin)
    content = file.read(status.st_size - begin)
    if begin and b"\n" in content:
        content = content.partition(b"\n")[2]  # the first line is most likely cut
    return tuple(_lines_in(content)[-lines:]), _cursor(status, status.st_size)


def _next_lines(file: BinaryIO, status: os.stat_result, begin: int, lines: int) -> tuple[tuple[str, ...], str]:
    """Whole lines from `begin` on; one that is still being written is left for the next read, unless it is too long."""
    file.seek(begin)
    limit = max(LOG_READ_BYTES, lines * LOG_LINE_BYTES)
    content = file.read(limit)
    whole = content.rfind(b"\n") + 1
    if not whole and len(content) == limit:
        whole = len(content)
    parts = content[:whole].splitlines(keepends=True)[:lines]
    return tuple(_lines_in(b"".join(parts))), _cursor(status, begin + sum(map(len, parts)))


def _lines_in(content: bytes) -> list[str]:
    text = content.decode("utf-8", "replace")
    return [line for line in text.splitlines() if not STDERR_NOISE.match(line)]


def _cursor(status: os.stat_result, offset: int) -> str:
    return f"{status.st_ino}-{offset}"


def _offset_of(cursor: str | None, status: os.stat_result) -> int | None:
    """Where to go on; the beginning of a log that was rotated since, None without a cursor."""
    if cursor is None:
        return None
    inode, _, offset = cursor.partition("-")
    is_same = inode == str(status.st_ino) and offset.isdecimal() and int(offset) <= status.st_size
    return int(offset) if is_same else 0


def _copy_tail(source: Path, target: Path, max_bytes: int) -> None:
    """The last `max_bytes`, as a whole or not at all: a log may have grown far beyond what the disk still has."""
    scratch = target.with_suffix(".tmp")
    try:
        with source.open("rb") as old, _opened_private(scratch) as new:
            old.seek(max(0, old.seek(0, os.SEEK_END) - max_bytes))
            shutil.copyfileobj(old, new)
        scratch.replace(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _opened_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _rotate(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size > LOG_ROTATE_BYTES:
            log.replace(log.with_suffix(".1"))


def children_of(pid: int) -> list[int]:
    """The process's children, of all of its threads; none where it has gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found
