"""Lines of callers: those who wait for the same name go on in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable


class _Line:
    """The callers of one name.

    Attributes:
        waiting: those whose turn has not come, in the order of their arrival.
        going: number of those whose turn has come, and who have not left yet.
    """

    __slots__ = ("going", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Place] = deque()
        self.going = 0


class Lines:
    """One line for each name for which somebody waits.

    Attributes:
        names: the names for which somebody waits, as they change.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self.names = self._lines.keys()

    def __len__(self) -> int:
        return len(self._lines)

    def join(self, names: Iterable[str]) -> Place:
        """Stand in the lines of these names, in all of them at once, so that no two callers wait for each other."""
        place = Place(self, tuple(dict.fromkeys(names)))
        for name in place.names:
            self._lines.setdefault(name, _Line()).waiting.append(place)
        return place

    def go_on(self, names: Iterable[str]) -> None:
        """Let those go on in these lines who are ready and stand first in all of their lines."""
        looked_at = [*names]
        while looked_at:
            name = looked_at.pop()
            if (line := self._lines.get(name)) is None:
                continue
            while line.waiting and (first := line.waiting[0]).may_go:
                if first.has_left or first.has_turn.cancelled():
                    line.waiting.popleft()
                    continue
                theirs = [self._lines[each] for each in first.names]
                if any(other.waiting[0] is not first for other in theirs):
                    break
                for other in theirs:
                    other.waiting.popleft()
                    other.going += 1
                first.has_turn.set_result(None)
                looked_at += first.names
            if not line.waiting and not line.going:
                del self._lines[name]

    def has_woken(self, names: Iterable[str]) -> bool:
        """Return True if callers in these lines have been woken and have not run yet."""
        return any(self._lines[name].going for name in names)

    def left(self, place: Place) -> None:
        """Note that a caller whose turn had come leaves."""
        for name in place.names:
            self._lines[name].going -= 1


class Place:
    """A caller's place in the lines of some names.

    A caller that is cancelled leaves as others do; nobody else is cancelled by that.

    Attributes:
        may_go: the caller waits for nothing but its turn, or has left.
        has_turn: done once the caller's turn has come.
    """

    def __init__(self, lines: Lines, names: tuple[str, ...]) -> None:
        self._lines = lines
        self.names = names
        self.may_go = self.has_left = False
        self.has_turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait until those who stand before go on. All whose turn comes at once go on in one turn of the event loop."""
        self.may_go, runs_later = True, self._lines.has_woken(self.names)
        self._lines.go_on(self.names)
        if not self.has_turn.done():
            await self.has_turn
        elif runs_later:
            await asyncio.sleep(0)  # behind the others

    def leave(self) -> None:
        """Leave the lines, whether the caller's turn has come or not."""
        if self.has_turn.done() and not self.has_turn.cancelled():
            self._lines.left(self)
        self.may_go = self.has_left = True
        self._lines.go_on(self.names)
