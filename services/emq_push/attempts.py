"""The record of one attempt to deliver a message, and the interface of those that keep such records."""

from __future__ import annotations

from typing import Final

import msgspec

DELIVERED: Final = "delivered"
PLACED: Final = "placed"
RETRY: Final = "retry"
PARKED: Final = "parked"
DEAD: Final = "dead"
EXPIRED: Final = "expired"

ANSWER_CHARACTERS = 256
"""Most characters of an answer that a record keeps."""


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One attempt to deliver a message. Times are microseconds since the epoch. Encoded as a list of its values.

    Attributes:
        topic: the endpoint's topic.
        message: the message's id, which is the delivery's id, too.
        number: from 1; a parked attempt does not count, and the next one has its number again.
        started_us: when the attempt began.
        took_us: microseconds from then to the end of the answer.
        status: HTTP status; 0 without an answer.
        outcome: `DELIVERED`; `PLACED` (it waits in the log of a polling endpoint); `RETRY`; `PARKED` (not tried, or the
            endpoint is gone: the message waits, uncounted);
            `DEAD` (this was the last attempt); or `EXPIRED` (not tried: the message's time to live is over. This is the
            end of a delivery, not an attempt, and in no list of attempts).
        reason: why it failed, in words; empty if delivered.
        answer: the beginning of the answer's body, with secrets masked.
        next_us: when the next attempt is due; 0 if there is none or its time is not known.
    """

    topic: str
    message: str
    number: int
    started_us: int
    took_us: int
    status: int
    outcome: str
    reason: str = ""
    answer: str = ""
    next_us: int = 0
