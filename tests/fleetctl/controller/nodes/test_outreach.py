"""Receivers and programs of the settings, limits of a node, and evidence: bounded, found done, secrets kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.controller.nodes.evidence import Evidence
from fleetctl.controller.nodes.outreach import MAX_OUTPUT_BYTES, Outreach
from fleetctl.controller.notifications.courier import Courier
from fleetctl.kit.clock import SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.controller import ActionSettings
from fleetctl.settings.notifications import NotificationSettings
from fleetctl.wire.silence import Silence, SilenceRequest
from runbooks.ports import PermanentError, TemporaryError

pytestmark = pytest.mark.anyio


class NoSilences:
    async def current(self) -> list[Silence]:
        return []

    async def add(self, request: SilenceRequest) -> Silence:
        raise BadInputError("no Alertmanager is set")


def outreach(
    answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(200),
    receivers: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> Outreach:
    courier = Courier(httpx.AsyncClient(transport=httpx.MockTransport(answer)), SystemClock())
    notifications = NotificationSettings.model_validate({"receivers": receivers})
    return Outreach(ActionSettings(**settings), notifications, courier, NoSilences())


def program(tmp_path: Path, text: str) -> dict[str, Path]:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"mine": path}


async def test_a_program_gets_its_arguments_as_they_are_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    programs = program(tmp_path, 'echo "$1|$#|$FLEETCTL_STEP_KEY|$SECRET|$(pwd)"')
    receipt = await outreach(programs=programs).execute("mine", ["node-2;id", "b"], 20.0, "run-1-do-0")
    assert receipt["output"] == "node-2;id|2|run-1-do-0||/\n"


async def test_a_program_that_says_too_much_fails_or_does_not_end_is_bounded(tmp_path: Path) -> None:
    loud = await outreach(programs=program(tmp_path, "head -c 300000 /dev/zero | tr '\\0' x")).execute(
        "mine", [], 20.0, "k"
    )
    assert len(loud["output"]) == MAX_OUTPUT_BYTES
    with pytest.raises(PermanentError, match="exit code 3: no room"):
        await outreach(programs=program(tmp_path, "echo no room; exit 3")).execute("mine", [], 20.0, "k")
    mark = tmp_path / "late"
    with pytest.raises(PermanentError, match=r"not done after 0\.2 s"):
        await outreach(programs=program(tmp_path, f"sleep 30 && touch {mark}")).execute("mine", [], 0.2, "k")
    with pytest.raises(PermanentError, match=r"no program other in actions\.programs: mine"):
        await outreach(programs=program(tmp_path, "true")).execute("other", [], 1.0, "k")
    with pytest.raises(ValueError, match="is not an absolute path"):
        ActionSettings(programs={"mine": Path("relative")})


async def test_a_receiver_hears_text_and_key_and_nobody_sees_its_url(tmp_path: Path) -> None:
    url, header = tmp_path / "url", tmp_path / "header"
    url.write_text("https://chat.example/hook/hunter2\n")
    header.write_text("Bearer hunter2\n")
    receiver = {"name": "oncall", "kind": "webhook", "url_file": url, "authorization_file": header}
    heard: list[httpx.Request] = []
    status = 200

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request)
        return httpx.Response(status)

    told = outreach(answer, [receiver])
    receipt = await told.notify("oncall", "it is done", "run-1-do-0", {"run": "run-1"})
    body = json.loads(heard[0].content)
    assert (body["text"], body["key"], body["run"]) == ("it is done", "run-1-do-0", "run-1")
    assert heard[0].headers["idempotency-key"] == "run-1-do-0"
    assert heard[0].headers["authorization"] == "Bearer hunter2"
    assert "hunter2" not in str(receipt)
    for code, error in ((503, TemporaryError), (404, PermanentError), (302, PermanentError)):
        status = code
        with pytest.raises(error) as caught:
            await told.notify("oncall", "x", "k", {})
        assert "hunter2" not in str(caught.value)
    url.unlink()
    with pytest.raises(PermanentError, match="receiver oncall: url_file"):
        await told.notify("oncall", "x", "k", {})
    with pytest.raises(PermanentError, match=r"no receiver boss in notifications\.receivers: oncall"):
        await told.notify("boss", "x", "k", {})


async def test_a_silence_without_alertmanager_says_so() -> None:
    with pytest.raises(PermanentError):
        await outreach().add_silence("LLMNodeSlow", {"node": "node-2"}, 60.0, "ann", "k")


class DeadProvider:
    """A node that is gone, and nothing of it on this machine."""

    def observe(self, name: str) -> Any:
        return type("View", (), {"running": False, "url": None, "instance": None})()

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> Any:
        return type("Chunk", (), {"lines": ["killed by the kernel"], "cursor": None})()


class NoEngine:
    async def held_requests(self, name: str) -> dict[str, Any]:
        raise PermanentError(f"{name} does not run")

    async def page(self, name: str, path: str) -> str:
        raise PermanentError(f"{name} does not run")


def check_evidence_file(file: Path, folder: Path) -> None:
    assert file.parent == folder
    assert file.stat().st_mode & 0o077 == 0
    parts = json.loads(file.read_text())["parts"]
    assert parts["log"]["content"] == "killed by the kernel"
    assert parts["requests"]["missing"] == "node-2 does not run"
    assert parts["stacks"]["missing"] == "it has no process on this machine"


async def test_evidence_of_a_dead_node_keeps_what_there_is_and_says_why_the_rest_is_missing(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path, DeadProvider(), NoEngine(), SystemClock())  # type: ignore[arg-type]
    receipt = await evidence.collect("node-2", "inc-1", "run-1-do-0")
    again = await evidence.collect("node-2", "inc-1", "run-1-do-0")
    assert receipt["file"] == again["file"]
    check_evidence_file(Path(receipt["file"]), tmp_path / "inc-1")
    assert set(receipt["missing"]) >= {"requests", "health", "metrics", "processes", "stacks"}


async def test_limits_from_before_a_run_come_back_after_any_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = {"max_num_seqs": 32, "max_num_batched_tokens": 8192}
    stored: dict[str, Any] = {}
    module = "fleetctl.controller.nodes.engine_calls"
    monkeypatch.setattr(f"{module}.get_meta", lambda _, key: json.loads(stored.get(key, "null")))
    monkeypatch.setattr(f"{module}.put_meta", lambda _, key, value: stored.__setitem__(key, json.dumps(value)))

    class Direct:
        async def write(self, work: Callable[[Any], Any]) -> Any:
            return work(None)

        read = write

    calls = EngineCalls(Direct(), None, None)  # type: ignore[arg-type]

    async def running(self: EngineCalls, name: str) -> tuple[str, str]:
        return "http://node", "instance-1"

    async def ask(self: EngineCalls, method: str, url: str, body: Any = None, *, timeout_s: float = 1.0) -> Any:
        await asyncio.sleep(0)
        live.update(body or {})
        return dict(live)

    monkeypatch.setattr(EngineCalls, "_running", running)
    monkeypatch.setattr(EngineCalls, "_ask", ask)
    for _ in range(2):  # the second call is that after a crash
        receipt = await calls.set_limits("node-2", {}, 0.5, "run-1")
        assert (receipt["before"]["max_num_seqs"], receipt["limits"]["max_num_seqs"]) == (32, 16)
    await calls.set_limits("node-2", {"max_num_seqs": 8}, None, "run-2")
    await calls.restore_limits("node-2", "run-2")
    assert live["max_num_seqs"] == 16
    await calls.restore_limits("node-2", "a later run")
    assert live["max_num_seqs"] == 32
    assert "nothing changed its limits" in (await calls.restore_limits("node-2", "run-1"))["note"]
