"""Answers of a store, one for each entry of a call, where a part of the store may be out of reach.

A store of several servers serves the entries whose server is well, and returns the error for each of the others. A
store of one server raises. `of_each` makes one case of the two; `served` is for administration, which needs all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeAlias, TypeVar

from emq import errors

T = TypeVar("T")


class Unexpected(errors.OutcomeUnknown):
    """A call failed in a way that a store's driver should not: one of its entries may be the cause.

    Each entry of it is sent alone next time, so that the others do not fail with the one that is the cause.
    """


Failure: TypeAlias = errors.StoreUnavailable | errors.StoreFull
"""Why an entry was not served. The entry may be sent again later."""

log = logging.getLogger(__name__)

MAX_TEXT = 500
"""Characters of an unexpected error that are kept."""

FAILURES = (errors.StoreUnavailable, errors.StoreFull)
"""The same, for `except` and `isinstance`."""


async def of_each(call: Awaitable[Sequence[T]], entries: int) -> Sequence[T | Failure]:
    """Await a call; return one answer for each of its `entries`, also where the whole call failed."""
    try:
        return await call
    except FAILURES as exc:
        return [exc] * entries
    except (errors.EMQError, asyncio.CancelledError):
        raise
    except Exception as exc:
        log.debug("a call of %d entries broke", entries, exc_info=exc)
        failure = Unexpected(f"{type(exc).__name__}: {str(exc)[:MAX_TEXT]}")
        failure.__cause__ = exc
        return [failure] * entries


def accepted(answers: Sequence[object]) -> None:
    """Raise the first error among the answers: what was not taken must not be dropped where it comes from."""
    for answer in answers:
        if isinstance(answer, errors.EMQError):
            raise answer


def served(answers: Sequence[T | Failure]) -> list[T]:
    """The answers, all of which are needed.

    Raises:
        OutcomeUnknown, StoreUnavailable, StoreFull: an entry was not served. The others were.
    """
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, FAILURES):
            raise answer
        found.append(answer)
    return found
