"""Forms that all resources share: bodies, times, pages."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import fastapi
import msgspec
import pydantic

from emq_clients.requests import Page
from emq_push.records import cursors
from emq_web.problems import Problem

Row = TypeVar("Row")
Shows = TypeVar("Shows")
S = TypeVar("S", bound=msgspec.Struct)

MAX_CURSOR = 2_000
MOST_UNKNOWN = 20
"""Most unknown fields of a body that the answer may name."""
DEFAULT_LIMIT = 50
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Body(pydantic.BaseModel):
    """A request's body: unknown fields are refused, and texts are not taken for numbers."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_few_unknown(cls, values: Any) -> Any:
        # Pydantic makes an error of each unknown field: 5 s of the event loop for a body full of them.
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields) + MOST_UNKNOWN:
            return values
        unknown = itertools.islice((name for name in values if name not in cls.model_fields), MOST_UNKNOWN)
        kept = {*cls.model_fields, *unknown}
        return {name: value for name, value in values.items() if name in kept}


class Shown(pydantic.BaseModel):
    """A part of an answer."""


Plain = Annotated[str, pydantic.Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Text without control characters."""

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def _is_moment(value: Any) -> Any:
    # pydantic takes numbers for seconds or milliseconds since the epoch, also in quotes: "1" would select everything.
    if not (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        raise ValueError("must be a time by RFC 3339, such as 2026-11-26T07:30:00Z")
    return value


Moment = Annotated[pydantic.AwareDatetime, pydantic.Field(strict=False), pydantic.BeforeValidator(_is_moment)]
"""A time of a request."""


class SpanOfTime(NamedTuple):
    """Made at or after `since_us` and before `until_us`, in microseconds since the epoch."""

    since_us: int
    until_us: int


def span(gte: datetime.datetime | None, lt: datetime.datetime | None) -> SpanOfTime:
    """Return the span from one time to another; no time before the epoch counts."""
    return SpanOfTime(0 if gte is None else max(0, us_of(gte)), 1 << 62 if lt is None else max(0, us_of(lt)))


def _span(
    gte: Annotated[Moment | None, fastapi.Query(alias="created[gte]", description="made then or later")] = None,
    lt: Annotated[Moment | None, fastapi.Query(alias="created[lt]", description="made before then")] = None,
) -> SpanOfTime:
    return span(gte, lt)


Span = Annotated[SpanOfTime, fastapi.Depends(_span)]


def us_of(moment: datetime.datetime) -> int:
    """Return a time with a zone as microseconds since the epoch."""
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def encoded(value: Any) -> bytes:
    """Return a value of a body as JSON again.

    Raises:
        Problem: it has texts or numbers that JSON cannot carry.
    """
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError) as exc:
        raise Problem(422, "invalid_request", f"a value cannot be sent as JSON: {exc}") from None


class Listed(NamedTuple):
    """Which page of a list: most entries, and the cursor."""

    limit: int
    cursor: str


def _listed(
    limit: Annotated[int, fastapi.Query(ge=1, le=cursors.MOST, description="most entries on the page")] = DEFAULT_LIMIT,
    cursor: Annotated[str, fastapi.Query(max_length=MAX_CURSOR, description="`next` of the page before")] = "",
) -> Listed:
    return Listed(limit, cursor)


ListAt = Annotated[Listed, fastapi.Depends(_listed)]


def page(found: cursors.Page[Row], shown: Callable[[Row], Shows]) -> Page[Shows]:
    """Return a page of rows as answers show it."""
    return Page(data=[shown(each) for each in found.rows], next=found.next or None)


def time(us: int) -> datetime.datetime:
    """Return microseconds since the epoch as a time, which answers show by RFC 3339."""
    return datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC).replace(microsecond=us % 1_000_000)


def time_or_none(us: int) -> datetime.datetime | None:
    """As `time`; None for 0."""
    return time(us) if us else None


def shown(kind: type[S], source: object, **own: Any) -> S:
    """Return an answer with the values that a source has under the same names.

    The source has a time as `<name>_us`, and an empty text where the answer has None. What is within it becomes what
    the answer has there.

    Args:
        own: values that the source does not have, or has in another form.
    """
    for field in msgspec.structs.fields(kind):
        if field.name in own:
            continue
        if (us := getattr(source, f"{field.name}_us", None)) is not None:
            own[field.name] = time(us) if field.required else time_or_none(us)
        elif hasattr(source, field.name):
            value = getattr(source, field.name)
            own[field.name] = None if value == "" and field.default is None else value
    return msgspec.convert(own, kind, from_attributes=True)
