"""The scripts on a cluster: each at the node that serves its hash slot, sent again only where nothing was done.

`redis.asyncio.RedisCluster` is not used. It sends ASKING on another connection than the command that it is for, so that
the command is refused; at every fifth MOVED and at each CLUSTERDOWN it closes all of its connections, which leaves the
outcome of puts under way on healthy nodes unknown; and its pipelines repeat commands after a lost answer.

What a node refuses before it runs the script is sent again, until its hash slot was refused for `REDIRECTED_S`: MOVED
(to the node named), ASK (once to the node named), NOSCRIPT (with the text), and after a pause TRYAGAIN (a hash slot is
on its way to another node, with some of the script's keys, or those that do not exist, on neither side), CLUSTERDOWN
and READONLY. A call whose answer was lost is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import redis.exceptions
from redis.crc import key_slot

from emq import errors
from emq.storage.durability import Durability
from storage_adapters.redis.failures import translated
from storage_adapters.redis.node_pipeline import NodePipeline
from storage_adapters.redis.scripts import Script, script
from storage_adapters.redis.topology import Topology

REDIRECTED_S = 2.0
"""Seconds for which calls to a hash slot are sent again, from the first refusal on.

A cluster moves a hash slot's keys in less. If no replica takes over, later calls fail at their first refusal, so that
they cost the others no time."""

PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1)


class ClusterServer:
    """See `storage_adapters.redis.server.Scripts`."""

    followed = True

    def __init__(self, topology: Topology, url: str) -> None:
        self._topology = topology
        self._url = url

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
        known = script(name, allow_oom, sharded=True)
        call = _Redirected(self._topology, hash_slot(keys[0]), self._url, durability, outlives)
        return await call.answer(known, [len(keys), *keys, *args])

    async def command(self, *call: Any) -> Any:
        redirected = _Redirected(self._topology, hash_slot(call[1]), self._url, Durability.ACCEPTED, False)
        return await redirected.answer(None, call)


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
        """Return the answer to the script, or to the plain command `rest`; errors as for `Scripts.run`."""
        asked: NodePipeline | None = None
        while True:
            line = asked or self._topology.line(self._hash_slot)
            confirm = line.confirmations.needed(self._durability, self._outlives)
            try:
                answer = await line.send(self._words(known, rest), confirm, asking=asked is not None)
                self._topology.served(self._hash_slot)
                return answer
            except redis.exceptions.ResponseError as exc:
                asked = await self._after(exc, line)
            except errors.StoreUnavailable:
                self._topology.suspect()
                raise
            except (redis.exceptions.RedisError, OSError) as exc:
                self._topology.suspect()
                raise translated(exc, line.address) from exc

    def _words(self, known: Script | None, rest: Sequence[Any]) -> Sequence[Any]:
        if known is None:
            return rest
        if self._with_text:
            return ["EVAL", known.text, *rest]
        return ["EVALSHA", known.digest, *rest]

    async def _after(self, exc: redis.exceptions.ResponseError, line: NodePipeline) -> NodePipeline | None:
        """Where to ask next after a refusal: None for the node that serves the hash slot. Raises what is final."""
        if isinstance(exc, redis.exceptions.NoScriptError) and not self._with_text:
            self._with_text = True
            return None
        if isinstance(exc, redis.exceptions.MovedError):
            self._topology.moved(self._hash_slot, _named(exc, line))
            if self._refusals:  # nodes that point at each other have not settled it yet
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
            raise errors.StoreUnavailable(
                f"{self._url} refused a call to hash slot {self._hash_slot} for {REDIRECTED_S:g} s: {exc}; "
                "is the cluster well, and was a move of the hash slot left unfinished?"
            ) from exc
        await asyncio.sleep(PAUSES_S[min(self._refusals, len(PAUSES_S) - 1)])
        self._refusals += 1


def _named(exc: redis.exceptions.AskError, line: NodePipeline) -> str:
    """Return the address that the node at `line` named; a name without a host means the node's own host."""
    return f"{exc.host or line.address.rpartition(':')[0]}:{exc.port}"
