"""A request to the API, before it is sent, and a page of a list, which many of them return."""

from __future__ import annotations

import datetime
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list.

    Attributes:
        next: cursor of the next page; None on the last one.
    """

    data: list[T]
    next: str | None = None


class Paging(TypedDict, total=False):
    """The page of a list that is asked for.

    Attributes:
        limit: most entries of the page.
        cursor: `next` of the page before; left out, the list begins.
    """

    limit: int | None
    cursor: str | None


class Request(msgspec.Struct, Generic[T], frozen=True):
    """One operation of the API. A client may send it several times, when no answer comes.

    Attributes:
        path: below the API's address, with its query.
        body: as JSON; None for none.
        answer: the type of the answer's body.
        headers: besides those of every request; `once` if to do it twice would do harm.
    """

    method: str
    path: str
    answer: type[T]
    body: bytes | None = None
    headers: Mapping[str, str] = {}


def one_of(*values: str) -> msgspec.Meta:
    """Return a note on a text for the OpenAPI document: the values of this version. Others are not refused."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def path(*parts: str, **query: Any) -> str:
    """Return a path of these parts, escaped, with the parts of the query that are not None or empty."""
    head = "/".join(urllib.parse.quote(part, safe=":") for part in parts)
    kept = {
        name.replace("_gte", "[gte]").replace("_lt", "[lt]"): _text(value)
        for name, value in query.items()
        if value not in (None, "")
    }
    return f"/v1/{head}" + (f"?{urllib.parse.urlencode(kept)}" if kept else "")


def body(**fields: Any) -> bytes:
    """Return the fields that are not None as JSON."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def match(version: int | None) -> Mapping[str, str]:
    """Return the headers that limit a change to a version: 0 for what must not exist, None for any.

    A repeat would find the version that the first request made, so the change is made once.
    """
    if version is None:
        return {}
    return {**once(), **({"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"})}


def once(key: str | None = None) -> Mapping[str, str]:
    """Return the header by which the API carries a request out once, however often it comes; None for a new key."""
    return {"Idempotency-Key": key or uuid.uuid4().hex}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
