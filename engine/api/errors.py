"""Errors as OpenAI's clients expect them: status, and {"error": {message, type, param, code}}.

ApiError        what a handler raises; becomes one answer
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from engine.node.refusal import RefusedError, TooLongError

MAX_NAME_CHARS = 64  # a field's name may be the client's own, of any length
TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """One answer with an error. `param` names the offending field, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's word for this status."""
        return TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def error_body(message: str, type_: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """The JSON of an error, in OpenAI's shape."""
    return msgspec.json.encode({"error": {"message": message, "type": type_, "param": param, "code": code}})


def error_response(error: ApiError) -> Response:
    """The whole answer."""
    body = error_body(error.message, error.type, code=error.code, param=error.param)
    return Response(body, error.status, headers=error.headers, media_type="application/json")


def from_refusal(refusal: RefusedError) -> ApiError:
    """A refusal before start: the header tells a gateway that nothing was begun."""
    headers = {"X-Fleet-Refused": refusal.reason}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    status = 429 if refusal.reason == "overloaded" else 503
    return ApiError(status, str(refusal), code=refusal.reason, headers=headers)


def from_too_long(error: TooLongError, param: str) -> ApiError:
    """`param`: the field that holds the prompt."""
    return ApiError(400, str(error), code="context_length_exceeded", param=param)


def from_validation(error: ValidationError) -> ApiError:
    """Names the first offending field by its path, as in `messages.0.role`.

    What may have one of several forms has an error for each. One of the right type that is beyond a limit is what was
    meant, else the one that got deepest.
    """
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    paths = [[str(part)[:MAX_NAME_CHARS] for part in e["loc"] if not _is_branch_name(part)] for e in errors]
    same = [index for index, path in enumerate(paths) if path[:1] == paths[0][:1]]
    chosen = max(same, key=lambda index: (not _is_of_type(errors[index]["type"]), len(paths[index])))
    path, message = ".".join(paths[chosen]), errors[chosen]["msg"].removeprefix("Value error, ")
    where = f"{path}: " if path else ""
    return ApiError(400, f"{where}{message}", param=path or None, code="invalid_value")


def _is_of_type(kind: str) -> bool:
    """Whether pydantic's kind of error says no more than that this is another type, as in `string_type`."""
    return kind.endswith("_type")


def _is_branch_name(part: int | str) -> bool:
    # pydantic puts the names of union branches into the path, as in `stop.list[str]`
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "constrained-str"})
