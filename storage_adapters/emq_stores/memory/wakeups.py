"""Wake-ups on their way to one store instance's watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from emq.runtime import errors


class Wakeups:
    """Names of queues, lanes and slots to wake, kept in order until the watcher takes them.

    Names stay here even while nobody watches, so no wake-up is lost. Only the owner's next look arms a name again, so
    each name is here at most once.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lost = False
        self._closed = False
        self._changed = asyncio.Event()

    def __deepcopy__(self, memo: object) -> Wakeups:
        """Return self: a snapshot of a world refers to the open instances, and does not copy them."""
        return self

    def wake(self, name: str) -> None:
        self._names[name] = None
        self._changed.set()

    def forget(self, name: str) -> None:
        """Drop a wake-up of `name`, since its owner has just looked at the queue, lane or slot."""
        self._names.pop(name, None)

    def lose(self) -> None:
        """Tell the watcher to look at everything."""
        self._lost = True
        self._changed.set()

    def check_open(self) -> None:
        """Raise `StoreUnavailable` after `close`: a private store would take messages that nobody ever sees."""
        if self._closed:
            raise errors.StoreUnavailable("the connection to memory: is closed; open it again")

    def close(self) -> None:
        """End the watcher. Safe to repeat."""
        self._closed = True
        self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """Yield the names woken since the last yield, or None after `lose`; end after `close`.

        Cancel-safe: a name leaves only when the watcher gets it.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._closed:
                self._changed.set()
                return
            if self._lost:
                self._lost = False
                yield None
            if self._names:
                names = list(self._names)
                self._names.clear()
                yield names
