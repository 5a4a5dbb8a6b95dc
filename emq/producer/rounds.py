"""Calls to the database for names that many publishes want at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Generic, TypeVar

from emq.runtime import errors

T = TypeVar("T")


class Rounds(Generic[T]):
    """Carries out one round after another; names that are wanted while a round is under way share the next one.

    One task carries out the rounds, for as long as somebody asks. So a flood of names costs few calls.
    """

    def __init__(self, carry_out: Callable[[Collection[str]], Awaitable[T]], noun: str) -> None:
        """Args:
        carry_out: does one round for all names that are wanted; its error goes to those who wait for this round.
        noun: what a round is, for the name of the task and the error after its cancellation.
        """
        self._carry_out = carry_out
        self._noun = noun
        self._wanted: dict[str, None] = {}
        self._next: asyncio.Future[T] | None = None  # of the round that begins next
        self._task: asyncio.Task[None] | None = None

    def join(self, names: Iterable[str]) -> asyncio.Future[T]:
        """Return the result of a round that begins after this call, for these names and others. Shield it."""
        self._wanted.update(dict.fromkeys(names))
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._go_on(), name=f"emq {self._noun}")
        return self._next

    async def _go_on(self) -> None:
        while (result := self._next) is not None:
            wanted, self._wanted, self._next = self._wanted, {}, None
            try:
                result.set_result(await self._carry_out(wanted))
            except Exception as exc:  # goes to those who wait
                _fail(result, exc)
            except BaseException:
                for each in filter(None, (result, self._next)):
                    _fail(each, errors.DatabaseUnavailable(f"the {self._noun} was cancelled"))
                self._next = None
                raise


def _fail(result: asyncio.Future[T], failure: Exception) -> None:
    result.set_exception(failure)
    result.exception()  # those who wait may all have been cancelled
