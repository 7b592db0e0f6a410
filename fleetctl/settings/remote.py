"""A server that we call: its URL, the credentials it wants and the certificates on both sides."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator, model_validator

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.http_url import is_http_url
from fleetctl.settings.section import Section


class Credentials(Section):
    """Bearer or basic. Files are read anew for each use, so that a secret can be changed while we run."""

    bearer_token: SecretStr | None = Field(default=None, description="Sent as `Authorization: Bearer`.")
    bearer_token_file: Path | None = Field(default=None, description="File that holds the bearer token.")
    username: str | None = Field(default=None, max_length=200, description="User of basic authentication.")
    password: SecretStr | None = Field(default=None, description="Password of basic authentication.")
    password_file: Path | None = Field(default=None, description="File that holds the password.")

    @model_validator(mode="after")
    def _one_kind(self) -> Credentials:
        bearer = self.bearer_token is not None or self.bearer_token_file is not None
        basic = self.username is not None or self.password is not None or self.password_file is not None
        if bearer and basic:
            raise ValueError("give bearer_token(_file), or username and password(_file), not both")
        if self.bearer_token is not None and self.bearer_token_file is not None:
            raise ValueError("give bearer_token or bearer_token_file, not both")
        if self.password is not None and self.password_file is not None:
            raise ValueError("give password or password_file, not both")
        if basic and (self.username is None or (self.password is None and self.password_file is None)):
            raise ValueError("basic authentication needs username and password(_file)")
        return self

    @property
    def is_set(self) -> bool:
        """Whether any credential is given."""
        return self.username is not None or self.bearer_token is not None or self.bearer_token_file is not None

    def token(self) -> str | None:
        """The bearer token; None when basic or nothing is set. Raises BadInputError when its file can't be read."""
        return _secret(self.bearer_token, self.bearer_token_file)

    def basic(self) -> tuple[str, str] | None:
        """User and password, or None. Raises BadInputError when the password's file can't be read."""
        password = _secret(self.password, self.password_file)
        return None if self.username is None or password is None else (self.username, password)


class RemoteServer(Credentials):
    """A server with an HTTP API. `example` and `api_path` are of the kind of server, not settings."""

    example: ClassVar[str] = "http://server:8080"
    api_path: ClassVar[str] = ""  # cut off where a person gave it too
    section: ClassVar[str] = "settings"  # where it stands, for errors

    url: str = Field(max_length=1000, description="Where it answers, without its API's path.")
    ca_file: Path | None = Field(default=None, description="Certificates to trust; default: the system's.")
    cert_file: Path | None = Field(default=None, description="Our certificate, when the server asks for one.")
    key_file: Path | None = Field(default=None, description="Key of `cert_file`, when it is not in that file.")
    insecure_skip_verify: bool = Field(default=False, description="Take any certificate: for tests only.")

    @field_validator("url")
    @classmethod
    def _is_plain_http_url(cls, url: str) -> str:
        host = url.partition("://")[2].split("/")[0]
        if not is_http_url(url):
            raise ValueError(f"expected a URL like {cls.example}")
        if "@" in host:
            raise ValueError("no user or password in the URL: use username and password_file")
        if "?" in url or "#" in url:
            raise ValueError("expected a URL without query and fragment")
        return url.rstrip("/").removesuffix(cls.api_path)

    @model_validator(mode="after")
    def _has_certificate_for_key(self) -> RemoteServer:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    def tls(self) -> ssl.SSLContext | None:
        """For HTTPS; None where it is plain HTTP. Raises BadInputError naming the file that can't be used."""
        if not self.url.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(f"{self.section}: ca_file {self.ca_file}: {error}") from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file)
            except (OSError, ssl.SSLError) as error:
                raise BadInputError(f"{self.section}: cert_file {self.cert_file}: {error}") from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _secret(value: SecretStr | None, path: Path | None) -> str | None:
    if value is not None:
        return value.get_secret_value()
    if path is None:
        return None
    try:
        return path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path}: {getattr(error, 'strerror', None) or 'not text'}", remedy="give a file that holds the secret"
        ) from error
