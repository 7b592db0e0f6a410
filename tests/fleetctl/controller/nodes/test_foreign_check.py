"""Nodes of engines that have no deep check: asked, voted on, taken out of routing, and let in again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from aiohttp import web

from engine.bench.gguf_file import write_gguf
from engine.model.make import make_model
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes import foreign_check
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.foreign_check import ForeignCheck
from fleetctl.controller.nodes.node_answers import BadStatusError, NoAnswerError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.engines.known_prompt import ANSWER_TOKENS, PROMPT
from fleetctl.kit.fetch import Fetcher
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.tls import NO_TLS
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase
from tests.fixtures import ROOT
from tests.fixtures.controller import NoProvider, make_config, until
from tests.fixtures.llama_server import LlamaServer, llama_server, make_gguf

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights behind the same name."""
    folder = tmp_path_factory.mktemp("other")
    make_model(folder / "hf", seed=7)
    return write_gguf(folder / "hf", folder / "demo.gguf")


class Servers:
    """Real servers on fixed ports, each of which may be ended and started anew with another model."""

    def __init__(self, stack: ExitStack, model: Path, number: int) -> None:
        self.ports = [reserve_port() for _ in range(number)]
        self._stack = stack
        self._running = {port: self._start(port, model) for port in self.ports}

    def _start(self, port: int, model: Path) -> tuple[ExitStack, LlamaServer]:
        own = self._stack.enter_context(ExitStack())
        return own, own.enter_context(llama_server(model, port, "--parallel", "1"))

    def exchange(self, port: int, model: Path) -> None:
        self._running[port][0].close()
        self._running[port] = self._start(port, model)


@pytest.fixture
def servers(gguf: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, gguf, 3)


RULES = [{"source_labels": ["__address__"], "regex": r".*:(\d+)", "target_label": "node", "replacement": "n-$1"}]


@asynccontextmanager
async def attached(tmp_path: Path, *ports: int) -> AsyncIterator[Controller]:
    targets = [{"static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}], "relabel_configs": RULES}]
    config = make_config(tmp_path / "state", start_nodes=False, targets=targets, deep_check_interval_s=1.0)
    async with open_controller(config, NoProvider()) as controller:
        yield controller


async def turn(controller: Controller) -> None:
    for loop in ("discovery", "fleet", "deep-checks", "scrape", "fleet-series", "alerts"):
        await controller.loops.run_turn(loop)


async def until_checked(controller: Controller, results: Mapping[str, bool | None], what: str) -> None:
    async def look() -> bool:
        await turn(controller)
        checks = {name: controller.deep_checks.last(name) for name in results}
        return {n: c.is_right if c else "none" for n, c in checks.items()} == results

    await until(look, what)


def firing(controller: Controller) -> set[tuple[str, str]]:
    return {(one.name, one.labels.get("node", "")) for one in controller.alerting.alerts() if one.state == "firing"}


def phase_of(controller: Controller, name: str) -> tuple[NodePhase, str]:
    state = controller.fleet.nodes[name]
    return state.phase, state.reason


async def until_phase(controller: Controller, name: str, phase: NodePhase, reason: str) -> None:
    """Without a turn: the check itself tells the table."""

    async def look() -> bool:
        return phase_of(controller, name) == (phase, reason)

    await until(look, f"{name} is {phase} ({reason})")


async def test_a_node_with_other_weights_is_taken_out_paged_and_let_in_when_it_is_right(
    tmp_path: Path, servers: Servers, gguf: Path, other_gguf: Path
) -> None:
    names = [f"n-{port}" for port in servers.ports]
    async with attached(tmp_path, *servers.ports) as controller:
        await until_checked(controller, dict.fromkeys(names, True), "all are right")
        await asyncio.to_thread(servers.exchange, servers.ports[2], other_gguf)
        wrong = {**dict.fromkeys(names, True), names[2]: False}
        await until_checked(controller, wrong, "the third one is wrong")
        await until_phase(controller, names[2], NodePhase.NOT_READY, "wrong_output")
        phases = {route.node: route.phase for route in controller.routing.table.routes}
        assert phases[names[2]] is NodePhase.NOT_READY, "no gateway sends there any more"
        check = controller.deep_checks.last(names[2])
        assert check is not None
        assert "(2 of 3 nodes)" in check.detail

        async def is_paged() -> bool:
            await turn(controller)
            return ("LLMWrongOutput", names[2]) in firing(controller)

        await until(is_paged, "somebody is paged")
    # A new controller knows it before it could ask anybody, and knows what is right.
    async with attached(tmp_path, *servers.ports) as controller:
        for loop in ("discovery", "fleet"):
            await controller.loops.run_turn(loop)
        assert phase_of(controller, names[2]) == (NodePhase.NOT_READY, "wrong_output")
        await asyncio.to_thread(servers.exchange, servers.ports[2], gguf)
        await until_checked(controller, dict.fromkeys(names, True), "it is right again")
        await until_phase(controller, names[2], NodePhase.READY, "")


async def test_what_was_recorded_is_known_to_the_next_controller_and_one_node_alone_is_not_judged(
    tmp_path: Path, servers: Servers, other_gguf: Path
) -> None:
    port = servers.ports[0]
    async with attached(tmp_path, port) as controller:
        await until_checked(controller, {f"n-{port}": True}, "its first answer is recorded")
    await asyncio.to_thread(servers.exchange, port, other_gguf)
    async with attached(tmp_path, port) as controller:

        async def differs() -> bool:
            await turn(controller)
            check = controller.deep_checks.last(f"n-{port}")
            return check is not None and "not as its revision answered first" in check.detail

        await until(differs, "it is held to what was recorded")
        assert phase_of(controller, f"n-{port}") == (NodePhase.READY, "")


# What each engine sends, and refuses.

VLLM = {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": " Thursday,",
            "logprobs": {
                "text_offset": [0, 9],
                "token_logprobs": [-0.0009, -0.02],
                "tokens": [" Thursday", ","],
                "top_logprobs": [{" Thursday": -0.0009, " Friday": -7.5}, {",": -0.02, ".": -4.1}],
            },
            "finish_reason": "length",
        }
    ],
}
SGLANG = {
    "text": " Thursday,",
    "meta_info": {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.0009, 7950, None], [-0.02, 11, None]],
        "output_top_logprobs": [[[-0.0009, 7950, None], [-7.5, 6602, None]], [[-0.02, 11, None], [-4.1, 13, None]]],
    },
}
TGI = {
    "generated_text": " Thursday,",
    "details": {
        "finish_reason": "length",
        "generated_tokens": 2,
        "seed": None,
        "prefill": [],
        "tokens": [
            {"id": 7950, "text": " Thursday", "logprob": -0.0009, "special": False},
            {"id": 11, "text": ",", "logprob": -0.02, "special": False},
        ],
        "top_tokens": [
            [{"id": 7950, "text": " Thursday", "logprob": -0.0009, "special": False}],
            [{"id": 11, "text": ",", "logprob": -0.02, "special": False}],
        ],
    },
}


class Told:
    """A small server that answers with recorded payloads, and notes what it was asked."""

    def __init__(self, answers: dict[str, Any], refuses: tuple[str, ...] = (), status: int = 400) -> None:
        self.answers = answers
        self.refuses = refuses
        self.status = status
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            known = self.answers.get(request.path)
            return web.json_response(known) if known is not None else web.json_response({}, status=404)
        body = await request.json()
        self.asked.append((request.path, body))
        await self.release.wait()
        if any(key in body for key in self.refuses):
            return web.json_response({"error": {"message": "not enabled", "code": self.status}}, status=self.status)
        return web.json_response(self.answers[request.path])


@asynccontextmanager
async def asking(told: Told, engine: str, progress: float | None = None) -> AsyncIterator[Any]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", told.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    spec = NodeSpec("n1", engine=engine, model="m")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    state = cast(NodeState, SimpleNamespace(name="n1", url=url, row=SimpleNamespace(spec=spec)))
    fetcher = Fetcher(timeout_s=5.0, max_bytes=1 << 20)
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        check = ForeignCheck(NodeClient(http, fetcher, "token"), lambda name: progress)
        try:
            yield lambda: check.ask(state)
        finally:
            await fetcher.close()
            told.release.set()
            await runner.cleanup()


@pytest.mark.parametrize(
    ("engine", "path", "payload"),
    [
        ("vllm", "/v1/completions", VLLM),
        ("trtllm", "/v1/completions", VLLM),
        ("openai", "/v1/completions", VLLM),
        ("sglang", "/generate", SGLANG),
        ("tgi", "/generate", TGI),
    ],
)
async def test_each_engine_is_asked_in_its_own_words_and_read(engine: str, path: str, payload: Any) -> None:
    told = Told({path: payload})
    async with asking(told, engine) as ask:
        finding = await ask()
    ((asked, body),) = told.asked
    assert asked == path
    assert PROMPT in json.dumps(body, ensure_ascii=False)
    assert f": {ANSWER_TOKENS}" in json.dumps(body)
    assert finding.answer.text == " Thursday,"
    assert [round(token.logprob, 4) for token in finding.answer.tokens] == [-0.0009, -0.02]
    assert not finding.reason


async def test_what_a_real_vllm_answered_is_read_with_its_candidates() -> None:
    told = json.loads((ROOT / "tests/data/answers/vllm_0.32.0_calls.json").read_text())["known prompt"]
    async with asking(Told({"/v1/completions": json.loads(told["body"])}), "vllm") as ask:
        answer = (await ask()).answer
    assert len(answer.tokens) == ANSWER_TOKENS
    assert "".join(token.token for token in answer.tokens) == answer.text
    assert all(len(token.best) == 3 for token in answer.tokens)


async def test_vllm_is_asked_last_of_all_where_it_schedules_by_priority_and_else_without() -> None:
    told = Told({"/v1/completions": VLLM}, refuses=("priority",))
    async with asking(told, "vllm") as ask:
        await ask()
        await ask()
    assert [body.get("priority") for _, body in told.asked] == [1_000_000, None, None], (
        "what it refused is not repeated"
    )


@pytest.mark.parametrize(
    ("info", "priority"),
    [
        ({"version": "0.5.23"}, None),
        ({"enable_priority_scheduling": True}, -1_000_000),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, 1_000_000),
    ],
)
async def test_sglang_is_asked_last_of_all_whichever_way_its_priorities_go(info: Any, priority: int | None) -> None:
    told = Told({"/generate": SGLANG, "/server_info": info})
    async with asking(told, "sglang") as ask:
        await ask()
    assert told.asked[0][1].get("priority") == priority


async def test_a_server_without_log_probabilities_is_held_to_its_text() -> None:
    plain = {"choices": [{"text": " Thursday,", "index": 0, "finish_reason": "length"}]}
    told = Told({"/v1/completions": plain}, refuses=("logprobs",))
    async with asking(told, "openai") as ask:
        finding = await ask()
    assert (finding.answer.text, finding.answer.tokens) == (" Thursday,", ())


async def test_a_node_that_sleeps_is_not_asked() -> None:
    told = Told({"/v1/completions": VLLM, "/is_sleeping": {"is_sleeping": True}})
    async with asking(told, "vllm") as ask:
        finding = await ask()
    assert (finding.reason, told.asked) == ("asleep", [])


@pytest.mark.parametrize(("progress", "reason"), [(0.0, "core_stuck"), (3.0, None), (None, None)])
async def test_silence_is_a_stuck_core_only_where_it_computes_nothing(
    progress: float | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_check, "ANSWER_LIMIT_S", 0.1)
    told = Told({"/v1/completions": VLLM})
    told.release.clear()
    async with asking(told, "vllm", progress) as ask:
        if reason is None:
            with pytest.raises(NoAnswerError, match="no answer within"):
                await ask()
        else:
            assert (await ask()).reason == reason


async def test_an_error_and_nonsense_say_nothing_of_the_model() -> None:
    async with asking(Told({"/v1/completions": VLLM}, refuses=("prompt",), status=500), "vllm") as ask:
        with pytest.raises(BadStatusError, match="answered 500"):
            await ask()
    payloads: list[Any] = [
        [],
        {"choices": []},
        {"choices": [{"text": None}]},
        {"choices": [{"text": "x", "logprobs": 1}]},
    ]
    for payload in payloads:
        async with asking(Told({"/v1/completions": payload}), "vllm") as ask:
            with pytest.raises(NoAnswerError, match="no completion that we can read"):
                await ask()
