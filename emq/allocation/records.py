"""The records in the nodes of the coordination tree, and the paths of these nodes.

Under `/emq/<environment>`:

    running/<host>              ephemeral: `Running`, a host's announcement of itself
    leases/<incarnation>        ephemeral: the host writes it at each heartbeat; nobody watches it
    leader/n-<number>           ephemeral: candidates; the lowest number leads
    serverlist                  `Record`: the plan in force, and the lists that make it up
    serverlist/<host>/<generation>-<chunk>   the groups of a host; never changed once written
    operator/<host>             `Order`: an operator's wishes for a host; outlives the host
    catalog                     the version of the topic catalog that the plan was made of

A list counts only when the record names it, so that a plan comes into force as a whole, by one write.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from emq.runtime import errors
from emq.storage.names import parts_of

MAGIC = b"EMQ1"
"""First bytes of every node's data: the format and its version."""

CHUNK_BYTES = 900_000
"""Most bytes in one list node; ZooKeeper takes less than 1 MB."""

EVERYBODY = "*"
"""Value of `Former.host` for every host that was a member then."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,199}")


class Paths:
    """The paths of the nodes of one environment."""

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
    """A host's announcement of itself.

    Attributes:
        incarnation: random name of this session of this process; a host that comes back has another one.
        machine, pid: the machine and process in which the host runs.
        weight: the host's configured share, compared with the others'.
        joined_s: time of the join, by the host's clock, in seconds since 1970.
        leaving: whether the host is stopping cleanly and wants others to take over its groups.
        generation: the newest plan that the host follows; of the groups that plans took, it still holds `draining`.
        draining: groups that the host lost and has not let go of yet.
        released_s: time at which the host last let go of a group, by its clock.
        fenced: group to epoch, for groups that the host lost to somebody outside of the cluster and wants again.
        ahead_s: seconds by which the host's clock is ahead of the ensemble's, roughly.
        trouble: the server that the host cannot reach, and since when; empty while all is well.
        serves: patterns of the topics that have a handler on the host; None for all topics, or where unknown.
        level: the highest feature level that the host can read; see `emq.database.levels`.
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
    level: int = 1

    def has_let_go(self, group: str, generation: int) -> bool:
        """Return whether the host has let go of a group that plan `generation` took from it."""
        return self.generation >= generation and group not in self.draining


class Former(NamedTuple):
    """A host that may still hold a group until it has let go of the groups that plan `generation` took from it."""

    host: str
    incarnation: str
    generation: int


class Entry(NamedTuple):
    """One group in a host's list.

    Attributes:
        epoch: the generation in which the host got the group; the group's fencing number. A generation is the time of
            its plan in microseconds since 1970, or the one before plus 1.
        why: a value of `emq.allocation.plan.levelling.PlacementReason`.
        after: the former owners that must let go of the group first.
        is_first: True if no host had the group before: the plan before knew it not at all.
    """

    epoch: int
    why: str
    after: tuple[Former, ...] = ()
    is_first: bool = False


class Pointer(NamedTuple):
    """The place of a host's list: nodes `<generation>-0` to `<generation>-<chunks - 1>`; no node if `chunks` is 0."""

    incarnation: str
    generation: int
    chunks: int


class Record(msgspec.Struct, frozen=True):
    """The plan in force.

    Attributes:
        generation: number of the plan; grows with each plan.
        catalog: version of the topic catalog that the plan was made of.
        leader: the host that made the plan.
        planned_s: time of the plan, by the leader's clock, in seconds since 1970.
        lists: host to the place of its list, for every host that the plan knows.
        max_over_mean: the largest load of a host, over its fair share.
    """

    environment: str
    generation: int
    catalog: int
    leader: str
    planned_s: float
    lists: dict[str, Pointer]
    max_over_mean: float = 1.0


class Order(msgspec.Struct, frozen=True):
    """An operator's wishes for a host.

    Attributes:
        weight: replaces the host's configured weight; None to keep the configured weight.
        drain: whether the host shall have no groups.
    """

    weight: float | None = None
    drain: bool = False


Kind = TypeVar("Kind", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """Return a record as a node's data; `decode` reads it."""
    return MAGIC + zlib.compress(msgspec.json.encode(record), 6)


def decode(data: bytes, kind: type[Kind], path: str) -> Kind:
    """Return the record that `encode` made into `data`.

    Raises:
        ForeignTree: `encode` did not make this data; the text names `path`.
    """
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as EMQ's nodes do")
        return msgspec.json.decode(zlib.decompress(data[len(MAGIC) :]), type=kind)
    except (ValueError, zlib.error, msgspec.DecodeError) as exc:
        raise _foreign(path, exc) from exc


def encode_list(entries: Mapping[str, Entry]) -> list[bytes]:
    """Return a host's groups as the data of one or more nodes; no node without groups."""
    topics: dict[str, list[tuple[int, Entry]]] = {}
    for group, entry in entries.items():
        topic, index = parts_of(group)
        topics.setdefault(topic, []).append((index, entry))
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
    """Return the groups that `encode_list` made into `chunks`. Raises `ForeignTree` like `decode`."""
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
    """Raise `InvalidSettings` for a host name that cannot be the name of a node."""
    if not _NAME.fullmatch(name):
        raise errors.InvalidSettings(
            f"host name {name!r} cannot be used in a cluster; take letters, digits, '.', '_', '@' and '-', at most 200"
        )
