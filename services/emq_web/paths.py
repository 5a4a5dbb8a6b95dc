"""Which methods a path has, over all of its operations: for the answer 405, whose `Allow` names them.

A router looks at one operation at a time. Without this, `Allow` would have the methods of one of them, and another
method than POST at `/v1/tenants/acme:pause` would mean a tenant of the name `acme:pause`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

_ACTION = re.compile(r"\{(tenant|endpoint|replay|family)\}:[a-z-]+$")
"""The end of a path with an action on something whose name has no colon. Names of others may have one."""


class _Path(NamedTuple):
    """Attributes:
    is_action: no other path is meant, although others fit.
    """

    regex: re.Pattern[str]
    methods: set[str]
    is_action: bool


class Paths(BaseRoute):
    """The first route of the application: it refuses methods that an action does not have, and leaves all else.

    Args:
        routes: with all operations.
        others: methods by path, of paths that have none of these routes.
    """

    def __init__(self, routes: Iterable[BaseRoute], others: Mapping[str, frozenset[str]]) -> None:
        found: dict[str, _Path] = {}
        for route in routes:
            if isinstance(route, APIRoute):
                is_action = _ACTION.search(route.path) is not None
                found.setdefault(route.path, _Path(route.path_regex, set(), is_action)).methods.update(
                    route.methods or ()
                )
        self._known = [*found.values()]
        self._actions = [each for each in self._known if each.is_action]
        self._others = others

    def methods(self, path: str) -> list[str]:
        """Return the methods of a path in order; none if there is no such path."""
        fits = [each for each in self._known if each.regex.match(path)]
        meant = [each for each in fits if each.is_action] or fits
        return sorted(set(self._others.get(path, ())).union(*(each.methods for each in meant)))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Fit a request that has no such method; see `starlette.routing.Route`."""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            is_other = path in self._others and method not in self._others[path]
            if is_other or (":" in path and self._is_no_action(path, method)):
                return Match.FULL, {}
        return Match.NONE, {}

    def _is_no_action(self, path: str, method: str) -> bool:
        return any(method not in each.methods for each in self._actions if each.regex.match(path))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request; the application's handler makes the answer."""
        raise HTTPException(405)
