"""What the day writes down by itself, independently of the trail: publishes, runs of handlers, deaths."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from emq.topics.model import Topic


class Sent(NamedTuple):
    """A publish that returned.

    Attributes:
        name: what the payload says; unique within the topic, unless it merges.
        how: "plain", "delayed", "mortal" (may expire), "scheduled" (the name is the schedule's id) or "sum".
        amount: of a sum: what was published; of a schedule: how many occurrences.
        begun_us, done_us: wall time of the call and of its return.
        id: of the message; empty where nobody asks for it.
    """

    topic: str
    name: str
    key: str | None
    priority: int
    how: str
    amount: int
    begun_us: int
    done_us: int
    id: str = ""


class Run(NamedTuple):
    """A run of a handler.

    Attributes:
        host: name of the host process's life.
        started_us: the host's own stamp; caps are judged by it.
        begun_us, ended_us: wall time in the handler; None for no end.
        outcome: "done", "failed", "cancelled", or "" while it has not ended.
    """

    host: str
    topic: str
    name: str
    id: str
    group: int
    priority: int
    attempt: int
    key: str | None
    ready_us: int
    started_us: int
    begun_us: int
    ended_us: int | None = None
    outcome: str = ""


class Death(NamedTuple):
    """A dead letter that lay in the store at the end."""

    topic: str
    name: str
    reason: str


class Version(NamedTuple):
    """A topic as it was from `from_us` on."""

    from_us: int
    topic: Topic


@dataclasses.dataclass
class Evidence:
    """All that the judge goes by.

    Attributes:
        killed: wall time at which the life of a host was ended by a SIGKILL.
        disturbed_us: when hosts were killed, stopped or started.
        started_us: when each life of a host was started; its first run may come much later.
        late: from when to when a host or its store had no time.
        recalled: (topic, name) of what was taken back.
        versions: of each topic, as it was created and changed.
        strict, serial, keyed: names of topics; `serial` run one message of a group at a time.
        unknown: (topic, name, amount of a sum) of publishes that may have happened.
        moving: topics of `keyed` whose number of groups changes.
        dropping: topics that drop their oldest messages.
        forced: topic, and wall time of the return, of each deletion with force.
    """

    seed: int
    sent: list[Sent] = dataclasses.field(default_factory=list)
    runs: list[Run] = dataclasses.field(default_factory=list)
    deaths: list[Death] = dataclasses.field(default_factory=list)
    killed: dict[str, int] = dataclasses.field(default_factory=dict)
    disturbed_us: list[int] = dataclasses.field(default_factory=list)
    started_us: dict[str, int] = dataclasses.field(default_factory=dict)
    late: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    recalled: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    versions: dict[str, list[Version]] = dataclasses.field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    serial: frozenset[str] = frozenset()
    keyed: frozenset[str] = frozenset()
    merging: frozenset[str] = frozenset()
    unknown: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    moving: frozenset[str] = frozenset()
    dropping: frozenset[str] = frozenset()
    forced: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    _before: dict[tuple[int, int, int], int] = dataclasses.field(default_factory=dict)

    def before(self, at_us: int, us: int) -> int:
        """Go back from `at_us` over `us` microseconds in which nobody was late; return that time."""
        asked = at_us, us, len(self.late)
        if asked not in self._before:
            since_us = at_us - us
            for begun_us, ended_us in sorted(self.late, key=lambda span: -span[1]):
                if ended_us <= since_us:
                    break
                if begun_us < at_us:  # spans of several hosts may overlap
                    since_us -= min(ended_us, at_us) - begun_us
                    at_us = begun_us
            self._before[asked] = since_us
        return self._before[asked]


def now_us() -> int:
    return time.time_ns() // 1000


class Journal:
    """A file of JSON lines, each written by one call, so that a kill cannot lose or halve one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *fields: object) -> None:
        os.write(self._file, (json.dumps(fields) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


class Runs:
    """The runs that hosts have journalled in a directory, read on as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self._open: dict[tuple[str, int], int] = {}
        self.all: list[Run] = []

    def read(self) -> list[Run]:
        """All runs until now."""
        for path in sorted(self._directory.glob("*.runs")):
            for fields in self._lines(path):
                self._take(path.stem, fields)
        return self.all

    def _lines(self, path: Path) -> Iterator[list[object]]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            yield json.loads(line)

    def _take(self, host: str, fields: list[object]) -> None:
        number, at_us, outcome, *rest = fields
        place = (host, int(str(number)))
        if rest:
            self._open[place] = len(self.all)
            topic, name, id_, group, priority, attempt, key, ready_us, started_us = rest
            self.all.append(
                Run(host, topic, name, id_, group, priority, attempt, key, ready_us, started_us, at_us)  # type: ignore[arg-type]
            )
        else:
            index = self._open.pop(place)
            self.all[index] = self.all[index]._replace(ended_us=at_us, outcome=outcome)  # type: ignore[arg-type]


def late_moments(directory: Path) -> list[tuple[int, int]]:
    """From when to when a host in a directory, or its store, had no time."""
    lines = [line for path in directory.glob("*.late") for line in path.read_text().splitlines()]
    return [(begun_us, ended_us) for begun_us, ended_us in map(json.loads, lines)]


def shown(run: Run, killed: Mapping[str, int]) -> str:
    """One line about a run, for a judgement."""
    end = run.outcome or ("killed" if run.host in killed else "unfinished")
    return (
        f"{run.topic}/{run.group} {run.name} (attempt {run.attempt}, priority {run.priority}, key {run.key}) on "
        f"{run.host} ready {run.ready_us} started {run.started_us} began {run.begun_us} {end} {run.ended_us}"
    )
