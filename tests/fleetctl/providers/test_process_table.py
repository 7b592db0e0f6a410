"""Processes on one machine: started once, found by anyone, stopped without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.providers.process import ProcessTable, exclusive

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    " print('child', p.pid, flush=True); time.sleep(600)",
]


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


@pytest.fixture
def table(tmp_path: Path):
    processes = ProcessTable(tmp_path / "run")
    yield processes
    for name in processes.running():
        processes.stop(name, 0.0)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_started_process_is_found_by_another_table_and_started_only_once(table: ProcessTable, tmp_path: Path) -> None:
    assert table.start("a", SLEEPER, url="http://x") is True
    other = ProcessTable(tmp_path / "run")
    assert other.observe("a").running
    assert other.start("a", SLEEPER, url="http://y") is False
    assert other.observe("a").url == "http://x", "a refused start must not change the record"
    wait_until(lambda: other.observe("a").pid is not None)
    assert other.running() == ["a"]


def test_stop_kills_a_process_that_ignores_sigterm_and_its_children(table: ProcessTable) -> None:
    table.start("stubborn", STUBBORN, url="")
    table.start("parent", PARENT, url="")
    wait_until(lambda: table.log_tail("stubborn") == ["up"])
    wait_until(lambda: bool(table.log_tail("parent")))
    child = int(table.log_tail("parent")[0].split()[1])
    assert table.stop("stubborn", grace_s=0.2)
    assert table.stop("parent", grace_s=5.0)
    assert not table.observe("stubborn").running
    wait_until(lambda: not is_alive(child))
    assert table.stop("parent", grace_s=0.0) is False, "nothing ran"


def test_process_outlives_the_one_that_started_it_and_is_found_again(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fleetctl.providers.process import ProcessTable;"
        f"ProcessTable(Path({str(tmp_path / 'run')!r})).start('a', {SLEEPER!r}, url='')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    table = ProcessTable(tmp_path / "run")
    wait_until(lambda: table.observe("a").pid is not None)
    pid = table.observe("a").pid
    assert pid is not None
    assert is_alive(pid)
    table.stop("a", 5.0)
    assert not is_alive(pid)


def test_killed_process_is_not_running_whatever_its_pid_file_says(table: ProcessTable, tmp_path: Path) -> None:
    table.start("a", SLEEPER, url="")
    wait_until(lambda: table.observe("a").pid is not None)
    pid = table.observe("a").pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    wait_until(lambda: not table.observe("a").running)
    assert (tmp_path / "run" / "a" / "pid").exists()
    assert table.observe("a").pid is None, "the pid may belong to another process by now"


@pytest.mark.parametrize(
    ("argv", "number", "status"),
    [
        (["/bin/sh", "-c", "exit 3"], None, 3),
        (["/bin/sh", "-c", "exit 0"], None, 0),
        (["/bin/sleep", "600"], signal.SIGKILL, -9),
        (["/bin/sleep", "600"], signal.SIGSEGV, -11),
    ],
)
def test_how_a_process_ended_is_known_to_whoever_looks(
    table: ProcessTable, tmp_path: Path, argv: list[str], number: signal.Signals | None, status: int
) -> None:
    table.start("a", argv, url="")
    if number is not None:
        wait_until(lambda: table.observe("a").pid is not None)
        assert table.observe("a").exit_status is None, "it runs"
        os.killpg(table.observe("a").pid or 0, number)
    wait_until(lambda: ProcessTable(tmp_path / "run").observe("a").exit_status is not None)
    assert table.observe("a").exit_status == status
    table.start("a", SLEEPER, url="")
    wait_until(lambda: table.observe("a").pid is not None)
    (tmp_path / "run" / "a" / "exit").write_text("another-instance 1\n")
    table.stop("a", 0.0)
    wait_until(lambda: table.observe("a").exit_status in (-9, -15))


def test_half_written_records_are_no_record(table: ProcessTable, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "a"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text('{"url": "http')
    (folder / "pid").write_text("12x")
    view = table.observe("a")
    assert (view.running, view.pid, view.url) == (False, None, None)
    assert table.start("a", SLEEPER, url="http://z")
    assert table.observe("a").url == "http://z"


def test_program_that_does_not_exist_says_so_in_its_log(table: ProcessTable) -> None:
    table.start("a", ["/no/such/program"], url="")
    wait_until(lambda: not table.observe("a").running)
    assert "/no/such/program" in " ".join(table.log_tail("a"))


def test_folder_that_can_not_be_used_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="file"):
        ProcessTable(tmp_path / "file").start("a", SLEEPER, url="")


def test_exclusive_lock_refuses_a_second_holder(tmp_path: Path) -> None:
    with exclusive(tmp_path / "x.lock", "busy"):
        with pytest.raises(BadInputError, match="busy"), exclusive(tmp_path / "x.lock", "busy"):
            pass
    with exclusive(tmp_path / "x.lock", "busy"):
        pass


def test_stop_without_recorded_pid_is_an_error_not_a_guess(table: ProcessTable, tmp_path: Path) -> None:
    with exclusive(tmp_path / "run" / "a" / "lock", "busy"):
        with pytest.raises(FleetctlError, match="pid is not recorded"):
            table.stop("a", 0.0)


def test_what_ended_is_started_again_by_its_record_and_without_our_settings(
    table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETCTL_STATE_DIR", "/elsewhere")
    says = "import os, time; print([os.environ['FLEETCTL_STATE_DIR']], flush=True); time.sleep(600)"
    with pytest.raises(FleetctlError, match="no record"):
        table.start_again("a")
    assert table.start("a", [sys.executable, "-c", says], url="http://x", facts={"kind": "node"})
    before = table.spec("a")
    assert table.start_again("a") is False
    table.stop("a", 0.0)
    assert table.start_again("a") is True
    wait_until(lambda: "['']" in table.log_tail("a"))
    after = table.spec("a")
    assert after["instance"] != before["instance"]
    assert {**after, "instance": 0, "started_at": 0} == {**before, "instance": 0, "started_at": 0}
