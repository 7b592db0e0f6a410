"""The end of an incident: when it is over, and what is written down then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from alerts.labels import LabelSet
from alerts.series.store import SeriesStore
from diagnostics import blackbox, postmortem
from diagnostics.incident import Incident, IncidentStatus, is_over, mitigate, resolve, unmitigate
from diagnostics.record import IncidentRecord
from fleetctl.controller.incidents.impact import impact_of
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_store import save_incident
from fleetctl.controller.incidents.views import record_of
from fleetctl.controller.records import Records
from fleetctl.kit.printable import printable_tree
from fleetctl.kit.version import software_version
from fleetctl.settings.controller import IncidentSettings
from fleetctl.wire import TimelineEntry
from runbooks.errors import RunbookError
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import Run, RunStatus

log = structlog.get_logger()

MAX_SERIES_KEPT = 20_000  # about a hundred nodes
SERIES_AT_ONCE = 200
ACTING = frozenset({RunStatus.APPROVED, RunStatus.RUNNING, RunStatus.VERIFYING, RunStatus.UNDOING})


class Closing:
    """Ends incidents, and writes their post-mortem and black box."""

    def __init__(
        self,
        executor: Executor,
        journal: Journal,
        store: SeriesStore,
        book: IncidentBook,
        records: Records,
        limits: IncidentSettings,
        folder: Path,
    ) -> None:
        """`folder`: where post-mortems and black boxes go."""
        self._executor = executor
        self._journal = journal
        self._store = store
        self._book = book
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._limits = limits
        self._folder = folder

    async def close_incidents(self) -> None:
        """Follow the runs of every open incident, withdraw what nobody answered, and end what is over."""
        for incident in self._book.open_incidents():
            runs = await self._runs_of(incident)
            acting = any(run.status in ACTING for run in runs)
            if acting and incident.status is IncidentStatus.OPEN:
                await self._book.change_incident(incident.id, mitigate)
            elif not acting and incident.status is IncidentStatus.MITIGATING:
                await self._book.change_incident(incident.id, unmitigate)
            await self._withdraw(incident, runs)
            now = self._clock.now()
            standing = any(not run.status.is_terminal for run in runs)
            current = self._book.get(incident.id)
            if current and is_over(current, now, has_active_run=standing, quiet_s=self._limits.resolve_quiet_s):
                await self._resolve(current, now)

    async def _runs_of(self, incident: Incident) -> tuple[Run, ...]:
        return await self._database.call(lambda: self._journal.list(incident_id=incident.id))

    async def _withdraw(self, incident: Incident, runs: Sequence[Run]) -> None:
        """Cancel proposals that nobody answered while the trouble went away: they would act on a healthy fleet."""
        quiet = (
            incident.cleared_at is not None and self._clock.now() - incident.cleared_at > self._limits.withdraw_after_s
        )
        for run in runs if quiet else ():
            if run.status is RunStatus.PROPOSED:
                try:
                    await self._executor.cancel(run.id, "controller")
                except RunbookError as error:  # somebody answered in this very moment: that stands
                    log.info("run.not_withdrawn", run_id=run.id, why=str(error))

    async def _resolve(self, incident: Incident, now: float) -> None:
        """Write the files, then say so: whoever sees the incident resolved finds them."""
        resolved = resolve(incident, now)
        await self._timeline.flush()
        entries = await self._timeline.read_all(incident.id)
        said = TimelineEntry(
            seq=entries[-1].seq + 1 if entries else 1,
            at=now,
            kind="incident.resolved",
            text=f"{incident.title}: resolved",
            incident_id=incident.id,
        )
        record = record_of(resolved, await self._runs_of(incident), [*entries, said])
        since = min(postmortem.began_at(record), incident.opened_at) - self._limits.blackbox_lead_s
        series = await self._recorded(resolved, since, now)
        folder = self._folder / incident.id
        page = postmortem.render(
            postmortem.PostmortemInput(_shown(record), now, impact_of(record, self._store, since, now))
        )
        box = blackbox.BlackBox(record, now, since, now, tuple(series), f"fleetctl {software_version()}")
        postmortem_path, blackbox_path = folder / "postmortem.md", folder / f"incident{blackbox.SUFFIX}"
        paths: tuple[str | None, str | None] = str(postmortem_path), str(blackbox_path)
        try:
            await asyncio.to_thread(_write_files, postmortem_path, page, blackbox_path, box)
        except OSError as error:
            # A full disk must not keep the incident open: people act on its status.
            paths = None, None
            await self._timeline.append(
                "postmortem.failed", f"{folder}: {error.strerror or error}", incident_id=incident.id
            )
        await self._database.write(lambda c: save_incident(c, resolved, paths))
        await self._book.store_incident(resolved)
        await self._timeline.append(
            said.kind,
            said.text,
            incident_id=incident.id,
            node=incident.scope.get("node"),
            data={"postmortem": paths[0], "blackbox": paths[1], "lasted_s": round(now - incident.opened_at, 1)},
        )

    async def _recorded(self, incident: Incident, since: float, until: float) -> list[blackbox.RecordedSeries]:
        """The series of that time: all of a small fleet, those around the incident of a large one."""
        wanted = around(incident.scope) if self._store.num_series > MAX_SERIES_KEPT else lambda labels: True
        series = []
        for labels, points in self._store.dump(since, until, wanted=wanted):
            series.append(blackbox.RecordedSeries(labels, tuple(points)))
            if len(series) % SERIES_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn: of a large pool this takes seconds
        return series


def _shown(record: IncidentRecord) -> IncidentRecord:
    """The record with its texts from outside on one line each: a label must not write a heading of its own."""
    return IncidentRecord.model_validate(printable_tree(record.model_dump()))


def around(scope: Mapping[str, str]) -> Callable[[LabelSet], bool]:
    """Which series a black box keeps when there are too many: those of the pool, or without one the signals alone."""
    pool = scope.get("pool")

    def is_near(labels: LabelSet) -> bool:
        if labels.name == "up" or not labels.get("node"):
            return True
        return labels.get("pool") == pool if pool else labels.name.startswith(("llm:", "ALERTS"))

    return is_near


def _write_files(page_path: Path, page: str, box_path: Path, box: blackbox.BlackBox) -> None:
    page_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = page_path.with_suffix(".tmp")
    scratch.write_text(page, encoding="utf-8")
    scratch.replace(page_path)
    blackbox.write(box_path, box)
