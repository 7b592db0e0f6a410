"""A gateway as it is run, with its supervisor: reloaded under load, its workers killed, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetctl.gateway.workers.launch import STATE_FILE, SupervisorState, workers_folder
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.whole_file import write_whole
from fleetctl.providers.process import environment_without_settings
from fleetctl.wire.gateway import GatewayWorkers
from tests.fixtures.gateway import (
    CONTROLLER_TOKEN,
    DEADLINE_S,
    NODE_TOKEN,
    START_S,
    ScriptedNode,
    chat_text,
    scripted_controller,
    scripted_nodes,
)

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

BODY = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1}


def settings_of_file() -> dict[str, str]:
    """An environment whose settings variables, as `make` sets them, do not stand before the file's."""
    return {**os.environ, **environment_without_settings()}


@dataclass
class Site:
    """A gateway process before one scripted node."""

    process: Process
    port: int
    state_dir: Path
    controller_url: str
    node: ScriptedNode
    session: aiohttp.ClientSession
    problems: list[str] = field(default_factory=list)
    answered: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> SupervisorState:
        state = SupervisorState.read(self.folder)
        assert state is not None
        return state

    @property
    def folder(self) -> Path:
        return workers_folder(self.state_dir / "run" / "gateway", self.port)

    def set(self, **gateway: Any) -> None:
        """Write the settings file."""
        settings = {
            "state_dir": str(self.state_dir),
            "controller": {"url": self.controller_url},
            "gateway": {"port": self.port, **gateway},
        }
        write_whole(self.state_dir / "fleetctl.yaml", json.dumps(settings))

    async def reload(self) -> tuple[int | None, str]:
        """By the command line: its exit code and what it says."""
        words = (sys.executable, "-m", "fleetctl.cli", "--config", str(self.state_dir / "fleetctl.yaml"))
        told = await asyncio.create_subprocess_exec(*words, "gateway", "reload", stdout=PIPE, env=settings_of_file())
        out, _ = await told.communicate()
        return told.returncode, out.decode()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for another process: there is no event."""
        async with asyncio.timeout(START_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def connect_forever(self) -> None:
        """New connections, one after the other; each must be answered."""
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                try:
                    answer = await reader.read()
                finally:
                    writer.close()
                    await writer.wait_closed()
                if not answer.startswith(b"HTTP/1.1 200 "):
                    self.problems.append(f"answer: {answer[:100]!r}")
            except OSError as error:
                self.problems.append(repr(error))
            self.answered += 1
            await asyncio.sleep(0.02)  # new workers start on the same cores

    async def chat_forever(self) -> None:
        """Requests on connections that are kept."""
        while True:
            try:
                async with self.session.post(self.url + "/v1/chat/completions", json=BODY) as response:
                    if response.status != 200:
                        self.problems.append(f"status {response.status}: {await response.text()}")
                    await response.read()
            except aiohttp.ClientError as error:
                self.problems.append(repr(error))
            self.answered += 1
            await asyncio.sleep(0.02)

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path, headers={"Connection": "close"}) as response:
            assert response.status == 200
            return await response.json()

    async def counts(self) -> dict[str, float]:
        """Ended requests by outcome, as Prometheus sees them."""
        async with self.session.get(self.url + "/metrics", headers={"Connection": "close"}) as response:
            families = text_string_to_metric_families(await response.text())
        (requests,) = [one for one in families if one.name == "gateway_requests"]
        found: dict[str, float] = {}
        for sample in requests.samples:
            if sample.name == "gateway_requests_total":
                outcome = sample.labels["outcome"]
                found[outcome] = found.get(outcome, 0) + sample.value
        return found

    async def start(self) -> None:
        """Start the gateway, and wait until it serves."""
        words = [sys.executable, "-m", "fleetctl.gateway", "--config", str(self.state_dir / "fleetctl.yaml")]
        with (self.state_dir / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log, env=settings_of_file())
        async with asyncio.timeout(START_S):
            while not await self.is_up():
                ended = self.process.returncode is not None
                assert not ended, f"the gateway's process ended: {(self.state_dir / 'log').read_text()[-1000:]}"
                await asyncio.sleep(0.05)

    async def hold_stream(self, request_id: str) -> aiohttp.ClientResponse:
        """A stream that has begun and does not end."""
        self.node.wait_at = 4
        self.node.gate.clear()
        headers = {"Connection": "close", "X-Request-Id": request_id}
        stream = await self.session.post(
            self.url + "/v1/chat/completions", json={**BODY, "stream": True}, headers=headers
        )
        assert stream.status == 200
        return stream

    async def is_up(self) -> bool:
        try:
            async with self.session.get(self.url + "/health", headers={"Connection": "close"}) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def running(state_dir: Path, **gateway: Any) -> AsyncIterator[Site]:
    async with scripted_nodes("a") as (node,), scripted_controller() as controller, aiohttp.ClientSession() as session:
        controller.set(node)
        for name, token in (("controller", CONTROLLER_TOKEN), ("node", NODE_TOKEN)):
            write_whole(state_dir / f"{name}.token", token)
        port = reserve_port()
        site = Site(None, port, state_dir, controller.url, node, session)  # type: ignore[arg-type]
        site.set(**gateway)
        await site.start()
        try:
            yield site
        except BaseException as error:
            error.add_note((state_dir / "log").read_text(errors="replace")[-3000:])
            raise
        finally:
            state = SupervisorState.read(site.folder)
            pids = [one.pid for one in state.workers] if state else []
            for pid in [*([site.process.pid] if site.process.returncode is None else []), *pids]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await site.process.wait()


async def test_a_reload_refuses_no_connection_and_cuts_no_stream_and_a_killed_worker_is_replaced(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        (first,) = site.state.workers
        stream = await site.hold_stream("held")
        site.node.wait_at = 8  # only that stream waits
        load = [asyncio.create_task(site.connect_forever()) for _ in range(2)]
        load += [asyncio.create_task(site.chat_forever())]

        site.set(workers=2, max_resends=0)
        assert await site.reload() == (0, "generation 2: 2 serving, 1 finish what they have\n")
        assert (site.state.generation, site.state.reload_error) == (2, None)
        answered = site.answered
        await site.until(lambda: site.answered > answered + 100)

        site.set(workers=2, max_resends="many")
        site.process.send_signal(signal.SIGHUP)
        await site.until(lambda: site.state.reloads == 2)
        assert site.state.generation == 2
        assert "max_resends" in (site.state.reload_error or "")
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        assert site.problems == []
        phases = {one.pid: one.phase for one in site.state.workers}
        assert phases.pop(first.pid) == "retiring", "its stream goes on"
        assert list(phases.values()) == ["serving", "serving"]

        for status in [await site.get("/gateway/status") for _ in range(8)]:  # on a new connection each: some worker
            assert (status["in_flight"], status["nodes"]["a"]["inflight"]) == (1, 1)
            assert {key: status["workers"][key] for key in ("serving", "retiring")} == {"serving": 2, "retiring": 1}
            assert (await site.get("/gateway/requests/held"))["fate"] == "in_flight", "whichever answers"
        counts = await site.counts()
        assert len({tuple((await site.counts()).items()) for _ in range(8)}) == 1, "whichever answers"
        for path in ("/gateway/decisions", "/gateway/prefix-report"):
            told = [json.dumps(await site.get(path), sort_keys=True) for _ in range(8)]
            assert len(set(told)) == 1, f"{path}: whichever answers"
        admitted = (await site.get("/gateway/tenants"))["tenants"][0]["admitted"]
        assert sum(counts.values()) == admitted - 1, "all but the stream"

        victim = next(iter(phases))
        os.kill(victim, signal.SIGKILL)
        await site.until(lambda: site.state.deaths == 1 and {w.phase for w in site.state.workers} >= {"serving"})
        await site.until(lambda: [w.phase for w in site.state.workers].count("serving") == 2)
        assert await site.counts() == counts, "what a killed worker had counted is not forgotten"

        site.node.gate.set()
        text = (await stream.read()).decode()
        assert text.endswith("data: [DONE]\n\n")
        chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks if c["choices"]) == chat_text()
        await site.until(lambda: first.pid not in {one.pid for one in site.state.workers})
        assert await site.counts() == {**counts, "finished": counts["finished"] + 1}
        assert (await site.get("/gateway/requests/held"))["fate"] == "finished", "as its worker knew that has ended"

        stream = await site.hold_stream("cut")
        site.process.send_signal(signal.SIGTERM)
        while await site.is_up():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        site.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            assert '"shutting_down"' in await stream.text(), "asked twice, it does not wait for its streams"
            assert await site.process.wait() == 0
        assert SupervisorState.read(site.folder) is None, "nothing is left of it"
        assert not await site.is_up()


async def test_counts_and_fates_go_on_over_the_death_of_a_supervisor_and_what_a_killed_worker_carried_is_lost(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        async with site.session.post(site.url + "/v1/chat/completions", json=BODY) as answer:
            assert answer.status == 200
        kept = tmp_path / "effective.json"  # what `fleetctl up` starts a gateway with
        kept.write_text(json.dumps({"gateway": {"host": "127.0.0.1", "port": site.port}}))
        before = kept.read_text()
        site.set(tenants_file=str(tmp_path / "none.yaml"))
        assert (await site.reload())[0] == 2
        assert kept.read_text() == before, "the next start must not fail by what a reload could not use"
        site.set()

        ended = await site.hold_stream("ended")
        assert await site.counts() == {"finished": 1}
        (first,) = site.state.workers
        site.process.kill()
        await site.process.wait()
        assert await site.is_up(), "its worker serves on"
        await site.start()
        await site.until(lambda: {one.phase for one in site.state.workers} == {"serving", "retiring"})
        assert {one.phase for one in site.state.workers if one.pid == first.pid} == {"retiring"}, "it ends what it has"
        assert (await site.get("/gateway/requests/ended"))["fate"] == "in_flight"
        site.node.gate.set()
        assert (await ended.text()).endswith("data: [DONE]\n\n")
        await site.until(lambda: first.pid not in {one.pid for one in site.state.workers})
        assert await site.counts() == {"finished": 2}

        await site.hold_stream("carried")
        (second,) = site.state.workers
        os.kill(second.pid, signal.SIGKILL)
        await site.until(lambda: site.state.deaths == 1 and [w.phase for w in site.state.workers] == ["serving"])
        fate = await site.get("/gateway/requests/carried")
        assert (fate["fate"], fate["reason"]) == ("failed", "worker_died")
        assert await site.counts() == {"finished": 2, "failed": 1}
        assert (await site.get("/gateway/status"))["outcomes"] == {"finished": 2, "failed": 1}, "the same everywhere"
        assert "carried" in (tmp_path / "log").read_text(), "its log names what was lost"


async def test_a_supervisor_that_stands_still_is_told_by_the_workers_that_serve_on(tmp_path: Path) -> None:
    """Nobody asks it anything, so nobody missed it, until the next worker ended and was not started again."""
    async with running(tmp_path) as site:

        async def workers() -> GatewayWorkers:
            return GatewayWorkers.model_validate((await site.get("/gateway/status"))["workers"])

        assert (await workers()).problem == ""
        site.process.send_signal(signal.SIGSTOP)
        # It writes nothing any more once it is stopped.
        await asyncio.to_thread(os.waitid, os.P_PID, site.process.pid, os.WSTOPPED | os.WNOWAIT)
        os.utime(site.folder / STATE_FILE, (time.time() - 100, time.time() - 100))
        assert "its own process has given no sign for 10" in (await workers()).problem
        assert await site.is_up(), "and they serve"
        site.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(START_S):
            while (await workers()).problem:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
