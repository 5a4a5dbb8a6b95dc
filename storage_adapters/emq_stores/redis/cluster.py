"""Scripts on a cluster: each goes to the node of its hash slot, and is sent again only if the node did nothing.

This adapter does not use `redis.asyncio.RedisCluster`, for three reasons. That class sends ASKING on another connection
than the command for which it is meant, so the node refuses the command. At every fifth MOVED and at each CLUSTERDOWN,
that class closes all of its connections, so the outcome of puts on healthy nodes becomes unknown. And its pipelines
repeat commands after a lost answer.

A node may refuse a script before it runs the script. Then the script is sent again, until its hash slot has been
refused for `REDIRECTED_S`: after MOVED to the node named, after ASK once to the node named, after NOSCRIPT with the
text, and after a pause on TRYAGAIN, CLUSTERDOWN and READONLY. TRYAGAIN means that a hash slot is on its way to another
node, and that neither node has all keys of the script. A call whose answer was lost is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.exceptions
from redis.crc import key_slot

from emq.runtime import errors
from emq.storage.durability import Durability
from emq_stores.redis.damage import ScriptCall, Scripts
from emq_stores.redis.failures import translated
from emq_stores.redis.node_pipeline import NodePipeline
from emq_stores.redis.scripts import Script, script
from emq_stores.redis.server import scanned
from emq_stores.redis.topology import Topology

REDIRECTED_S = 2.0
"""Seconds for which calls to a hash slot are sent again, counted from the first refusal.

A cluster moves a hash slot's keys in less time. If no replica takes over, later calls fail at their first refusal, so
they cost the others no time."""

PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1)


class ClusterServer(Scripts):
    """See `emq_stores.redis.damage.Scripts`."""

    def __init__(self, topology: Topology, url: str) -> None:
        super().__init__()
        self.followed = not topology.is_list
        self._topology = topology
        self._url = url

    async def _run(self, call: ScriptCall) -> Any:
        known = script(call.name, call.allow_oom, sharded=True, listed=self._topology.is_list)
        redirected = _Redirected(self._topology, hash_slot(call.keys[0]), self._url, call.durability, call.outlives)
        return await redirected.answer(known, [len(call.keys), *call.keys, *call.args])

    async def command(self, *call: Any) -> Any:
        redirected = _Redirected(self._topology, hash_slot(call[1]), self._url, Durability.ACCEPTED, False)
        return await redirected.answer(None, call)

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """See `Scripts.scan`. While hash slots move, a key may be missed."""
        await self._topology.refresh()
        for address in sorted(self._topology.masters()):
            line = self._topology.at(address)

            async def command(*call: Any, line: NodePipeline = line) -> Any:
                try:
                    return await line.send(call)
                except errors.EMQError:
                    raise
                except Exception as exc:
                    raise translated(exc, line.address) from exc

            async for key in scanned(command, pattern):
                if self._topology.serves(address, hash_slot(key)):  # an interrupted move on a list leaves copies
                    yield key


def hash_slot(key: str) -> int:
    """Return the hash slot of a key."""
    return key_slot(key.encode())


class _Redirected:
    """One call and its way through the cluster."""

    def __init__(self, topology: Topology, hash_slot: int, url: str, durability: Durability, outlives: bool) -> None:
        self._topology = topology
        self._hash_slot = hash_slot
        self._url = url
        self._durability = durability
        self._outlives = outlives
        self._with_text = False
        self._refusals = 0

    async def answer(self, known: Script | None, rest: Sequence[Any]) -> Any:
        """Return the answer to the script `known` with the arguments `rest`, or to the plain command `rest`.

        Errors as for `Scripts.run`.
        """
        asked: NodePipeline | None = None
        while True:
            line = asked or self._topology.line(self._hash_slot)
            confirm = line.confirmations.needed(self._durability, self._outlives)
            try:
                answer = await line.send(self._words(known, rest, line), confirm, asking=asked is not None)
                self._topology.served(self._hash_slot)
                return answer
            except redis.exceptions.ResponseError as exc:
                asked = await self._after(exc, line)
            except errors.StoreUnavailable:
                self._topology.suspect()
                raise
            except errors.EMQError:
                raise
            except Exception as exc:
                self._topology.suspect()
                raise translated(exc, line.address) from exc

    def _words(self, known: Script | None, rest: Sequence[Any], line: NodePipeline) -> Sequence[Any]:
        if known is None:
            return rest
        script = ("EVAL", known.text) if self._with_text else ("EVALSHA", known.digest)
        return [*script, *rest, *self._topology.stamp(self._hash_slot, line.address)]

    async def _after(self, exc: redis.exceptions.ResponseError, line: NodePipeline) -> NodePipeline | None:
        """Return the node to ask next after a refusal; None for the node that serves the hash slot.

        Raises:
            EMQError: the refusal is final.
        """
        if isinstance(exc, redis.exceptions.NoScriptError) and not self._with_text:
            self._with_text = True
            return None
        if isinstance(exc, redis.exceptions.MovedError):
            self._topology.moved(self._hash_slot, _named(exc, line))
            if self._refusals:  # two nodes that name each other have not finished the move yet
                await self._pause(exc)
            self._refusals += 1
            return None
        if isinstance(exc, redis.exceptions.AskError):
            self._with_text = True
            self._refusals += 1
            return self._topology.at(_named(exc, line))
        if isinstance(
            exc,
            (redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError, redis.exceptions.ReadOnlyError),
        ):
            if not isinstance(exc, redis.exceptions.TryAgainError):
                self._topology.suspect()
            await self._pause(exc)
            return None
        raise translated(exc, self._url) from exc

    async def _pause(self, exc: redis.exceptions.ResponseError) -> None:
        if self._topology.refused_for_s(self._hash_slot) >= REDIRECTED_S:
            self._topology.suspect()
            raise errors.StoreUnavailable(
                f"{self._url} refused a call to hash slot {self._hash_slot} for {REDIRECTED_S:g} s: {exc}; "
                "is the cluster well, and was a move of the hash slot left unfinished?"
            ) from exc
        await asyncio.sleep(PAUSES_S[min(self._refusals, len(PAUSES_S) - 1)])
        self._refusals += 1


def _named(exc: redis.exceptions.AskError, line: NodePipeline) -> str:
    """Return the address that the node at `line` named; a name without a host means the node's own host."""
    return f"{exc.host or line.address.rpartition(':')[0]}:{exc.port}"
