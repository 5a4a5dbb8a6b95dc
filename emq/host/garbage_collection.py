"""Tunes Python's garbage collector for a process that is a host and nothing else."""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 50)
"""The three thresholds of `gc.set_threshold`: new objects before the youngest generation is collected, then collections
of each generation before the next older one is collected."""


def shorten_pauses() -> None:
    """Exclude all present objects from future collections, and collect in larger steps.

    A full collection looks at every object. With a thousand topics and 15,000 messages in flight it takes 80 ms, in
    which no message starts, and it runs whenever the number of objects has grown by a quarter. Call this function once
    the groups are acquired.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
