"""The requests of a client of the ensemble in memory that have no answer yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from emq.runtime import errors
from support.ensemble.connection import Connection

T = TypeVar("T")


class Requests:
    """Sends requests, and waits for their answers.

    Args:
        heard: called on the servers' side at each request that arrives there.
        answered: called on the client's side at each answer, also after its request was given up.
    """

    def __init__(self, heard: Callable[[Connection], None], answered: Callable[[], None]) -> None:
        self._heard = heard
        self._answered = answered
        self._waiting: dict[asyncio.Future[Any], None] = {}

    async def send(
        self, connection: Connection, apply: Callable[[Connection], T], then: Callable[[], None] | None = None
    ) -> T:
        """Return the result of `apply`, which the servers call.

        Args:
            then: called with the answer, before any later message arrives; not after a refusal.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T | None, refusal: Exception | None) -> None:
            self._answered()
            if answer.done():
                return
            if refusal is None and then is not None:
                try:
                    then()
                except Exception as exc:
                    refusal = exc
            if refusal is not None:
                answer.set_exception(refusal)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # there is a result or a refusal

        def arrive() -> None:
            self._heard(connection)
            try:
                result, refusal = apply(connection), None
            except Exception as exc:  # of any kind: else the sender would wait for ever
                result, refusal = None, exc
            connection.down.send(lambda: settle(result, refusal))

        self._waiting[answer] = None
        connection.up.send(arrive)
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def fail(self) -> None:
        """Give all requests up, since the connection broke."""
        for answer in self._waiting:
            if not answer.done():
                text = "the connection to the ensemble in memory broke; the request may have taken effect"
                answer.set_exception(errors.ClusterUnavailable(text))
