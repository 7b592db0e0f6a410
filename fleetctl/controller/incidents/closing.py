"""The end of an incident: when it is over, and what is written down then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from diagnostics.incident import Incident, IncidentStatus, is_over, mitigate, resolve, unmitigate
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_files import IncidentFiles
from fleetctl.controller.incidents.incident_report import IncidentReports, write_pages
from fleetctl.controller.incidents.incident_store import save_incident, set_blackbox
from fleetctl.controller.records import Records
from fleetctl.settings.controller import IncidentSettings
from fleetctl.wire.timeline import TimelineEntry
from runbooks.errors import RunbookError
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import Run, RunStatus

log = structlog.get_logger()

BLACKBOX_WAIT_S = 20.0


class Closing:
    """Ends incidents, and writes their post-mortem and black box."""

    def __init__(
        self,
        executor: Executor,
        journal: Journal,
        book: IncidentBook,
        reports: IncidentReports,
        records: Records,
        limits: IncidentSettings,
    ) -> None:
        self._executor = executor
        self._journal = journal
        self._reports = reports
        self._book = book
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._limits = limits
        self._late: set[asyncio.Task[None]] = set()  # black boxes that took longer than their incident's end

    async def close_incidents(self) -> None:
        """Follow the runs of every open incident, withdraw what nobody answered, and end what is over."""
        for incident in self._book.open_incidents():
            runs = await self._runs_of(incident)
            acting = any(run.status.is_active for run in runs)
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
                    await self._executor.cancel(run.id, "controller", "its alerts cleared before anybody answered")
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
        report = await self._reports.report_now(resolved, now, [said])
        files = self._reports.files_of(incident.id)
        paths: tuple[str | None, str | None] = str(files.postmortem), str(files.blackbox)
        try:
            await asyncio.to_thread(write_pages, files, report)
            writing = asyncio.create_task(self._reports.write_files(resolved, report, files.blackbox))
            done, _ = await asyncio.wait({writing}, timeout=BLACKBOX_WAIT_S)
            if done:
                writing.result()
            else:  # a busy machine must not keep the incident open: the box is told of when it is there
                paths = paths[0], None
                self._follow_up(self._tell_late(writing, resolved, files))
        except OSError as error:
            # A full disk must not keep the incident open: people act on its status.
            paths = (paths[0] if files.postmortem.exists() else None), None
            text = f"{error.filename or files.postmortem.parent}: {error.strerror or error}"
            log.error("postmortem.failed", incident_id=incident.id, error=text)
            await self._timeline.append("postmortem.failed", text, incident_id=incident.id)
        # Writing takes seconds, of a large fleet many: what was said or fired meanwhile stands.
        if (latest := self._latest(incident)) is None:
            return
        await self._database.write(lambda c: save_incident(c, latest, paths))
        if self._latest(incident) is None:
            return
        await self._book.change_incident(incident.id, lambda one: resolve(one, now))
        await self._timeline.append(
            said.kind,
            said.text,
            incident_id=incident.id,
            node=incident.scope.get("node"),
            data={"postmortem": paths[0], "blackbox": paths[1], "lasted_s": round(now - incident.opened_at, 1)},
        )

    def _latest(self, incident: Incident) -> Incident | None:
        """As it is now, if its alerts are clear as they were; None: one fired since, and it is not over."""
        latest = self._book.get(incident.id)
        if latest is not None and latest.cleared_at == incident.cleared_at:
            return latest
        log.info("incident.not_over", incident_id=incident.id, why="an alert fired while its files were written")
        return None

    def _follow_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="late-blackbox")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _tell_late(self, writing: asyncio.Task[None], resolved: Incident, files: IncidentFiles) -> None:
        try:
            await writing
        except OSError as error:
            text = f"{error.filename or files.blackbox}: {error.strerror or error}"
            log.error("blackbox.failed", incident_id=resolved.id, error=text)
            await self._timeline.append("blackbox.failed", text, incident_id=resolved.id)
            return
        await self._database.write(lambda c: set_blackbox(c, resolved.id, str(files.blackbox)))
