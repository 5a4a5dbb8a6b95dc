"""What came of one request."""

from __future__ import annotations

from typing import NamedTuple

from emq_push import verdict


class Outcome(NamedTuple):
    """The outcome of one request, for all messages in it.

    Attributes:
        status: HTTP status; 0 without an answer.
        answer: the beginning of the body, with secrets masked.
        failure: None if the endpoint has taken the messages.
    """

    started_us: int
    took_us: int
    status: int = 0
    answer: str = ""
    failure: verdict.Failure | None = None
