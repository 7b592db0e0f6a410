"""Where the controllers of one state are asked: one of them leads, and nobody else answers."""

from __future__ import annotations


class ControllerUrls:
    """The controllers' addresses with a path behind each, the one that is asked in front."""

    def __init__(self, controllers: str, path: str) -> None:
        """`controllers`: one URL, or several with spaces between them."""
        self._urls = [url.rstrip("/") + path for url in controllers.split()]

    @property
    def current(self) -> str:
        """Whom to ask."""
        return self._urls[0]

    @property
    def are_several(self) -> bool:
        """Whether another controller may lead."""
        return len(self._urls) > 1

    def pass_on(self) -> None:
        """This one gave nothing: the next one is asked from now on."""
        self._urls.append(self._urls.pop(0))
