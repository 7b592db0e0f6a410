"""The keys of the frame, which every screen has, and which of them are offered only where they can do something.

Each is taken at once, before the next key is looked at: what is typed fast behind a key (`gf`, `:drain`) must not meet
the old screen.
"""

from __future__ import annotations

from textual.binding import Binding

from fleetctl.tui.place import Place
from runbooks.verbs import VERBS

ACTS = ("slide", "decide", "dry_run", "take", "silence", "page", "order_run", "verb", "filter")
"""Actions that `offers.py` allows by what is shown; all others can always be done."""

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
