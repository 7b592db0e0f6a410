"""What users had felt of a recorded incident by a moment of its recording, in the words of a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetctl.kit.errors import BadInputError

if TYPE_CHECKING:
    from alerts.series.store import SeriesStore
    from diagnostics.blackbox import BlackBox
    from diagnostics.record import Impact, IncidentRecord

UNRECORDED = "the recording does not say"


class PastImpact:
    """Reads the recording up to a moment, once for each: the moment stands while the slider does."""

    def __init__(self, box: BlackBox, store: SeriesStore) -> None:
        """`store` holds the series of `box`."""
        self._box = box
        self._store = store
        self._last: tuple[float, str] | None = None

    async def words(self, now: float) -> str:
        """As of `now`. Raises BadInputError before the incident had opened."""
        from fleetctl.controller.notifications.incident_notice import impact_words

        record = self._box.incident
        if now < record.opened_at:
            raise BadInputError(f"no incident {record.id} by then")
        until = now if record.resolved_at is None else min(now, record.resolved_at)
        if self._last is None or self._last[0] != until:
            self._last = until, impact_words(await self._by(until))
        return self._last[1]

    async def _by(self, until: float) -> Impact:
        from fleetctl.controller.incidents.impact import impact_in_parts

        record, final = self._box.incident, self._box.impact
        if final is not None and until >= (record.resolved_at or self._box.until):
            return final
        impact = await impact_in_parts(_by_then(record, until), self._store, self._box.since, until)
        why = self._why_not_counted(impact, final)
        return (
            impact.model_copy(update={"why_not_counted": why, "requests": None, "lost": None, "refused": None})
            if why
            else impact
        )

    def _why_not_counted(self, impact: Impact, final: Impact | None) -> str:
        """Why the counts of requests that are in the file don't tell; empty: they do.

        When a gateway was started is not in every file: then what was known as the file was written holds for all of
        it.
        """
        from fleetctl.controller.incidents.impact import STARTED
        from fleetctl.controller.nodes.gateways import GATEWAY_JOB

        names = {one.labels.get("__name__") for one in self._box.series if one.labels.get("job") == GATEWAY_JOB}
        if "up" not in names:
            return UNRECORDED
        if STARTED not in names and final is not None and final.why_not_counted:
            return final.why_not_counted
        return impact.why_not_counted


def _by_then(record: IncidentRecord, until: float) -> IncidentRecord:
    """With the alerts that had begun."""
    begun = [one for one in record.alerts if min(one.active_at or until, one.fired_at or until) <= until]
    return record.model_copy(update={"alerts": begun})
