"""A pod's log in pieces. The cursor is the time of the last line that was read, and how many lines have that time."""

from __future__ import annotations

import time

from fleetctl.providers.kubernetes.cluster import Cluster
from fleetctl.providers.kubernetes.pod import Pod, seconds_of
from fleetctl.providers.provider import LogChunk

_CLOCKS_DIFFER_S = 60  # more than any two clocks in a cluster may


def read_logs(cluster: Cluster, pod: Pod, lines: int, after: str | None) -> LogChunk:
    """Of the container's run that is, or was last."""
    stamp, count = _decode(after)
    container = pod.container.name
    if stamp is None:
        found = cluster.read_log(
            pod.namespace, pod.name, container=container, lines=lines if after is None else None, since_s=None
        )
        taken = found if after is None else found[:lines]
        return LogChunk(tuple(_text(line) for line in taken), _encode(taken, "", 0) if taken else "")
    since_s = max(1, int(time.time() - seconds_of(stamp)) + _CLOCKS_DIFFER_S)
    found = cluster.read_log(pod.namespace, pod.name, container=container, lines=None, since_s=since_s)
    same = [line for line in found if _stamp(line) == stamp]
    new = [*same[count:], *(line for line in found if _stamp(line) > stamp)][:lines]
    return LogChunk(tuple(_text(line) for line in new), _encode(new, stamp, count))


def _encode(taken: list[str], stamp: str, count: int) -> str:
    """The cursor after these lines; after none it stays."""
    if taken:
        last = _stamp(taken[-1])
        count = sum(_stamp(line) == last for line in taken) + (count if last == stamp else 0)
        stamp = last
    return f"{stamp}+{count}"


def _decode(cursor: str | None) -> tuple[str | None, int]:
    """(None, 0) for a cursor that is none of ours."""
    stamp, plus, count = (cursor or "").rpartition("+")
    try:
        seconds_of(stamp)
    except ValueError:
        return None, 0
    return (stamp, int(count)) if plus and count.isdecimal() else (None, 0)


def _stamp(line: str) -> str:
    """Times of one runtime are all UTC and equally long: they sort as text."""
    return line.partition(" ")[0]


def _text(line: str) -> str:
    return line.partition(" ")[2]
