"""Audit a made-up clean run: records a second, cost for each record at a tenth of the size, and peak memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from bench.spark.synthetic import Shape, write
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage
from emq.runtime.errors import EMQError

SECONDS = 200
"""Seconds of the made-up run; the number of tenants follows from the records."""

SHARED = 0.01
"""Largest share by which the address spaces of a parent and a child that shares its memory may differ."""


async def run(
    stage: Stage, records: int, memory: str, cores: int, idle: int, skew: float, keys_wait: bool
) -> dict[str, Any]:
    """Audit a tenth of the records, then all; each audit runs in a process of its own.

    Raises:
        EMQError: Spark or Java is missing, or the audit of a clean run found something.
    """
    sizes = max(1, records // 10), records
    small, large = [await asyncio.to_thread(_measure, n, memory, cores, idle, skew, keys_wait) for n in sizes]
    return {
        "records": large["records"],
        "events": large["events"],
        "records_per_s": large["records"] / large["audit_s"],
        "small_records_per_s": small["records"] / small["audit_s"],
        "cost_ratio": (large["audit_s"] / large["records"]) / (small["audit_s"] / small["records"]),
        "audit_s": large["audit_s"],
        "made_s": large["made_s"],
        "peak_memory_mb": large["peak_mb"],
        "driver_memory_mb": large["driver_mb"],
        "java_memory_mb": large["java_mb"],
        "workers_memory_mb": large["workers_mb"],
        "small_peak_memory_mb": small["peak_mb"],
    }


def _measure(*arguments: Any) -> dict[str, Any]:
    """Call `_audit` with these arguments in a process of its own."""
    command = [sys.executable, "-m", "bench.spark.audit", json.dumps(arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = _Peak(process.pid)
    peak.start()
    try:
        out, err = process.communicate()
    finally:
        peak.stop()
    if process.returncode:
        raise EMQError(f"the audit failed: {(err.strip().splitlines() or ['no output'])[-1]}")
    each = {f"{part}_mb": size / 1e6 for part, size in peak.parts.items()}
    return {**json.loads(out.splitlines()[-1]), "peak_mb": peak.bytes / 1e6, **each}


class _Peak(threading.Thread):
    """The most memory that a process and its children held, measured ten times a second.

    Attributes:
        bytes: of all together.
        parts: of the driver (the process itself), of Java, and of all Python workers together.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.bytes = 0
        self.parts = dict.fromkeys(("driver", "java", "workers"), 0)

    def run(self) -> None:
        while not self._ended.wait(0.1):
            held = _resident(self._process)
            self.bytes = max(self.bytes, sum(held.values()))
            self.parts = {part: max(size, held[part]) for part, size in self.parts.items()}

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _resident(parent: psutil.Process) -> dict[str, int]:
    """Return the bytes of memory that the parts hold, see `_Peak.parts`; 0 for what is gone.

    A child with as much address space as its parent has just been spawned and shares the parent's memory, which counts
    once.
    """
    space: dict[int, int] = {}  # bytes of address space by process; a parent comes before its children
    held = dict.fromkeys(("driver", "java", "workers"), 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                memory, of_parent = process.memory_info(), space.get(process.ppid(), 0)
                space[process.pid] = memory.vms
                part = "driver" if process is parent else "java" if process.name() == "java" else "workers"
                held[part] += 0 if abs(memory.vms - of_parent) < of_parent * SHARED else memory.rss
    return held


def _audit(records: int, memory: str, cores: int, idle: int, skew: float, keys_wait: bool) -> dict[str, Any]:
    """Make and audit one run."""
    from emq_spark.audit.offset_audit import AuditOptions, audit
    from emq_spark.session import local_session

    shape = Shape.of(records, SECONDS, idle=idle, skew=skew, keys_wait=keys_wait)
    with tempfile.TemporaryDirectory(prefix="emq-bench-") as directory:
        began = time.monotonic()
        ledgers, trail = write(Path(directory), shape)
        made_s = time.monotonic() - began
        spark = local_session("bench audit", cores, memory)
        # The measurement covers the work for each record, not Spark's own start.
        warm = Path(directory) / "warm"
        warm_ledgers, warm_trail = write(warm, Shape(2, 4))
        audit(spark, AuditOptions([warm_trail], [warm_ledgers], topics=Shape(2, 4).catalog()))
        began = time.monotonic()
        result = audit(spark, AuditOptions([trail], [ledgers], topics=shape.catalog()))
        audit_s = time.monotonic() - began
        spark.stop()
    if not result.ok:
        raise EMQError(f"a clean run was found broken: {result.kinds[:1] or result.flaws[:1]}")
    return {"records": shape.messages, "events": result.counts["events"], "audit_s": audit_s, "made_s": made_s}


BENCHMARK = Benchmark(
    run,
    options=(
        ("records", 20_000_000, "messages in the ledger"),
        ("memory", "4g", "memory of Spark's Java process"),
        ("cores", 2, "cores that Spark may use"),
        ("idle", 0, "further topics, whose groups have owners and no messages"),
        ("skew", 0.0, "share of the messages that one topic has"),
        ("keys-wait", False, "let messages of the highest priority wait for their keys"),
    ),
    figures=(Figure("cost_ratio", "<=", 1.3), Figure("peak_memory_mb", "<=", 8_000)),
    stores=("memory",),
)


if __name__ == "__main__":
    print(json.dumps(_audit(*json.loads(sys.argv[1]))))
