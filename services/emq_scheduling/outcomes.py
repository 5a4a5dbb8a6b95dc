"""Exceptions of performers for special outcomes.

Any other exception is a failed attempt, which is tried again. `emq.Retry` and `emq.Reject` work as in every handler.
"""

from __future__ import annotations


class Overloaded(Exception):
    """Raised by a performer: the resource asks for less, as with the answer 429. The task goes to another resource.

    The attempt does not count. The resource gets less for a while. A resource with `adapts` off does not, so there the
    attempt counts as failed.

    Args:
        reason: in words for an operator.
        after_s: seconds for which the resource asked to be left alone (`Retry-After`); None for no wish.
    """

    def __init__(self, reason: str = "the resource asks for less", *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = None if after_s is None else float(after_s)


class ResourceFailed(Exception):
    """Raised by a performer: the resource is out of order, and did nothing. The task goes to another resource.

    The attempt does not count. The resource is closed at once, and probed by single tasks later. A resource with
    `adapts` off is not, so there the attempt counts as failed.
    """

    def __init__(self, reason: str = "the resource is out of order") -> None:
        super().__init__(reason)
        self.reason = reason


class TryNext(Exception):
    """Raised by a performer: what the task tries here does not do it, such as a model that refuses the prompt.

    A task with fallbacks goes on to its next one at once, and never comes back to this one. At the end of its list, and
    without fallbacks, the attempt counts as failed. The resource is in order.

    Args:
        reason: in words for an operator.
    """

    def __init__(self, reason: str = "the performer asked for the next fallback") -> None:
        super().__init__(reason)
        self.reason = reason
