"""Every kind of engine, with the paths and options that its own sources have (docs/engines/ is made from it).

What several engines share is said once. A kind that is not in the table is `openai`: it answers, and nothing else is
known of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fleetctl.engines.engine_call import ENGINE_CALLS, EngineAct
from fleetctl.engines.kind import OWN_ENGINE, Can, Cannot, Capability, EngineKind
from runbooks.ability import Ability

OTHER_ENGINE = "openai"

_CORDON = Can("the gateways send it nothing new")
_VOTE = "a greedy completion of a fixed prompt once a minute, held against the first one and those of its pool"
_KNOWN_PROMPT = Can(_VOTE, call="POST /v1/completions")
_WAIT = Can("cordoned, then its own gauges of running and waiting requests are waited for")
_GO_ON = Can("the gateways let another node of the engine go on behind the text")
_NOT_CHATS = Can("the gateways let another node go on with completions that say `max_tokens`; chats are answered anew")


def _calls(engine: str, act: EngineAct, how: str) -> Can:
    call = ENGINE_CALLS[engine][act]
    return Can(f"{how}{f'; needs {call.needs}' if call.needs else ''}", call=call.words)


_OWN: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: Can("a golden prompt after all users, at /health/deep"),
    Ability.CORDON: _CORDON,
    Ability.DRAIN: Can("its own drain at /admin/drain, with a receipt for each request"),
    Ability.MOVE: Can("token for token, to any node of the model"),
    Ability.SLEEP: Can("weights and KV cache are given back", call="POST /admin/sleep?level=1"),
    Ability.ADAPTERS: Cannot("our engine serves one model and no adapters"),
    Ability.RESET_PREFIX_CACHE: Can("before the next request", call="POST /admin/reset_prefix_cache"),
    Ability.LIMITS: Can("from its next step on", call="POST /admin/limits"),
    Ability.PROFILE: Cannot("our engine has no profiler to switch on"),
}

_VLLM: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: Can(f"{_VOTE}; after all users where it schedules by priority", call="POST /v1/completions"),
    Ability.CORDON: _CORDON,
    Ability.DRAIN: _WAIT,
    Ability.MOVE: _GO_ON,
    Ability.SLEEP: _calls("vllm", EngineAct.SLEEP, "weights go to host memory, the KV cache is given back"),
    Ability.ADAPTERS: _calls("vllm", EngineAct.LOAD_ADAPTER, "while it serves"),
    Ability.RESET_PREFIX_CACHE: _calls("vllm", EngineAct.RESET_PREFIX_CACHE, "before the next request"),
    Ability.LIMITS: Cannot("vLLM reads its limits at the start: restart it with other settings"),
    Ability.PROFILE: _calls("vllm", EngineAct.START_PROFILE, "written on its machine when it is stopped"),
}

_SGLANG: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: Can(f"{_VOTE}; after all users where it schedules by priority", call="POST /generate"),
    Ability.CORDON: _CORDON,
    Ability.DRAIN: _WAIT,
    Ability.MOVE: _GO_ON,
    Ability.SLEEP: Cannot("SGLang does not say whether its memory is given back (/release_memory_occupation): stop it"),
    Ability.ADAPTERS: _calls("sglang", EngineAct.LOAD_ADAPTER, "while it serves"),
    Ability.RESET_PREFIX_CACHE: _calls("sglang", EngineAct.RESET_PREFIX_CACHE, "once it holds no request"),
    Ability.LIMITS: Cannot("SGLang reads its limits at the start: restart it with other settings"),
    Ability.PROFILE: _calls("sglang", EngineAct.START_PROFILE, "written on its machine when it is stopped"),
}

_TGI: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: Can(_VOTE, call="POST /generate"),
    Ability.CORDON: _CORDON,
    Ability.DRAIN: _WAIT,
    Ability.MOVE: _NOT_CHATS,
    Ability.SLEEP: Cannot("TGI can't sleep: stop it"),
    Ability.ADAPTERS: Cannot("TGI loads adapters when it starts: restart it with LORA_ADAPTERS"),
    Ability.RESET_PREFIX_CACHE: Cannot("TGI has no call for it: restart it"),
    Ability.LIMITS: Cannot("TGI reads its limits at the start: restart it with other settings"),
    Ability.PROFILE: Cannot("TGI has no call for it"),
}

_TRTLLM: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: _KNOWN_PROMPT,
    Ability.CORDON: _CORDON,
    Ability.DRAIN: _WAIT,
    Ability.MOVE: _NOT_CHATS,
    Ability.SLEEP: Cannot("trtllm-serve has no call for it in most releases: stop it"),
    Ability.ADAPTERS: Cannot("trtllm-serve loads adapters when it starts"),
    Ability.RESET_PREFIX_CACHE: Cannot("trtllm-serve has no call for it: restart it"),
    Ability.LIMITS: Cannot("trtllm-serve reads its limits at the start: restart it with other settings"),
    Ability.PROFILE: Cannot("trtllm-serve has no call for it"),
}

_TRITON: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: Cannot("Triton has no OpenAI routes to ask for a known answer"),
    Ability.CORDON: Cannot("no gateway of ours sends to Triton: it has no OpenAI routes"),
    Ability.DRAIN: Cannot("no gateway of ours sends to Triton: it has no OpenAI routes"),
    Ability.MOVE: Cannot("no gateway of ours sends to Triton: it has no OpenAI routes"),
    Ability.SLEEP: Cannot("Triton unloads models through its repository: that is a deploy"),
    Ability.ADAPTERS: Cannot("Triton loads what its repository has"),
    Ability.RESET_PREFIX_CACHE: Cannot("Triton has no call for it: restart it"),
    Ability.LIMITS: Cannot("Triton reads its limits from the model's configuration"),
    Ability.PROFILE: Cannot("Triton has no call for it"),
}

_LLAMACPP: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: _KNOWN_PROMPT,
    Ability.CORDON: _CORDON,
    Ability.DRAIN: _WAIT,
    Ability.MOVE: _NOT_CHATS,
    Ability.SLEEP: Cannot("llama.cpp's server can't sleep when it is asked to: stop it"),
    Ability.ADAPTERS: Cannot("llama.cpp's server loads adapters when it starts"),
    Ability.RESET_PREFIX_CACHE: Cannot("llama.cpp's server has no call for all slots: restart it"),
    Ability.LIMITS: Cannot("llama.cpp's server reads its limits at the start: restart it with other settings"),
    Ability.PROFILE: Cannot("llama.cpp's server has no call for it"),
}

_OTHER: Mapping[Ability, Capability] = {
    Ability.DEEP_CHECK: _KNOWN_PROMPT,
    Ability.CORDON: _CORDON,
    Ability.DRAIN: Can("cordoned, then what the gateways have open there is waited for: it says nothing itself"),
    Ability.MOVE: _NOT_CHATS,
    Ability.SLEEP: Cannot("which engine it is is not known"),
    Ability.ADAPTERS: Cannot("which engine it is is not known"),
    Ability.RESET_PREFIX_CACHE: Cannot("which engine it is is not known"),
    Ability.LIMITS: Cannot("which engine it is is not known"),
    Ability.PROFILE: Cannot("which engine it is is not known"),
}

_KINDS = (
    EngineKind(
        OWN_ENGINE,
        "our engine",
        ready_paths=("/health/ready",),
        version_paths=("/version",),
        metric_prefixes=("engine_",),
        at_stop="finishes what runs, within its grace",
        abilities=_OWN,
    ),
    EngineKind(
        "vllm",
        "vLLM",
        # 503 when its core is known dead; one that hangs still answers 200: the deep check tells.
        ready_paths=("/health",),
        version_paths=("/version",),
        metric_prefixes=("vllm:",),
        sleep_path="/is_sleeping",
        unready_reason="core_dead",
        at_stop="aborts everything at once, unless it was given time",
        at_stop_option="--shutdown-timeout SECONDS",
        abilities=_VLLM,
    ),
    EngineKind(
        "sglang",
        "SGLang",
        # Not /health, which generates a token and takes up to 20 s. Before 0.5 there is no /ready.
        ready_paths=("/ready", "/ping", "/health"),
        version_paths=("/server_info", "/get_server_info"),
        metric_prefixes=("sglang:",),
        at_stop="finishes what it holds without an upper bound, and goes on taking new requests",
        at_stop_option="none: it is ended by force after --grace",
        abilities=_SGLANG,
    ),
    EngineKind(
        "trtllm",
        "trtllm-serve",
        # Not /health: answering it with a fatal error makes the server end itself.
        ready_paths=("/v1/models",),
        version_paths=("/version",),
        # /metrics there is JSON, and reading it takes it away from the next reader.
        metrics_path="/prometheus/metrics",
        metric_prefixes=("trtllm_",),
        at_stop="ends as its HTTP server does",
        abilities=_TRTLLM,
    ),
    EngineKind(
        "tgi",
        "Text Generation Inference",
        ready_paths=("/health",),
        version_paths=("/info",),
        metric_prefixes=("tgi_",),
        at_stop="finishes what runs",
        at_stop_option="--graceful-termination-timeout SECONDS (90)",
        abilities=_TGI,
    ),
    EngineKind(
        "triton",
        "Triton with TensorRT-LLM",
        ready_paths=("/v2/health/ready",),
        version_paths=("/v2",),
        metric_prefixes=("nv_trt_llm_", "nv_inference_"),
        at_stop="takes nothing new and waits",
        at_stop_option="--exit-timeout-secs SECONDS (30)",
        abilities=_TRITON,
    ),
    EngineKind(
        "llamacpp",
        "llama.cpp's server",
        ready_paths=("/health",),
        version_paths=("/props",),
        metric_prefixes=("llamacpp:",),
        at_stop="ends at once",
        abilities=_LLAMACPP,
    ),
    EngineKind(
        OTHER_ENGINE,
        "another OpenAI-compatible server",
        ready_paths=("/health", "/v1/models"),
        version_paths=(),
        metrics_path="",
        tells_load=False,
        at_stop="is not known",
        abilities=_OTHER,
    ),
)

ENGINES: Mapping[str, EngineKind] = MappingProxyType({kind.name: kind for kind in _KINDS})


def engine_kind(name: str) -> EngineKind:
    """The kind of this name; one that nobody knows is as any OpenAI-compatible server."""
    return ENGINES.get(name, ENGINES[OTHER_ENGINE])
