"""Damaged keys: somebody wrote over a key, for example a string where EMQ's queue, slot or hash should be.

A script that meets a damaged key fails in the middle. Only after a failure does EMQ look at the types of the call's
keys, so healthy calls cost nothing more. EMQ remembers the damaged keys and sends no call that needs one, until a look
(once a second at most, and only when a call needs the key) finds the key repaired or gone. Callers divide a refused
call until the entries of the damaged key are alone; see `emq_stores.redis.spreading`.
"""

from __future__ import annotations

import abc
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from emq.runtime import errors
from emq.storage.durability import Durability
from emq_stores.redis.failures import MetWrongType
from emq_stores.redis.keys import expected_type, is_shared

LOOK_AGAIN_S = 1.0
"""Least seconds between two looks at a key that is known to be damaged."""

READING = frozenset(
    {"bounds", "get", "unarmed"}
    | {"lane_dead", "lane_inspect", "lane_waiting", "slot_dead", "slot_inspect", "slot_waiting"}
)
"""Scripts that write nothing, so that a failure in the middle does no harm."""


class SharedKeyDamaged(errors.KeyDamaged):
    """The key belongs to all queues of a storage shard, so no entry of the call can be served."""


class ScriptCall(NamedTuple):
    """The arguments of `Scripts.run`."""

    name: str
    keys: Sequence[str]
    args: Iterable[Any] = ()
    durability: Durability = Durability.ACCEPTED
    allow_oom: bool = False
    outlives: bool = False


class Scripts(abc.ABC):
    """Runs the Lua scripts, on one server or on the servers of a cluster; names keys of a wrong type in errors.

    Attributes:
        followed: True if a replica may take over from a server.
        damaged: damaged key -> the type that was found there, and the monotonic time of that look, in seconds.
    """

    followed: bool

    def __init__(self) -> None:
        self.damaged: dict[str, tuple[str, float]] = {}

    async def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Iterable[Any],
        durability: Durability = Durability.ACCEPTED,
        *,
        allow_oom: bool = False,
        outlives: bool = False,
    ) -> Any:
        """Run one script, in one round trip unless the server has never seen the script.

        Args:
            keys: at least one; all in one hash slot.
            allow_oom: run the script on a full server too, because it helps to drain the server.
            outlives: True if the caller acts on the answer elsewhere, so that the script's writes should not be lost
                when a replica takes over; see `Confirm.FOLLOWED`.

        Raises:
            KeyDamaged: a key of the call holds a value of a foreign type; nothing was applied.
            StoreFull: the server is out of memory; nothing was applied.
            OutcomeUnknown: the connection broke, the replica or disk did not confirm in time, or a call that writes met
                a damaged key in the middle.
            StoreUnavailable: nobody could reach the server, or it refused the call; nothing was applied.
        """
        if self.damaged and not self.damaged.keys().isdisjoint(keys):
            await self._refuse([key for key in keys if key in self.damaged])
        try:
            return await self._run(ScriptCall(name, keys, args, durability, allow_oom, outlives))
        except MetWrongType as exc:
            found = await self._find(list(dict.fromkeys(keys)))
            if not found or name not in READING:
                told = _told(*found[0]) if found else str(exc)
                raise errors.OutcomeUnknown(f"a call ended in the middle: {told}") from exc
            raise _error(*found[0]) from exc

    @abc.abstractmethod
    async def _run(self, call: ScriptCall) -> Any:
        """See `run`; a key of a wrong type is `MetWrongType`."""

    @abc.abstractmethod
    async def command(self, *call: Any) -> Any:
        """Run one plain command. Its second word is its key, if it has a key. Errors as for `run`."""

    @abc.abstractmethod
    def scan(self, pattern: str) -> AsyncIterator[str]:
        """Yield all keys that match, some perhaps twice; for administration. Errors as for `run`."""

    async def _refuse(self, keys: Sequence[str]) -> None:
        """Raise `KeyDamaged` for the first of the keys that is still damaged."""
        for key in keys:
            known = self.damaged.get(key)
            if known is not None and time.monotonic() - known[1] >= LOOK_AGAIN_S:
                await self._find([key])
                known = self.damaged.get(key)
            if known is not None:
                raise _error(key, known[0])

    async def _find(self, keys: list[str]) -> list[tuple[str, str]]:
        """Look at the types of keys; remember the wrong ones, and return each with the type that was found."""
        types = await self._run(ScriptCall("types", keys))
        wrong = []
        for key, answer in zip(keys, types, strict=True):
            found = answer.decode() if isinstance(answer, bytes) else str(answer)
            if found in ("none", expected_type(key)):
                self.damaged.pop(key, None)
            else:
                self.damaged[key] = found, time.monotonic()
                wrong.append((key, found))
        return wrong


def _error(key: str, found: str) -> errors.KeyDamaged:
    return (SharedKeyDamaged if is_shared(key) else errors.KeyDamaged)(_told(key, found))


def _told(key: str, found: str) -> str:
    return (
        f"key {key!r} is a {found}, and EMQ keeps a {expected_type(key)} there; rename or delete the key, "
        "and EMQ goes on by itself"
    )
