"""Fits the model of `emq size` to steady flows, and checks it against three flows that it has not seen.

The fit is ordinary least squares of the relative errors, so that a small flow counts as much as a large one.
The constants go to `sizes.json` in the current directory; `tools/emq_cli/sizes.json` is the file that `emq size` reads.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage
from emq.runtime.settings import Settings
from emq_cli import sizing
from emq_cli.sizing import Flow


class Point(NamedTuple):
    """A flow, and what it cost: cores of the host and of the store, memory of the host, rows a second."""

    flow: Flow
    host_cores: float
    store_cores: float
    host_mb: float
    rows_per_s: float


SEEN = (
    Flow(300, 500, 100),
    Flow(300, 4_000, 100),
    Flow(3_000, 1_000, 100),
    Flow(3_000, 4_000, 100),
    Flow(3_000, 1_000, 20_000),
    Flow(3_000, 3_000, 5_000),
    Flow(20_000, 1_000, 100),
    Flow(20_000, 3_000, 100),
)
"""The flows that the model is fitted to: tenants awake, messages a second, bytes of a message."""

UNSEEN = (Flow(1_000, 2_500, 500), Flow(10_000, 2_000, 2_000), Flow(30_000, 1_500, 100))

OPTIONS = (("seconds", 12, 3, "seconds of watching each flow"),)
STORES = ("redis",)


async def run(stage: Stage, *, seconds: int) -> dict[str, Any]:
    points = [await _point(stage, flow, seconds) for flow in SEEN]
    sizes = sizing.Sizes(
        host_cores=_fitted(points, lambda p: p.host_cores, sizing.flow_terms),
        store_cores=_fitted(points, lambda p: p.store_cores, sizing.flow_terms),
        host_mb=_fitted(points, lambda p: p.host_mb, sizing.memory_terms),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
    )
    await asyncio.to_thread(Path("sizes.json").write_bytes, msgspec.json.format(msgspec.json.encode(sizes)) + b"\n")
    values: dict[str, Any] = {}
    for number, flow in enumerate(UNSEEN, 1):
        point = await _point(stage, flow, seconds)
        for name, told in sizing.predicted(sizes, flow, Settings().checkpoint_s).items():
            measured = getattr(point, name)
            values |= {f"unseen{number}_{name}": measured, f"unseen{number}_{name}_told": told}
            values[f"unseen{number}_{name}_ratio"] = told / measured
    values["model_worst"] = max(max(r, 1 / r) for name, r in values.items() if name.endswith("_ratio"))
    return values


async def _point(stage: Stage, flow: Flow, seconds: int) -> Point:
    """Measure a flow in processes of its own."""
    stage.say(f"{flow.awake} tenants, {flow.rate:g} messages a second of {flow.payload} bytes")
    sizes = {"tenants": flow.awake, "rate": round(flow.rate), "payload": flow.payload, "seconds": seconds}
    words = [word for name, value in sizes.items() for word in (f"--steady-{name}", str(value))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "growth", "--only", "steady", *words, "--json"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise InvalidRun(f"bench growth --only steady {' '.join(words)} ended with {process.returncode}")
    found = json.loads(out)
    rate = found["steady_per_s"]
    return Point(
        flow._replace(rate=rate),
        found["steady_host_us"] * rate / 1e6,
        found["steady_store_us"] * rate / 1e6,
        found["steady_host_mb"],
        found["steady_rows_per_s"],
    )


def _fitted(
    points: Sequence[Point], cost: Callable[[Point], float], terms: Callable[[Flow], Sequence[float]]
) -> list[float]:
    """Return what each term costs, none below zero."""
    from scipy.optimize import nnls

    costs = np.array([cost(point) for point in points])
    rows = np.array([terms(point.flow) for point in points]) / costs[:, None]
    found, _ = nnls(rows, np.ones(len(points)))
    return [float(each) for each in found]
