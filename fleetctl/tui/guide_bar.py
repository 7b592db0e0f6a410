"""What a guide says above the screen: where the tour is, what one sees, and what to press."""

from __future__ import annotations

from rich.text import Text

from fleetctl.tui.cell import Tone
from fleetctl.tui.rich_text import style_of
from fleetctl.tui.still import Redrawn, Still


class GuideBar(Redrawn, Still):
    """Hidden until something is said."""

    def __init__(self) -> None:
        super().__init__(id="guide")
        self.display = False
        self._said: tuple[str, str, str] | None = None

    def forget_drawn(self) -> None:
        """Draw it again."""
        said, self._said = self._said, None
        if said is not None:
            self.say(*said)

    def say(self, title: str, sees: str, do: str) -> None:
        """Title and what one sees; what to do stands on a line of its own, so that it is found at once."""
        if self._said == (title, sees, do):
            return
        self._said = (title, sees, do)
        self.display = True
        text = Text(f" {title} ", style="bold reverse")
        text.append(f"  {sees}", style="not bold not reverse")
        if do:
            text.append(f"\n{do}", style=f"not reverse {style_of(Tone.WARN)} bold")
        self.redraw(text)
