"""What NVML and DCGM say of each card, from the canonical series; what was not read is None."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupGpus

READINGS = {
    "temperature_c": "llm:gpu_temperature_celsius",
    "memory_temperature_c": "llm:gpu_memory_temperature_celsius",
    "sm_clock_hz": "llm:gpu_sm_clock_hertz",
    "power_w": "llm:gpu_power_watts",
    "utilization_ratio": "llm:gpu_utilization_ratio",
    "memory_ratio": "llm:gpu_memory_ratio",
    "ecc_uncorrected_5m": "llm:gpu_uncorrected_ecc:increase",
    "critical_xids_5m": "llm:gpu_critical_xids",
    "contained_xids_5m": "llm:gpu_contained_xids",
    "application_xids_1h": "llm:gpu_application_xids:increase1h",
    # Since the driver was loaded: a counter near 9.22e18 is DCGM's word for "not supported".
    "ecc_uncorrected": "max by (node, gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL < 1e18)",
}
"""Field of `wire.gpu.Gpu` to what is asked for."""

THROTTLES = {
    "hw_slowdown": "llm:gpu_throttled_hw_slowdown",
    "sw_thermal": "llm:gpu_throttled_sw_thermal",
    "hw_thermal": "llm:gpu_throttled_hw_thermal",
    "power_brake": "llm:gpu_throttled_power_brake",
}
FAULTS = {
    "lost": "llm:gpu_lost",
    "row_remap_failed": "llm:gpu_row_remap_failed",
    "row_remap_pending": "llm:gpu_row_remap_pending",
}
# The number of an XID is no signal of its own: what is paged for is its class. People look it up by its number.
_XID_CODES = (
    "engine_gpu_xids_by_code_total > 0",
    "DCGM_EXP_XID_ERRORS_COUNT > 0",
    "DCGM_EXP_XID_ERRORS_TOTAL > 0",
)
_LAST_XID = '{__name__=~"DCGM_FI_DEV_XID_ERRORS?"} > 0 < 1e6'
_CARD = '{__name__=~"DCGM_FI_DEV_(GPU_TEMP|GPU_TEMP_CELSIUS|FB_USED|POWER_USAGE|BOARD_POWER_WATTS)"}'

Key = tuple[str, str]
"""Node and number of the card."""


def gpu_cards(store: SeriesStore, now: float, stale_after_s: float) -> dict[Key, Gpu]:
    """Every card that somebody told of lately, without what only the fleet knows of its node."""
    fields: dict[Key, dict[str, object]] = {}

    def told(expression: str) -> list[tuple[Key, Mapping[str, str], float]]:
        return [
            ((one.labels["node"], one.labels["gpu"]), one.labels, one.value)
            for one in evaluate(expression, store, now)
            if one.labels.get("node") and "gpu" in one.labels
            if math.isfinite(one.value) and now - one.at <= stale_after_s
        ]

    for name, expression in READINGS.items():
        for key, _, value in told(expression):
            fields.setdefault(key, {})[name] = value
    for name, series in (*THROTTLES.items(), *FAULTS.items()):
        field = "throttled" if name in THROTTLES else "faults"
        for key, _, value in told(series):
            words = fields.setdefault(key, {}).setdefault(field, [])
            assert isinstance(words, list)
            if value:
                words.append(name)
    codes: dict[Key, set[int]] = {}
    for expression in _XID_CODES:
        for key, labels, _ in told(expression):
            if labels.get("xid", "").isdigit():
                codes.setdefault(key, set()).add(int(labels["xid"]))
    for key, _, value in told(_LAST_XID):
        codes.setdefault(key, set()).add(int(value))
    for key, labels, _ in told(_CARD):
        fields.setdefault(key, {})["card"] = labels.get("modelName", "")
    return {
        key: Gpu.model_validate({"node": key[0], "gpu": key[1], "xids": sorted(codes.get(key, ())), **one})
        for key, one in sorted(fields.items())
    }


def gpus_of_group(members: Sequence[str], own: Sequence[Gpu]) -> GroupGpus:
    """These nodes' own cards as a whole: the hottest, the slowest, how many are throttled, what failed."""

    def known(field: str) -> list[float]:
        return [value for card in own if (value := getattr(card, field)) is not None]

    def summed(field: str) -> float | None:
        values = known(field)
        return math.fsum(values) if values else None

    return GroupGpus(
        cards=len(own),
        nodes_known=len({card.node for card in own}),
        nodes=len(members),
        hottest_c=max(known("temperature_c"), default=None),
        slowest_clock_hz=min(known("sm_clock_hz"), default=None),
        power_w=summed("power_w"),
        throttled=dict(Counter(reason for card in own for reason in card.throttled or ())),
        throttle_known=sum(card.throttled is not None for card in own),
        ecc_uncorrected=summed("ecc_uncorrected"),
        critical_xids_5m=summed("critical_xids_5m"),
        xids=sorted({code for card in own for code in card.xids}),
    )
