"""Decides the fate of a message whose handler failed: another attempt later, or the dead letters."""

from __future__ import annotations

import math
import random
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emq import errors
from emq.topics.model import TopicOptions
from emq.trail import events

MAX_REASON = 500
"""Characters of an error that travel with the message."""

LOOKED_AT = 4 * MAX_REASON
"""Most characters of an error's text that `describe` looks at."""

LONGEST_S = 10 * 366 * 86_400.0
"""Longest wait, in seconds, that a handler may ask for (ten years)."""


class Decision(NamedTuple):
    """Attributes:
    due_ms: when to try again, milliseconds since the epoch; None for the dead letters.
    reason: one line, the error of this attempt.
    score: the score with which a message from a slot waits there again: the retries it has left, the time of its next
        attempt, or its priority. None for the dead letters, and for messages of lanes and queues.
    rests: True if the message rests in the slot's prepare until `due_ms`, because its score is not a time.
    cause: the beginning of the reason of a dead letter that had attempts left; see `emq.trail.events`.
    """

    due_ms: int | None
    reason: str
    score: float | None = None
    rests: bool = False
    cause: str = ""

    @property
    def recorded(self) -> str:
        """The reason with its cause, as the store, the message's history and the trail have it."""
        return (self.cause + self.reason)[:MAX_REASON] if self.cause else self.reason


_REFUSED = ("Cc", "Cs")
"""Unicode categories that some stores refuse: control characters and surrogates."""

EXPIRED = Decision(None, events.EXPIRED)


def decide(options: TopicOptions, attempt: int, failure: BaseException, now: float, random_: random.Random) -> Decision:
    """Decide after the `attempt`-th delivery (from 1) failed at time `now` (seconds since the epoch).

    The wait is the entry of `options.backoff_s` for this attempt, shortened by a random part of up to `jitter`, so that
    messages that failed together do not come back together. If the handler asked for a wait (`Retry.after_s`, such as
    an endpoint's Retry-After), that wait counts, without jitter.
    """
    reason = describe(failure)
    if isinstance(failure, errors.Reject) or attempt >= options.max_attempts:
        return _dead(failure, reason)
    wait_s = asked_s(failure)
    if wait_s is None:
        scheduled = options.backoff_s[max(1, min(attempt, len(options.backoff_s))) - 1]
        wait_s = scheduled * (1 - options.jitter * random_.random())
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


def of_batch(failure: BaseException, ids: Sequence[str]) -> Mapping[str, BaseException]:
    """Return the errors of a batch's failed messages, by message id; the other messages succeeded."""
    if isinstance(failure, errors.PartialFailure):
        try:
            told = {**failure.failures}
            failures = {id_: told[id_] for id_ in ids if told.get(id_) is not None}
        except BaseException:  # a subclass without a dict of failures
            failures = dict.fromkeys(ids, failure)
        return {
            id_: f if isinstance(f, BaseException) else RuntimeError(f"a failure that is a {type(f).__name__}")
            for id_, f in failures.items()
        }
    return dict.fromkeys(ids, failure)


def describe(failure: BaseException) -> str:
    """Return one line that names the failure: at most `MAX_REASON` characters, all of which every store takes."""
    name = type(failure).__name__
    try:
        if isinstance(failure, (errors.Retry, errors.Reject)):
            text = str.__str__(str(failure.reason))
        else:
            text = str.__str__(str(failure))
            text = f"{name}: {text[:LOOKED_AT]}" if text else name
    except BaseException:  # the handler's own class words its text
        text = name
    line = " ".join(text[:LOOKED_AT].split())[:MAX_REASON]
    if line.isprintable():
        return line
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _REFUSED else c for c in line)[:MAX_REASON]
