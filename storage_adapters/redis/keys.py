"""Every key and channel of the Redis layout; nothing else builds a name.

`<tag>` is `{emq:<environment>:<shard>}`: the environments never share a key, and all keys of a shard lie in one hash
slot of a cluster.

    <tag>:head                 hash    queue -> offset of its list's first element; 1 where missing
    <tag>:armed                hash    queue -> channel of the host to wake
    <tag>:slot_armed           hash    slot -> "<next due ms> <channel>"
    <tag>:fence                hash    group -> highest epoch seen
    <tag>:sealed               set     queues that refuse puts
    <tag>:woken                zset    "<channel>\\n<queue or slot>", all of score 0, so that a channel's are a range
    <tag>:watchers             zset    channel, score = second in which its instance last swept
    <tag>:log:<queue>          list    bodies; the element at index i has the offset head + i
    <tag>:waiting:<slot>       zset    id, score = due time in ms
    <tag>:prepared:<slot>      hash    id -> "<epoch> <claimed at ms> <due ms>"
    <tag>:dead:<slot>          zset    id, score = time of death in ms
    <tag>:body:<slot>          hash    id -> body, in whatever state
    <tag>:reason:<slot>        hash    id -> why it is dead
    <tag>:wake:<instance>      channel names of woken queues and slots, one a line
"""

from __future__ import annotations

import zlib


class Shard:
    """The keys of one storage shard."""

    def __init__(self, environment: str, index: int) -> None:
        self._tag = f"{{emq:{environment}:{index}}}"
        self.head = f"{self._tag}:head"
        self.armed = f"{self._tag}:armed"
        self.slot_armed = f"{self._tag}:slot_armed"
        self.fence = f"{self._tag}:fence"
        self.sealed = f"{self._tag}:sealed"
        self.woken = f"{self._tag}:woken"
        self.watchers = f"{self._tag}:watchers"
        self._log = f"{self._tag}:log:"

    def log(self, queue: str) -> str:
        return self._log + queue

    def waiting(self, slot: str) -> str:
        return f"{self._tag}:waiting:{slot}"

    def prepared(self, slot: str) -> str:
        return f"{self._tag}:prepared:{slot}"

    def dead(self, slot: str) -> str:
        return f"{self._tag}:dead:{slot}"

    def body(self, slot: str) -> str:
        return f"{self._tag}:body:{slot}"

    def reason(self, slot: str) -> str:
        return f"{self._tag}:reason:{slot}"

    def channel(self, instance: str) -> str:
        return f"{self._tag}:wake:{instance}"


def shard_of(group: str, shards: int) -> int:
    """The shard of a group; its queues and its retry slot lie together."""
    return zlib.crc32(group.encode()) % shards if shards > 1 else 0
