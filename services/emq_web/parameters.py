"""Parameters that several resources share; and one that is not known is refused, as an unknown field of a body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import fastapi
import pydantic
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from emq_web.problems import Problem

Text = Annotated[str, pydantic.StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]
EndpointId = Annotated[str, pydantic.StringConstraints(max_length=80, pattern=r"^[A-Za-z0-9_-]*$")]
OnlyEndpoint = Annotated[EndpointId, fastapi.Query(description="only this endpoint")]
EventType = Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00*]*\*?$")]
DeliveryId = Annotated[str, fastapi.Path(max_length=400, description="`<endpoint>:<message>`")]


def refuse_unknown(request: fastapi.Request) -> None:
    """Raise `Problem` for a parameter of the query that the operation does not have: it would filter nothing."""
    if not request.url.query:
        return
    route = request.scope.get("route")
    known = set(_names(route.dependant)) if isinstance(route, APIRoute) else set()
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        text = f"parameter {unknown[0][:80]!r} is not known; known are {names}"
        raise Problem(422, "invalid_request", text, pointer="")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _names(each)
