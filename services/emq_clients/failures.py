"""Errors of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emq.runtime import errors


class ApiError(errors.EMQError):
    """The API refused a request: correct the request, or the key.

    Attributes:
        status: of HTTP.
        code: stable, for programs; see the API's documentation.
        detail: one line that names the value and the remedy.
        pointer: JSON pointer to the first wrong value of the body; empty if there is none.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", ""))
        self.pointer = str(problem.get("pointer", ""))
        super().__init__(f"{self.detail or 'no reason given'} ({status} {self.code})".replace(" )", ")"))


class ApiUnavailable(errors.EMQError):
    """The API did not answer, or said that it cannot now; the client has tried several times.

    A publish or a submit may have happened. Repeat it with the same ids, or with the same `idempotency_key`.
    """
