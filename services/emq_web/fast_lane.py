"""The short way of a POST of messages, past FastAPI, which costs several times as much as publishing.

The operation in `emq_web.messages` describes the same request for the OpenAPI document; both end in `answer`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import cast

import fastapi
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from emq_push.service.incoming import Incoming, Many
from emq_push.service.service import PushService
from emq_web.access import Caller, caller_of
from emq_web.one_or_many import OneOrMany
from emq_web.problems import answer, check_json, of_error
from emq_web.repeating import key_of

_PATH = re.compile(r"/v1/tenants/(?P<tenant>[A-Za-z0-9_-]{1,64})/messages")
_encode = msgspec.json.Encoder().encode

BODIES = OneOrMany(Incoming, Many, "messages")


class FastLane:
    """An ASGI middleware. It takes the whole body in one event, as `emq_web.admission` hands it on.

    Args:
        app: gets all other requests.
        service: that publishes.
    """

    def __init__(self, app: ASGIApp, service: PushService) -> None:
        self._application = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._application(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = cast("bytes", (await receive()).get("body", b""))
            content = await publish(self._service, caller_of(scope), found["tenant"], headers, body)
        except Exception as exc:
            await answer(of_error(exc))(scope, receive, send)
            return
        start = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 202, "headers": start})
        await send({"type": "http.response.body", "body": content})


async def publish(service: PushService, caller: Caller, tenant: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Publish the messages of a request; return the body of the answer 202.

    Args:
        headers: of the request, their names in lower case.

    Raises:
        Problem, EMQError: nothing, or not everything, was published.
    """
    caller.check("send", tenant)
    check_json(headers.get("content-type", ""), "the messages")
    key = key_of(headers.get("idempotency-key", ""))
    messages, is_single = BODIES.read(body)
    digest = hashlib.sha256(body).hexdigest() if key else ""
    receipts = await service.publishing.publish(tenant, messages, key=key, digest=digest, is_single=is_single)
    return _encode(receipts[0]) if is_single else b'{"data":' + _encode(receipts) + b"}"


async def serve(request: fastapi.Request) -> fastapi.Response:
    """Serve a request that came the long way."""
    service, headers = request.app.state.service, {name.lower(): value for name, value in request.headers.items()}
    tenant, body = str(request.path_params["tenant"]), await request.body()
    content = await publish(service, caller_of(request.scope), tenant, headers, body)
    return fastapi.Response(content, 202, media_type="application/json")
