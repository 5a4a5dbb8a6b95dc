"""What the nodes of the coordination tree hold, and where they are.

Under `/emq/<environment>`:

    running/<host>              ephemeral: `Running`, what a host says of itself
    leases/<incarnation>        ephemeral: written at each heartbeat; watched by nobody
    leader/n-<number>           ephemeral: candidates; the lowest number leads
    serverlist                  `Record`: the plan in force, and which lists make it up
    serverlist/<host>/<generation>-<chunk>   the groups of a host; never changed once written
    operator/<host>             `Order`: what an operator wants of a host; outlives it
    catalog                     the version of the topic catalog that the plan is of

A list counts only when the record names it, so that a plan comes into force as a whole, by one write.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from emq import errors

MAGIC = b"EMQ1"
"""Before every node's data: format and its version."""

CHUNK_BYTES = 900_000
"""Of one list node; ZooKeeper takes less than 1 MB."""

EVERYBODY = "*"
"""In `Former.host`: every host that was there then."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,199}")


class Paths:
    """Where things are in the tree of one environment."""

    def __init__(self, environment: str) -> None:
        self.root = f"/emq/{environment}"
        self.running = f"{self.root}/running"
        self.leases = f"{self.root}/leases"
        self.leader = f"{self.root}/leader"
        self.serverlist = f"{self.root}/serverlist"
        self.operator = f"{self.root}/operator"
        self.catalog = f"{self.root}/catalog"

    def host(self, name: str) -> str:
        return f"{self.running}/{name}"

    def lease(self, incarnation: str) -> str:
        return f"{self.leases}/{incarnation}"

    def lists(self, host: str) -> str:
        return f"{self.serverlist}/{host}"

    def list(self, host: str, generation: int, chunk: int) -> str:
        return f"{self.serverlist}/{host}/{generation}-{chunk}"

    def order(self, host: str) -> str:
        return f"{self.operator}/{host}"


class Running(msgspec.Struct, frozen=True):
    """What a host says of itself.

    Attributes:
        incarnation: of this session of this process; a host that comes back is another one.
        machine, pid: where it runs.
        weight: the share that it is set to take, compared with the others'.
        joined_s: when, by its clock.
        leaving: it is stopping cleanly and wants its groups taken over.
        generation: it has seen the plans up to this one, and holds nothing that they took from it but `draining`.
        draining: groups that it lost and has not let go of yet.
        released_s: when it last let go of something, by its clock.
        fenced: group to epoch: what it lost to somebody outside of the cluster, and wants under a new epoch.
        ahead_s: how far its clock is ahead of the ensemble's, about.
        trouble: what it cannot reach, and since when; empty while all is well.
        serves: patterns of the topics that it has a handler for; None for all, as far as anybody can tell.
    """

    incarnation: str
    machine: str
    pid: int
    weight: float
    joined_s: float
    leaving: bool = False
    generation: int = 0
    draining: tuple[str, ...] = ()
    released_s: float = 0.0
    fenced: dict[str, int] = {}
    ahead_s: float = 0.0
    trouble: str = ""
    serves: tuple[str, ...] | None = None

    def has_let_go(self, group: str, generation: int) -> bool:
        """Whether it does not hold the group any more, which that generation took from it."""
        return self.generation >= generation and group not in self.draining


class Former(NamedTuple):
    """A host that may still hold a group: until it has let go of what generation `generation` took from it."""

    host: str
    incarnation: str
    generation: int


class Entry(NamedTuple):
    """One group in a host's list.

    Attributes:
        epoch: the generation in which the host got it; its fencing number.
        why: of `emq.allocation.plan.plan.Why`.
        after: who must have let go of it before.
    """

    epoch: int
    why: str
    after: tuple[Former, ...] = ()


class Pointer(NamedTuple):
    """Where a host's list is: its nodes are `<generation>-0` to `<generation>-<chunks - 1>`; none if `chunks` is 0."""

    incarnation: str
    generation: int
    chunks: int


class Record(msgspec.Struct, frozen=True):
    """The plan in force.

    Attributes:
        generation: grows with each plan.
        catalog: version of the topic catalog that it was made of.
        leader: who made it.
        planned_s: when, by the leader's clock.
        lists: by host; every host that the plan knows.
        max_over_mean: the largest load of a host, compared with its share.
    """

    environment: str
    generation: int
    catalog: int
    leader: str
    planned_s: float
    lists: dict[str, Pointer]
    max_over_mean: float = 1.0


class Order(msgspec.Struct, frozen=True):
    """What an operator wants of a host.

    Attributes:
        weight: instead of the one that the host is set to; None to leave that.
        drain: it shall have no groups.
    """

    weight: float | None = None
    drain: bool = False


Kind = TypeVar("Kind", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """A node's data; read it with `decode`."""
    return MAGIC + zlib.compress(msgspec.json.encode(record), 6)


def decode(data: bytes, kind: type[Kind], path: str) -> Kind:
    """What `encode` made.

    Raises:
        ForeignTree: it did not make this; the text names `path`.
    """
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as EMQ's nodes do")
        return msgspec.json.decode(zlib.decompress(data[len(MAGIC) :]), type=kind)
    except (ValueError, zlib.error, msgspec.DecodeError) as exc:
        raise _foreign(path, exc) from exc


def encode_list(entries: Mapping[str, Entry]) -> list[bytes]:
    """A host's groups as the data of as many nodes as it takes."""
    topics: dict[str, list[tuple[int, Entry]]] = {}
    for group, entry in entries.items():
        topic, _, index = group.rpartition("/")
        topics.setdefault(topic, []).append((int(index), entry))
    return _chunks([*topics.items()]) if topics else []


def _chunks(topics: Sequence[tuple[str, list[tuple[int, Entry]]]]) -> list[bytes]:
    data = MAGIC + zlib.compress(msgspec.json.encode(topics), 6)
    if len(data) <= CHUNK_BYTES:
        return [data]
    if len(topics) > 1:
        half = len(topics) // 2
        return _chunks(topics[:half]) + _chunks(topics[half:])
    [(topic, groups)] = topics
    half = len(groups) // 2
    return _chunks([(topic, groups[:half])]) + _chunks([(topic, groups[half:])])


def decode_list(chunks: Iterable[bytes], path: str) -> dict[str, Entry]:
    """What `encode_list` made. Raises `ForeignTree` like `decode`."""
    entries: dict[str, Entry] = {}
    for data in chunks:
        try:
            if not data.startswith(MAGIC):
                raise ValueError("it does not begin as EMQ's nodes do")
            topics = _topics.decode(zlib.decompress(data[len(MAGIC) :]))
        except (ValueError, zlib.error, msgspec.DecodeError) as exc:
            raise _foreign(path, exc) from exc
        entries |= {f"{topic}/{index}": entry for topic, groups in topics for index, entry in groups}
    return entries


_topics = msgspec.json.Decoder(list[tuple[str, list[tuple[int, Entry]]]])


def _foreign(path: str, why: Exception) -> errors.ForeignTree:
    return errors.ForeignTree(
        f"node {path} of the coordination tree was not written by this EMQ, or is damaged ({why}); nothing was "
        "changed. Choose another chroot in `cluster`, or remove that node with ZooKeeper's own tools"
    )


def validate_host(name: str) -> None:
    """Raises `InvalidSettings` for a name that cannot be a node's."""
    if not _NAME.fullmatch(name):
        raise errors.InvalidSettings(
            f"host name {name!r} cannot be used in a cluster; take letters, digits, '.', '_', '@' and '-', at most 200"
        )
