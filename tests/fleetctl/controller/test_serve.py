"""A controller that can't store while it takes up its runs waits for its storage, and ends only when it is told to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.controller import app
from fleetctl.controller.database import StorageLostError
from runbooks.executor import Executor
from tests.fixtures.controller import NoProvider, make_config

pytestmark = pytest.mark.anyio


async def test_storage_that_is_lost_while_runs_are_taken_up_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [StorageLostError("database or disk is full"), StorageLostError("database or disk is full")]
    taken_up = Executor.resume

    async def resume(executor: Executor) -> int:
        if answers:
            raise answers.pop()
        return await taken_up(executor)

    monkeypatch.setattr(Executor, "resume", resume)
    monkeypatch.setattr(app, "OPEN_PAUSE_S", 0.001)
    stopping = asyncio.Event()
    reached: list[str] = []

    def ready(url: str) -> None:
        reached.append(url)
        stopping.set()

    await app.serve(make_config(tmp_path, nodes=0), ready, provider=NoProvider(), stopping=stopping)

    assert len(reached) == 1
    assert answers == []


async def test_one_that_waits_for_its_storage_ends_when_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()
    tries = 0

    async def resume(executor: Executor) -> int:
        nonlocal tries
        tries += 1
        if tries == 3:
            stopping.set()
        raise StorageLostError("database or disk is full")

    monkeypatch.setattr(Executor, "resume", resume)
    monkeypatch.setattr(app, "OPEN_PAUSE_S", 0.001)
    reached: list[str] = []

    await app.serve(make_config(tmp_path, nodes=0), reached.append, provider=NoProvider(), stopping=stopping)

    assert tries >= 3
    assert reached == []
