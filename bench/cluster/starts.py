"""Records the starts of host processes, so that a kill loses none, and reads them while the processes run."""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from typing import NamedTuple

from bench.support.backlog import number_of
from emq.storage.message import Message

_RECORD = struct.Struct("<qq")


class Start(NamedTuple):
    """One start of a message. Starts are in the order of their times.

    Attributes:
        us: time of the start in microseconds since the epoch, by the clock of the host.
        host: number of the host process.
        number: number of the message, see `bench.support.backlog.fill`.
    """

    us: int
    host: int
    number: int


class StartFile:
    """The file to which one host process records its starts; `handle` is its handler.

    Each start is one unbuffered write to the file. A kill destroys the process's memory, and a message whose start was
    not recorded would count as lost.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(self, message: Message) -> None:
        os.write(self._file, _RECORD.pack(number_of(message.payload), message.started_us))


class Starts:
    """The starts of all hosts, by group; `read` reads the new records of the hosts' files.

    Args:
        groups: number of groups.
        per_group: messages published to each group; message `number` belongs to group `number // per_group`.
    """

    def __init__(self, groups: int, per_group: int) -> None:
        self.groups = groups
        self.per_group = per_group
        self.newest = [Start(0, -1, -1)] * groups
        self.moved_us = [0] * groups
        self._files: list[tuple[Path, int]] = []
        self._us = [array("q") for _ in range(groups)]
        self._host = [array("H") for _ in range(groups)]
        self._number = [array("q") for _ in range(groups)]

    def add_file(self, path: Path) -> None:
        """Add the file of the next host; hosts are numbered in this order."""
        path.write_bytes(b"")
        self._files.append((path, 0))

    def read(self) -> None:
        """Read the starts that were recorded since the last call."""
        for host, (path, position) in enumerate(self._files):
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            whole = len(data) - len(data) % _RECORD.size
            self._files[host] = path, position + whole
            for number, us in _RECORD.iter_unpack(data[:whole]):
                self.add(Start(us, host, number))

    def add(self, start: Start) -> None:
        group = start.number // self.per_group
        self._us[group].append(start.us)
        self._host[group].append(start.host)
        self._number[group].append(start.number)
        newest = self.newest[group]
        if start.us >= newest.us:
            if start.host != newest.host:
                self.moved_us[group] = start.us
            self.newest[group] = start

    def of(self, group: int) -> list[Start]:
        """Return all starts of a group, by time."""
        return sorted(map(Start, self._us[group], self._host[group], self._number[group]))

    def count(self, group: int) -> int:
        return len(self._us[group])

    def owners(self) -> list[int]:
        """Return for each group the host that started the newest of its messages; -1 if no host has started any."""
        return [newest.host for newest in self.newest]
