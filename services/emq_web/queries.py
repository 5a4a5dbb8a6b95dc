"""Parameters of lists that several resources share. A parameter that is not known is refused, as a misspelt filter."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import pydantic

from emq_push.records import cursors
from emq_web import forms

Text = Annotated[str, pydantic.StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]
EndpointId = Annotated[str, pydantic.StringConstraints(max_length=80, pattern=r"^[A-Za-z0-9_-]*$")]
EventType = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00*]*\*?$")]
DeliveryId = Annotated[str, fastapi.Path(max_length=400, description="`<endpoint>:<message>`")]


class Query(pydantic.BaseModel):
    """The parameters of a request."""

    model_config = pydantic.ConfigDict(extra="forbid", populate_by_name=True)


class ListQuery(Query):
    """The parameters of every list."""

    limit: int = pydantic.Field(forms.DEFAULT_LIMIT, ge=1, le=cursors.MOST, description="most entries on the page")
    cursor: str = pydantic.Field("", max_length=forms.MAX_CURSOR, description="`next` of the page before")


class EndpointQuery(ListQuery):
    """The parameters of a list of endpoints."""

    endpoint: EndpointId = pydantic.Field("", description="only this endpoint")


def us(time: datetime.datetime | None, default: int) -> int:
    """Return a time as microseconds since the epoch, which is the earliest."""
    return default if time is None else max(0, forms.us_of(time))


FAR_S = 253_370_764_800.0
"""The year 9999, in seconds since the epoch: no later time can be shown."""
