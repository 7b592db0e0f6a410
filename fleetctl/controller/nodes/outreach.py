"""What a step does outside of the fleet: tell a channel, call a program. Both only those that the settings name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from fleetctl.controller.nodes.channel_words import ChannelKind, kind_and_url, message_for
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.settings.controller import ActionSettings
from fleetctl.wire import Silence, SilenceMatcher, SilenceRequest
from runbooks.ports import PermanentError, Receipt, TemporaryError

MAX_OUTPUT_BYTES = 16 * 1024
PIPE_ENDS_S = 1.0  # after all who had it were ended
CHANNEL_LIMIT_S = 10.0


class SilenceMaker(Protocol):
    """Alertmanager's silences, as `alertmanager.silences.Silences` has them."""

    async def current(self) -> list[Silence]:
        """As Alertmanager has them now."""
        ...

    async def add(self, request: SilenceRequest) -> Silence:
        """Make one, from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Outreach:
    """Channels, programs and silences of the settings."""

    settings: ActionSettings
    http: httpx.AsyncClient
    silences: SilenceMaker

    async def add_silence(self, alert: str, labels: Mapping[str, str], for_s: float, by: str, key: str) -> Receipt:
        """Made once for each key, which its comment ends with."""
        mark = f"({key})"
        matchers = [SilenceMatcher(name=name, op="=", value=value) for name, value in labels.items()]
        request = SilenceRequest(
            matchers=[SilenceMatcher(name="alertname", op="=", value=alert), *matchers],
            duration_s=for_s,
            comment=f"runbook step {mark}",
            created_by=(by or "runbook")[:200],
        )
        try:
            standing = [one for one in await self.silences.current() if one.comment.endswith(mark)]
            silence = standing[0] if standing else await self.silences.add(request)
        except UnreachableError as error:
            raise TemporaryError(error.message) from error
        except FleetctlError as error:
            raise PermanentError(error.message) from error
        return {"silence": silence.id, "ends_at": silence.ends_at}

    async def notify(self, channel: str, text: str, key: str, facts: Mapping[str, Any]) -> Receipt:
        """The channel's URL is a secret: no message and no receipt has it."""
        file = self.settings.channels.get(channel)
        if file is None:
            known = ", ".join(sorted(self.settings.channels)) or "none"
            raise PermanentError(f"there is no channel {channel} in actions.channels: {known}")
        kind, url, credential = await asyncio.to_thread(_read_channel, channel, file)
        message = message_for(kind, url, credential, text, key, facts)
        try:
            answer = await self.http.post(
                message.url, json=message.body, headers=message.headers, timeout=CHANNEL_LIMIT_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TemporaryError(f"channel {channel}: {type(error).__name__}") from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise TemporaryError(f"channel {channel}: answered {answer.status_code}")
        if not answer.is_success:
            raise PermanentError(f"channel {channel}: answered {answer.status_code}; see its file")
        return {"channel": channel, "status": answer.status_code}

    async def execute(self, program: str, arguments: Sequence[str], limit_s: float, key: str) -> Receipt:
        """Without a shell, with an environment of its own, and in a process group that ends with it."""
        path = self.settings.programs.get(program)
        if path is None:
            known = ", ".join(sorted(self.settings.programs)) or "none"
            raise PermanentError(f"there is no program {program} in actions.programs: {known}")
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "FLEETCTL_STEP_KEY": key}
        try:
            process = await asyncio.create_subprocess_exec(
                str(path),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise PermanentError(f"program {program}: {error.strerror}") from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                output = await _read_bounded(process.stdout)
                code = await process.wait()
        except TimeoutError:
            raise PermanentError(f"program {program}: not done after {limit_s:g} s, ended by force") from None
        finally:
            await _end_group(process)
        said = output.decode(errors="replace")
        if code:
            raise PermanentError(f"program {program}: exit code {code}: {said[-500:].strip()}")
        return {"program": program, "exit_code": 0, "output": said}


def _read_channel(channel: str, file: Path) -> tuple[ChannelKind, str, str]:
    try:
        lines = file.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise PermanentError(f"channel {channel}: its file can't be read: {reason}") from None
    kind, url = kind_and_url(lines[0])
    if kind is None:
        raise PermanentError(f"channel {channel}: before the URL stands one of {', '.join(ChannelKind)}, or nothing")
    if not url.startswith(("https://", "http://")):
        raise PermanentError(f"channel {channel}: the first line of its file is no URL")
    credential = lines[1].strip() if len(lines) > 1 else ""
    if not credential and kind in (ChannelKind.pagerduty, ChannelKind.opsgenie):
        raise PermanentError(f"channel {channel}: the second line of its file is to be its {kind} key")
    return kind, url, credential


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    """The beginning of what is written; the rest is read and dropped, so that nobody waits for room in a pipe."""
    kept = b""
    while part := await stream.read(65536):
        kept += part[: MAX_OUTPUT_BYTES - len(kept)]
    return kept


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Whatever the program left behind, its pipe too; what got away into a session of its own may keep that open."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    with suppress(TimeoutError):
        async with asyncio.timeout(PIPE_ENDS_S):
            await process.communicate()
