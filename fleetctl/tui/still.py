"""A text that keeps its place: others are laid out anew only when its height is another.

Textual lays the whole screen out whenever a `Static` is given a text, and draws all of it again: with a clock in the
header that was each second, and most of what an idle cockpit cost.
"""

from __future__ import annotations

from rich.console import RenderableType
from textual.widgets import Static


class Redrawn:
    """A widget that draws only what changed."""

    def forget_drawn(self) -> None:
        """Draw all of it next time: colours are others."""
        raise NotImplementedError


class Still(Static):
    """As `Static`, for texts that change often and seldom grow."""

    _shape: tuple[int, int] | None = None  # width, and lines at that width, of what is shown

    def redraw(self, content: RenderableType) -> None:
        """Show this."""
        width = self.content_size.width
        shape = (width, self._height_at(content, width)) if width else None
        self.update(content, layout=shape is None or shape != self._shape)
        self._shape = shape

    def _height_at(self, content: RenderableType, width: int) -> int:
        console = self.app.console
        return len(console.render_lines(content, console.options.update(width=width, height=None), pad=False))
