"""The contents of a load's messages: payloads of given sizes, some of them repeated."""

from __future__ import annotations

import random

import numpy as np

from emq.topics.model import Kind
from emq_spark.load import random as lr
from emq_spark.load.plan import Tenants
from emq_spark.load.plan_check import NAME_BYTES
from emq_spark.load.random import Array

PAD_BYTES = 1 << 16
_PLACE_DIGITS, _CONTENT_DIGITS = 5, 10
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

_SMALL = 1_000
"""Most bytes of a payload for which one more copy costs less than to make each payload by itself."""

HOPS = 100
"""Most steps in a chain of repetitions; the content at the end of a longer chain is new."""


class Contents:
    """Makes the contents of one table's messages.

    Args:
        tenants: the table.
        seed: seed of the run.
    """

    def __init__(self, tenants: Tenants, seed: int) -> None:
        self._t = tenants
        sizes = tenants.payload_bytes
        self._least, self._most = (sizes, sizes) if isinstance(sizes, int) else sizes
        letters = random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz0123456789 ", k=PAD_BYTES)
        # The padding is long enough for a cut of any size that begins in its first half.
        self._pad = bytes(letters) * (2 + self._most // PAD_BYTES)
        self._by_key = tenants.topic.kind is not Kind.LOG and tenants.topic.options.merge == "key"

    def of(self, places: Array, seeds: Array, numbers: Array) -> tuple[list[bytes], list[str] | None]:
        """Return the payloads of messages, and their merge keys if the topic merges by key, else None.

        Args:
            places: number of each message's tenant in the whole plan.
            seeds: seed of each message's tenant.
            numbers: number of each message.
        """
        contents = self._repeated(seeds, numbers)
        # In a topic that merges by key, the merge key is repeated, and each payload is new.
        each = zip(places.tolist(), contents.tolist(), strict=True)
        merge_keys = [f"{place}/{c}" for place, c in each] if self._by_key else None
        bodies = numbers if self._by_key else contents
        if self._t.payload == "number":
            return [b"%d" % (1 + n % 1000) for n in bodies.tolist()], merge_keys
        return self._payloads(places, seeds, bodies), merge_keys

    def _payloads(self, places: Array, seeds: Array, contents: Array) -> list[bytes]:
        pad, least = self._pad, max(0, self._least - NAME_BYTES)
        starts = (lr.uniform(seeds, lr.PAYLOAD, contents) * PAD_BYTES).astype(np.int64)
        sizes: Array | int = least
        if self._least < self._most:
            drawn = lr.skewed(lr.uniform(seeds, lr.SIZE, contents), self._most - self._least + 1, 0)
            sizes = np.maximum(0, self._least - NAME_BYTES + drawn)
        names = _names(places, contents)
        if isinstance(sizes, int) and sizes <= _SMALL:
            # Cutting payloads of one size out of one block is quicker than making each. All cuts share its memory.
            cuts = np.lib.stride_tricks.sliding_window_view(np.frombuffer(self._pad, np.uint8), sizes)
            return _rows(np.concatenate([names, cuts[starts]], axis=1))
        each = zip(_rows(names), starts.tolist(), (starts + sizes).tolist(), strict=True)
        return [name + pad[begin:end] for name, begin, end in each]

    def _repeated(self, seeds: Array, numbers: Array) -> Array:
        """Return, for each message, the number of the message whose content it has: itself, or an earlier one."""
        share, window = self._t.duplicates, self._t.duplicate_window
        contents = numbers.copy()
        if not share:
            return contents
        open_ = np.arange(len(contents))
        for _ in range(HOPS):
            now = contents[open_]
            again = (now > 0) & (lr.uniform(seeds[open_], lr.REPEAT, now) < share)
            open_ = open_[again]
            if not len(open_):
                break
            now = contents[open_]
            back = lr.skewed(lr.uniform(seeds[open_], lr.REPEATED, now), window, 0) + 1
            contents[open_] = np.maximum(0, now - back)
        return contents


def _names(places: Array, contents: Array) -> Array:
    """Return the begin of each payload as a row of `NAME_BYTES` letters: place of the tenant, number of the content."""
    names = np.empty((len(places), NAME_BYTES), np.uint8)
    for values, first, digits in ((places, 0, _PLACE_DIGITS), (contents, _PLACE_DIGITS + 1, _CONTENT_DIGITS)):
        for i in range(digits):
            names[:, first + digits - 1 - i] = _HEX[(values >> 4 * i) & 15]
    names[:, _PLACE_DIGITS], names[:, -1] = ord("/"), ord(" ")
    return names


def _rows(block: Array) -> list[bytes]:
    whole, width = block.tobytes(), block.shape[1]
    return [whole[i : i + width] for i in range(0, len(whole), width)]
