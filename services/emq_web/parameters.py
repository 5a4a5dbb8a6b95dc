"""Refuses unknown parameters of a query, as unknown fields of a body: a filter with a typo would filter nothing."""

from __future__ import annotations

from collections.abc import Iterator

import fastapi
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from emq_web.problems import Problem


async def refuse_unknown(request: fastapi.Request) -> None:
    """Raise `Problem` for a parameter of the query that the operation does not have."""
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
