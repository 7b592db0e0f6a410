"""An incident's files: its post-mortem, and its black box, which is written series by series out of the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from alerts.evaluation.rules import RuleGroup
from alerts.history.recording import wanted_names
from alerts.labels import LabelSet
from alerts.series.store import SeriesStore
from diagnostics import blackbox
from diagnostics.evidence.question import Question
from diagnostics.tree import Tree
from fleetctl.settings.controller import IncidentSettings

MAX_SERIES_KEPT = 20_000  # about a hundred nodes
SERIES_AT_ONCE = 50  # between two turns of the others, and in memory as Python's numbers
_ALWAYS_KEPT = ("llm:", "ALERTS", "gateway_", "fleet_", "up", "scrape_")  # what people and post-mortems look at
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class IncidentFiles(NamedTuple):
    """Where they are."""

    postmortem: Path
    page: Path  # the post-mortem as HTML
    blackbox: Path

    @classmethod
    def of(cls, folder: Path, incident_id: str) -> IncidentFiles:
        """Of one incident below the folder of all."""
        own = folder / incident_id
        return cls(own / "postmortem.md", own / "postmortem.html", own / f"incident{blackbox.SUFFIX}")


class SeriesFilter:
    """Which series a black box keeps."""

    def __init__(
        self,
        groups: Iterable[RuleGroup],
        trees: Iterable[Tree],
        questions: Iterable[Question],
        limits: IncidentSettings,
    ) -> None:
        self._keeps_all = limits.blackbox_series == "all"
        self._is_read = wanted_names(groups)
        trees = list(trees)
        walked = (query for tree in trees for one in tree.questions for query in (one.query, one.pool_query or ""))
        shared = (query for one in questions for query in (one.query, one.pool_query or ""))
        onsets = (query for tree in trees for query in tree.onset)
        self._asked = {name for query in chain(walked, shared, onsets) for name in _NAME.findall(query)}

    def is_kept(self, labels: LabelSet) -> bool:
        """Whether a rule or a tree may want it in a replay, or a person."""
        name = labels.name
        return self._keeps_all or name.startswith(_ALWAYS_KEPT) or name in self._asked or self._is_read(name)


def around(scope: Mapping[str, str]) -> Callable[[LabelSet], bool]:
    """Which series a black box keeps when there are too many: those of the pool, or without one the signals alone."""
    pool = scope.get("pool")

    def is_near(labels: LabelSet) -> bool:
        if labels.name == "up" or not labels.get("node"):
            return True
        return labels.get("pool") == pool if pool else labels.name.startswith(("llm:", "ALERTS"))

    return is_near


async def write_blackbox(
    path: Path,
    head: blackbox.BlackBox,
    store: SeriesStore,
    kept: SeriesFilter,
    resolution: blackbox.Resolution | None,
) -> None:
    """Write `head` with the store's series of its window, a few at a time: everybody else goes on meanwhile.

    `resolution` None keeps every point. Raises OSError; there is no half file then.
    """
    is_near = around(head.incident.scope) if store.num_series > MAX_SERIES_KEPT else lambda labels: True
    writer = blackbox.BlackBoxWriter(path, replace(head, series=()))
    await asyncio.to_thread(writer.__enter__)
    try:
        batch: list[tuple[dict[str, str], list[tuple[float, float]]]] = []
        for one in store.dump(head.since, head.until, wanted=lambda labels: kept.is_kept(labels) and is_near(labels)):
            batch.append(one)
            if len(batch) >= SERIES_AT_ONCE:
                await asyncio.to_thread(_add_series, writer, batch, resolution)
                batch = []
        await asyncio.to_thread(_add_series, writer, batch, resolution)
    except BaseException as error:
        writer.__exit__(type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(writer.__exit__, None)


def _add_series(
    writer: blackbox.BlackBoxWriter,
    batch: Sequence[tuple[dict[str, str], list[tuple[float, float]]]],
    resolution: blackbox.Resolution | None,
) -> None:
    whole = blackbox.Resolution(-float("inf"), float("inf"), 1.0)
    for labels, points in batch:
        writer.add(blackbox.RecordedSeries(labels, (resolution or whole).thinned(points)))
