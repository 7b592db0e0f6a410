"""A real core process with the fake runner, over its real socket."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator

import pytest

from engine.core.fake_runner import generate
from engine.node.core_process import CoreClient
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import (
    AbortSequence,
    CoreFailed,
    CoreIdle,
    CoreReady,
    FromCore,
    SequenceUpdate,
    SetFaults,
    StepReport,
)
from tests.fixtures.core import make_request

pytestmark = pytest.mark.e2e

DEADLINE_S = 150  # one imports torch, which a busy machine once did for more than a minute
CONFIG = CoreConfig(model_dir=".", runner="fake", vocab_size=1000, max_model_len=400, num_kv_blocks=100)


class Talk:
    """A client with a reader that keeps what the core says."""

    def __init__(self, config: CoreConfig = CONFIG) -> None:
        self.config = config
        self.exits: list[int] = []
        self.client = CoreClient(on_exit=self.exits.append)
        self.heard: list[FromCore] = []
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Talk:
        await self.client.start(self.config)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop(DEADLINE_S)
        if self._reader is not None:
            await asyncio.wait_for(self._reader, DEADLINE_S)

    async def _read(self) -> None:
        async for message in self.client.messages():
            self.heard.append(message)
            async with self._news:
                self._news.notify_all()

    async def until(self, is_met) -> None:
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(is_met)

    async def ready(self) -> CoreReady:
        await self.until(lambda: any(isinstance(m, CoreReady) for m in self.heard))
        return next(m for m in self.heard if isinstance(m, CoreReady))

    async def read_to_the_end(self) -> None:
        assert self._reader is not None
        await asyncio.wait_for(asyncio.shield(self._reader), DEADLINE_S)

    @property
    def reports(self) -> list[StepReport]:
        return [m for m in self.heard if isinstance(m, StepReport)]

    def updates_of(self, seq_id: str) -> list[SequenceUpdate]:
        return [u for r in self.reports for u in r.updates if u.seq_id == seq_id]

    def has_ended(self, seq_id: str) -> bool:
        return any(u.finish_reason for u in self.updates_of(seq_id))

    def tokens_of(self, seq_id: str) -> list[int]:
        return [t for u in self.updates_of(seq_id) for t in u.token_ids]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with Talk() as started:
        await started.ready()
        yield started


@pytest.mark.anyio
async def test_serves_requests_until_it_is_stopped() -> None:
    request = make_request("a", 20, max_tokens=30)
    async with Talk() as talk:
        ready = await talk.ready()
        assert (ready.num_kv_blocks, ready.block_size, ready.max_model_len) == (100, 16, 400)
        assert talk.client.send(request)
        await talk.until(lambda: talk.has_ended("a"))
    assert talk.tokens_of("a") == generate(request.prompt_token_ids, request.sampling, 1000)
    assert talk.client.returncode == 0
    assert talk.exits == [0]
    assert not talk.client.send(request)


@pytest.mark.anyio
async def test_idle_core_reports_that_it_lives(talk: Talk) -> None:
    await talk.until(lambda: sum(isinstance(m, CoreIdle) for m in talk.heard) >= 2)
    idle = next(m for m in talk.heard if isinstance(m, CoreIdle))
    assert (idle.kv_blocks_used, idle.integrity_error) == (0, None)


@pytest.mark.anyio
async def test_abort_stops_a_request_after_a_whole_token() -> None:
    request = make_request("a", 20, max_tokens=350)
    async with Talk(CoreConfig(**{**_fields(CONFIG), "enable_faults": True})) as talk:
        await talk.ready()
        talk.client.send(SetFaults(slow_steps=200.0))  # it takes more than two minutes
        talk.client.send(request)
        await talk.until(lambda: len(talk.tokens_of("a")) >= 3)
        talk.client.send(AbortSequence("a", "moved"))
        await talk.until(lambda: talk.has_ended("a"))
        assert talk.updates_of("a")[-1].finish_reason == "abort"
        done = talk.tokens_of("a")
        # and another core goes on from there
        rest = make_request("b", request.prompt_token_ids, max_tokens=len(done) + 5, output=done)
        talk.client.send(SetFaults())
        talk.client.send(rest)
        await talk.until(lambda: talk.has_ended("b"))
    assert done + talk.tokens_of("b") == generate(request.prompt_token_ids, request.sampling, 1000)[: len(done) + 5]


@pytest.mark.anyio
async def test_slow_steps_show_in_the_reported_seconds() -> None:
    async with Talk(CoreConfig(**{**_fields(CONFIG), "enable_faults": True})) as talk:
        await talk.ready()
        talk.client.send(SetFaults(slow_steps=10.0))
        talk.client.send(make_request("a", max_tokens=2))
        await talk.until(lambda: talk.has_ended("a"))
    assert all(report.seconds >= 0.018 for report in talk.reports)


@pytest.mark.anyio
async def test_death_of_the_core_is_noticed(talk: Talk) -> None:
    talk.client.send(make_request("a", max_tokens=390))
    await talk.until(lambda: len(talk.tokens_of("a")) >= 1)
    assert talk.client.pid is not None
    os.kill(talk.client.pid, signal.SIGKILL)
    await talk.read_to_the_end()
    assert await asyncio.wait_for(talk.client.wait(), DEADLINE_S) == -signal.SIGKILL
    assert talk.exits == [-signal.SIGKILL]
    assert not talk.client.send(make_request("b"))


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_of_the_terminal_are_left_to_the_api_process(talk: Talk, number: signal.Signals) -> None:
    assert talk.client.pid is not None
    os.kill(talk.client.pid, number)
    talk.client.send(make_request("a", max_tokens=3))
    await talk.until(lambda: talk.has_ended("a"))
    assert talk.client.returncode is None


@pytest.mark.anyio
async def test_stuck_core_is_killed_when_it_does_not_stop(talk: Talk) -> None:
    assert talk.client.pid is not None
    os.kill(talk.client.pid, signal.SIGSTOP)
    assert await talk.client.stop(0.05) == -signal.SIGKILL
    assert await talk.client.stop(0.05) == -signal.SIGKILL, "stopping again changes nothing"
    assert talk.client.was_killed


@pytest.mark.anyio
async def test_model_that_is_not_there_ends_the_core_with_the_reason(tmp_path) -> None:
    missing = tmp_path / "no-such-model"
    async with Talk(CoreConfig(model_dir=str(missing))) as talk:
        await talk.read_to_the_end()
        assert await talk.client.wait() == 1
    failed = talk.heard[-1]
    assert isinstance(failed, CoreFailed)
    assert str(missing) in failed.reason


@pytest.mark.anyio
async def test_limits_that_contradict_end_the_core_with_the_reason() -> None:
    async with Talk(CoreConfig(**{**_fields(CONFIG), "max_num_batched_tokens": 3})) as talk:
        await talk.read_to_the_end()
    assert isinstance(talk.heard[-1], CoreFailed)
    assert talk.heard[-1].reason.startswith("max_num_batched_tokens")


@pytest.mark.anyio
async def test_garbage_from_the_core_ends_it(tmp_path) -> None:
    """A process that speaks something else is killed, not waited for."""
    script = "import os, sys, time; fd = int(sys.argv[2]); os.write(fd, b'\\xff' * 8); time.sleep(600)"
    client = CoreClient()
    await client.start(CONFIG, command=(sys.executable, "-c", script))
    assert [m async for m in client.messages()] == []
    assert await asyncio.wait_for(client.wait(), DEADLINE_S) == -signal.SIGKILL
    await client.stop(0.0)


@pytest.mark.anyio
async def test_client_that_was_never_started_stops_at_once() -> None:
    client = CoreClient()
    assert await client.stop(0.0) is None
    assert client.pid is None


@pytest.mark.parametrize("is_stuck", [False, True], ids=["working", "stuck"])
def test_core_dies_with_its_parent(is_stuck: bool) -> None:
    parent = textwrap.dedent(
        """
        import asyncio
        from engine.node.core_process import CoreClient
        from engine.protocol.core_config import CoreConfig
        from engine.log import configure_logging
        from engine.protocol.messages import CoreReady

        async def main():
            client = CoreClient()
            await client.start(CoreConfig(model_dir=".", runner="fake"))
            async for message in client.messages():
                if isinstance(message, CoreReady):
                    print(client.pid, flush=True)

        configure_logging()  # events to stderr: stdout is for the pid
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        core_pid = int(process.stdout.readline())
        core = os.pidfd_open(core_pid)
        try:
            if is_stuck:
                os.kill(core_pid, signal.SIGSTOP)
            process.kill()
            ended, _, _ = select.select([core], [], [], DEADLINE_S)
            assert ended, "the core outlived its parent"
        finally:
            if not select.select([core], [], [], 0)[0]:
                signal.pidfd_send_signal(core, signal.SIGKILL)
            os.close(core)


def _fields(config: CoreConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__struct_fields__}
