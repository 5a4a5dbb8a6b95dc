"""Decides the fate of a message whose handler failed: another attempt later, or the dead letters."""

from __future__ import annotations

import math
import random
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emq.runtime import errors
from emq.storage import reasons
from emq.storage.message import Message
from emq.topics.model import TopicOptions
from emq.trail import events

MAX_REASON = 500
"""Characters of an error that travel with the message."""

LOOKED_AT = 4 * MAX_REASON
"""Most characters of an error's text that `describe` looks at."""

LONGEST_S = 10 * 366 * 86_400.0
"""Longest wait, in seconds, that a handler may ask for (ten years)."""


LEAST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 366 * 86_400.0
"""Bounds of the seconds for which a topic pauses when a handler gives a message back."""

NESTED = 10
"""Most levels of groups with one error in them that count as this error."""

NAMED = 3
"""Most errors of a group that its reason names."""


class Decision(NamedTuple):
    """Attributes:
    due_ms: when to try again, milliseconds since the epoch; None for the dead letters.
    reason: one line, the error of this attempt.
    score: a slot's message waits again with this score: the retries left, the time of the next attempt, or the
        priority. None for dead letters and for messages of lanes and queues.
    rests: True if the message waits in the slot's prepare until `due_ms`, because its score is not a time.
    cause: the beginning of the reason of a dead letter that had attempts left; see `emq.trail.events`.
    place: where the user's code failed, as `emq.dispatch.failure_place` words it; empty if unknown.
    """

    due_ms: int | None
    reason: str
    score: float | None = None
    rests: bool = False
    cause: str = ""
    place: str = ""

    @property
    def reason_with_place(self) -> str:
        """Reason and place, as the message's history keeps them."""
        return reasons.joined(self.recorded, self.place)

    @property
    def recorded(self) -> str:
        """Reason and cause, as the store, the message's history and the trail have them."""
        return (self.cause + self.reason)[:MAX_REASON] if self.cause else self.reason


_REFUSED = ("Cc", "Cs")
"""Unicode categories that some stores refuse: control characters and surrogates."""

EXPIRED = Decision(None, events.EXPIRED)


def sole(failure: BaseException) -> BaseException:
    """Return the only error of a group, as task groups raise it; any other failure unchanged."""
    for _ in range(NESTED):
        if not isinstance(failure, BaseExceptionGroup) or len(failure.exceptions) != 1:
            break
        failure = failure.exceptions[0]
    return failure


def decide(options: TopicOptions, attempt: int, failure: BaseException, now: float, random_: random.Random) -> Decision:
    """Decide after the `attempt`-th delivery (from 1) failed at time `now` (seconds since the epoch).

    The wait is the entry of `options.backoff_s` for this attempt, shortened by a random part of up to `jitter`, so that
    messages that failed together do not come back together. If the handler asked for a wait (`Retry.after_s`), that
    wait counts, without jitter; with `Retry.at_least` (an endpoint's Retry-After) only if it is the longer one.
    """
    reason = describe(failure)
    if isinstance(failure, errors.Reject) or attempt >= options.max_attempts:
        return _dead(failure, reason)
    wait_s = asked_s(failure)
    if wait_s is None or getattr(failure, "at_least", False) is True:
        scheduled = options.backoff_s[max(1, min(attempt, len(options.backoff_s))) - 1]
        wait_s = max(wait_s or 0.0, scheduled * (1 - options.jitter * random_.random()))
    return Decision(int((now + wait_s) * 1000), reason)


def roll_back(left: int, failure: BaseException, now: float) -> Decision:
    """Decide as the published RMQ does: retry at once, with the retries left as score, until none are left."""
    reason = describe(failure)
    if isinstance(failure, errors.Reject) or left <= 0:
        return _dead(failure, reason)
    return Decision(int(now * 1000), reason, left)


def _dead(failure: BaseException, reason: str) -> Decision:
    return Decision(None, reason, cause=events.REJECTED if isinstance(failure, errors.Reject) else "")


def asked_s(failure: BaseException) -> float | None:
    """Return the seconds that the handler asked to wait, from 0 to `LONGEST_S`; None if it did not ask.

    A subclass of `Retry` may have set `after_s` to anything.
    """
    if not isinstance(failure, errors.Retry):
        return None
    try:
        after_s = float(failure.after_s) if failure.after_s is not None else None
    except BaseException:  # the attribute is the handler's own code
        return None
    if after_s is None or math.isnan(after_s):
        return None
    return min(max(0.0, after_s), LONGEST_S)


def pause_s(failure: errors.GiveBack) -> float:
    """Return the seconds for which the topic pauses, within the bounds. A subclass may have set them to anything."""
    try:
        for_s = float(failure.pause_s)
    except BaseException:  # the attribute is the handler's own code
        for_s = LEAST_PAUSE_S
    return LEAST_PAUSE_S if math.isnan(for_s) else min(max(LEAST_PAUSE_S, for_s), LONGEST_PAUSE_S)


def of_batch(failure: BaseException, batch: Sequence[Message]) -> Mapping[str, BaseException]:
    """Return the errors of a batch's failed messages, by identity; the other messages succeeded.

    A name is an id or an identity. It names all messages of the batch that have it: a message that failed must not
    count as one that succeeded, though another one has its identity as an id. If a `PartialFailure` names an id that is
    not in the batch, nobody knows which message the handler meant. So all messages that it does not name have failed
    too.
    """
    failure = sole(failure)
    told = of_names(failure) if isinstance(failure, errors.PartialFailure) else None
    if told is None:
        return {m.uid: failure for m in batch}
    try:
        named = [(m.uid, name) for m in batch for name in (m.id, m.uid)]
        failures = {uid: told[name] for uid, name in named if name in told}
        known = {name for _, name in named}
        if strange := [name for name in told if name not in known]:
            unclear = RuntimeError(f"PartialFailure names {_shown(strange[0])}, which is not the id of a message here")
            failures = {m.uid: failures.get(m.uid, unclear) for m in batch}
    except BaseException:  # ids of the handler's own class
        return {m.uid: failure for m in batch}
    return failures


def of_names(failure: errors.PartialFailure) -> dict[str, BaseException] | None:
    """Return the errors that a handler gave, by the names that it gave; None if they cannot be read."""
    try:
        return {name: _raised(each) for name, each in failure.failures.items() if each is not None}
    except BaseException:  # a subclass without a dict of failures, or ids of the handler's own class
        return None


def _brief(failure: BaseException) -> str:
    """Return an error of a group in few words; of an inner group, only its own text."""
    text = str.__str__(str(failure))[:LOOKED_AT]
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def _raised(failure: object) -> BaseException:
    """Return the error that a handler gave for a message; a class stands for an error of this class."""
    if isinstance(failure, BaseException):
        return failure
    try:
        if isinstance(failure, type) and issubclass(failure, BaseException):
            made = failure()
            if isinstance(made, BaseException):
                return made
    except BaseException:  # the class needs arguments
        pass
    return RuntimeError(f"PartialFailure gives {_shown(failure)}, which is not an exception")


def _shown(value: object) -> str:
    try:
        return repr(value)[:100]
    except BaseException:  # the text comes from the handler's own class
        return f"an object of type {type(value).__name__}"


def describe(failure: BaseException) -> str:
    """Return one line that names the failure: at most `MAX_REASON` characters that every store takes."""
    name = type(failure).__name__
    try:
        if isinstance(failure, (errors.Retry, errors.Reject, errors.GiveBack)):
            text = str.__str__(str(failure.reason))
        else:
            text = str.__str__(str(failure))
            text = f"{name}: {text[:LOOKED_AT]}" if text else name
            if isinstance(failure, BaseExceptionGroup):
                text = f"{text[: MAX_REASON // 2]}: {'; '.join(map(_brief, failure.exceptions[:NAMED]))}"
    except BaseException:  # the text comes from the handler's own class
        text = name
    line = " ".join(text[:LOOKED_AT].split())[:MAX_REASON]
    if line.isprintable():
        return line
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _REFUSED else c for c in line)[:MAX_REASON]
