"""Every key and channel of the Redis layout; no other module builds their names.

`<tag>` is `{emq:<environment>:<shard>}`, on a cluster `{emq:<environment>:<shard>.<salt>}`. So the environments never
share a key, and all keys of a shard are in one hash slot of a cluster. `cluster_shards` chooses the salts such that the
shards' hash slots are spread evenly.

    emq:servers                hash    range of hash slots -> address of the server of a list that serves it, and
                                       "<range>:version" -> how often that changed; see `server_list`. Also the name
                                       of the list, and the number of shards
    emq:servers:uncopied:<range> zset  keys of a range that leaves the server, which are to be copied, all of score 1,
                                       and an empty one of score 0; the key expires
    {emq:<environment>}:shards string number of shards, which never changes
    <tag>:head                 hash    queue -> "<offset of its list's first element> <incarnation>"; the offset is 1
                                       where the field is missing
    <tag>:armed                hash    queue -> channel of the host to wake
    <tag>:slot_armed           hash    slot -> "<next due ms> <channel>"
    <tag>:fence                hash    group -> highest epoch seen
    <tag>:sealed               set     queues that refuse puts, lanes that refuse producers' adds
    <tag>:layout               hash    queue -> layout; keyed puts of lower ones are refused
    <tag>:woken                zset    "<channel>\\n<queue or slot>", all of score 0, so that a channel's are one range
    <tag>:watchers             zset    channel, score = second in which its instance last swept
    <tag>:log:<queue>          list    bodies; the element at index i has the offset head + i
    <tag>:waiting:<slot>       zset    id, score = due time in ms
    <tag>:ranks:<slot>         zset    the same ids, score = priority * 2^49 + due time, at most 2^49 - 1
    <tag>:prepared:<slot>      hash    id -> "<epoch> <claimed at ms> <due ms> <priority>"
    <tag>:dead:<slot>          zset    id, score = time of death in ms
    <tag>:body:<slot>          hash    id -> body, in every state
    <tag>:reason:<slot>        hash    id -> why it is dead
    <tag>:named:<slot>         zset    the ids with a nonce ("order-17#..."), all of score 0, in every state
    <tag>:taken:<slot>         zset    id that was taken for good, score = time of that in ms, or the highest score
                                       before plus one if that is greater; the key expires
    <tag>:taken_ms:<slot>      hash    id -> time when it was taken in ms, where the score differs; the key expires
    <tag>:ids:<group>          zset    id of a publish, score = ms until which the group remembers it; the key expires
    <tag>:wake:everybody       channel names of new topics, for all instances; of the first shard only
    <tag>:wake:<instance>      channel names of woken queues and lanes, addresses of woken slots, one on a line; on a
                                       cluster a sharded channel; slots use the first shard's name as a plain channel

In the keys above, `<slot>` is a lane. The slots of sorted topics are separate, each under a hash tag of its own, in
the layout of the published RMQ. Other programs that know this layout may read and write the first three keys. Below,
`<slot>` is `<topic>_<index>`, in the sandbox `sandbox:<topic>_<index>`.

    <slot>                     zset    waiting members, score = due time in ms, priority, or retries left (16 and less)
    prepare{<slot>}            zset    claimed members, score = claimed second * 1000 + retries left after this delivery
    dead{<slot>}               zset    dead members, score = time of death in ms
    emq{<slot>}                hash    sealed: exists if adds are refused;
                                       epoch: highest seen; armed: score; a member that comes before it wakes the host
                                       ("": any member does); channel: of the host to wake; fold: "<name>\n<Lua text>"
                                       of the last add, where bodies are apart; mine: number of members in prepare that
                                       EMQ claimed ("": not known); claimed: second of EMQ's last claim; rest: end of
                                       the first rest in ms, if a member rests
    body{<slot>}               hash    member -> "<merged> <bytes of note> <note><body>" while it waits
    preparebody{<slot>}        hash    the same while it is in prepare
    deadbody{<slot>}           hash    the same while it is dead
    history{<slot>}            hash    member -> failed attempts, one on a line: "<ms> <reason as JSON>"
    retries{<slot>}            hash    member -> lowest number of retries with which it was put back, until it is gone;
                                       below 0 for attempts beyond the last retry
    rests{<slot>}              zset    prepared members that rest, score = end of the rest in ms; their score in prepare
                                       is the second after that * 1000 + retries left
    restscores{<slot>}         hash    member -> score with which it waits again after its rest
    reason{<slot>}             hash    member -> why it is dead (JSON), then the lines of its history

The last eight exist only for topics with a merge key, or for members that failed.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable

from redis.crc import key_slot

from emq.storage.names import parts_of

HASH_SLOTS = 16_384

LIST_RANGES = 64
"""Ranges of hash slots that the servers of a list share; a server serves whole ranges."""

SERVERS = "emq:servers"
"""The key in which each server of a list keeps its record of all of them."""


def uncopied(number: int) -> str:
    """Return the key that holds the keys of a range that are to be copied to its next server."""
    return f"{SERVERS}:uncopied:{number}"


EVERYBODY = "everybody"
"""Stands for all instances in the name of a channel."""

RANGES = 128
"""Most ranges of hash slots for shards; with more shards than ranges, shards share the ranges in turn."""


class Shard:
    """The keys of one storage shard; `name` is the part of its tag after the environment."""

    def __init__(self, environment: str, name: int | str) -> None:
        self.environment = environment
        self._tag = f"{{emq:{environment}:{name}}}"
        self.head = f"{self._tag}:head"
        self.armed = f"{self._tag}:armed"
        self.lane_armed = f"{self._tag}:slot_armed"
        self.fence = f"{self._tag}:fence"
        self.sealed = f"{self._tag}:sealed"
        self.layout = f"{self._tag}:layout"
        self.woken = f"{self._tag}:woken"
        self.watchers = f"{self._tag}:watchers"
        self._log = f"{self._tag}:log:"

    def log(self, queue: str) -> str:
        return self._log + queue

    def lane(self, lane: str, kinds: Iterable[str]) -> list[str]:
        """Return keys of a lane, in the order of their kinds, such as "waiting"."""
        return [f"{self._tag}:{kind}:{lane}" for kind in kinds]

    def ids(self, group: str) -> str:
        return f"{self._tag}:ids:{group}"

    def channel(self, instance: str) -> str:
        return f"{self._tag}:wake:{instance}"


@functools.lru_cache(maxsize=4)
def cluster_shards(environment: str, count: int) -> tuple[Shard, ...]:
    """Return the shards of a store on a cluster: shard i is in the i-th of equal ranges of hash slots.

    Masters serve ranges, so the numbers of shards on two masters differ by one at most. With random places, the busiest
    of three masters would often have 27 of 64 shards. The search takes milliseconds, so its result is remembered for
    processes that open several stores.
    """
    ranges = min(count, RANGES)
    shards = []
    for index in range(count):
        salt = 0
        while key_slot(f"emq:{environment}:{index}.{salt}".encode()) * ranges // HASH_SLOTS != index % ranges:
            salt += 1
        shards.append(Shard(environment, f"{index}.{salt}"))
    return tuple(shards)


def shard_count(environment: str) -> str:
    """Return the key that holds the number of shards."""
    return f"{{emq:{environment}}}:shards"


STORE = ""
"""The kind of key that holds the waiting members of a slot."""

EVERY_KIND = (
    *(STORE, "prepare", "dead", "emq", "body", "preparebody", "deadbody", "reason", "history", "retries"),
    *("rests", "restscores"),
)


class SlotKeys:
    """The keys of one slot of a sorted topic; all are in the hash slot of `store`."""

    def __init__(self, environment: str, slot: str) -> None:
        topic, index = parts_of(slot)
        prefix = "" if environment == "online" else f"{environment}:"
        self.store = f"{prefix}{topic}_{index}"

    def of(self, kinds: Iterable[str]) -> list[str]:
        """Return keys in the order of their kinds: the words before the brace, and `STORE`."""
        return [f"{kind}{{{self.store}}}" if kind else self.store for kind in kinds]

    @property
    def everything(self) -> list[str]:
        """Return all keys, in the order in which `slot_moves.lua` takes them."""
        return self.of(EVERY_KIND)


def slot_of_own(environment: str, key: str) -> str | None:
    """Return the name of the slot whose key of the kind "emq" this is; None if it belongs to another environment."""
    store = key.removeprefix("emq{").removesuffix("}")
    prefix, colon, rest = store.partition(":")
    if environment != "online":
        if not colon or prefix != environment:
            return None
        store = rest
    elif colon:
        return None
    topic, underscore, index = store.rpartition("_")
    return f"{topic}/{index}" if underscore and index.isdecimal() else None


def shard_of(group: str, shards: int) -> int:
    """Return the shard of a group, which holds the group's queues and its lane."""
    return zlib.crc32(group.encode()) % shards if shards > 1 else 0


_SHARD_TYPES = {
    "head": "hash",
    "armed": "hash",
    "slot_armed": "hash",
    "fence": "hash",
    "sealed": "set",
    "layout": "hash",
    "woken": "zset",
    "watchers": "zset",
}
_GROUP_TYPES = {
    "log": "list",
    "waiting": "zset",
    "ranks": "zset",
    "prepared": "hash",
    "dead": "zset",
    "body": "hash",
    "reason": "hash",
    "named": "zset",
    "taken": "zset",
    "taken_ms": "hash",
    "ids": "zset",
}
_SLOT_TYPES = {"prepare": "zset", "dead": "zset", "rests": "zset"}


def expected_type(key: str) -> str:
    """Return the type of value that a key of this layout holds, as the server's TYPE names it."""
    if key.startswith("{emq:"):
        name = key.partition("}:")[2].partition(":")[0]
        return _SHARD_TYPES.get(name) or _GROUP_TYPES.get(name, "string")
    prefix, brace, _ = key.partition("{")
    return _SLOT_TYPES.get(prefix, "hash") if brace and key.endswith("}") else "zset"


def is_shared(key: str) -> bool:
    """Return whether all queues of a storage shard need the key."""
    return key.startswith("{emq:") and key.partition("}:")[2] in _SHARD_TYPES
