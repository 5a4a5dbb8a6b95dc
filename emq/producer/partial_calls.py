"""Calls of which a part was published."""

from __future__ import annotations

from collections.abc import Sequence

from emq import errors
from emq.storage.answers import FAILURES


def raise_first(outcomes: Sequence[object], of: int, before: int = 0) -> None:
    """Raise the first failure among the outcomes of messages, if there is one.

    "Nothing was published", which `StoreUnavailable` and `StoreFull` say, would be wrong where a part was: it could be
    published twice by whoever believes that.

    Args:
        outcomes: of those that were tried last, an exception for each that failed.
        of: how many there were to publish.
        before: how many were published before them.
    """
    if not any(issubclass(kind, Exception) for kind in set(map(type, outcomes))):  # as nearly always, for thousands
        return
    failure = next(outcome for outcome in outcomes if isinstance(outcome, Exception))
    published = before + sum(not isinstance(outcome, Exception) for outcome in outcomes)
    if published and isinstance(failure, FAILURES):
        raise errors.OutcomeUnknown(
            f"{published} of {of} messages were published, and not the rest: {failure}"
        ) from failure
    raise failure
