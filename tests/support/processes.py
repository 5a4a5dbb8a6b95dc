"""Host processes to kill, and the receipts that they left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from emq.offsets.checkpoints import Checkpoint

SCRIPT = Path(__file__).with_name("host_process.py")


class Receipt(NamedTuple):
    what: str
    id: str
    attempt: int
    topic: str
    group: int
    priority: int
    offset: int
    started_us: int


class Receipts:
    """The lines that handlers wrote, over all the lives of their process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> list[Receipt]:
        lines = self.path.read_text().split("\n")[:-1]
        return [_parsed(line) for line in lines]

    def starts(self) -> list[Receipt]:
        return [r for r in self.read() if r.what == "s"]

    def done(self) -> set[str]:
        return {r.id for r in self.read() if r.what == "e"}

    def repeated(self) -> Counter[tuple[str, int]]:
        """Return the deliveries, by message and attempt, beyond the first."""
        counts = Counter((r.id, r.attempt) for r in self.starts())
        return Counter({delivery: n - 1 for delivery, n in counts.items() if n > 1})


def _parsed(line: str) -> Receipt:
    what, id_, attempt, topic, group, priority, offset, started_us = line.split(" ")
    return Receipt(what, id_, int(attempt), topic, int(group), int(priority), int(offset), int(started_us))


class HostProcess:
    def __init__(self, store: str, database: str, receipts: Receipts, handler_ms: float, checkpoint_s: float) -> None:
        self._arguments = [store, database, str(receipts.path), str(handler_ms), str(checkpoint_s)]
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *self._arguments], stderr=subprocess.PIPE, text=True
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def terminate(self, timeout_s: float = 15.0) -> int:
        """Ask for a clean stop; return the exit status."""
        self.signal()
        return self.wait(timeout_s)[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 15.0) -> tuple[int, str]:
        """Return the exit status and the text on standard error."""
        _, text = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, text

    @property
    def running(self) -> bool:
        return self._process.poll() is None


@contextmanager
def host(
    store: str, database: str, receipts: Receipts, *, handler_ms: float = 20.0, checkpoint_s: float = 0.3
) -> Iterator[HostProcess]:
    """Yield a host process; kill it at the end if it still runs."""
    process = HostProcess(store, database, receipts, handler_ms, checkpoint_s)
    try:
        yield process
    finally:
        if process.running:
            process.kill()


def wait_for(holds: Callable[[], bool], process: HostProcess, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert process.running, process.wait()
        assert time.monotonic() < deadline, f"did not come true within {timeout_s:g} s"
        time.sleep(0.02)


def not_covered(
    starts: Sequence[Receipt], checkpoints: Mapping[str, Checkpoint], priorities: Sequence[str]
) -> set[str]:
    """Return the ids of messages that were started and are not finished by their queue's checkpoint."""
    found = set()
    for r in starts:
        checkpoint = checkpoints.get(f"{r.topic}/{r.group}/{priorities[r.priority]}", Checkpoint("", 0, 0))
        finished = r.offset < checkpoint.watermark or any(s <= r.offset < e for s, e in checkpoint.finished)
        if r.offset < 0 or not finished:
            found.add(r.id)
    return found
