"""The name that an engine itself gives a metric, whatever a scraper or a serving framework has made of it.

vLLM, SGLang and llama.cpp write a colon behind their name. OpenMetrics answers (prometheus_client from 0.23 on) and
relabelling turn it into an underscore; Ray Serve puts `ray_` before, with the colon kept (2024) or replaced (today).
"""

from __future__ import annotations

from alerts.labels import METRIC_NAME, LabelSet

_NATIVE = {
    f"{framework}{engine}{mark}": f"{engine}:"
    for engine in ("vllm", "sglang", "llamacpp")
    for framework in ("", "ray_")
    for mark in ":_"
}
_WRITTEN = tuple(_NATIVE)
_PROGRAMS_OF_THEIR_OWN = ("vllm_router_",)  # a name of its own, and no metric of vLLM's with its colon replaced


def native_name(name: str) -> str:
    """`vllm:x` of `vllm_x`, `ray_vllm_x` and `ray_vllm:x`; any other name as it is."""
    if not name.startswith(_WRITTEN) or name.startswith(_PROGRAMS_OF_THEIR_OWN):
        return name
    written = next(prefix for prefix in _WRITTEN if name.startswith(prefix))
    return _NATIVE[written] + name.removeprefix(written)


def with_native_name(labels: LabelSet) -> LabelSet:
    """The same labels under the native name; the given object where that is its name."""
    native = native_name(labels.name)
    return labels if native == labels.name else LabelSet.of({**labels.as_dict(), METRIC_NAME: native})


def spellings(name: str) -> str:
    """A regular expression of all that becomes this native name; the name itself when nothing else does.

    Written out, as Prometheus looks up each of such names and tries another pattern on all that it has.
    """
    engine, colon, rest = name.partition(":")
    return "|".join(prefix + rest for prefix, native in _NATIVE.items() if colon and native == f"{engine}:") or name
