"""The size of a page of messages."""

from __future__ import annotations

from collections.abc import Iterable


def page_size(sizes: Iterable[int], max_bytes: int) -> int:
    """Return the number of messages in a page: all, or up to the message with which the bytes reach `max_bytes`."""
    count = 0
    for count, size in enumerate(sizes, 1):  # noqa: B007 - the number of the last one is the answer
        max_bytes -= size
        if max_bytes <= 0:
            break
    return count
