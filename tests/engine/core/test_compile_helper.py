"""The helper that compiles beside a first start: a copy of the core that holds nothing of it but its code."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from engine.core.compile_command import compile_beside
from kernels import compile_ahead
from kernels.cpu.progress import address_of_progress


@pytest.mark.timeout(120)
def test_the_helper_compiles_what_was_asked_and_holds_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go)
    os.mkfifo(done)
    own_progress = address_of_progress()

    def compile_when_told(*asked: object, **options: object) -> None:
        go.read_text()
        done.write_text(f"{asked} {options} {address_of_progress() != own_progress}")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(compile_ahead, "is_compiled", lambda *asked, **options: False)
    monkeypatch.setattr(compile_ahead, "compile_ahead", compile_when_told)
    ours, theirs = os.pipe()
    compile_beside("bfloat16", "int4", "auto", has_experts=False)
    os.close(theirs)
    assert os.read(ours, 1) == b"", "the end that the core closed is open nowhere else"
    os.close(ours)
    go.write_text("go")
    assert done.read_text() == "('bfloat16', 'int4', 'auto') {'has_experts': False} True"


def test_nobody_helps_where_there_is_one_cpu_or_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise AssertionError("a helper was started")

    monkeypatch.setattr(os, "fork", refuse)
    before = threading.active_count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(compile_ahead, "is_compiled", lambda *asked, **options: False)
    compile_beside("bfloat16", None, "auto", has_experts=True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(compile_ahead, "is_compiled", lambda *asked, **options: True)
    compile_beside("bfloat16", None, "auto", has_experts=True)
    assert threading.active_count() == before
