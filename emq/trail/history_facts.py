"""Input and findings of the judge of one message's history, `emq.trail.histories`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from emq.trail import events


class Step(NamedTuple):
    """One event of a message, as in the trail's columns."""

    event: str
    time_us: int
    source: str
    group: int
    priority: int | None
    offset: int | None
    until: int | None
    attempt: int | None
    epoch: int | None
    published_us: int | None
    due_ms: int | None
    reason: str | None
    key: str | None = None


class Fault(NamedTuple):
    """A violation in the history of a message.

    Attributes:
        promise: letter of the broken promise; "E" if events contradict each other, so that they prove nothing.
        kind: a few words, the same for all faults of this kind.
        text: one line that names the message.
        at_us, source, group: time of the fault, the source that recorded it, and the group.
    """

    promise: str
    kind: str
    text: str
    at_us: int
    source: str
    group: int


class Loss(NamedTuple):
    """A loss of a queue's last messages: the store gives out again the offsets from `offset` on, as noticed at `at_us`.

    Messages that were published later are not concerned.
    """

    offset: int
    at_us: int


Losses = Mapping[tuple[str, int, int | None], Sequence[Loss]]
"""By topic, group and priority."""


def concerns(losses: Sequence[Loss], offset: int, time_us: int, slack_us: int) -> bool:
    """Return whether a store may have lost what was at an offset at a time."""
    return any(loss.offset <= offset and time_us <= loss.at_us + slack_us for loss in losses)


class Facts(NamedTuple):
    """Facts beyond a message's own events.

    Attributes:
        max_attempts: most attempts that the topic ever allowed; None if not known.
        slack_us: largest difference between the clocks of two machines.
        crashes: takes a group; returns the times in which an owner may have acted without a record, as (from, until)
            in microseconds, until the next owner took the group.
        is_complete: whether all events since the publish are there.
        losses: takes a group and a priority; returns the losses of that queue.
    """

    max_attempts: int | None = None
    slack_us: int = 250_000
    crashes: Callable[[int], Sequence[tuple[float, float]]] = lambda _group: ()
    is_complete: bool = True
    losses: Callable[[int, int | None], Sequence[Loss]] = lambda _group, _priority: ()


def is_expiry(event: str, reason: str | None) -> bool:
    """Return whether the event is the death of a message whose time to live was over, as recorded."""
    return event == events.DEAD and reason == events.EXPIRED


def needs_no_start(event: str, reason: str | None) -> bool:
    """Return whether an end may come without a start: an expired or unreadable message was not started."""
    return event == events.DEAD and (reason == events.EXPIRED or (reason or "").startswith(events.UNFIT))


def may_die_early(reason: str | None) -> bool:
    """Return whether a message may be dead for this reason although it has attempts left."""
    return reason == events.EXPIRED or (reason or "").startswith((events.REJECTED, events.UNFIT))


def expired_early(time_us: int, until_us: int | None, slack_us: int) -> bool:
    """Return whether a message was recorded as expired before its time, or without any time to live."""
    return until_us is None or time_us < until_us - slack_us
