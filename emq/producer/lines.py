"""Lines of callers who wait for the same thing, and go on in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Line(Generic[Answer]):
    """Callers who wait, each with a future of its own: a caller that is cancelled cancels nobody else.

    A caller that was released goes on when the event loop comes to it. Until then the line is *busy*, so that others
    who come meanwhile can stand behind it instead of overtaking.

    Args:
        passed: called each time that all released callers have gone on.

    Attributes:
        busy: True from the first arrival until all callers have gone on.
    """

    def __init__(self, passed: Callable[[], object]) -> None:
        self._passed = passed
        self._waiting: list[tuple[int, asyncio.Future[Answer]]] = []
        self._going = 0
        self.busy = False

    def join(self, reading: int = 0) -> asyncio.Future[Answer]:
        """Return a future of the answer.

        Args:
            reading: the number of the first reading whose answer counts for the caller.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((reading, future))
        self.busy = True
        return future

    def release(self, answer: Answer, reading: int | None = None) -> None:
        """Give `answer` to those for whom this reading counts; None for all."""
        waiting, self._waiting = self._waiting, []
        for least, future in waiting:
            if reading is not None and least > reading:
                self._waiting.append((least, future))
            elif not future.done():
                future.set_result(answer)
        self._going += 1
        asyncio.get_running_loop().call_soon(self._gone)  # the futures wake their callers before

    def _gone(self) -> None:
        self._going -= 1
        self.busy = bool(self._waiting or self._going)
        if not self._going:
            self._passed()

    @property
    def waiting(self) -> bool:
        """True if somebody waits who was not released."""
        return bool(self._waiting)
