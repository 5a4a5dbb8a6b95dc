"""Refusals that several adapters share, and the parameter of a URL that they share."""

from __future__ import annotations

import math

from emq.runtime import errors, plurals


def not_owner(owned: str, epoch: int, highest: int) -> errors.NotOwner:
    """Return the error for a stale owner of `owned`, such as "group 'orders/0'"."""
    return errors.NotOwner(f"{owned} is owned under epoch {highest}; {epoch} is stale, stop consuming it")


def fence(epochs: dict[str, int], group: str, epoch: int) -> errors.NotOwner | None:
    """Note `epoch` as the group's highest in `epochs`, or return the error for a stale owner."""
    highest = epochs.get(group)
    if highest is not None and epoch < highest:
        return not_owner(f"group {group!r}", epoch, highest)
    epochs[group] = epoch
    return None


def full(place: str, held: int, most: int, more: int) -> errors.TopicFull:
    """Return the error for `more` messages to a place, such as "slot 'prices/3'", that holds `held` of `most`."""
    return errors.TopicFull(
        f"{place} holds {held} of at most {plurals.count(most, 'message')}, "
        f"{'one' if more == 1 else more} more {'does' if more == 1 else 'do'} not fit; "
        "wait for its consumers or raise max_length"
    )


def queue_cap(given: object, shown: str) -> float:
    """Return the value of a URL's `max_queue_qps`.

    Raises:
        InvalidSettings: it is no number above 0. Correct it.
    """
    try:
        number = float(given) if isinstance(given, str) else math.nan
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise errors.InvalidSettings(f"store URL {shown}: max_queue_qps {given!r} must be a number above 0")
    return number
