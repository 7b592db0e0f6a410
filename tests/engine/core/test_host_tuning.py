from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.core import host_tuning


def test_a_small_model_gets_one_thread() -> None:
    assert host_tuning.default_num_threads(4 << 20) == 1


def test_a_large_model_gets_no_more_threads_than_cpus() -> None:
    assert 1 <= host_tuning.default_num_threads(1 << 30) <= len(os.sched_getaffinity(0))


def test_a_quota_limits_threads(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    monkeypatch.setattr(host_tuning, "_QUOTA", quota)
    assert host_tuning.default_num_threads(1 << 30) == 1


def test_waiting_threads_spin_little_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    host_tuning.limit_openmp_spin()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    host_tuning.limit_openmp_spin()
    assert os.environ["GOMP_SPINCOUNT"] == str(host_tuning.SPIN_COUNT)
    monkeypatch.delenv("GOMP_SPINCOUNT")


def test_short_slices_leave_priority_and_policy_as_they_were() -> None:
    def of_this_thread() -> tuple[int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def ask() -> tuple[tuple[int, int], bool, tuple[int, int]]:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 12)
        return of_this_thread(), host_tuning.ask_for_short_slices(), of_this_thread()

    with ThreadPoolExecutor(1) as thread:  # it is asked for by thread: the test's own stays as it is
        before, is_asked, after = thread.submit(ask).result()
    assert before == after
    assert is_asked == (sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"))


def test_triton_gets_a_folder_of_its_own_where_the_home_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TRITON_HOME", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert host_tuning.find_triton_cache() is None
    monkeypatch.setattr(Path, "home", lambda: Path("/proc/nowhere"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = host_tuning.find_triton_cache()
    assert own is not None
    assert (own.is_dir(), os.environ["TRITON_CACHE_DIR"]) == (True, str(own))
    assert host_tuning.find_triton_cache() is None, "what was chosen wins"
