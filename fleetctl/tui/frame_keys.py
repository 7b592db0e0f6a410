"""The keys of the frame, which every screen has, and which of them are offered only where they can do something.

Each is taken at once, before the next key is looked at: what is typed fast behind a key (`gf`, `:drain`) must not meet
the old screen.
"""

from __future__ import annotations

from textual.binding import Binding

from fleetctl.tui.place import Place
from fleetctl.tui.snapshot import Snapshot, is_closed
from fleetctl.tui.stage import Stage
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.run import RunStatus
from runbooks.verbs import VERBS

ACTS = ("slide", "decide", "dry_run", "take", "silence", "page", "order_run", "verb", "filter")
"""Actions whose keys a screen's help names while they can do something."""

KEYS: tuple[Binding, ...] = (
    Binding("g", "jump", "Go", priority=True),
    Binding("question_mark", "help", "Help", key_display="?", priority=True),
    Binding("slash", "filter", "Filter", show=False, priority=True),
    Binding("colon", "command", "Command", show=False, priority=True),
    Binding("a", "decide('approve')", "Approve", priority=True),
    Binding("d", "decide('deny')", "Deny", priority=True),
    Binding("x", "dry_run", "Dry-run", priority=True),
    Binding("T", "take", "Take over", priority=True),
    Binding("Z", "silence", "Silence", priority=True),
    Binding("p", "page", "Page", priority=True),
    Binding("P", "order_run('pause')", "Pause", priority=True),
    Binding("S", "order_run('skip')", "Skip", priority=True),
    Binding("X", "order_run('cancel')", "Cancel", priority=True),
    *(
        Binding(shortcut.key, f"verb('{verb.name}', '{shortcut.options}')", shortcut.label, priority=True)
        for verb in VERBS.values()
        for shortcut in verb.shortcuts
    ),
    *(
        Binding(str(number), f"go('{place.value}')", place.label, show=False, priority=True)
        for number, place in enumerate(list(Place)[:9], 1)
    ),
    Binding("left_square_bracket,alt+left", "step(-1)", "Back", show=False, priority=True),
    Binding("right_square_bracket,alt+right", "step(1)", "Forward", show=False, priority=True),
    Binding("escape", "leave", "Back", show=False, priority=True),
    Binding("r", "refresh_now", "Refresh", show=False, priority=True),
    Binding("comma", "slide(-5)", "Earlier", key_display=",", priority=True),
    Binding("full_stop", "slide(5)", "Later", key_display=".", priority=True),
    Binding("less_than_sign", "slide(-60)", "1 min earlier", show=False, priority=True),
    Binding("greater_than_sign", "slide(60)", "1 min later", show=False, priority=True),
    Binding("space", "play", "Play", priority=True),
    Binding("y", "copy", "Copy", show=False, priority=True),
    Binding("m", "bookmark", "Bookmark", show=False, priority=True),
    Binding("apostrophe", "recall", "Bookmarks", show=False, priority=True),
    Binding("t", "theme", "Theme", show=False, priority=True),
    Binding("q", "quit", "Quit", priority=True),
    Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
)


def offers(action: str, stage: Stage, snapshot: Snapshot, *, has_shell: bool, is_past: bool) -> bool:
    """Whether this action can do something now: only then its key is in the footer, and works.

    `has_shell`: commands that are no verbs can be run. `is_past`: a recording is shown.
    """
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
