"""Which of the frame's keys can do something now: only they are shown in the footer, and work."""

from __future__ import annotations

from fleetctl.tui.place import Place
from fleetctl.tui.snapshot import Snapshot, is_closed
from fleetctl.tui.stage import Stage
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.run import RunStatus


def offers(action: str, stage: Stage, snapshot: Snapshot, *, has_shell: bool, is_past: bool) -> bool:
    """Whether this action can do something. `has_shell`: commands that are no verbs can be run. `is_past`: a recording
    is shown."""
    place = stage.here.place
    match action.partition("(")[0]:
        case "decide":
            return stage.run_asking(snapshot) is not None and snapshot.may(TokenRole.APPROVER)
        case "dry_run":
            asked = stage.run_asking(snapshot)
            return asked is not None and asked.status is RunStatus.PROPOSED and snapshot.may(TokenRole.OPERATOR)
        case "take":
            incident = stage.incident.shown if place is Place.INCIDENT else None
            return incident is not None and not is_closed(incident) and snapshot.may(TokenRole.OPERATOR)
        case "silence":
            return has_shell and stage.silenceable() is not None and snapshot.may(TokenRole.OPERATOR)
        case "page":
            return place is Place.INCIDENT and snapshot.page is not None
        case "order_run":
            run = stage.runbook.run_shown if place is Place.RUNBOOK else None
            live = run is not None and not run.status.is_terminal and run.status is not RunStatus.PROPOSED
            return live and snapshot.may(TokenRole.OPERATOR)
        case "verb":
            return stage.chosen_node() is not None and snapshot.may(TokenRole.OPERATOR)
        case "slide" | "play":
            return is_past
        case "filter":
            return stage.pane.CAN_FILTER
    return True
