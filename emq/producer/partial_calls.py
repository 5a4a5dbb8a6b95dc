"""The error of a call of which only a part was published."""

from __future__ import annotations

from collections.abc import Sequence

from emq import errors
from emq.storage.answers import FAILURES


def raise_first(outcomes: Sequence[object], of: int, before: int = 0) -> None:
    """Raise the first failure among the outcomes of messages, if there is one.

    `StoreUnavailable` and `StoreFull` say that nothing was published. If a part was published, a caller who believes
    them would publish this part twice; so the function raises `OutcomeUnknown` instead.

    Args:
        outcomes: outcomes of the messages tried last; an exception for each failure.
        of: number of messages to publish.
        before: number of messages published before these.
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
