"""Which engine answers: by what each of them really says, and for one of them by its real server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleetctl.discovery.probe import EngineFacts, probe_engine
from fleetctl.kit.fetch import Fetcher, TextAnswer
from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures import ROOT
from tests.fixtures.llama_server import llama_server, make_gguf

pytestmark = pytest.mark.anyio

DATA = ROOT / "tests/data/metrics"


def models(model: str, owner: str) -> str:
    return json.dumps({"object": "list", "data": [{"id": model, "object": "model", "owned_by": owner}]})


SAYS: dict[str, tuple[dict[str, str], EngineFacts]] = {
    "vllm": (
        {"/v1/models": models("meta/llama", "vllm"), "/version": '{"version": "0.33.0"}'},
        EngineFacts("vllm", "0.33.0", "meta/llama"),
    ),
    "vllm behind a proxy that changes owners": (
        {
            "/v1/models": models("m", "acme"),
            "/metrics": '# HELP x\nvllm:num_requests_running{a="b"} 0\n',
            "/version": '{"version": "0.9"}',
        },
        EngineFacts("vllm", "0.9", "m"),
    ),
    "vllm under ray": (
        {"/v1/models": models("m", "acme"), "/metrics": 'ray_vllm_num_requests_running{a="b"} 0\n'},
        EngineFacts("vllm", "", "m"),
    ),
    "vllm's router is not vllm": (
        {"/v1/models": models("m", "acme"), "/metrics": "vllm_router_processed_requests_total 0\n"},
        EngineFacts("openai", "", "m"),
    ),
    "sglang without metrics": (
        {
            "/v1/models": models("qwen", ""),
            "/server_info": '{"version": "0.5.23", "tp_size": 1, "mem_fraction_static": 0.8}',
        },
        EngineFacts("sglang", "0.5.23", "qwen"),
    ),
    "old sglang": (
        {"/v1/models": models("qwen", "sglang"), "/get_server_info": '{"version": "0.4.8", "tp_size": 1}'},
        EngineFacts("sglang", "0.4.8", "qwen"),
    ),
    "tgi has no list of models": (
        {
            "/info": '{"model_id": "mistral", "version": "3.3.7", "max_concurrent_requests": 128}',
            "/metrics": "tgi_queue_size 0\n",
        },
        EngineFacts("tgi", "3.3.7", "mistral"),
    ),
    "trtllm": (
        {"/v1/models": models("m", "tensorrt_llm"), "/version": '{"version": "1.2.0"}'},
        EngineFacts("trtllm", "1.2.0", "m"),
    ),
    "triton": (
        {"/v2": '{"name": "triton", "version": "2.73.0", "extensions": []}'},
        EngineFacts("triton", "2.73.0", ""),
    ),
    "something that speaks the API": ({"/v1/models": models("m", "acme")}, EngineFacts("openai", "", "m")),
    "a web server": ({"/": "hello"}, EngineFacts()),
    "one that lies in its JSON": ({"/v1/models": "[[[[", "/version": "null"}, EngineFacts()),
}


def answering(routes: Mapping[str, str], asked: list[str] | None = None):  # type: ignore[no-untyped-def]
    async def get(url: str) -> TextAnswer:
        path = url.removeprefix("http://node")
        if asked is not None:
            asked.append(path)
        return TextAnswer(200, routes[path]) if path in routes else TextAnswer(404, '{"detail": "Not Found"}')

    return get


@pytest.mark.parametrize("name", SAYS)
async def test_an_engine_is_known_by_what_it_says(name: str) -> None:
    routes, expected = SAYS[name]
    assert await probe_engine("http://node", answering(routes)) == expected


async def test_what_somebody_said_it_is_is_not_asked_again() -> None:
    asked: list[str] = []
    routes = {"/v1/models": models("m", "acme"), "/version": '{"version": "1"}'}
    assert await probe_engine("http://node", answering(routes, asked), engine="vllm") == EngineFacts("vllm", "1", "m")
    assert asked == ["/v1/models", "/version"]


async def test_silence_says_nothing() -> None:
    async def silent(_: str) -> TextAnswer:
        return TextAnswer(None, "", "refused")

    assert await probe_engine("http://node", silent) is None


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("vllm_v1_full_qwen25_0.5b_2026-03.prom", "vllm"),
        ("sglang_datadog_v0.5.10.prom", "sglang"),
        ("trtllm_triton_inflight.prom", "triton"),
    ],
)
async def test_real_expositions_tell_their_engine(file: str, engine: str) -> None:
    path = DATA / file
    if not path.exists():
        pytest.skip(f"{file} is not among the test data")
    found = await probe_engine("http://node", answering({"/metrics": path.read_text()}))
    assert found is not None
    assert found.engine == engine


@pytest.mark.e2e
async def test_a_real_foreign_server_is_known(tmp_path: Path) -> None:
    with llama_server(make_gguf(tmp_path), reserve_port()) as server:
        fetcher = Fetcher(timeout_s=5.0, max_bytes=1 << 20)
        found = await probe_engine(server.url, fetcher.get)
        await fetcher.close()
    assert found is not None
    assert (found.engine, found.model) == ("llamacpp", "demo")
