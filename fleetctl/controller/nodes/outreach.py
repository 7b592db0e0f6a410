"""What a step does outside of the fleet: tell a receiver, call a program. Both only those that the settings name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from fleetctl.controller.notifications.courier import Courier
from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.controller.notifications.receiver_words import Delivery
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.settings.controller import ActionSettings
from fleetctl.settings.notifications import NotificationSettings
from fleetctl.wire.silence import Silence, SilenceMatcher, SilenceRequest
from runbooks.ports import PermanentError, Receipt, TemporaryError

MAX_OUTPUT_BYTES = 16 * 1024
PIPE_ENDS_S = 1.0  # after all who had it were ended


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
    """Receivers, programs and silences of the settings."""

    settings: ActionSettings
    notifications: NotificationSettings
    courier: Courier
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

    async def notify(self, receiver: str, text: str, key: str, facts: Mapping[str, Any]) -> Receipt:
        """What the receiver answers to and what it is shown are secrets: no message and no receipt has them."""
        found = self.notifications.receiver(receiver)
        if found is None:
            there = ", ".join(one.name for one in self.notifications.receivers) or "none"
            raise PermanentError(f"there is no receiver {receiver} in notifications.receivers: {there}")
        known = {name: str(value) for name, value in facts.items() if value not in (None, "")}
        incident = known.get("incident", "")
        notice = Notice(
            NoticeKind.STEP,
            text,
            incident=incident,
            run=known.get("run", ""),
            news=tuple(known[name] for name in ("reason",) if name in known),
            show=f"fleetctl incident show {incident}" if incident else "",
        )
        try:
            taken = await self.courier.deliver(found, Delivery(notice, key, thread=incident or key))
        except BadInputError as error:
            raise PermanentError(error.message) from None
        return {"receiver": receiver, "told": taken.words}

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
