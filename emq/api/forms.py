"""Forms that all resources share: bodies, times, pages."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import pydantic

from emq.push.records import cursors

MAX_CURSOR = 2_000
DEFAULT_LIMIT = 50


class Body(pydantic.BaseModel):
    """A request's body: unknown fields are refused, and texts are not taken for numbers."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Shown(pydantic.BaseModel):
    """A part of an answer."""


Limit = Annotated[int, fastapi.Query(ge=1, le=cursors.MOST, description="most entries on the page")]
Cursor = Annotated[str, fastapi.Query(max_length=MAX_CURSOR, description="`next` of the page before")]


def time(us: int) -> datetime.datetime:
    """Return microseconds since the epoch as a time, which answers show by RFC 3339."""
    return datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC).replace(microsecond=us % 1_000_000)


def time_or_none(us: int) -> datetime.datetime | None:
    """As `time`; None for 0."""
    return time(us) if us else None
