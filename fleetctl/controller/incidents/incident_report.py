"""What is written down about an incident: its record, what its users felt, the post-mortem and the black box.

Of one that goes on it is what is known up to now; of one that is over, the series of its black box and what people have
said since; of one that was read from a file, what that file had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from alerts.sample import is_stale_nan
from alerts.series.store import SeriesStore
from diagnostics import blackbox
from diagnostics.incident import Incident, nodes_of
from diagnostics.key_series import NAMES, Series, effect_words, is_key_series
from diagnostics.postmortem import PostmortemInput, began_at, render
from diagnostics.postmortem_html import render_html
from diagnostics.record import Impact, IncidentRecord
from diagnostics.redaction import redacted_tree
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.impact import impact_in_parts
from fleetctl.controller.incidents.incident_files import IncidentFiles, SeriesFilter, write_blackbox
from fleetctl.controller.incidents.incident_store import StoredIncident
from fleetctl.controller.incidents.remediation import ROLLBACK_PAGE
from fleetctl.controller.incidents.views import record_of
from fleetctl.controller.nodes.node_row import list_nodes
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.printable import printable_tree
from fleetctl.kit.version import software_version
from fleetctl.kit.whole_file import write_whole
from fleetctl.settings.controller import IncidentSettings
from fleetctl.wire.timeline import TimelineEntry
from runbooks.journal import Journal

PageForm = Literal["md", "html"]
CHANGES_LEAD_S = 1800.0  # what happened to the place so long before it began is in its file
MAX_AROUND = 500
MAX_DRAWN_SERIES = 40  # of one metric: a page draws fewer


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """Everything a page or a file is made from. Times are Unix seconds."""

    record: IncidentRecord
    impact: Impact
    series: tuple[Series, ...]  # those that may be drawn
    since: float  # the window of the series
    until: float
    is_by_deploy: bool = False  # a rollback treats its cause

    def page(self, form: PageForm) -> str:
        """The post-mortem."""
        effects = {run.id: effect_words(run, self.series, self.record) for run in self.record.runs}
        report = PostmortemInput(
            _shown(self.record), self.until, self.impact, effects=effects, is_by_deploy=self.is_by_deploy
        )
        return render_html(report, self.series) if form == "html" else render(report)


class IncidentReports:
    """Reads what is known of an incident; writes it where it is told to. Threading: belongs to one event loop."""

    def __init__(
        self,
        journal: Journal,
        store: SeriesStore,
        content: ContentStore,
        records: Records,
        limits: IncidentSettings,
        folder: Path,
    ) -> None:
        """`folder`: where post-mortems and black boxes are."""
        self._journal = journal
        self._store = store
        self._content = content
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._limits = limits
        self._folder = folder

    def files_of(self, incident_id: str) -> IncidentFiles:
        """Where an incident's files are."""
        return IncidentFiles.of(self._folder, incident_id)

    async def report_now(
        self, incident: Incident, now: float, last_words: Sequence[TimelineEntry] = ()
    ) -> IncidentReport:
        """Of what the store has up to `now`. `last_words` are told with it, and not stored yet."""
        record = await self._record_of(incident, now, last_words)
        since = min(began_at(record), incident.opened_at) - self._limits.blackbox_lead_s
        series = self._drawn_series(record, since, now)
        impact = await impact_in_parts(record, self._store, since, now)
        return IncidentReport(record, impact, series, since, now, self._is_by_deploy(record))

    async def report_of(self, stored: StoredIncident) -> IncidentReport:
        """Of an incident as it is stored: while it is open of what is known now, else of its black box. Raises
        BadInputError when the box is gone or damaged."""
        incident, now = stored.incident, self._clock.now()
        if incident.resolved_at is None:
            return await self.report_now(incident, now)
        box = await self._box_of(stored)
        record = await self._record_with_words(stored, box)
        series = tuple((dict(one.labels), one.points) for one in box.series)
        by_deploy = self._is_by_deploy(record)
        return IncidentReport(record, box.impact or _uncounted(), series, box.since, box.until, by_deploy)

    def _is_by_deploy(self, record: IncidentRecord) -> bool:
        cause = record.diagnosis.cause if record.diagnosis is not None else None
        page = self._content.current.page_for_cause(cause) if cause is not None else None
        return page is not None and page.name == ROLLBACK_PAGE

    async def write_files(self, incident: Incident, report: IncidentReport, path: Path) -> None:
        """The black box of what the store has now. Raises OSError; there is no half file then."""
        limits = self._limits
        resolution = None
        if limits.blackbox_step_s > 0:
            onset = min(incident.onset_at or incident.opened_at, incident.opened_at)
            full_s = limits.blackbox_full_s
            resolution = blackbox.Resolution(onset - full_s, incident.opened_at + full_s, limits.blackbox_step_s)
        content = self._content.current
        kept = SeriesFilter(content.groups, content.trees.values(), content.questions.values(), limits)
        head = blackbox.BlackBox(
            report.record,
            report.until,
            report.since,
            report.until,
            software=f"fleetctl {software_version()}",
            impact=report.impact,
        )
        await write_blackbox(path, head, self._store, kept, resolution)

    async def export(self, stored: StoredIncident, path: Path) -> None:
        """Write the incident's file, with what people have said since it was over. Raises BadInputError, OSError."""
        incident = stored.incident
        if incident.resolved_at is None:
            await self.write_files(incident, await self.report_now(incident, self._clock.now()), path)
            return
        box = await self._box_of(stored, whole=True)
        record = await self._record_with_words(stored, box)
        await asyncio.to_thread(blackbox.write, path, replace(box, incident=record))

    async def _box_of(self, stored: StoredIncident, *, whole: bool = False) -> blackbox.BlackBox:
        scope = stored.incident.scope
        if stored.blackbox is None:
            raise BadInputError(
                f"{stored.incident.id}: its black box is not there: not written yet, or removed for room",
                remedy="incidents.keep_mb bounds the size of all of them",
            )

        def keeps(labels: Mapping[str, str]) -> bool:
            return whole or is_key_series(labels, scope)

        try:
            return await asyncio.to_thread(blackbox.read, Path(stored.blackbox), keeps=keeps)
        except blackbox.BadBlackBoxError as error:
            raise BadInputError(str(error)) from error

    async def _record_with_words(self, stored: StoredIncident, box: blackbox.BlackBox) -> IncidentRecord:
        """The box's record with the verdict and handling as they are stored, and what was told since."""
        incident = stored.incident
        own = record_of(incident, (), await self._timeline.read_all(incident.id))
        # The end is told once the box is written, and is in it: all else of later is what people said.
        since = [
            event
            for event in own.timeline
            if stored.imported is not None or (event.at > box.until and event.kind != "incident.resolved")
        ]
        timeline = sorted([*box.incident.timeline, *since], key=lambda event: event.at)
        fields = {"timeline": timeline, "handling": own.handling, "severity": own.severity}
        if incident.handling.correction is not None:
            fields["diagnosis"] = own.diagnosis
        return box.incident.model_copy(update=fields)

    async def _record_of(self, incident: Incident, now: float, last_words: Sequence[TimelineEntry]) -> IncidentRecord:
        entries = [*await self._timeline.read_all(incident.id), *last_words]
        own = await self._database.call(lambda: self._journal.list(incident_id=incident.id))
        record = record_of(incident, own, entries)
        since = began_at(record) - CHANGES_LEAD_S
        concerned = _Concerned(incident, await self._database.read(_nodes_by_pool))
        others = await self._database.call(lambda: self._journal.list(since=since))
        apart = [
            run
            for run in others
            if run.incident_id != incident.id
            and not run.dry_run
            and run.created_at <= now
            and concerned.covers(str(target) for target in run.targets)
        ]
        told = await self._timeline.read_between(since, now, MAX_AROUND)
        by_them = {run.id for run in apart}
        around = [entry for entry in told if concerned.is_about(entry) or entry.run_id in by_them]
        apart_record = record_of(incident, apart, around)
        meant_for = {run.id: run.incident_id for run in apart}
        others_runs = [
            run.model_copy(update={"is_apart": True, "incident_id": meant_for[run.id]}) for run in apart_record.runs
        ]
        runs = sorted([*record.runs, *others_runs], key=lambda run: (run.created_at, run.id))
        return record.model_copy(update={"runs": runs, "around": apart_record.timeline})

    def _drawn_series(self, record: IncidentRecord, since: float, until: float) -> tuple[Series, ...]:
        """Those of the place and some of its peers, the place first; not all of a large fleet."""
        counts: dict[tuple[str, bool], int] = {}

        def wanted(labels: Any) -> bool:
            known = {name: labels.get(name) for name in ("node", "pool", "model", "outcome") if labels.get(name)}
            known["__name__"] = labels.name
            if not is_key_series(known, record.scope):
                return False
            is_own = all(known.get(name, value) == value for name, value in record.scope.items())
            counts[labels.name, is_own] = counts.get((labels.name, is_own), 0) + 1
            return counts[labels.name, is_own] <= MAX_DRAWN_SERIES

        return tuple(
            (labels, tuple((at, None if is_stale_nan(value) else value) for at, value in points))
            for labels, points in self._store.dump(since, until, names=sorted(NAMES), wanted=wanted)
        )


def write_pages(files: IncidentFiles, report: IncidentReport) -> None:
    """The post-mortem as Markdown and as HTML. Raises OSError."""
    write_whole(files.postmortem, report.page("md"))
    write_whole(files.page, report.page("html"))


class _Concerned:
    """Whether a run or an event is about the incident's place, or about the fleet."""

    def __init__(self, incident: Incident, pools: Mapping[str, str]) -> None:
        """`pools`: node to its pool."""
        node, pool = incident.scope.get("node"), incident.scope.get("pool")
        self._is_fleet = not incident.scope
        self._nodes = set(nodes_of(incident)) | ({node} if node else set())
        self._names = {"fleet", *self._nodes}
        if pool is not None:
            self._names |= {f"pool/{pool}", f"rollout/{pool}"}
            if node is None:
                self._names |= {name for name, of in pools.items() if of == pool}

    def covers(self, targets: Iterable[str]) -> bool:
        return self._is_fleet or any(target in self._names for target in targets)

    def is_about(self, entry: TimelineEntry) -> bool:
        return entry.node is None or self._is_fleet or entry.node in self._names


def _nodes_by_pool(connection: sa.Connection) -> dict[str, str]:
    return {row.name: row.spec.pool for row in list_nodes(connection)}


def _uncounted() -> Impact:
    return Impact(why_not_counted="its file has no word of the gateway's counts")


def _shown(record: IncidentRecord) -> IncidentRecord:
    """Without credentials, and with its texts from outside on one line each: no label writes a heading of its own."""
    return IncidentRecord.model_validate(redacted_tree(printable_tree(record.model_dump())))
