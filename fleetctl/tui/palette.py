"""What tones look like: dark, light, for eyes that do not tell red from green, and without any colour.

Each tone has a glyph or a word beside it everywhere: colour only finds it sooner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.tui.cell import Tone


@dataclass(frozen=True, slots=True)
class Palette:
    """`base`: of Textual's themes, the one for what is no text of ours."""

    name: str
    base: str
    styles: Mapping[Tone, str]
    has_colour: bool = True


_PLAIN = {Tone.PLAIN: "", Tone.DIM: "dim", Tone.STRONG: "bold"}

PALETTES: Mapping[str, Palette] = {
    one.name: one
    for one in (
        Palette(
            "dark",
            "textual-dark",
            {**_PLAIN, Tone.GOOD: "green", Tone.BUSY: "cyan", Tone.WARN: "yellow", Tone.BAD: "bold red"},
        ),
        Palette(
            "light",
            "textual-light",
            {
                **_PLAIN,
                Tone.GOOD: "#1a7f37",
                Tone.BUSY: "#0550ae",
                Tone.WARN: "bold #9a6700",
                Tone.BAD: "bold #cf222e",
            },
        ),
        # Blue to orange, as in the palette of Okabe and Ito; what is bad is brighter than all else too.
        Palette(
            "colour-blind",
            "textual-dark",
            {
                **_PLAIN,
                Tone.GOOD: "#56b4e9",
                Tone.BUSY: "#cc79a7",
                Tone.WARN: "#f0e442",
                Tone.BAD: "bold #000000 on #e69f00",
            },
        ),
        Palette(
            "no-colour",
            "textual-dark",
            {**_PLAIN, Tone.GOOD: "", Tone.BUSY: "italic", Tone.WARN: "bold", Tone.BAD: "bold reverse"},
            has_colour=False,
        ),
    )
}


class _Chosen:
    """The palette of the terminal that this process draws on: there is one."""

    palette = PALETTES["dark"]


def chosen() -> Palette:
    """The one in use."""
    return _Chosen.palette


def choose(name: str) -> Palette:
    """Use another from now on."""
    _Chosen.palette = PALETTES[name]
    return _Chosen.palette


def after(name: str) -> str:
    """The name of the next one."""
    names = list(PALETTES)
    return names[(names.index(name) + 1) % len(names)]
