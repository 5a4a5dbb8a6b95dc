"""The connection to the server: scripts by digest, errors translated, durability waited for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.resources
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import redis.asyncio
import redis.exceptions

from emq import errors
from emq.durability import Durability

DURABILITY_TIMEOUT_MS = 5_000
"""How long a publish waits for the replica or the disk before its outcome is reported as unknown."""


_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("lua", f"{name}.lua").read_text()


@functools.cache
def _script(name: str, allow_oom: bool) -> tuple[str, str]:
    """(digest, text) of lua/<name>.lua, with what it includes in the place of the line that says so."""
    text = _INCLUDE.sub(lambda line: _read(line[1]), _read(name))
    if allow_oom:
        text = text.replace("#!lua\n", "#!lua flags=allow-oom\n", 1)
    return hashlib.sha1(text.encode()).hexdigest(), text


class Server:
    """Runs the Lua scripts. The client's own retries must be off: a repeated put would append twice."""

    def __init__(self, client: redis.asyncio.Redis, url: str) -> None:
        self.client = client
        self._url = url

    async def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Iterable[Any],
        durability: Durability = Durability.ACCEPTED,
        *,
        allow_oom: bool = False,
    ) -> Any:
        """Run one script; one round trip unless the server has never seen it.

        Args:
            allow_oom: run it on a full server too, because it helps to drain it.

        Raises:
            StoreFull: the server is out of memory; nothing was applied.
            OutcomeUnknown: the connection broke, or the replica or disk did not confirm in time.
            StoreUnavailable: the server could not be reached or refused; nothing was applied.
        """
        digest, text = _script(name, allow_oom)
        call = [digest, len(keys), *keys, *args]
        with self._translated_errors():
            try:
                return await self._send("EVALSHA", call, durability)
            except redis.exceptions.NoScriptError:
                call[0] = text
                return await self._send("EVAL", call, durability)

    async def command(self, *call: Any) -> Any:
        """Run one plain read command; errors as for `run`."""
        with self._translated_errors():
            return await self.client.execute_command(*call)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except redis.exceptions.RedisError as exc:
            raise self._translated(exc) from exc
        except OSError as exc:
            raise errors.OutcomeUnknown(f"connection to {self._url} broke: {exc}") from exc

    async def _send(self, command: str, call: list[Any], durability: Durability) -> Any:
        if durability is Durability.ACCEPTED:
            return await self.client.execute_command(command, *call)  # type: ignore[no-untyped-call]
        # WAIT and WAITAOF speak of the writes of their own connection only: same pipeline, same connection.
        pipeline = self.client.pipeline(transaction=False)
        pipeline.execute_command(command, *call)
        if durability is Durability.REPLICATED:
            pipeline.execute_command("WAIT", 1, DURABILITY_TIMEOUT_MS)
        else:
            pipeline.execute_command("WAITAOF", 1, 0, DURABILITY_TIMEOUT_MS)
        answer, confirmed = await pipeline.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(confirmed, redis.exceptions.ResponseError):
            raise errors.StoreUnavailable(
                f"{self._url} cannot confirm durability {durability.value!r} ({confirmed}); the write was applied. "
                "Set appendonly yes on the server (fsynced needs Redis >= 7.2 or Valkey), or choose another durability"
            )
        count = confirmed[0] if isinstance(confirmed, list) else confirmed
        if count < 1:
            raise errors.OutcomeUnknown(
                f"{self._url} took the write but did not confirm it as {durability.value} "
                f"within {DURABILITY_TIMEOUT_MS / 1000:g} s"
            )
        return answer

    def _translated(self, exc: redis.exceptions.RedisError) -> errors.EMQError:
        text = str(exc)
        if isinstance(exc, redis.exceptions.OutOfMemoryError) or "OOM" in text:
            return errors.StoreFull(f"{self._url} is out of memory; raise maxmemory or let consumers catch up")
        if isinstance(exc, (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)):
            return errors.StoreUnavailable(
                f"{self._url} refused the credentials: {text}; correct the URL's user and password"
            )
        if isinstance(exc, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
            if "connecting to" in text or "Connect call failed" in text or "not known" in text:
                return errors.StoreUnavailable(f"cannot reach {self._url}: {text}; is the server running?")
            return errors.OutcomeUnknown(f"connection to {self._url} broke: {text}")
        return errors.StoreUnavailable(f"{self._url} refused a call: {text}")
