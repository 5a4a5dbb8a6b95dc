"""Answers of a store, one for each entry of a call, where a part of the store may be out of reach.

A store of several servers serves the entries whose server is well, and returns an error for each of the others. A store
of one server raises the error. `of_each` returns one answer for each entry in both cases. `served` is for
administration, which needs all entries served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from emq.runtime import errors, plurals
from emq.runtime.troubles import Unexpected
from emq.storage.durability import Durability

A = TypeVar("A")
T = TypeVar("T")

Failure: TypeAlias = errors.StoreUnavailable | errors.StoreFull
"""The error of an entry that was not served. The caller may send the entry again later."""

log = logging.getLogger(__name__)

MAX_TEXT = 500
"""Most characters of an unexpected error's text to keep."""

FAILURES = (errors.StoreUnavailable, errors.StoreFull)
"""The classes of `Failure`, for `except` and `isinstance`."""


async def of_each(call: Awaitable[Sequence[T]], entries: int) -> Sequence[T | Failure]:
    """Await a call; return one answer for each of its `entries`, even if the whole call failed."""
    try:
        answers = await call
        if len(answers) == entries:
            return answers
        told = plurals.count(entries, "entry", "entries")
        return [Unexpected(f"the store gave {plurals.count(len(answers), 'answer')} for {told}")] * entries
    except FAILURES as exc:
        return [exc] * entries
    except errors.EMQError:
        raise
    except (Exception, asyncio.CancelledError) as exc:
        if isinstance(exc, asyncio.CancelledError) and ((task := asyncio.current_task()) is None or task.cancelling()):
            raise  # the caller was cancelled, not only something within the driver
        log.debug("a call of %s broke", plurals.count(entries, "entry", "entries"), exc_info=exc)
        return [unexpected(exc)] * entries


async def of_each_add(
    add: Callable[[Sequence[A], Durability], Awaitable[Sequence[T]]], moved: Sequence[tuple[A, Durability]]
) -> Sequence[T | Failure]:
    """Add what moves here, as safely as it was published, before it leaves where it was; see `of_each`."""
    answers: dict[int, T | Failure] = {}
    for durability in dict.fromkeys(durability for _, durability in moved):
        places = [i for i, each in enumerate(moved) if each[1] == durability]
        answers |= zip(places, await of_each(add([moved[i][0] for i in places], durability), len(places)), strict=True)
    return [answers[place] for place in range(len(moved))]


def unexpected(exc: BaseException) -> Unexpected:
    """Return the failure of an entry whose call ended with an unexpected error."""
    failure = Unexpected(f"{type(exc).__name__}: {str(exc)[:MAX_TEXT]}")
    failure.__cause__ = exc
    return failure


def accepted(answers: Sequence[object]) -> None:
    """Raise the first error among the answers, so that the caller does not drop entries that the store did not take."""
    for answer in answers:
        if isinstance(answer, errors.EMQError):
            raise answer


def served(answers: Sequence[T | Failure]) -> list[T]:
    """Return the answers, for a caller that needs all of them.

    Raises:
        OutcomeUnknown, StoreUnavailable, StoreFull: an entry was not served. The others may have been.
    """
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, FAILURES):
            raise answer
        found.append(answer)
    return found
