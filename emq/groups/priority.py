"""Priority policies: choose the queue of a group to serve next. `choose` is called for each start."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from emq.storage.message import Message
from emq.topics.model import Topic

Buffers = Sequence[deque[Message]]
"""One buffer for each priority, highest first."""


class Policy(Protocol):
    def choose(self, buffers: Buffers, now_us: int) -> int:
        """Return the index of the buffer to take from, or -1 if all are empty."""


class Strict:
    """Serves the highest priority that has messages."""

    __slots__ = ()

    def choose(self, buffers: Buffers, now_us: int) -> int:
        for i, buffer in enumerate(buffers):
            if buffer:
                return i
        return -1


class Weighted:
    """Smooth weighted round robin over the priorities that have messages (the scheme of nginx's upstreams).

    Each choice adds to the credit of every priority with messages its weight, takes the largest credit, and subtracts
    the sum of the weights from it. With weights 5, 3 and 2 and a backlog in all, ten starts serve 5, 3 and 2 messages,
    evenly mixed.
    """

    __slots__ = ("_credits", "_weights")

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = tuple(weights)
        self._credits = [0.0] * len(self._weights)

    def choose(self, buffers: Buffers, now_us: int) -> int:
        best, total = -1, 0.0
        for i, buffer in enumerate(buffers):
            if not buffer:
                continue
            self._credits[i] += self._weights[i]
            total += self._weights[i]
            if best < 0 or self._credits[i] > self._credits[best]:
                best = i
        if best >= 0:
            self._credits[best] -= total
        return best


class Aging:
    """Strict, but a message rises by one priority for each `aging_s` seconds since it was published.

    Among equals, the older message goes first. So no message waits for ever below a busy higher priority.
    """

    __slots__ = ("_step_us",)

    def __init__(self, aging_s: float) -> None:
        self._step_us = aging_s * 1e6

    def choose(self, buffers: Buffers, now_us: int) -> int:
        best, best_rank = -1, (0.0, 0)
        for i, buffer in enumerate(buffers):
            if not buffer:
                continue
            published_us = buffer[0].published_us
            rank = (i - max(0, now_us - published_us) // self._step_us, published_us)
            if best < 0 or rank < best_rank:
                best, best_rank = i, rank
        return best


STRICT = Strict()


def policy_for(topic: Topic) -> Policy:
    if topic.options.priority_policy == "weighted":
        return Weighted(topic.options.weights)
    if topic.options.priority_policy == "aging":
        return Aging(topic.options.aging_s)
    return STRICT
