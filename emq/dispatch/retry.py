"""What becomes of a message whose handler failed: another attempt later, or the dead letters."""

from __future__ import annotations

import random
import unicodedata
from typing import NamedTuple

from emq import errors
from emq.model import TopicOptions

MAX_REASON = 500
"""Characters of an error that travel with the message."""

LONGEST_S = 10 * 366 * 86_400.0
"""The longest wait that a handler may ask for."""


class Decision(NamedTuple):
    """Attributes:
    due_ms: when to try again, milliseconds since the epoch; None for the dead letters.
    reason: one line, what this attempt failed with.
    score: of a message that was claimed from a slot: with which it waits there again, the retries it has left; None if
        it is to wait in its group's lane instead.
    """

    due_ms: int | None
    reason: str
    score: int | None = None


_REFUSED = ("Cc", "Cs")
"""Categories of characters that some store refuses: control characters and surrogates."""

EXPIRED = Decision(None, "expired")


def decide(options: TopicOptions, attempt: int, failure: BaseException, now: float, random_: random.Random) -> Decision:
    """Decide after the `attempt`-th delivery (from 1) failed at time `now` (seconds since the epoch).

    The wait is the schedule's entry for this attempt, shortened by a random part of up to `jitter` so that messages
    that failed together do not come back together; a handler's own `after_s` (such as an endpoint's Retry-After) is
    taken as it is.
    """
    reason = describe(failure)
    if isinstance(failure, errors.Reject) or attempt >= options.max_attempts:
        return Decision(None, reason)
    if isinstance(failure, errors.Retry) and failure.after_s is not None:
        wait_s = min(max(0.0, failure.after_s), LONGEST_S)
    else:
        scheduled = options.backoff_s[min(attempt, len(options.backoff_s)) - 1]
        wait_s = scheduled * (1 - options.jitter * random_.random())
    return Decision(int((now + wait_s) * 1000), reason)


def roll_back(left: int, failure: BaseException, now: float) -> Decision:
    """As the published RMQ does: at once, with the retries left as score, until there are none."""
    reason = describe(failure)
    if isinstance(failure, errors.Reject) or left <= 0:
        return Decision(None, reason)
    return Decision(int(now * 1000), reason, left)


def describe(failure: BaseException) -> str:
    """One line that names the failure, bounded in length, of characters that every store takes."""
    name = type(failure).__name__
    try:
        if isinstance(failure, (errors.Retry, errors.Reject)):
            text = str(failure.reason)
        else:
            text = f"{name}: {failure}" if str(failure) else name
    except Exception:  # it is the handler's own code that words it
        text = name
    line = " ".join(text.split())[:MAX_REASON]
    if line.isprintable():
        return line
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _REFUSED else c for c in line)[:MAX_REASON]
