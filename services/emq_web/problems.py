"""The errors of the API: RFC 9457 problems, each with a stable code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import fastapi
import msgspec
import pydantic
from fastapi import exceptions
from starlette.exceptions import HTTPException

from emq.runtime import errors
from emq_push.records.cursors import InvalidCursor
from emq_push.service import refusals

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
MOST_ERRORS = 20
"""Most wrong values that one answer names."""

_STATUS = {
    refusals.NotFound: 404,
    refusals.Conflict: 409,
    refusals.OtherVersion: 412,
    refusals.Invalid: 422,
    refusals.TryAgain: 503,
}
_CODES = {
    400: "bad_request",
    401: "no_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    412: "other_version",
    413: "too_large",
    415: "unsupported_media_type",
    429: "too_many_requests",
    431: "head_too_large",
    500: "internal_error",
    503: "unavailable",
}
_TYPE = "urn:emq:problem:"
_NEVER = ("unknown_type", "cost_above_limit")
"""Refusals of tasks that a repeat cannot change."""
_TITLES = {
    400: "The request cannot be read",
    401: "A valid key is missing",
    403: "The key may not do this",
    404: "There is no such thing",
    405: "The resource has no such method",
    408: "The request came too slowly",
    409: "The request does not go with the present state",
    412: "What the request changes has changed",
    413: "The request is too large",
    415: "The media type is not supported",
    422: "A value is wrong",
    429: "Too many requests",
    431: "The head of the request is too large",
    500: "The service failed",
    503: "The service is unavailable for now",
}


class WrongValue(pydantic.BaseModel):
    """One wrong value of a request."""

    pointer: str = pydantic.Field(description="JSON pointer into the body, or the name of the parameter")
    detail: str


class ProblemDetails(pydantic.BaseModel):
    """An error by RFC 9457."""

    type: str = pydantic.Field(description="a URI of the kind of problem")
    title: str
    status: int
    code: str = pydantic.Field(description="stable, for programs")
    detail: str
    pointer: str = pydantic.Field(default="", description="JSON pointer to the first wrong value of the body")
    errors: list[WrongValue] = pydantic.Field(default_factory=list, description="each wrong value")


class Problem(Exception):
    """An error with its answer.

    Args:
        status: of HTTP.
        code: stable; empty for the usual one of the status.
        detail: one line that names the value and the remedy.
        headers: of the answer.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, pointer: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code or _CODES.get(status, "refused")
        self.detail = detail
        self.pointer = pointer
        self.headers = headers

    def with_headers(self, more: Mapping[str, str]) -> Problem:
        """Return the same problem whose answer has more headers."""
        both = {**(self.headers or {}), **more}
        return Problem(self.status, self.code, self.detail, pointer=self.pointer, headers=both)


def check_json(content_type: str, what: str, kinds: Sequence[str] = (JSON,)) -> None:
    """Raise `Problem` unless the content type of a request is one of these kinds of JSON; `what` names its body."""
    if content_type.partition(";")[0].strip().lower() not in kinds:
        raise Problem(415, "", f"send {what} as {' or '.join(kinds)}")


def details(problem: Problem) -> ProblemDetails:
    """Return a problem as a part of an answer."""
    return ProblemDetails(
        type=_TYPE + problem.code,
        title=title_of(problem.status),
        status=problem.status,
        code=problem.code,
        detail=problem.detail,
        pointer=problem.pointer,
    )


def answer(problem: Problem, wrong: Sequence[Mapping[str, str]] = ()) -> fastapi.Response:
    """Return the response for a problem."""
    body: dict[str, Any] = details(problem).model_dump(exclude_defaults=True)
    if wrong:
        body["errors"] = wrong
    headers = dict(problem.headers or {})
    return fastapi.Response(msgspec.json.encode(body), problem.status, headers, MEDIA_TYPE)


def title_of(status: int) -> str:
    """Return the title of a problem with this status."""
    return _TITLES.get(status, "The request was refused")


def of_error(exc: Exception) -> Problem:
    """Return the problem for an error of the service or of EMQ; logs an unexpected one."""
    match exc:
        case Problem():
            return exc
        case HTTPException():  # FastAPI's, of a body that it cannot read
            return Problem(exc.status_code, "", str(exc.detail), headers=exc.headers)
        case refusals.Refused():
            status = next(s for kind, s in _STATUS.items() if isinstance(exc, kind))
            headers = {"Retry-After": "1"} if status == 503 or exc.code == refusals.IN_PROGRESS else None
            return Problem(status, exc.code, str(exc), pointer=exc.pointer, headers=headers)
        case InvalidCursor():
            return Problem(422, "invalid_cursor", str(exc))
        case errors.StoreUnavailable() | errors.StoreFull() | errors.DatabaseUnavailable() | errors.OutcomeUnknown():
            log.warning("a request failed: %s", exc)
            return Problem(
                503, "unavailable", "the store or the database does not answer", headers={"Retry-After": "1"}
            )
        case errors.TaskRefused():
            return Problem(422 if exc.code in _NEVER else 409, exc.code, str(exc))
        case errors.UnknownPool():
            return Problem(404, "unknown_pool", str(exc))
        case errors.UnknownTask():
            return Problem(404, "unknown_task", str(exc))
        case errors.TasksWaiting():
            return Problem(409, "tasks_waiting", str(exc))
        case errors.InvalidPool():
            return Problem(422, "invalid_pool", str(exc))
        case errors.TopicExists():
            return Problem(409, "topic_exists", str(exc))
        case errors.UnknownTopic() | errors.TopicClosed() | errors.StillNamed() | errors.ChangedMeanwhile():
            log.warning("a request met a change that was under way: %s", exc)
            return Problem(409, "changed_meanwhile", "somebody changed or deleted this meanwhile; read it, try again")
        case errors.EMQError() if isinstance(exc, ValueError):
            return Problem(422, "invalid_request", str(exc))
    log.error("a request failed", exc_info=exc)
    return Problem(500, "internal_error", "the service failed; its log has the reason")


def _pointer(place: Sequence[int | str]) -> str:
    if not place or place[0] != "body":
        return str(place[-1]) if place else ""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place[1:])


def of_validation(exc: exceptions.RequestValidationError) -> fastapi.Response:
    """Return the response for a body or parameters that do not fit; no input is shown, since it may be a secret."""
    found = exc.errors()[:MOST_ERRORS]
    if any(error["type"] == "json_invalid" for error in found):
        return answer(Problem(400, "invalid_json", "the body is not valid JSON"))
    wrong = [{"pointer": _pointer(error["loc"]), "detail": str(error["msg"])} for error in found]
    in_body = [_pointer(error["loc"]) for error in found if error["loc"] and error["loc"][0] == "body"]
    first = wrong[0]
    detail = f"{first['pointer'].lstrip('/') or 'the body'}: {first['detail']}"
    return answer(Problem(422, "invalid_request", detail, pointer=in_body[0] if in_body else ""), wrong)


def _of_path(request: fastapi.Request, exc: HTTPException) -> str:
    """Return the detail of an error of the router, which has only a status."""
    path, remedy = request.url.path[:100], "/v1/openapi.json describes all operations"
    if exc.status_code == 404:
        return f"there is no path {path}; {remedy}"
    if exc.status_code == 405:
        return f"{path} does not take {request.method}; {remedy}"
    return str(exc.detail)


def install(application: fastapi.FastAPI) -> None:
    """Make every error of an application a problem."""

    async def on_error(request: fastapi.Request, exc: Exception) -> fastapi.Response:
        if isinstance(exc, exceptions.RequestValidationError):
            return of_validation(exc)
        if isinstance(exc, HTTPException):
            headers = exc.headers
            if exc.status_code == 405:
                headers = {"Allow": ", ".join(request.app.state.paths.methods(request.url.path))}
            return answer(Problem(exc.status_code, "", _of_path(request, exc), headers=headers))
        return answer(of_error(exc))

    for kind in (exceptions.RequestValidationError, HTTPException, Problem, errors.EMQError, InvalidCursor, Exception):
        application.add_exception_handler(kind, on_error)


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemDetails, "description": _TITLES[status]}
    for status in (400, 401, 403, 404, 405, 408, 409, 412, 413, 415, 422, 429, 503)
}
"""The problems that any operation may answer with, for the OpenAPI document."""
