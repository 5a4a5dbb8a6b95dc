"""A PUT/GET storage in memory in which writes get lost and others appear late."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple


class Operation(NamedTuple):
    """One call on the storage: loop time, physical queue, "put" or "get", offset."""

    at: float
    queue: str
    kind: str
    offset: int


class HoleyClient:
    """`PutGetClient` with planted faults; several adapter instances may share one, as they would a server.

    A put's own message is never lost once `put` has returned: as in a real storage, the lost ones are those whose
    writer died before it got an answer.

    Args:
        lost_every: before each so-many-th put of a queue, an offset is given out to nobody (a hole for ever); 0: never.
        late_every: each so-many-th put has its offset for a while before its body can be seen; 0: never.
        late_s: for how long.

    Attributes:
        operations: all calls so far.
        failing: what each call raises from now on, if set.
    """

    def __init__(self, *, lost_every: int = 0, late_every: int = 0, late_s: float = 0.003) -> None:
        self.operations: list[Operation] = []
        self.failing: BaseException | None = None
        self._lost_every = lost_every
        self._late_every = late_every
        self._late_s = late_s
        self._puts: defaultdict[str, int] = defaultdict(int)
        self._tails: defaultdict[str, int] = defaultdict(lambda: 1)
        self._bodies: defaultdict[str, dict[int, bytes]] = defaultdict(dict)

    async def put(self, queue: str, body: bytes) -> int:
        if self.failing:
            raise self.failing
        self._puts[queue] += 1
        nth = self._puts[queue]
        if self._lost_every and nth % self._lost_every == 0:
            self.burn(queue)
        offset = self.burn(queue)
        self._note(queue, "put", offset)
        if self._late_every and nth % self._late_every == 0:
            await asyncio.sleep(self._late_s)
        self.appear(queue, offset, body)
        return offset

    async def get(self, queue: str, offset: int) -> bytes | None:
        self._note(queue, "get", offset)
        if self.failing:
            raise self.failing
        return self._bodies[queue].get(offset)

    def burn(self, queue: str, count: int = 1) -> int:
        """Give out the next `count` offsets and store nothing; answers the last of them."""
        self._tails[queue] += count
        return self._tails[queue] - 1

    def appear(self, queue: str, offset: int, body: bytes) -> None:
        """Make the body at an offset visible."""
        self._bodies[queue][offset] = body

    def _note(self, queue: str, kind: str, offset: int) -> None:
        self.operations.append(Operation(asyncio.get_running_loop().time(), queue, kind, offset))
