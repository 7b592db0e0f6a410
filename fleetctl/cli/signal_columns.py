"""Columns of signals: of one node with their age, of a group with how many of its nodes are known, of a card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetctl.cli.output import Column, number, ratio, seconds
from fleetctl.wire.group import GroupGpus, GroupLoad, GroupSignal
from fleetctl.wire.node import Node, Signal

NOT_TOLD = frozenset({"gpus", "cost_per_hour", "cost_per_mtok"})  # of a load: not a node's own word
STALE_S = 10.0
SLOW_STALE_S = 30.0  # of quantiles, which are recorded every 15 s

Show = Callable[[float], str]


def value(signal: Signal, show: Show, stale_s: float = STALE_S) -> str:
    """A signal for people: "-" when not known, with its age when it is too old to trust."""
    if signal.value is None:
        return "-"
    text = show(signal.value)
    return text if signal.age_s is not None and signal.age_s <= stale_s else f"{text}? ({seconds(signal.age_s)} old)"


def signal_column(
    title: str, of: Callable[[Any], Signal], show: Show, *, wide: bool = False, stale_s: float = STALE_S
) -> Column:
    """A signal of a node."""
    return _told_column(title, of, lambda signal: value(signal, show, stale_s), wide=wide)


def _told_column(title: str, of: Callable[[Any], Any], cell: Callable[[Any], str], *, wide: bool) -> Column:
    """What `of` finds in a row, which has a `value`."""
    return Column(
        title,
        lambda row: cell(of(row)),
        wide=wide,
        right=True,
        sort_key=lambda row: of(row).value,
        is_volatile=True,
    )


def rate(per_s: float) -> str:
    """A rate in few characters: 12.3k."""
    return f"{per_s / 1000:.3g}k" if per_s >= 10_000 else f"{per_s:.3g}" if per_s < 1000 else f"{per_s:.0f}"


def percent(share: float) -> str:
    """A share that may be small: below 10 % with a digit behind the point."""
    return ratio(share) if share == 0 or share >= 0.0995 else f"{share:.1%}"


def celsius(degrees: float) -> str:
    """A temperature."""
    return f"{degrees:.0f}C"


def clock_rate(hertz: float) -> str:
    """A clock of a card."""
    return f"{hertz / 1e9:.2f}GHz"


def watts(power: float) -> str:
    """Power drawn."""
    return f"{power:.0f}W"


def money(amount: float) -> str:
    """An amount in the currency of the settings."""
    return f"{amount:.2f}" if amount >= 0.995 else f"{amount:.3g}"


def _whole(count: float) -> str:
    return f"{count:.0f}"


def known_of(signal: GroupSignal) -> str:
    """How many of the nodes that have something to tell did: "5/6"."""
    return f"{signal.known}/{signal.of}"


def group_value(signal: GroupSignal, show: Show) -> str:
    """A group's value; "-" when nobody told."""
    if signal.value is None:
        return "-"
    return f">{show(signal.value)}" if signal.at_least else show(signal.value)


def group_value_known(signal: GroupSignal, show: Show) -> str:
    """The same with how many are known, where that is not all of them."""
    text = group_value(signal, show)
    return text if text == "-" or signal.known == signal.of else f"{text} ({known_of(signal)})"


def least_known(load: GroupLoad) -> str:
    """Of the signals that have a value, the one that fewest nodes told; "-" when there is none."""
    signals = (getattr(load, name) for name in GroupLoad.model_fields if name not in NOT_TOLD)
    told = [one for one in signals if one.value is not None and one.of]
    return known_of(min(told, key=lambda one: one.known / one.of)) if told else "-"


def load_of(row: Any) -> GroupLoad:
    """Of a group, a pool or a revision."""
    load: GroupLoad = row.load
    return load


def gpus_of(row: Any) -> GroupGpus:
    """The cards of such a row."""
    return load_of(row).gpus


def _group_column(title: str, name: str, show: Show, *, wide: bool) -> Column:
    """`-o wide` has room to say of each value how many nodes it is of; the short table has one column for it."""
    cell = group_value_known if wide else group_value
    return _told_column(title, lambda row: getattr(load_of(row), name), lambda signal: cell(signal, show), wide=wide)


def throttled_words(row: Any) -> str:
    """The reasons with how many cards have them; "-" where nobody reads them."""
    gpus = gpus_of(row)
    words = ",".join(f"{reason} {count}" for reason, count in sorted(gpus.throttled.items()))
    return words or ("no" if gpus.throttle_known else "-")


def xid_words(codes: list[int]) -> str:
    """Numbers of XIDs."""
    return ",".join(map(str, codes))


def load_columns(*, wide: bool = False) -> list[Column]:
    """The signals of a group. `wide`: all of them are shown with `-o wide` only."""
    return [
        _group_column("wait", "waiting", rate, wide=wide),
        _group_column("KV", "kv_ratio", ratio, wide=wide),
        _group_column("tok/s", "tokens_per_s", rate, wide=wide),
        _group_column("TTFT p95", "ttft_p95_s", seconds, wide=wide),
        _group_column("ITL", "itl_s", seconds, wide=wide),
        _group_column("hit", "prefix_hit_ratio", ratio, wide=wide),
        _group_column("preempt", "preemption_ratio", percent, wide=wide),
        Column("known", lambda row: least_known(load_of(row)), wide=wide, right=True, is_volatile=True),
        _group_column("run", "running", rate, wide=True),
        _group_column("KV max", "kv_ratio_max", ratio, wide=True),
        _group_column("req/s", "requests_per_s", rate, wide=True),
        _group_column("prompt tok/s", "prompt_tokens_per_s", rate, wide=True),
        _group_column("TTFT", "ttft_s", seconds, wide=True),
        _group_column("preempt/s", "preemptions_per_s", rate, wide=True),
        _group_column("cost/h", "cost_per_hour", money, wide=True),
        _group_column("per Mtok", "cost_per_mtok", money, wide=True),
        Column("cards", lambda row: cards_words(gpus_of(row)), wide=True, right=True, is_volatile=True),
        _card_column("hottest", "hottest_c", celsius, wide=True, of=gpus_of),
        _card_column("slowest", "slowest_clock_hz", clock_rate, wide=True, of=gpus_of),
        _card_column("power", "power_w", watts, wide=True, of=gpus_of),
        Column("throttled", throttled_words, wide=True, is_volatile=True),
        _card_column("ECC", "ecc_uncorrected", _whole, wide=True, of=gpus_of),
        Column("XID", lambda row: xid_words(gpus_of(row).xids) or _none_heard(gpus_of(row)), wide=True),
    ]


def cards_words(gpus: GroupGpus) -> str:
    """How many cards, and of how many nodes, where not all nodes told of theirs; "-" when nobody did."""
    if not gpus.cards:
        return "-"
    return f"{gpus.cards}" if gpus.nodes_known == gpus.nodes else f"{gpus.cards} ({gpus.nodes_known}/{gpus.nodes})"


def _none_heard(gpus: GroupGpus) -> str:
    return "none" if gpus.critical_xids_5m is not None else "-"


def _card_column(
    title: str, name: str, show: Show, *, wide: bool = False, of: Callable[[Any], Any] = lambda card: card
) -> Column:
    """A field of a card, or of what `of` finds in a row."""
    return Column(
        title,
        lambda row: "-" if (known := getattr(of(row), name)) is None else show(known),
        wide=wide,
        right=True,
        sort_key=lambda row: getattr(of(row), name),
        is_volatile=True,
    )


def _card_state(card: Any) -> str:
    """What is wrong with it and why it is slow; "-" when neither was read."""
    if card.faults is None and card.throttled is None:
        return "-"
    return ",".join([*(card.faults or ()), *(card.throttled or ())]) or "ok"


def _card_xids(card: Any) -> str:
    return xid_words(card.xids) or ("none" if card.critical_xids_5m is not None else "-")


GPU_COLUMNS = [
    Column("node", lambda card: card.node),
    Column("gpu", lambda card: card.gpu),
    _card_column("temp", "temperature_c", celsius),
    _card_column("clock", "sm_clock_hz", clock_rate),
    _card_column("power", "power_w", watts),
    _card_column("util", "utilization_ratio", ratio),
    _card_column("mem", "memory_ratio", ratio),
    _card_column("ECC", "ecc_uncorrected", _whole),
    Column("XID", _card_xids),
    Column("card", lambda card: card.card or "-", wide=True),
    Column("host", lambda card: card.host or "-", wide=True),
    Column("sku", lambda card: card.sku or "-", wide=True),
    Column("pool", lambda card: card.pool or "-", wide=True),
    Column("zone", lambda card: card.zone or "-", wide=True),
    _card_column("mem temp", "memory_temperature_c", celsius, wide=True),
    _card_column("ECC 5m", "ecc_uncorrected_5m", _whole, wide=True),
    _card_column("critical 5m", "critical_xids_5m", _whole, wide=True),
    _card_column("contained 5m", "contained_xids_5m", _whole, wide=True),
    _card_column("program's 1h", "application_xids_1h", _whole, wide=True),
    Column("state", _card_state),
]

HIT = signal_column("hit", lambda n: n.prefix_hit_ratio, ratio)
PREEMPT = signal_column("preempt", lambda n: n.preemption_ratio, percent)


def hottest(node: Node) -> float | None:
    """The temperature of the node's hottest card."""
    return max((card.temperature_c for card in node.gpus if card.temperature_c is not None), default=None)


def node_gpu_words(node: Node) -> str:
    """What NVML tells of the node in one cell: the hottest card, what is wrong, XIDs; "-" when nothing was read."""
    if not node.gpus:
        return "-"
    heat = hottest(node)
    wrong = sorted({word for card in node.gpus for word in [*(card.faults or ()), *(card.throttled or ())]})
    codes = sorted({code for card in node.gpus for code in card.xids})
    ecc = sum(card.ecc_uncorrected or 0.0 for card in node.gpus)
    parts = [
        "" if heat is None else celsius(heat),
        ",".join(wrong),
        f"ECC {ecc:.0f}" if ecc else "",
        f"XID {xid_words(codes)}" if codes else "",
    ]
    return " ".join(part for part in parts if part) or f"{len(node.gpus)} cards"


def node_heat(node: Node) -> str:
    """The hottest card; with "!" where a card is throttled, broken, or told of an XID: `get gpus` says what."""
    heat = hottest(node)
    is_wrong = any(card.faults or card.throttled or card.ecc_uncorrected or card.xids for card in node.gpus)
    return ("-" if heat is None else celsius(heat)) + ("!" if is_wrong else "")


NODE_GPU = Column("GPU", node_gpu_words, sort_key=hottest, is_volatile=True)
TOP_NODE_COLUMNS = [
    Column("name", lambda n: n.name),
    Column("phase", lambda n: n.phase.value),
    signal_column("run", lambda n: n.running, number),
    signal_column("seats", lambda n: n.seats, number, wide=True),
    signal_column("wait", lambda n: n.waiting, number),
    signal_column("KV", lambda n: n.kv_ratio, ratio),
    signal_column("tok/s", lambda n: n.tokens_per_s, rate),
    signal_column("TTFT", lambda n: n.ttft_s, seconds),
    signal_column("ITL", lambda n: n.itl_s, seconds),
    HIT,
    PREEMPT,
    signal_column("req/s", lambda n: n.requests_per_s, rate, wide=True),
    signal_column("TTFT p99", lambda n: n.ttft_p99_s, seconds, wide=True, stale_s=SLOW_STALE_S),
    signal_column("prompt tok/s", lambda n: n.prompt_tokens_per_s, rate, wide=True),
    signal_column("preempt/s", lambda n: n.preemptions_per_s, rate, wide=True),
    Column("GPU", node_heat, right=True, sort_key=hottest, is_volatile=True),
    Column("cards", node_gpu_words, wide=True, is_volatile=True),
]
