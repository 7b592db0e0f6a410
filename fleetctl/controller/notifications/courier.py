"""Brings a notice to a receiver of the settings: HTTP or SMTP, once, and says how that went.

Secrets are read for each delivery; URLs, keys and what a receiver answered are in no error, log or receipt.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import ssl
from dataclasses import dataclass, replace
from email.message import EmailMessage

import httpx

from fleetctl.controller.notifications.notice import NoticeKind
from fleetctl.controller.notifications.receiver_words import Delivery, mail_for, message_for
from fleetctl.kit.clock import Clock
from fleetctl.settings.notifications import ReceiverKind, ReceiverSettings
from runbooks.ports import PermanentError, TemporaryError

LIMIT_S = 10.0  # one delivery
MAX_ANSWER_BYTES = 64 * 1024
_LATER = frozenset({408, 425, 429})
_SLACK_LATER = frozenset(
    {"ratelimited", "rate_limited", "service_unavailable", "internal_error", "fatal_error", "request_timeout"}
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The receiver took it. `reference` is its name for it, where it gives one."""

    words: str
    reference: str = ""


class Courier:
    """Threading: `deliver` from the event loop; SMTP runs on a thread of its own."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock) -> None:
        """`http` follows no redirect: only what the settings name is asked."""
        self._http = http
        self._clock = clock

    async def deliver(self, receiver: ReceiverSettings, delivery: Delivery) -> Taken:
        """Raises TemporaryError (try again), PermanentError (refused), BadInputError (a secret can't be read)."""
        secret = await asyncio.to_thread(receiver.secret)
        if receiver.kind is ReceiverKind.email:
            mail = mail_for(receiver, delivery, self._clock.now())
            return await asyncio.to_thread(_send_mail, receiver, secret, mail)
        url = await asyncio.to_thread(receiver.target_url)
        taken = await self._post(receiver, url, secret, delivery)
        if delivery.notice.kind is NoticeKind.TEST and receiver.kind.keeps_state:
            # Nobody is to close by hand what was a test.
            end = replace(delivery.notice, kind=NoticeKind.RESOLVED)
            await self._post(receiver, url, secret, replace(delivery, notice=end, is_reply=True, ends_thread=True))
        return taken

    async def _post(self, receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery) -> Taken:
        message = message_for(receiver, url, secret, delivery, self._clock.now())
        if authorization := await asyncio.to_thread(receiver.authorization):
            message.headers["Authorization"] = authorization
        name = f"receiver {receiver.name}"
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                self._http.stream(
                    "POST",
                    message.url,
                    content=message.body,
                    headers=message.headers,
                    timeout=LIMIT_S,
                    follow_redirects=False,
                ) as answer,
            ):
                said = b""
                async for part in answer.aiter_bytes():
                    said += part
                    if len(said) >= MAX_ANSWER_BYTES:
                        break
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise TemporaryError(f"{name}: {_why(error)}") from None
        status = answer.status_code
        if status >= 500 or status in _LATER:
            raise TemporaryError(f"{name}: answered {status}", _retry_after_s(answer.headers.get("Retry-After")))
        if not answer.is_success:
            raise PermanentError(f"{name}: answered {status}; see its URL and secret")
        if receiver.channel is not None and receiver.kind is ReceiverKind.slack:
            return _slack_answer(name, said)
        return Taken(f"answered {status}")


def _why(error: Exception) -> str:
    """What went wrong on the way, without the URL, which may be a secret."""
    if isinstance(error, httpx.ConnectError):
        return "no connection: see that its host is right, and reached from the controller's machine"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return f"no answer within {LIMIT_S:.0f} s"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return "its URL can't be asked"
    return f"the connection broke ({type(error).__name__})"


def _slack_answer(name: str, said: bytes) -> Taken:
    """Slack's API answers 200 to what it refuses, too."""
    try:
        body = json.loads(said)
    except ValueError:
        raise TemporaryError(f"{name}: answered 200 with no JSON") from None
    if not isinstance(body, dict) or body.get("ok") is not True:
        error = str(body.get("error", "unknown"))[:100] if isinstance(body, dict) else "unknown"
        if error in _SLACK_LATER:
            raise TemporaryError(f"{name}: Slack says {error}")
        raise PermanentError(f"{name}: Slack says {error}; see its channel and secret")
    return Taken("answered 200", str(body.get("ts", ""))[:100])


def _retry_after_s(text: str | None) -> float:
    """Seconds; a date is not worth reading here."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else 1.0


def _send_mail(receiver: ReceiverSettings, secret: str, mail: EmailMessage) -> Taken:
    assert receiver.smtp_host is not None  # the settings were checked
    name = f"receiver {receiver.name}"
    try:
        with _connection(receiver, receiver.smtp_host) as server:
            if receiver.smtp_user:
                server.login(receiver.smtp_user, secret)
            refused = server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        kind = TemporaryError if any(400 <= code < 500 for code in codes) else PermanentError
        raise kind(f"{name}: every address was refused ({min(codes)})") from None
    except smtplib.SMTPResponseException as error:
        kind = TemporaryError if 400 <= error.smtp_code < 500 else PermanentError
        hint = "; see smtp_user and its secret" if isinstance(error, smtplib.SMTPAuthenticationError) else ""
        raise kind(f"{name}: the mail server says {error.smtp_code}{hint}") from None
    except smtplib.SMTPNotSupportedError:
        raise PermanentError(f"{name}: the mail server has no {receiver.smtp_tls}, or no login") from None
    except ssl.SSLCertVerificationError:
        raise PermanentError(f"{name}: the mail server's certificate is not to be trusted") from None
    except (smtplib.SMTPException, OSError) as error:
        raise TemporaryError(f"{name}: {type(error).__name__}") from None
    missed = f"; {len(refused)} of {len(receiver.to)} addresses were refused" if refused else ""
    return Taken(f"the mail server took it{missed}")


def _connection(receiver: ReceiverSettings, host: str) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if receiver.smtp_tls == "tls":
        return smtplib.SMTP_SSL(host, receiver.smtp_port, timeout=LIMIT_S, context=context)
    server = smtplib.SMTP(host, receiver.smtp_port, timeout=LIMIT_S)
    if receiver.smtp_tls == "starttls":
        try:
            server.starttls(context=context)
        except BaseException:
            server.close()
            raise
    return server
