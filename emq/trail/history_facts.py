"""What the history of a message is judged by, and what is found: see `emq.trail.histories`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
    """What does not fit.

    Attributes:
        promise: its letter; "E" where the events contradict each other, so that they prove nothing.
        kind: a few words, the same for all faults of this kind.
        text: one line that names the message.
        at_us, source, group: when it happened, by whose record, and where.
    """

    promise: str
    kind: str
    text: str
    at_us: int
    source: str
    group: int


class Facts(NamedTuple):
    """What a message's own events do not tell.

    Attributes:
        max_attempts: of the topic, the most that it ever allowed; None if not known.
        slack_us: by how much the clocks of two machines may differ.
        crashes: of a group, when an owner may have done what is saved nowhere: (from, until) in microseconds, until the
            next owner took the group.
        is_complete: all events since the publish are there.
        was_lost: of a group, a priority and an offset, whether its store came back from a crash without it.
        silent: sources of an older version, whose records do not tell why what had attempts left is dead.
    """

    max_attempts: int | None = None
    slack_us: int = 250_000
    crashes: Callable[[int], Sequence[tuple[float, float]]] = lambda _group: ()
    is_complete: bool = True
    was_lost: Callable[[int, int | None, int], bool] = lambda _group, _priority, _offset: False
    silent: Collection[str] = ()


def is_expiry(event: str, reason: str | None) -> bool:
    """Whether it is the death of a message whose time to live is said to be over."""
    return event == events.DEAD and reason == events.EXPIRED


def expired_early(time_us: int, until_us: int | None, slack_us: int) -> bool:
    """Whether a message was taken for expired that might have lived on, or that nothing lets expire at all."""
    return until_us is None or time_us < until_us - slack_us
