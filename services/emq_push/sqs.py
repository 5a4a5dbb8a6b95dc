"""Queues of Amazon SQS and of services like it: `sqs://HOST/ACCOUNT/QUEUE`, or `sqs+http:` for one without TLS.

A delivery is one message of the queue, sent by SQS's JSON protocol over the pusher's own kind of connections. So
addresses, the proxy and time-outs hold as for HTTP endpoints, and the answer is one of HTTP. botocore signs it.

The credentials are the user and the password of the endpoint's `auth`. Those of this machine are never used: a tenant
could write to the operator's queues with them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yarl

from emq.runtime import errors
from emq.runtime.extras import remedy
from emq_push.destinations import Around, Destination, Parcel
from emq_push.http import Connections
from emq_push.wire import Answer

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest

DEFAULT_REGION = "us-east-1"
MOST_ATTRIBUTES = 10
"""Most attributes that a message of SQS has."""

FIFO = ".fifo"
_PATH = re.compile(r"/[^/]+/[^/]+")
_REGION = re.compile(r"(?:sqs\.|queue\.)?([a-z]{2,4}(?:-[a-z]+)+-\d+)\.(?:sqs\.)?(?:queue\.)?amazonaws\.com(?:\.cn)?")
_REGION_NAME = re.compile(r"[a-z0-9-]{1,40}")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_ID = re.compile(r"[!-~]{1,128}")
_SECRET: Final = "authorization"
_LEFT_OUT = frozenset((_SECRET, "emq-attempt", "emq-priority", "emq-topic"))
_TOO_MANY: Final = 429
_UNAUTHORIZED: Final = 401
_encode = msgspec.json.Encoder().encode


class Queues:
    """Sends to the queues of all endpoints."""

    def __init__(self, around: Around, scheme: str) -> None:
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.credentials import Credentials
        except ImportError:
            raise errors.InvalidSettings(f"queues of SQS need botocore; {remedy('sqs')}") from None
        self._signed_with, self._request, self._credentials = SigV4Auth, AWSRequest, Credentials
        self._addresses = around.addresses
        self._connections = Connections(around.addresses)
        self._scheme = scheme

    async def deliver(self, parcel: Parcel) -> Answer:
        pair = _pair(parcel.headers)
        if pair is None:
            return Answer(
                _UNAUTHORIZED, None, b"no credentials; give auth of type basic: id and secret of an access key"
            )
        queue = parcel.url.with_scheme(self._scheme).with_query(None)
        url = queue.origin() / ""
        self._addresses.check_url(url)
        body = _encode({"QueueUrl": str(queue), **_message(parcel)})
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
        request: AWSRequest = self._request("POST", str(url), headers, body)
        self._signed_with(self._credentials(*pair), "sqs", region_of(parcel.url)).add_auth(request)
        answer = await self._connections.deliver(url, body, dict(request.headers.items()), parcel.timeout_s)
        # SQS says with 400 or 403 that it gets too much.
        return answer._replace(status=_TOO_MANY) if _is_throttled(answer) else answer

    async def close(self) -> None:
        await self._connections.close()


class QueueKind:
    """See `emq_push.destinations.Kind`.

    Args:
        scheme: of the requests.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def check(self, url: yarl.URL) -> None:
        shown = str(url.with_query(None))[:200]
        if not url.host or not _PATH.fullmatch(url.path):
            raise ValueError(f"push.url {shown!r} is not a queue of SQS; give {url.scheme}://HOST/ACCOUNT/QUEUE")
        if set(url.query) - {"region"} or not _REGION_NAME.fullmatch(region_of(url)):
            raise ValueError(f"push.url {shown!r}: a queue of SQS takes ?region=NAME and nothing else")

    def reached(self, url: yarl.URL) -> Sequence[yarl.URL]:
        return (url.with_scheme(self._scheme),)

    def open(self, around: Around) -> Destination:
        return Queues(around, self._scheme)


TLS = QueueKind("https")
PLAIN = QueueKind("http")


def region_of(url: yarl.URL) -> str:
    """Return the region that signatures name: of the query, or of the host."""
    named = _REGION.fullmatch(url.host or "")
    return url.query.get("region") or (named[1] if named else DEFAULT_REGION)


def _message(parcel: Parcel) -> dict[str, Any]:
    """Return the fields of a message. Raises `ValueError` for a payload that is not text."""
    shown = [(name, value) for name, value in parcel.headers.items() if name.lower() not in _LEFT_OUT and value]
    # What receivers need first, so that a tenant's own headers crowd out none of it.
    shown.sort(key=lambda each: not each[0].startswith(("webhook-", "emq-header-event-type", "Content-Type")))
    attributes = {
        name: {"DataType": "String", "StringValue": value} for name, value in shown if _ATTRIBUTE.fullmatch(name)
    }
    kept = dict(list(attributes.items())[:MOST_ATTRIBUTES])
    try:
        found: dict[str, Any] = {"MessageBody": parcel.body.decode(), "MessageAttributes": kept}
    except UnicodeDecodeError:
        raise ValueError("the payload is not text, as a message of SQS must be") from None
    if parcel.url.path.endswith(FIFO):
        [message] = parcel.messages
        found["MessageGroupId"] = _id(message.key or message.id)
        found["MessageDeduplicationId"] = _id(message.id)
    return found


def _id(text: str) -> str:
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _pair(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the user and the password of `Authorization`."""
    given = next((value for name, value in headers.items() if name.lower() == _SECRET), "")
    scheme, _, rest = given.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon and user else None


def _is_throttled(answer: Answer) -> bool:
    return answer.status in (400, 403) and any(word in answer.body for word in (b"Throttl", b"OverLimit"))
