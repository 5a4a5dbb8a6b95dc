"""Wake-ups on their way to one store instance's watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence


class Wakeups:
    """Names to wake, kept in order until the watcher takes them.

    They are kept also while nobody watches, so none is lost; a name is armed again only by its owner's next look, so
    there is never more than one of each.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lost = False
        self._closed = False
        self._changed = asyncio.Event()

    def __deepcopy__(self, memo: object) -> Wakeups:
        """A snapshot of what is stored refers to the instances that are there, and copies none."""
        return self

    def wake(self, name: str) -> None:
        self._names[name] = None
        self._changed.set()

    def forget(self, name: str) -> None:
        """The owner has just looked at `name` by itself; a wake-up still on its way would be for nothing."""
        self._names.pop(name, None)

    def lose(self) -> None:
        """Tell the watcher to look at everything."""
        self._lost = True
        self._changed.set()

    def close(self) -> None:
        """End the watcher. Safe to repeat."""
        self._closed = True
        self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """Yield the names woken since the last yield, or None after `lose`; ends after `close`.

        Cancel-safe: a name leaves only when it is yielded.
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
