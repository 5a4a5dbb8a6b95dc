"""The pieces of work that EMQ and its peers do, and how each is measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.field import EACH, Peer
from bench.peers.reports import Report, caps_of, read
from bench.peers.running import POLL_S, Driver, DriverFailed, Place, used_by
from bench.support.figures import percentile

START_S = 90.0
"""A worker that starts no message within this time is not measured."""

WAIT_S = 0.05
"""What a handler waits that stands for one with a request or a query in it."""

CAPPED, CAP = 100, 10
VICTIMS, VICTIMS_PER_S, FLOOD = 200, 400.0, 20_000
FLOOD_WAIT_S, FLOOD_IN_FLIGHT, FLOOD_CAP = 0.02, 100, 20
NEW, OLD, NEW_PER_S = 1_000, 10, 100.0
KILL_QUEUES, KILL_PER_S = 20, 200.0


@dataclass(frozen=True)
class Sizes:
    """How large the works are.

    Attributes:
        messages: most messages of a drain.
        publish_s: publishing is cut after this time; what was published is drained.
        drain_s: a drain is cut after this time; the rate until then stands.
        seconds: how long idle workers, caps, calm and flood are watched.
        patience_s: how long messages may be missing after a kill, or tenants after a flood.
    """

    messages: int
    publish_s: float
    drain_s: float
    seconds: float
    patience_s: float


@dataclass(frozen=True)
class Work:
    """One row of the comparison.

    Attributes:
        name: for `--work`, and in the results.
        run: does the work with a peer; returns its figures.
        queues: how many queues it has; 0 if that is always the same.
    """

    name: str
    run: Callable[[Peer, Sizes], dict[str, Any]]
    queues: int = 0


def drain(peer: Peer, sizes: Sizes, queues: int, wait_s: float = 0.0) -> dict[str, Any]:
    """Publish to `queues` queues, then drain them; both rates are messages a second."""
    with Place(peer) as place:
        messages = max(sizes.messages, queues)
        published, published_s = place.publish(queues=queues, messages=messages, limit_s=sizes.publish_s)
        if not published:
            raise DriverFailed(f"{peer.name} published nothing within {sizes.publish_s:g} s")
        with place.working(queues=queues, wait_s=wait_s) as driver:
            began_s = time.perf_counter()
            before = _awaited(driver, driver.counted, 1, START_S)
            at_s = time.perf_counter()
            if not before:
                raise DriverFailed(f"{peer.name} started nothing within {START_S:g} s: {driver.said()}")
            started = _awaited(driver, driver.counted, published, sizes.drain_s)
            drained_s = time.perf_counter() - at_s
            memory_mb = driver.use().memory_mb
    return {
        "published": published,
        "published_per_s": round(published / published_s),
        "started": started,
        "drained_s": round(drained_s, 3),
        "drained_per_s": round((started - before) / drained_s),
        "start_s": round(at_s - began_s, 2),
        "memory_mb": round(memory_mb),
    }


def idle(peer: Peer, sizes: Sizes, queues: int) -> dict[str, Any]:
    """Let workers wait at empty queues that had messages; their memory and CPU, and the server's."""
    with Place(peer) as place:
        # EMQ's topics are there once something is published to them; workers of peers get the names of all queues.
        messages = queues if peer.is_emq or peer.language != "Python" else min(queues, 100)
        published, _ = place.publish(queues=queues, messages=messages, limit_s=sizes.publish_s)
        with place.working(queues=queues) as driver:
            _awaited(driver, driver.counted, 1, START_S)
            _awaited(driver, driver.counted, published, sizes.drain_s)
            time.sleep(sizes.seconds / 2)
            before, server_before = driver.use(), used_by(place.server.pid)
            time.sleep(sizes.seconds)
            driver.check()
            after, server_after = driver.use(), used_by(place.server.pid)
            left = published - driver.counted()
    return {
        "memory_mb": round(after.memory_mb),
        "cpu_percent": round((after.cpu_s - before.cpu_s) / sizes.seconds * 100, 1),
        "server_cpu_percent": round((server_after.cpu_s - server_before.cpu_s) / sizes.seconds * 100, 1),
        "server_memory_mb": round(server_after.memory_mb),
        "left": left,
    }


def caps(peer: Peer, sizes: Sizes) -> dict[str, Any]:
    """Drain 100 queues with a backlog at 10 a second each: least and most starts of a queue in a whole second."""
    if not peer.cap:
        return {"none": f"not measured: {peer.other_cap}" if peer.other_cap else "has none"}
    with Place(peer) as place:
        log = place.directory / "log"
        messages = round(CAPPED * CAP * (sizes.seconds + 10))
        published, _ = place.publish(queues=CAPPED, messages=messages, cap=CAP, limit_s=60.0)
        with place.working(queues=CAPPED, cap=CAP, log=str(log)) as driver:
            _awaited(driver, functools.partial(_lines, log), 1, START_S)
            time.sleep(3.0)  # it begins
            before, from_s = driver.use(), time.time()
            time.sleep(sizes.seconds)
            driver.check()
            after, to_s = driver.use(), time.time()
        least, most, mean = caps_of(read(log), CAPPED, from_s, to_s)
    return {
        "least": least,
        "most": most,
        "mean": round(mean, 2),
        "published": published,
        "cpu_percent": round((after.cpu_s - before.cpu_s) / sizes.seconds * 100, 1),
    }


def flood(peer: Peer, sizes: Sizes) -> dict[str, Any]:
    """Let 200 tenants publish in calm, and again beside one that floods: the p99 of their waits, in ms."""
    orders = {"wait_s": FLOOD_WAIT_S, "in_flight": FLOOD_IN_FLIGHT, "cap": FLOOD_CAP if peer.is_emq else 0}
    messages = round(VICTIMS_PER_S * sizes.seconds)
    tenants = {"first_queue": 1, "queues": VICTIMS, "messages": messages, "per_s": VICTIMS_PER_S}
    tenants |= {"limit_s": sizes.seconds * 4}
    found = {}
    with Place(peer) as place:
        for name in ("calm", "flood"):
            log = place.directory / name
            with place.working(queues=VICTIMS + 1, log=str(log), **orders) as driver:
                place.publish(**{**tenants, "messages": VICTIMS}, **orders)
                _awaited(driver, functools.partial(_lines, log), VICTIMS * 2, START_S)
                log.write_bytes(b"")
                flooding = {"queues": 1, "messages": FLOOD if name == "flood" else 0, "limit_s": sizes.seconds}
                with place.publishing(**flooding, **orders) as noise:
                    published, _ = place.publish(**tenants, **orders)
                    flooded, _ = noise.result()

                def waited(log: Path = log) -> int:
                    return sum(report.queue > 0 for report in read(log) if report.kind == "b")

                _awaited(driver, waited, published, sizes.patience_s)
                waits = [
                    report.at_s - report.published_s for report in read(log) if report.kind == "b" and report.queue
                ]
                late = published - len(waits)
                waits += [sizes.patience_s] * late
                found[name] = {"p99_ms": round(percentile(waits, 99) * 1000, 1), "late": late, "flooded": flooded}
    return {
        "calm_p99_ms": found["calm"]["p99_ms"],
        "flood_p99_ms": found["flood"]["p99_ms"],
        # Where the calm is too much already, a flood cannot make much worse what the ratio goes by.
        "ratio": round(found["flood"]["p99_ms"] / found["calm"]["p99_ms"], 2) if not found["calm"]["late"] else None,
        "calm_late": found["calm"]["late"],
        "flooded": found["flood"]["flooded"],
        "late": found["flood"]["late"],
    }


def newcomers(peer: Peer, sizes: Sizes) -> dict[str, Any]:
    """Publish to 1,000 tenants that appear beside running workers: the time to the start of their first message."""
    if peer.new_tenant:
        return {"needs": peer.new_tenant}
    with Place(peer) as place:
        log = place.directory / "log"
        place.publish(queues=OLD, messages=OLD)
        with place.working(queues=OLD, log=str(log)) as driver:
            _awaited(driver, functools.partial(_lines, log), OLD, START_S)
            published, _ = place.publish(first_queue=OLD, queues=NEW, messages=NEW, per_s=NEW_PER_S, limit_s=60.0)

            def begun() -> list[Report]:
                return [report for report in read(log) if report.kind == "b" and report.queue >= OLD]

            _awaited(driver, lambda: len(begun()), published, sizes.patience_s)
            waits = [report.at_s - report.published_s for report in begun()]
    return {
        "needs": "nothing",
        "p50_ms": round(percentile(waits, 50) * 1000, 1),
        "p99_ms": round(percentile(waits, 99) * 1000, 1),
        "undelivered": published - len(waits),
    }


def kill(peer: Peer, sizes: Sizes) -> dict[str, Any]:
    """Kill a worker with SIGKILL under load, start another at once: what is lost or repeated, and the gap."""
    orders = {"queues": KILL_QUEUES, "wait_s": WAIT_S, "in_flight": 100}
    with Place(peer) as place:
        log = place.directory / "log"
        messages = round(KILL_PER_S * sizes.seconds)
        first = {**orders, "messages": KILL_QUEUES}
        place.publish(**first)
        with place.working(log=str(log), **orders) as driver:
            _awaited(driver, functools.partial(_lines, log), KILL_QUEUES * 2, START_S)
            log.write_bytes(b"")
            with place.publishing(messages=messages, per_s=KILL_PER_S, limit_s=sizes.seconds * 4, **orders) as load:
                time.sleep(sizes.seconds / 3)
                driver.check()
                driver.kill()
                killed_s = time.time()
                with place.working(log=str(log), **orders) as heir:
                    published, _ = load.result()

                    def done() -> int:
                        return len({report.number for report in read(log) if report.kind == "e"})

                    _awaited(heir, done, published, sizes.patience_s)
        reports = read(log)
    begun = [report for report in reports if report.kind == "b"]
    flows: dict[int, float] = {}
    for report in begun:
        if report.at_s > killed_s:
            flows.setdefault(report.queue, report.at_s - killed_s)
    ended = {report.number for report in reports if report.kind == "e"}
    return {
        "published": published,
        "missing": published - len(ended),
        "repeated": len(begun) - len({report.number for report in begun}),
        "flows_s": round(max(flows.values()), 2) if len(flows) == KILL_QUEUES else None,
    }


def _awaited(driver: Driver, count: Callable[[], int], wanted: int, timeout_s: float) -> int:
    """Wait until `count()` is as large as wanted, or until the time is up; return the count."""
    deadline = time.perf_counter() + timeout_s
    pause_s = POLL_S if count == driver.counted else 0.2
    while (counted := count()) < wanted and time.perf_counter() < deadline:
        driver.check()
        time.sleep(pause_s)
    return counted


def _lines(log: Path) -> int:
    return len(read(log))


def works(queues: list[int]) -> Iterator[Work]:
    """Yield all works; those with empty or waiting handlers, and of idle workers, for each number of queues."""
    for n in queues:
        yield Work(f"drain-{n}", functools.partial(drain, queues=n), n)
    for n in queues:
        yield Work(f"wait-{n}", functools.partial(drain, queues=n, wait_s=WAIT_S), n)
    for n in queues:
        yield Work(f"idle-{n}", functools.partial(idle, queues=n), n)
    yield Work("caps", caps)
    yield Work("flood", flood)
    yield Work("new", newcomers)
    yield Work("kill", kill)


def done(peer: Peer, work: Work, sizes: Sizes) -> dict[str, Any]:
    """Do one work with one peer; return its figures, or `not_run` with the reason.

    A run takes an hour or two, so what goes wrong with one peer in one work is told, and the others go on.
    """
    if work.queues > peer.most_queues and peer.queues == EACH:
        return {"not_run": peer.why_most}
    try:
        return work.run(peer, sizes)
    except DriverFailed as failed:
        return {"not_run": str(failed)}
    except Exception as failed:
        return {"not_run": f"{type(failed).__name__}: {failed}"}
