"""Input and findings of the judge of one message's history, `emq_proof.histories`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from emq.trail import events
from emq_proof import lives


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


AnyStep = Step | lives.Step


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


def needs_no_start(event: str, reason: str | None) -> bool:
    """Return whether an end may come without a start: an expired or unreadable message was not started."""
    return event == events.DEAD and (reason == events.EXPIRED or (reason or "").startswith(events.UNFIT))


def of_start(start: AnyStep, failure: AnyStep | None, slack_us: int) -> Iterator[tuple[str, str, str]]:
    """Yield promise, kind and text of each fault in the time of a start.

    Args:
        failure: the failure of the attempt before; None if it is not known, or not for certain.
        slack_us: largest difference between the clocks of two machines.
    """
    if failure is not None and failure.due_ms is not None:
        early_us = 0 if failure.source == start.source else slack_us
        if start.time_us // 1000 < failure.due_ms - early_us // 1000:
            text = f"was to be tried again at {failure.due_ms * 1000} us and was started at {start.time_us}"
            yield "T", "retried too early", text
    if start.until and start.time_us >= start.until:
        yield "T", "started after it expired", f"expired at {start.until} us and was started at {start.time_us}"


def of_death(death: AnyStep, max_attempts: int | None, slack_us: int) -> Iterator[tuple[str, str, str]]:
    """Yield promise, kind and text of each fault of a dead letter; arguments as in `Facts`."""
    if death.reason == events.EXPIRED:
        if death.until is None or death.time_us < death.until - slack_us:
            text = f"expired at {death.time_us} us, and might have lived until {death.until}"
            yield "T", "expired too early", text
        return
    is_allowed = (death.reason or "").startswith((events.REJECTED, events.UNFIT))
    most = max_attempts or 0
    if not is_allowed and (death.attempt or most) < most:
        yield "X", "dead too early", f"died at attempt {death.attempt} of {most} ({death.reason})"
