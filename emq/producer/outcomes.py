"""The outcomes of the messages of one call, of which only a part may have been published."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias, TypeVar, cast

from emq.runtime import errors, plurals
from emq.storage.answers import FAILURES


class Repeated(str):
    """The id of a publish that stored nothing, because it repeats an id that the topic remembers (`dedupe_s`)."""

    __slots__ = ()


Outcome: TypeAlias = str | errors.EMQError
"""The id of a message that was published, or a `Repeated`; `OutcomeUnknown` if the message may have been published; any
other error if it was refused and not published."""

E = TypeVar("E", bound=errors.EMQError)


def first_failure(outcomes: Sequence[object], *kinds: type[E]) -> E | None:
    """Return the first outcome that is an error of one of the kinds; None without such an outcome."""
    if not any(issubclass(kind, kinds) for kind in set(map(type, outcomes))):  # as nearly always; quick for thousands
        return None
    return next(outcome for outcome in outcomes if isinstance(outcome, kinds))


def unsent(failure: errors.EMQError) -> errors.EMQError:
    """Return the error of a message that was not sent because an earlier message failed."""
    if not isinstance(failure, errors.OutcomeUnknown):
        return failure
    error = errors.StoreUnavailable(f"not sent, because an earlier message failed: {failure}")
    error.__cause__ = failure
    return error


def in_doubt(broken: BaseException) -> errors.OutcomeUnknown:
    """Return the error of a message whose publish broke with an error that is not an `EMQError`.

    Raises:
        BaseException: `broken` itself, if it is to end the process.
    """
    if not isinstance(broken, Exception | asyncio.CancelledError):
        raise broken
    error = errors.OutcomeUnknown(f"publishing broke: {type(broken).__name__}: {broken}")
    error.__cause__ = broken
    return error


def all_published(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the ids of messages that were all published, else raise the first failure.

    `StoreUnavailable` and `StoreFull` mean that nothing was published. If a part was published, the function raises
    `OutcomeUnknown` instead, so that the caller does not publish this part twice.
    """
    failure = first_failure(outcomes, errors.EMQError)
    if failure is None:
        return cast("list[str]", outcomes)
    published = sum(isinstance(outcome, str) for outcome in outcomes)
    if published and isinstance(failure, FAILURES):
        raise errors.OutcomeUnknown(
            f"{published} of {len(outcomes)} messages {plurals.were(published)} published, the others not: {failure}"
        ) from failure
    raise failure
