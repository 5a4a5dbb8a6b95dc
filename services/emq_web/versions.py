"""Which version of a resource a request means: `If-Match` and `If-None-Match`, as RFC 9110 has them.

The ETag of a resource that somebody changes is its version. All other answers to a GET have one of their content: a
reader who has the same answer already gets 304 without a body. Versions give no 304, since some parts of such answers
change without a new version, as when a host disables an endpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import fastapi
from starlette.responses import Response

from emq_web.problems import Problem

Handler = Callable[[fastapi.Request], Coroutine[Any, Any, Response]]
Match = Annotated[
    str,
    fastapi.Header(alias="If-Match", max_length=40, description='change only this version, such as "7"; the ETag'),
]
NoneMatch = Annotated[
    str, fastapi.Header(alias="If-None-Match", max_length=40, description="* to create, and never to change")
]


def etag(version: int) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def conditional(handle: Handler) -> Handler:
    """Return a handler of GET whose answers have an ETag, and have no body for who has them already."""

    async def answered(request: fastapi.Request) -> Response:
        response = await handle(request)
        if response.status_code != fastapi.status.HTTP_200_OK or "etag" in response.headers:
            return response
        found = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
        response.headers["ETag"] = found
        known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
        return Response(status_code=304, headers={"ETag": found}) if found in known else response

    return answered


def wanted(match: str, none_match: str = "") -> int | None:
    """Return the version that what is changed must have; 0 if it must not exist, None for any.

    Raises:
        Problem: a header cannot be read.
    """
    if none_match:
        if none_match.strip() != "*" or match:
            raise Problem(422, "invalid_request", "If-None-Match takes * alone, and no If-Match beside it")
        return 0
    text = match.strip()
    if not text:
        return None
    digits = text.removeprefix("W/").strip('"')
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise Problem(422, "invalid_request", f'If-Match {match[:40]!r} is not an ETag, such as "7"')
    return int(digits)


async def version_of(match: Match = "", none_match: NoneMatch = "") -> int | None:
    """Return the version that a change is for; see `wanted`."""
    return wanted(match, none_match)


def tag(response: fastapi.Response, version: int) -> None:
    """Give an answer the ETag of a version."""
    response.headers["ETag"] = etag(version)


Version = Annotated[int | None, fastapi.Depends(version_of)]
