"""The content in force, and how another takes its place without a restart: whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from fleetctl.controller.content.content import BUILT_IN, BadContentError, Content
from fleetctl.controller.content.folder import watched_files
from fleetctl.controller.content.load import load_content
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.wire.content import ContentListing, ContentObject, ContentProblem, ContentState
from runbooks.page import Page

log = structlog.get_logger()

POLL_S = 2.0


class ContentStore:
    """Reads the folders again when their files change, on SIGHUP, or when asked over HTTP.

    What fails to load changes nothing: the old content stays, and log, timeline, metrics and status say so.
    Threading: belongs to one event loop. Files are read in a thread; the exchange is one synchronous step.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        content: Content,
        timeline: Timeline,
        metrics: ControllerMetrics,
        clock: Clock,
    ) -> None:
        """`content` is what `load_content(folders)` gave."""
        self._folders = tuple(folders)
        self._timeline = timeline
        self._metrics = metrics
        self._clock = clock
        self._current = content
        self._appliers: list[Callable[[Content], None]] = []
        self._seen = self._files()
        self._changing = self._seen  # what the last look found
        self._is_asked = False
        self._loading = asyncio.Lock()
        self._loaded_at = clock.now()
        self._failure: BadContentError | None = None
        self._failed_at: float | None = None
        self.pages: Mapping[str, Page] = _Pages(self)
        self._show_metrics()

    @property
    def current(self) -> Content:
        """The content in force now. Whoever needs two parts of it that fit together reads this once."""
        return self._current

    def when_loaded(self, apply: Callable[[Content], None]) -> None:
        """Calls `apply` with each new content, before anybody else sees it. It must not fail."""
        self._appliers.append(apply)

    def ask_reload(self) -> None:
        """The next turn reads the folders again, changed or not. May be called by a signal handler."""
        self._is_asked = True

    async def reload_changed(self) -> None:
        """Reads the folders again when a file changed or `ask_reload` was called; a failure is told, not raised."""
        files = await asyncio.to_thread(self._files)
        if not self._is_asked:
            if files == self._seen:
                return
            if files != self._changing:
                self._changing = files
                return  # somebody may be writing: read when two looks in a row find the same
        why = "asked for by a signal" if self._is_asked else "files changed"
        self._is_asked = False
        with contextlib.suppress(BadContentError):  # told by `reload`
            await self.reload(why)

    async def reload(self, why: str) -> None:
        """Reads the folders and puts what they hold in force. Raises BadContentError; then nothing has changed."""
        async with self._loading:
            self._seen = await asyncio.to_thread(self._files)  # before reading: a change meanwhile is seen next time
            try:
                content = await asyncio.to_thread(load_content, self._folders)
            except BadContentError as error:
                self._failure, self._failed_at = error, self._clock.now()
                self._show_metrics()
                log.error("content.load_failed", why=why, error=error.message)
                await self._timeline.append(
                    "content.load_failed",
                    f"the content before stays in force ({why}): {error.message}",
                    data={"problems": [str(problem) for problem in error.problems]},
                )
                raise
            for apply in self._appliers:
                apply(content)
            self._current = content
            self._failure, self._failed_at, self._loaded_at = None, None, self._clock.now()
            self._show_metrics()
            for problem in content.warnings:
                log.warning("content.doubtful", problem=str(problem))
            state = self.state()
            await self._timeline.append(
                "content.loaded",
                f"content loaded ({why}): {state.own_objects} objects of {len(state.folders)} folders,"
                f" {state.overrides} of them override others",
                data={"overrides": [f"{one.kind} {one.name}" for one in content.objects if one.overrides]},
            )

    def state(self) -> ContentState:
        """What is in force, and whether the last load failed."""
        own = [one for one in self._current.objects if one.source != BUILT_IN]
        return ContentState(
            folders=[str(folder) for folder in self._folders],
            loaded_at=self._loaded_at,
            own_objects=len(own),
            overrides=sum(bool(one.overrides) for one in own),
            failed_at=self._failed_at,
            error=self._failure.message if self._failure is not None else "",
        )

    def listing(self) -> ContentListing:
        """Every object with its source and what it overrides, and what is wrong with the content that did not load."""
        current = self._current
        problems = self._failure.problems if self._failure is not None else current.warnings
        return ContentListing(
            state=self.state(),
            objects=[
                ContentObject(
                    kind=one.kind, name=one.name, source=one.source, file=one.file, overrides=list(one.overrides)
                )
                for one in current.objects
            ],
            problems=[
                ContentProblem(
                    severity=one.severity,
                    file=one.file,
                    line=one.line,
                    place=one.place,
                    reason=one.reason,
                    remedy=one.remedy,
                )
                for one in problems
            ],
        )

    def _files(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder in self._folders:
            found |= watched_files(folder)
        return found

    def _show_metrics(self) -> None:
        self._metrics.content_load_failed.set(self._failure is not None)
        self._metrics.content_loaded_at.set(self._loaded_at)


class _Pages(Mapping[str, Page]):
    """The pages in force, for those who keep a library: a run's steps were written down when it was proposed."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store

    def __getitem__(self, name: str) -> Page:
        return self._store.current.pages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.current.pages)

    def __len__(self) -> int:
        return len(self._store.current.pages)
