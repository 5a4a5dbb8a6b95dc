"""Decides when a failed delivery is tried again, by the topic's options.

The host's settler would decide the same (`emq.dispatch.retry`), but the record of an attempt needs the time before.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from emq.topics.model import Topic

RECOMMENDED_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h: the waits after the first, second ... failed attempt that
Standard Webhooks 1.0 has as its example of a schedule (section "Deliverability and reliability"). Ten attempts in 75.6
hours. The specification recommends a random part as well."""

RECOMMENDED_ATTEMPTS = 1 + len(RECOMMENDED_S)
RECOMMENDED_JITTER = 0.1


class Schedule(NamedTuple):
    """Attributes:
    backoff_s, jitter, max_attempts: see `emq.topics.options.TopicOptions`.
    decides: False if the topic retries in another way, as the published RMQ does.
    """

    backoff_s: tuple[float, ...] = RECOMMENDED_S
    jitter: float = RECOMMENDED_JITTER
    max_attempts: int = RECOMMENDED_ATTEMPTS
    decides: bool = True

    @classmethod
    def of(cls, topic: Topic) -> Schedule:
        o = topic.options
        return cls(o.backoff_s, o.jitter, o.max_attempts, not (topic.is_sorted and o.retry == "rmq"))

    def is_last(self, attempt: int) -> bool:
        """Return True if a message is dead after this attempt (from 1) has failed."""
        return self.decides and attempt >= self.max_attempts

    def longest_s(self, attempt: int) -> float:
        """Return the most seconds that the schedule waits after this attempt has failed."""
        return self.backoff_s[max(1, min(attempt, len(self.backoff_s))) - 1]

    def wait_s(self, attempt: int, random_: random.Random) -> float:
        """Return the seconds to wait after this attempt has failed."""
        return self.longest_s(attempt) * (1 - self.jitter * random_.random())
