"""The keys that `?` lists: those of the screen that is shown as it declares them, and those of every screen."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding

from fleetctl.tui.pane import Pane
from fleetctl.tui.place import JUMPS

FRAME_KEYS = (
    ("g, then a letter", f"go to a screen: {', '.join(f'{key} {place.label}' for key, place in JUMPS.items())}"),
    ("1 to 9", "the same, in this order"),
    ("[ and ]", "back and forward"),
    ("/", "filter: text, zone=a, !word"),
    (":", "any command, as after fleetctl; Tab completes; --dry-run does nothing"),
    ("Esc", "end the filter; else go back"),
    ("r", "look again now"),
    ("y", "copy what is chosen: a line, an incident, a run's commands"),
    ("m, then '", "bookmark what is shown, or drop it; go to a bookmark"),
    ("t", "theme: dark, light, colour-blind, no-colour"),
    ("q, Ctrl-C", "quit; Ctrl-C while a question is asked as well"),
)
OURS = frozenset(
    f"fleetctl.tui.{name}" for name in ("pane", "live_table", "fleet_pane", "incident_pane", "runbook_pane")
)
"""Modules whose keys are told; what Textual's own widgets take is not."""


def keys_of(pane: Pane, acts: Iterable[Binding]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What can be pressed while this screen is shown. `acts`: keys of the frame that can do something now."""
    classes = [one for widget in (pane.main, pane) for one in type(widget).__mro__ if one.__module__ in OURS]
    said: dict[str, str] = {}
    for one in (binding for kind in classes for binding in vars(kind).get("BINDINGS", ())):
        taken = {key for keys in said for key in keys.split(",")}  # the nearest came first, which is the one that works
        if isinstance(one, Binding) and one.description and taken.isdisjoint(one.key.split(",")):
            said[one.key] = one.description
    said |= {one.key: one.description for one in acts}
    return [("Here", [(_shown(key), what) for key, what in said.items()]), ("Everywhere", list(FRAME_KEYS))]


_SIGNS = {
    "comma": ",",
    "full_stop": ".",
    "plus": "+",
    "minus": "-",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
}


def _shown(key: str) -> str:
    """A key as it stands on the keyboard."""
    return ", ".join(_SIGNS.get(one, one) for one in key.split(","))
