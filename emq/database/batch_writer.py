"""Writes single items into the database in batches, in the background."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Generic, Self, TypeVar

from emq.runtime import errors, plurals

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between tries while the database is away."""
CLOSE_S = 5.0
"""Most seconds that `running` waits at its end for the last items to be written."""

T = TypeVar("T")


class BatchWriter(abc.ABC, Generic[T]):
    """Keeps items in the order in which they come until a batch of them is written.

    It takes any number of items: a subclass must slow down their makers, or leave items out.

    Args:
        noun, plural: what an item is, in log lines.
        batch: most items of one transaction; if so many are there, it waits for no more.
        flush_s: most seconds that an item waits for others, while the database answers.

    Attributes:
        written: items so far.
        refused: items so far that cannot be written at all, each of which the log has told.
        dropped: items so far that a subclass has left out.
    """

    def __init__(self, noun: str, plural: str, *, batch: int, flush_s: float) -> None:
        self._noun = noun
        self._plural = plural
        self._batch = batch
        self._flush_s = flush_s
        self._waiting: deque[T] = deque()
        self._some = asyncio.Event()
        self._many = asyncio.Event()
        self._turn = asyncio.Lock()
        self._said = ""
        self.written = self.refused = self.dropped = 0

    @abc.abstractmethod
    async def _prepare(self) -> None:
        """Get ready to save: create tables, for instance; cheap afterwards. If it fails, all items wait."""

    @abc.abstractmethod
    async def _save(self, batch: Sequence[T]) -> None:
        """Write some items in one transaction.

        It may get the same items again, since the outcome of a write may be unknown.

        Raises:
            EMQError: they can be written later.
            Exception: an item cannot be written. Then each is saved alone, and what fails once more is left out.
        """

    @abc.abstractmethod
    def _shown(self, item: T) -> str:
        """Return a text for the log about an item that cannot be written, without secrets."""

    def _left(self) -> None:
        """A batch has left the buffer."""

    @property
    def kind(self) -> str:
        """What the items are, in the plural."""
        return self._plural

    @property
    def lost(self) -> int:
        """Number of items so far that nobody writes any more."""
        return self.refused + self.dropped

    @property
    def waiting(self) -> int:
        """Number of items that are not written yet."""
        return len(self._waiting)

    def _add(self, item: T) -> None:
        """Take an item; costs an append."""
        waiting = self._waiting
        waiting.append(item)
        n = len(waiting)
        if n == 1:
            self._some.set()
        if n >= self._batch:
            self._many.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Write for the length of a block; at its end, write the rest."""
        task = asyncio.create_task(self._run(), name=f"emq {self._plural}")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(TimeoutError, errors.EMQError):
                async with asyncio.timeout(CLOSE_S):
                    await self.flush()
            if self._waiting:
                left = plurals.count(len(self._waiting), self._noun, self._plural)
                log.warning("%s lost: the database is away", left)

    async def flush(self) -> None:
        """Write all items that wait now. If it raises `DatabaseUnavailable`, the rest still waits."""
        left = len(self._waiting)
        while left > 0 and self._waiting:
            left -= await self._write()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_s):
                    await self._many.wait()
            try:
                await self._write()
                self._said = ""
            except errors.EMQError as exc:
                if str(exc) != self._said:
                    self._said = str(exc)
                    log.warning("%s wait: %s", self._plural, exc)
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("%s wait", self._plural)
                await asyncio.sleep(AGAIN_S)

    async def _write(self) -> int:
        """Write one batch, which leaves the buffer once it is written; return its length."""
        async with self._turn:
            batch = list(islice(self._waiting, self._batch))
            if batch:
                await self._prepare()
                await self._write_batch(batch)
                for _ in batch:
                    self._waiting.popleft()
                self._left()
            if not self._waiting:
                self._some.clear()
            if len(self._waiting) < self._batch:
                self._many.clear()
            return len(batch)

    async def _write_batch(self, batch: Sequence[T]) -> None:
        try:
            await self._save(batch)
            self.written += len(batch)
        except errors.EMQError:
            raise
        except Exception:  # one item that no table takes must not keep the others out
            for item in batch:
                await self._write_alone(item)

    async def _write_alone(self, item: T) -> None:
        try:
            await self._save([item])
            self.written += 1
        except errors.EMQError:
            raise
        except Exception:
            self.refused += 1
            log.exception("the %s cannot be written: %s", self._noun, self._shown(item))
