"""Settings of notifications: who can be told, of what, when not, and who is told when nobody answers."""

from __future__ import annotations

import datetime as dt
import os
import re
import zoneinfo
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.http_url import is_http_url
from fleetctl.settings.section import Section

RECEIVER_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"
SLACK_API = "https://slack.com/api/chat.postMessage"
PAGERDUTY_API = "https://events.pagerduty.com/v2/enqueue"
OPSGENIE_API = "https://api.opsgenie.com/v2/alerts"
SeverityWord = Literal["ticket", "warning", "page", "critical"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = r"^([01]\d|2[0-3]):[0-5]\d$"
_ADDRESS = re.compile(r"^[^@\s<>,;\r\n]+@[^@\s<>,;\r\n]+$")


class ReceiverKind(StrEnum):
    """Whose words a receiver wants."""

    slack = "slack"  # Slack, Mattermost, Rocket.Chat: an incoming webhook; with `channel` Slack's chat.postMessage
    pagerduty = "pagerduty"  # Events API v2
    opsgenie = "opsgenie"  # Alert API
    email = "email"  # SMTP
    webhook = "webhook"  # JSON for anything else, signed where there is a secret

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps one alert for each incident, and calls nobody again for what is new about it."""
        return self in (ReceiverKind.pagerduty, ReceiverKind.opsgenie)


_DEFAULT_URLS: Mapping[ReceiverKind, str] = {
    ReceiverKind.pagerduty: PAGERDUTY_API,
    ReceiverKind.opsgenie: OPSGENIE_API,
}


class QuietHours(Section):
    """When a receiver is left alone: what is held back comes as one digest after."""

    start: str = Field(pattern=_TIME, description="From this time of the day on, e.g. 22:00.")
    end: str = Field(pattern=_TIME, description="Until this time; of the next day, where it is before `start`.")
    time_zone: str = Field(default="UTC", max_length=100, description="Whose time, e.g. Europe/Berlin.")
    days: tuple[Weekday, ...] = Field(
        default=WEEKDAYS,
        min_length=1,
        max_length=7,
        description="Days on which it begins.",
        json_schema_extra={"default": "every day"},
    )
    unless: SeverityWord = Field(default="critical", description="An incident as grave as this is told all the same.")

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"{name!r} is no time zone that this machine knows: Area/City, and tzdata installed"
            ) from error
        return name

    @model_validator(mode="after")
    def _lasts(self) -> QuietHours:
        if self.start == self.end:
            raise ValueError("start and end are the same: it would last for ever, or never")
        return self

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        """The time zone."""
        return zoneinfo.ZoneInfo(self.time_zone)

    @property
    def begins(self) -> dt.time:
        """`start` as a time of the day."""
        return dt.time.fromisoformat(self.start)

    @property
    def ends(self) -> dt.time:
        """`end` as a time of the day."""
        return dt.time.fromisoformat(self.end)


class ReceiverSettings(Section):
    """Somebody, or something, that can be told. Secrets are in files or variables, which are read anew for each use."""

    model_config = ConfigDict(hide_input_in_errors=True)

    name: str = Field(pattern=RECEIVER_NAME, description="What routes, `notify` and lists call it.")
    kind: ReceiverKind = Field(
        description="slack (and what is compatible), pagerduty (Events v2), opsgenie, email (SMTP), or webhook."
    )
    url: str | None = Field(
        default=None, max_length=2000, description="Where it answers; PagerDuty's and Opsgenie's are known."
    )
    url_file: Path | None = Field(default=None, description="File that holds the URL, where that is a secret itself.")
    url_env: str | None = Field(default=None, max_length=200, description="Variable that holds the URL.")
    secret_file: Path | None = Field(
        default=None,
        description="File that holds Slack's bot token, PagerDuty's routing key, Opsgenie's API key, the mail server's"
        " password, or the key that a webhook's messages are signed with.",
    )
    secret_env: str | None = Field(default=None, max_length=200, description="Variable that holds it.")
    authorization_file: Path | None = Field(
        default=None,
        description="File that holds the `Authorization` header, where a webhook wants one.",
    )
    channel: str | None = Field(
        default=None,
        max_length=200,
        description="Slack's channel: told by chat.postMessage with a bot token, as one thread for each incident.",
    )
    smtp_host: str | None = Field(default=None, max_length=300, description="The mail server.")
    smtp_port: int = Field(default=587, ge=1, le=65535, description="Its port.")
    smtp_tls: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How the connection is encrypted; none is for a server on this machine."
    )
    smtp_user: str | None = Field(default=None, max_length=300, description="User, where the server wants one.")
    sender: str | None = Field(default=None, max_length=300, description="From whom the mail is.")
    to: tuple[str, ...] = Field(default=(), max_length=50, description="To whom the mail goes.")
    quiet_hours: QuietHours | None = None

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not is_http_url(url):
            raise ValueError("not a URL: it begins with https:// or http://")  # and is not repeated: it may be a secret
        return url

    @field_validator("sender")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        if address is not None and not _ADDRESS.match(address):
            raise ValueError("not an address like fleet@example.com")
        return address

    @field_validator("to")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            if not _ADDRESS.match(address):
                raise ValueError("not an address like oncall@example.com")
        return addresses

    @field_validator("url_file", "secret_file", "authorization_file")
    @classmethod
    def _is_absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(f"{path} is not an absolute path")
        return path

    @model_validator(mode="after")
    def _has_what_its_kind_wants(self) -> ReceiverSettings:
        urls = [given for given in (self.url, self.url_file, self.url_env) if given is not None]
        if len(urls) > 1:
            raise ValueError("give one of url, url_file and url_env")
        if self.secret_file is not None and self.secret_env is not None:
            raise ValueError("give secret_file or secret_env, not both")
        if why := self._missing(has_url=bool(urls)):
            raise ValueError(f"{self.kind}: {why}")
        return self

    def _missing(self, *, has_url: bool) -> str:
        has_secret = self.secret_file is not None or self.secret_env is not None
        match self.kind:
            case ReceiverKind.email:
                if not (self.smtp_host and self.sender and self.to):
                    return "smtp_host, sender and to are needed"
                if self.smtp_user and not has_secret:
                    return "smtp_user needs secret_file or secret_env: the password"
                return "a mail has no url" if has_url else ""
            case ReceiverKind.slack if self.channel is not None:
                return "" if has_secret else "channel needs secret_file or secret_env: the bot token"
            case ReceiverKind.slack if self.url is not None:
                return "who knows a webhook's URL may write there: give url_file or url_env"
            case ReceiverKind.pagerduty | ReceiverKind.opsgenie if not has_secret:
                return "secret_file or secret_env is needed: the key"
            case ReceiverKind.slack | ReceiverKind.webhook if not has_url:
                return "one of url, url_file and url_env is needed"
        return ""

    def target_url(self) -> str:
        """Where it answers. Raises BadInputError, without the URL, which may be a secret."""
        default = SLACK_API if self.kind is ReceiverKind.slack else _DEFAULT_URLS.get(self.kind, "")
        url = self.url or self._read("url", self.url_file, self.url_env) or default
        if not is_http_url(url):
            raise BadInputError(f"receiver {self.name}: what its url_file or url_env holds is no URL")
        return url

    def secret(self) -> str:
        """The key, token or password; "" where none is wanted. Raises BadInputError when it can't be read."""
        return self._read("secret", self.secret_file, self.secret_env)

    def authorization(self) -> str:
        """The header's value; "" where none is wanted. Raises BadInputError when it can't be read."""
        return self._read("authorization", self.authorization_file, None)

    def _read(self, what: str, path: Path | None, variable: str | None) -> str:
        if path is not None:
            try:
                found = path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not text"
                raise BadInputError(f"receiver {self.name}: {what}_file {path}: {reason}") from None
            if not found:
                raise BadInputError(f"receiver {self.name}: {what}_file {path} is empty")
            return found
        if variable is not None:
            found = os.environ.get(variable, "").strip()
            if not found:
                raise BadInputError(
                    f"receiver {self.name}: {what}_env: {variable} is not set where the controller runs"
                )
            return found
        return ""


class Escalation(Section):
    """Who is told when nobody acknowledges an incident."""

    after_s: float = Field(
        default=900.0, ge=1, le=86_400, description="So long after it was told, and again after each of these."
    )
    to: tuple[str, ...] = Field(
        default=(), max_length=20, description="Receivers, one after the other; after the last the first again."
    )
    most: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="So many messages at most for one incident.",
        json_schema_extra={"default": "each receiver once"},
    )

    @property
    def limit(self) -> int:
        """So many at most."""
        return 0 if not self.to else len(self.to) if self.most is None else self.most


class NotificationRoute(Section):
    """Which incidents are told to whom. The first route that fits decides, and those after it if it says `more`."""

    severity: SeverityWord = Field(default="ticket", description="Incidents as grave as this, and graver ones.")
    pools: tuple[str, ...] = Field(default=(), max_length=200, description="Of one of these pools; empty: of any.")
    teams: tuple[str, ...] = Field(
        default=(),
        max_length=200,
        description="An alert of it has one of these values as its label `team`; empty: any.",
    )
    receivers: tuple[str, ...] = Field(default=(), max_length=50, description="Who is told; nobody, where it is empty.")
    more: bool = Field(default=False, description="Whether routes after this one are looked at too.")
    escalation: Escalation = Escalation()


class NotificationSettings(Section):
    """Who is told of incidents: docs/notifications.md."""

    receivers: tuple[ReceiverSettings, ...] = Field(
        default=(), max_length=100, description="Who can be told, of incidents and by the step `notify`."
    )
    routes: tuple[NotificationRoute, ...] = Field(
        default=(),
        max_length=200,
        description="Which incidents are told to whom. Without any, each receiver is told of each incident.",
    )
    wait_for_cause_s: float = Field(
        default=5.0, ge=0, le=300, description="The first message waits so long for a cause, which is then in it."
    )
    max_messages: int = Field(
        default=10, ge=1, le=1000, description="To one receiver within `window_s`; what is more comes as one digest."
    )
    window_s: float = Field(default=60.0, ge=1, le=3600, description="The time that `max_messages` counts.")
    retry_s: float = Field(
        default=5.0, gt=0, le=600, description="Before the second attempt; twice as long before each one after it."
    )
    max_retry_s: float = Field(default=300.0, gt=0, le=3600, description="The longest time between two attempts.")
    give_up_after_s: float = Field(
        default=3600.0, ge=0, le=7 * 86_400, description="A message that nobody took for so long has failed."
    )

    @model_validator(mode="after")
    def _names_who_is_there(self) -> NotificationSettings:
        names = [one.name for one in self.receivers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"receivers: {', '.join(twice)} is there twice")
        for index, route in enumerate(self.routes):
            for name in (*route.receivers, *route.escalation.to):
                if name not in names:
                    known = ", ".join(names) or "none"
                    raise ValueError(f"routes[{index}]: there is no receiver {name}; there are: {known}")
        return self

    def receiver(self, name: str) -> ReceiverSettings | None:
        """The receiver of this name."""
        return next((one for one in self.receivers if one.name == name), None)

    @property
    def routes_in_force(self) -> tuple[NotificationRoute, ...]:
        """The routes, or the one that stands for none."""
        return self.routes or (NotificationRoute(receivers=tuple(one.name for one in self.receivers)),)


class LinkSettings(Section):
    """Where people find more: what messages and the cockpit link to."""

    grafana_url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=1000)] | None = Field(
        default=None,
        description="Grafana's base URL, where our dashboards were imported (`fleetctl alerts export --dashboards`).",
    )
    incident_url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=1000)] | None = Field(
        default=None,
        description="An incident's page, `{incident}` being its id.",
        json_schema_extra={"default": "<controller.url>/v1/incidents/{incident}/postmortem?format=html"},
    )
