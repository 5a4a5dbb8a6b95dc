"""The connection to one server: runs scripts by digest, translates errors, waits for confirmations."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import redis.asyncio
import redis.exceptions

from emq.runtime import errors
from emq_stores.redis.confirmation import Confirm, Confirmations
from emq_stores.redis.damage import ScriptCall, Scripts
from emq_stores.redis.failures import translated
from emq_stores.redis.scripts import script
from emq_stores.redis.server_patience import Patience, sending_s

SCAN_KEYS = 1_000
"""Keys at which a server looks in one step of a scan; about a millisecond."""


async def scanned(command: Callable[..., Awaitable[Any]], pattern: str) -> AsyncIterator[str]:
    """Yield the keys of one server that match."""
    cursor = 0
    while True:
        cursor, keys = await command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS)
        for key in keys:
            yield key.decode(errors="replace")
        if not int(cursor):
            return


def check_version(info: Mapping[str, Any], shown: str) -> None:
    """Raise `StoreUnavailable` if the server with this INFO is too old."""
    version = str(info.get("redis_version", "0"))
    if int(version.split(".")[0]) < 7:
        raise errors.StoreUnavailable(f"{shown} is Redis {version}; EMQ needs Redis 7.0 or later, or Valkey")


class Server(Scripts):
    """See `Scripts`. The client's own retries must be off: a repeated put would append twice.

    Args:
        followed: True if a replica may take over from the server.
    """

    def __init__(self, client: redis.asyncio.Redis, url: str, followed: bool = False) -> None:
        super().__init__()
        self.client = client
        self.followed = followed
        self._url = url
        self._confirmations = Confirmations(url, followed)
        self.patience = Patience(url, lambda: client.execute_command("PING"))  # type: ignore[no-untyped-call]

    async def _run(self, call: ScriptCall) -> Any:
        digest, text = script(call.name, call.allow_oom)
        words = [digest, len(call.keys), *call.keys, *call.args]
        confirm = self._confirmations.needed(call.durability, call.outlives)
        times_s = (confirm.wait_s, sending_s(words))
        with self._translated_errors():
            try:
                return await self.patience.answer(lambda: self._send("EVALSHA", words, confirm), *times_s)
            except redis.exceptions.NoScriptError:
                words[0] = text
                return await self.patience.answer(lambda: self._send("EVAL", words, confirm), *times_s)

    async def command(self, *call: Any) -> Any:
        with self._translated_errors():
            return await self.patience.answer(lambda: self.client.execute_command(*call))  # type: ignore[no-untyped-call]

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        async for key in scanned(self.command, pattern):
            yield key

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except errors.EMQError:
            raise
        except Exception as exc:
            raise translated(exc, self._url) from exc

    async def _send(self, command: str, call: list[Any], confirm: Confirm) -> Any:
        if confirm is Confirm.NOTHING:
            return await self.client.execute_command(command, *call)  # type: ignore[no-untyped-call]
        pipeline = self.client.pipeline(transaction=False)
        pipeline.execute_command(command, *call)
        pipeline.execute_command(*confirm.value)
        answer, confirmed = await pipeline.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        if failure := self._confirmations.failure(confirm, confirmed):
            raise failure
        return answer
