"""Idempotency-Key: a request with it may be repeated, and is carried out once.

Follows draft-ietf-httpapi-idempotency-key-header. A key belongs to the caller's bearer key, and is known for 24 hours.
The database keeps the answer, which may have a secret, encrypted: with a key made of the bearer key, of which the
database has only the hash. So only the caller can have it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re

import fastapi
import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from emq.runtime import errors
from emq_push.secrets import KEY_BYTES, Secrets
from emq_push.service.repeats import Place
from emq_web.access import bearer_of, caller_of, service_of
from emq_web.problems import Problem, of_error
from emq_web.versions import Handler, conditional

METHODS = frozenset(("POST", "PUT", "PATCH", "DELETE"))
HEADER = "Idempotency-Key"
PATTERN = "[!-~]{1,255}"
_KEY = re.compile(PATTERN)
_KEPT_HEADERS = ("content-type", "etag")
_UNSETTLED = frozenset(("internal_error", "not_sent"))
"""Codes of problems after which something may have been done, besides errors that say so themselves."""


class _Answer(msgspec.Struct, frozen=True):
    """An answer as the database keeps it."""

    status: int
    headers: dict[str, str]
    body: str


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(_Answer).decode


def key_of(text: str) -> str:
    """Return the key of a header; the draft of the IETF has it in quotes, but many clients send it without.

    Raises:
        Problem: the header is no key.
    """
    key = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if text and not _KEY.fullmatch(key):
        raise Problem(422, "invalid_request", f"{HEADER} must be 1 to 255 printable ASCII characters, no spaces")
    return key


class RepeatableRoute(APIRoute):
    """Carries out a request with an `Idempotency-Key` once, and answers its repeats as it was answered."""

    def get_route_handler(self) -> Handler:
        """Return the handler of FastAPI, with repeats taken out; that of GET with ETags."""
        handle = super().get_route_handler()
        if METHODS.isdisjoint(self.methods or ()):
            return conditional(handle)

        async def once(request: fastapi.Request) -> Response:
            key = key_of(request.headers.get(HEADER, ""))
            return await _once(request, key, handle) if key else await handle(request)

        return once


async def _once(request: fastapi.Request, key: str, handle: Handler) -> Response:
    caller, repeats = caller_of(request.scope), (await service_of(request)).repeats
    place, seal = Place(caller.key.tenant, f"{caller.key.id} {key}"), _seal(bearer_of(dict(request.headers.raw)))
    if kept := await repeats.begin(place, await _digest(request)):
        return _restored(seal.decrypt(kept))
    try:
        response = await handle(request)
    except Exception as exc:
        refusal = exc if isinstance(exc, RequestValidationError) else of_error(exc)
        if not _may_have_been_done(exc, refusal):
            with contextlib.suppress(errors.DatabaseUnavailable):
                await repeats.undo(place)
        raise refusal from exc  # not the error itself, which would be logged once more
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    answer = _Answer(response.status_code, headers, bytes(response.body).decode())
    with contextlib.suppress(errors.DatabaseUnavailable):
        await repeats.end(place, seal.encrypt(_encode(answer).decode()))
    return response


def _may_have_been_done(exc: Exception, refusal: Exception) -> bool:
    is_unknown = isinstance(exc, errors.OutcomeUnknown | errors.DatabaseInDoubt)
    return is_unknown or (isinstance(refusal, Problem) and refusal.code in _UNSETTLED)


def _restored(text: str) -> Response:
    kept = _decode(text)
    return Response(kept.body, kept.status, kept.headers)


async def _digest(request: fastapi.Request) -> str:
    """Return a digest of what a request asks for."""
    parts = (request.method, request.url.path, request.url.query, request.headers.get("if-match", ""))
    return hashlib.sha256("\n".join(parts).encode() + b"\n" + await request.body()).hexdigest()


def _seal(bearer: str) -> Secrets:
    """Return what encrypts answers for the holder of a bearer key."""
    return Secrets([hashlib.blake2b(bearer.encode(), digest_size=KEY_BYTES, person=b"emq answers").digest()])
