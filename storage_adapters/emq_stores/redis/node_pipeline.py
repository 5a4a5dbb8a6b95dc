"""The line to one node of a cluster: calls that are made at the same moment go in one pipeline.

The core sends its calls in batches. On a cluster, each storage shard and each slot of a sorted topic needs a script
call of its own. All script calls of one moment to the same node cost one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
import redis.exceptions

from emq_stores.redis.confirmation import Confirm, Confirmations
from emq_stores.redis.server_patience import Patience, sending_s

PIPELINE_CALLS = 64
"""Most calls in one pipeline. Further calls go in parallel pipelines, so the answers of the first need not wait."""


class NodePipeline:
    """The line to one node. Belongs to one event loop.

    Args:
        address: the node's address, "host:port".
        client: the connections to the node; its own retries are off.
        followed: True if a replica may take over from the node.

    Attributes:
        confirmations: the confirmations to ask of this node.
    """

    def __init__(self, address: str, client: redis.asyncio.Redis, followed: bool = True) -> None:
        self.address = address
        self.client = client
        self.confirmations = Confirmations(address, followed)
        self.patience = Patience(address, lambda: client.execute_command("PING"))  # type: ignore[no-untyped-call]
        self._waiting: dict[Confirm, list[_Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, words: Sequence[Any], confirm: Confirm = Confirm.NOTHING, asking: bool = False) -> Any:
        """Return the answer to one command. A cancelled caller does not disturb the other calls of the pipeline.

        Args:
            confirm: the confirmation to wait for after the command.
            asking: True if the node does not serve the hash slot yet, but the node that serves it named this one.

        Raises:
            RedisError, OSError: the node answered with this error, or the connection failed.
            OutcomeUnknown: the node did not answer in time, or carried the command out and did not confirm it.
            StoreUnavailable: the node is silent, and the command was not sent.
        """
        loop = asyncio.get_running_loop()
        call = _Call(words, asking, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.setdefault(confirm, []).append(call)
        return await call.answer

    @property
    def idle(self) -> bool:
        """True if no call is under way."""
        return not self._waiting and not self._tasks

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.patience.close()
        await self.client.aclose()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for confirm, calls in waiting.items():
            for start in range(0, len(calls), PIPELINE_CALLS):
                task = asyncio.get_running_loop().create_task(
                    self._pipeline(calls[start : start + PIPELINE_CALLS], confirm)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _pipeline(self, calls: Sequence[_Call], confirm: Confirm) -> None:
        try:
            answers = await self._answers(calls, confirm)
        except Exception as exc:  # the callers must get the error, whatever it is
            failure: Exception = exc
            if isinstance(exc, redis.exceptions.BusyLoadingError) and len(calls) > 1:
                # The first refused call ends the pipeline; the node may have been ready for the calls behind it.
                failure = redis.exceptions.ConnectionError(f"{self.address} is loading its data: {exc}")
            for call in calls:
                call.settle(failure)
            return
        except BaseException:
            for call in calls:
                call.settle(redis.exceptions.ConnectionError(f"the connection to {self.address} was closed"))
            raise
        for call, answer in zip(calls, answers, strict=True):
            call.settle(answer)

    async def _answers(self, calls: Sequence[_Call], confirm: Confirm) -> list[Any]:
        """Send calls in one pipeline; return the answer or the error of each."""
        pipeline = self.client.pipeline(transaction=False)
        for call in calls:
            if call.asking:
                pipeline.execute_command("ASKING")
            pipeline.execute_command(*call.words)
        if confirm is not Confirm.NOTHING:
            pipeline.execute_command(*confirm.value)
        sending = sum([sending_s(call.words) for call in calls])
        answers = await self.patience.answer(lambda: pipeline.execute(raise_on_error=False), confirm.wait_s, sending)
        unconfirmed = None
        if confirm is not Confirm.NOTHING:
            unconfirmed = self.confirmations.failure(confirm, answers.pop())
        answer, found = iter(answers), []
        for call in calls:
            if call.asking:
                next(answer)
            answered = next(answer)
            found.append(answered if unconfirmed is None or isinstance(answered, Exception) else unconfirmed)
        return found


@dataclass(slots=True, eq=False)
class _Call:
    """A command on its way, and the future that its caller awaits."""

    words: Sequence[Any]
    asking: bool
    answer: asyncio.Future[Any]

    def settle(self, answer: Any) -> None:
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)
