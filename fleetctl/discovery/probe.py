"""Which engine answers at an address, of which version, with which model: asked of itself, where nobody says.

What tells them apart: names of metrics, which no two share; then routes that one engine alone has. Source of the
routes: the engines' own (docs/engines/ has the routes).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alerts.native_name import native_name
from fleetctl.engines.table import ENGINES, OTHER_ENGINE
from fleetctl.kit.fetch import TextAnswer

Get = Callable[[str], Awaitable[TextAnswer]]
"""A GET of a URL; no answer is a value too."""

_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "tensorrt_llm": "trtllm", "engine": "fleetctl"}
"""What `owned_by` in the list of models says, by engine."""
MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a node says it is. Empty: it does not say, or could not be asked."""

    engine: str = ""
    version: str = ""
    model: str = ""


async def probe_engine(url: str, get: Get, *, engine: str = "") -> EngineFacts | None:
    """What answers at `url`; `engine`: what somebody said it is. None: nothing answers now."""
    models = await get(f"{url}/v1/models")
    if models.status is None:
        return None
    listed = _first_model(models.text) if models.status == 200 else {}
    engine = engine or _OWNERS.get(str(listed.get("owned_by", "")), "") or await _by_metrics(url, get)
    told: Mapping[str, Any] = {}
    if engine:
        told = await _version_answer(url, get, ENGINES[engine].version_paths if engine in ENGINES else ())
    else:
        engine, told = await _by_routes(url, get)
    if not engine and listed:
        engine = OTHER_ENGINE
    if not engine:
        return EngineFacts()
    model = listed.get("id") or told.get("model_id") or told.get("served_model_name") or told.get("model_path") or ""
    return EngineFacts(engine, _version(told), str(model)[:MAX_CHARS])


async def _by_metrics(url: str, get: Get) -> str:
    """trtllm-serve's /metrics is asked last: reading it takes statistics away from the next reader."""
    for path in ("/metrics", "/prometheus/metrics"):
        answer = await get(f"{url}{path}")
        if answer.status != 200:
            continue
        for line in answer.text.splitlines():
            name = native_name(line.split("{", 1)[0].split(" ", 1)[0])
            found = next(
                (kind.name for kind in ENGINES.values() if name.startswith(kind.metric_prefixes or ("\0",))), ""
            )
            if found:
                return found
    return ""


async def _by_routes(url: str, get: Get) -> tuple[str, Mapping[str, Any]]:
    """By routes that one engine alone answers, and what it says there."""
    tells = (
        ("tgi", "/info", ("max_concurrent_requests", "model_id")),
        ("sglang", "/server_info", ("tp_size", "mem_fraction_static")),
        ("sglang", "/get_server_info", ("tp_size", "mem_fraction_static")),
        ("llamacpp", "/props", ("default_generation_settings",)),
        ("triton", "/v2", ("extensions", "name")),
        ("vllm", "/version", ("version",)),
    )
    for engine, path, keys in tells:
        told = _object((await get(f"{url}{path}")).text)
        if all(key in told for key in keys):
            return engine, told
    return "", {}


async def _version_answer(url: str, get: Get, paths: tuple[str, ...]) -> Mapping[str, Any]:
    for path in paths:
        answer = await get(f"{url}{path}")
        if answer.status == 200 and (told := _object(answer.text)):
            return told
    return {}


def _version(told: Mapping[str, Any]) -> str:
    value = told.get("version") or told.get("sglang_version") or told.get("build_info") or ""
    return str(value)[:MAX_CHARS] if isinstance(value, str | int | float) else ""


def _first_model(text: str) -> Mapping[str, Any]:
    """The model itself comes first; its adapters follow."""
    rows = _object(text).get("data")
    return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
