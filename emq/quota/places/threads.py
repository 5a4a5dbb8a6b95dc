"""Runs blocking functions in threads that tenants share fairly; replaces a thread whose function hangs."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emq.quota.places import sharing
from emq.quota.places.places import Places

REPLACE_S = 2.0
"""Seconds after which a running function gives its place back if others wait; it keeps its thread."""

SPARE = 256
"""Most threads beyond the places. When all are taken, a hanging function keeps its place."""

CHECK_S = 0.25
"""Seconds between looks at the running functions while others wait for a place."""


@dataclass(slots=True, eq=False)
class _Call:
    """A running function.

    Attributes:
        spare: the call has given its place back, and its thread counts as a spare one.
    """

    name: str
    taken_us: int
    function: Callable[[Any], Any]
    argument: Any
    loop: asyncio.AbstractEventLoop
    began_s: float = field(init=False)
    future: asyncio.Future[Any] = field(init=False)
    spare: bool = False

    def __post_init__(self) -> None:
        self.began_s = self.loop.time()
        self.future = self.loop.create_future()


class Threads:
    """Runs functions of many tenants in daemon threads, `places` at a time.

    Tenants share the places as `emq.quota.places.places` says, so that slow functions of one tenant leave places to
    others. A function gives its place back, but keeps its thread, if its caller was cancelled (by a time-out), or if it
    has run for `REPLACE_S` while others wait. A spare thread then takes over. There are up to `SPARE` spare threads,
    which tenants share by the same rules. So a function that never returns costs a thread instead of a place, and does
    not keep the process from ending.

    All methods but `_work_off` run in the event loop. The object belongs to one event loop at a time, as its places do.
    """

    def __init__(self, places: int, name: str, spare: int = SPARE) -> None:
        """Args:
        name: prefix of the threads' names.
        """
        self._capacity = places
        self._places = Places(places)
        self._name = name
        self._most_spare = spare
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._idle = 0
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._placed: dict[_Call, None] = {}
        self._spare: Counter[str] = Counter()
        self._checking: asyncio.TimerHandle | None = None

    async def run(self, name: str, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call `function(argument)` in a thread for the tenant `name`; return what it returns, raise what it raises.

        A cancelled call returns at once; the function runs to its end, and its outcome is ignored.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._begin(loop)
        if self._checking is None and self._placed:
            self._checking = loop.call_later(CHECK_S, self._check)
        taken_us = await self._places.take(name)
        call = _Call(name, taken_us, function, argument, loop)
        self._placed[call] = None
        if self._idle:
            self._idle -= 1
        else:
            try:
                threading.Thread(target=self._work_off, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()
            except BaseException:  # such as a limit of the system
                self._give_back(call)
                raise
        self._work.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._replace(call)
            raise

    def close(self) -> None:
        """Let the idle threads end. The others end by themselves, or with the process."""
        for _ in range(self._idle):
            self._work.put(None)
        self._idle = 0

    def _work_off(self) -> None:
        while (call := self._work.get()) is not None:
            result, failure = None, None
            try:
                result = call.function(call.argument)
            except BaseException as exc:
                failure = exc
            try:
                call.loop.call_soon_threadsafe(self._ended, call, result, failure)
            except RuntimeError:
                return  # the event loop is closed: no caller waits for this result
            del call, result, failure  # an idle thread would keep them in memory

    def _ended(self, call: _Call, result: object, failure: BaseException | None) -> None:
        if self._idle < self._capacity:
            self._idle += 1
        else:
            self._work.put(None)
        if not call.future.done():
            if failure is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(failure)
        if self._loop is call.loop:
            if call.spare:
                self._spare[call.name] -= 1
                self._spare += Counter()  # drops tenants that have no spare thread left
            else:
                self._give_back(call)

    def _give_back(self, call: _Call) -> None:
        if self._placed.pop(call, call) is None:
            self._places.free(call.name, call.taken_us)

    def _replace(self, call: _Call) -> bool:
        """Free the call's place for another call if a spare thread is left. Returns True if so."""
        if call not in self._placed:
            return False
        used, held = self._spare.total(), self._spare[call.name]
        full_at = sharing.ceiling(self._most_spare, call.loop.time() - call.began_s)
        if sharing.room(full_at, used, held) <= 0:
            return False
        call.spare = True
        self._spare[call.name] += 1
        self._give_back(call)
        return True

    def _check(self) -> None:
        """Replace the calls that have run for long, the oldest first, while other calls wait."""
        self._checking, loop = None, self._loop
        assert loop is not None
        for call in list(self._placed):
            if not self._places.waiting or loop.time() - call.began_s < REPLACE_S:
                break
            self._replace(call)
        if self._places.waiting:
            self._checking = loop.call_later(CHECK_S, self._check)
