"""The calls by which other engines do what verbs ask: method, path, and what has to be switched on for them. Pure data.

Our own engine has admin routes of its own (`EngineCalls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class EngineAct(StrEnum):
    """One thing that an engine is asked to do."""

    SLEEP = "sleep"
    WAKE = "wake"
    RESET_PREFIX_CACHE = "reset its prefix cache"
    LOAD_ADAPTER = "load an adapter"
    UNLOAD_ADAPTER = "unload an adapter"
    START_PROFILE = "start a profile"
    STOP_PROFILE = "stop a profile"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One POST. `needs`: what its engine must be started with, for people.

    `answers_get`: the route takes GET too, and does the same then; else a GET says whether the route is there (404 or
    405) and changes nothing.
    """

    path: str
    needs: str = ""
    answers_get: bool = False

    @property
    def words(self) -> str:
        """As the table of engines tells it."""
        return f"POST {self.path}"


_DEV = "VLLM_SERVER_DEV_MODE=1"
_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"
_PROFILER = "--profiler-config, in older releases VLLM_TORCH_PROFILER_DIR=DIR"

_VLLM = {
    EngineAct.SLEEP: EngineCall("/sleep?level=1", f"{_DEV} and --enable-sleep-mode"),
    EngineAct.WAKE: EngineCall("/wake_up", f"{_DEV} and --enable-sleep-mode"),
    EngineAct.RESET_PREFIX_CACHE: EngineCall("/reset_prefix_cache", _DEV),
    EngineAct.LOAD_ADAPTER: EngineCall("/v1/load_lora_adapter", _LORA),
    EngineAct.UNLOAD_ADAPTER: EngineCall("/v1/unload_lora_adapter", _LORA),
    EngineAct.START_PROFILE: EngineCall("/start_profile", _PROFILER),
    EngineAct.STOP_PROFILE: EngineCall("/stop_profile", _PROFILER),
}
_SGLANG = {
    EngineAct.RESET_PREFIX_CACHE: EngineCall("/flush_cache", answers_get=True),
    EngineAct.LOAD_ADAPTER: EngineCall("/load_lora_adapter", "--enable-lora", answers_get=True),
    EngineAct.UNLOAD_ADAPTER: EngineCall("/unload_lora_adapter", "--enable-lora", answers_get=True),
    EngineAct.START_PROFILE: EngineCall("/start_profile", answers_get=True),
    EngineAct.STOP_PROFILE: EngineCall("/stop_profile", answers_get=True),
}

ENGINE_CALLS: Mapping[str, Mapping[EngineAct, EngineCall]] = MappingProxyType({"vllm": _VLLM, "sglang": _SGLANG})
