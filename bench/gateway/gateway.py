"""The gateway to models of examples/gateway beside LiteLLM's router: limits, refusals, urgent calls, tenants.

Each gateway gets the same load for `--seconds`, from the beginning of a minute, against a fresh stand-in of the
providers on loopback. `make bench-peers` installs LiteLLM; without it, EMQ runs alone. `python -m bench gateway --json
> FILE` and `python -m bench.gateway.page FILE` write the table in docs/model-gateway.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import peers
from bench.peers.field import PLACE, ROOT
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage
from emq_scheduling.model import Pool
from emq_scheduling.pools import documents

EXAMPLE = ROOT / "examples" / "gateway"
LITELLM = PLACE / "python" / "litellm" / "bin" / "python"
READY_S, END_S = 120.0, 60.0


class Side(NamedTuple):
    """One gateway of the comparison; `settings` are those of LiteLLM's router."""

    name: str
    driver: str
    interpreter: str
    settings: dict[str, Any]


SIDES = (
    Side("EMQ", "emq_driver", sys.executable, {}),
    Side("LiteLLM, as it comes", "litellm_driver", str(LITELLM), {}),
    Side("LiteLLM, by usage", "litellm_driver", str(LITELLM), {"routing_strategy": "usage-based-routing-v2"}),
    Side(
        "LiteLLM, limits enforced",
        "litellm_driver",
        str(LITELLM),
        {"optional_pre_call_checks": ["enforce_model_rate_limits"]},
    ),
)


async def run(stage: Stage, *, seconds: int, only: str) -> dict[str, Any]:
    results = []
    for side in SIDES:
        if not any(part.strip().lower() in side.name.lower() for part in only.split(",")):
            continue
        if not os.access(side.interpreter, os.X_OK):
            stage.say(f"{side.name}: not run: LiteLLM is not installed (make bench-peers)")
            continue
        results.append({"name": side.name, **await measured(stage, side, seconds)})
        stage.say(json.dumps(results[-1]))
    told = {
        "date": datetime.date.today().isoformat(),
        "machine": peers.machine(),
        "litellm": version(),
        "seconds": seconds,
        "results": results,
    }
    own = next((each for each in results if each["name"] == "EMQ"), None)
    return {**(figures(own) if own else {}), **told}


async def measured(stage: Stage, side: Side, seconds: int) -> dict[str, Any]:
    """Run the load through one gateway; return its figures."""
    directory = stage.directory / side.name.replace(" ", "-")
    directory.mkdir()
    text = (EXAMPLE / "models.toml").read_text().replace("8070", str(port := free_port()))
    (directory / "models.toml").write_text(text)
    pool = documents.load(text)
    orders = {
        "directory": str(directory),
        "example": str(EXAMPLE),
        "pool": str(directory / "models.toml"),
        "seconds": seconds,
        "deployments": deployments(pool),
        "settings": side.settings,
    }
    providers = [sys.executable, str(EXAMPLE / "providers.py"), str(directory / "models.toml"), str(port)]
    async with process(providers, directory):
        driver = [side.interpreter, "-m", f"bench.gateway.{side.driver}", json.dumps(orders)]
        async with process(driver, directory) as child:
            async with asyncio.timeout(READY_S):
                while (line := await child.stdout.readline()) != b"ready\n":
                    if not line:
                        raise RuntimeError(f"{side.name} did not start: {(directory / 'errors').read_text()[-2000:]}")
            begin = math.ceil((time.time() + 1) / 60) * 60
            stage.say(f"{side.name}: from {datetime.datetime.fromtimestamp(begin):%H:%M:%S} on, for {seconds} s")
            child.stdin.write(f"{begin}\n".encode())
            async with asyncio.timeout(begin - time.time() + seconds + END_S):
                while not (line := await child.stdout.readline()).startswith(b"{"):
                    if not line:
                        raise RuntimeError(f"{side.name} ended: {(directory / 'errors').read_text()[-2000:]}")
        seen = json.loads(line)
        return judged(pool, seen, await asyncio.to_thread(stats_of, port), begin, seconds)


def stats_of(port: int) -> dict[str, Any]:
    """Return what the providers have counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats") as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def judged(
    pool: Pool, seen: Mapping[str, Any], stats: Mapping[str, Any], begin: float, seconds: float
) -> dict[str, Any]:
    """Return the figures of a run: from what the callers saw, and what the providers counted."""
    tokens = {tenant: count for tenant, count in stats["tokens_by_user"].items() if tenant}
    use = {}
    for limit in stats["limits"]:
        if limit["per"] != "in_flight":
            used = sum(limit["used"].get(str(at), 0) for at in range(int(begin // 60), int((begin + seconds) // 60)))
            use[f"{limit['name']}/{limit['per']} of {limit['of']}"] = round(100 * used / available(limit, seconds), 1)
    return {
        "use": use,
        "refusals": int(sum(limit["refused"] for limit in stats["limits"])),
        "calls": sum(stats["calls"].values()),
        "chats": len(seen["first_word_s"]),
        "chat_p50_s": round(percentile(seen["first_word_s"], 50), 2),
        "chat_p99_s": round(percentile(seen["first_word_s"], 99), 2),
        "unanswered_chats": seen["unanswered_chats"],
        "errors": seen["errors"],
        "late_s": round(seen["late_s"], 2),
        "cpu_s": round(seen["cpu_s"], 1),
        "tokens": tokens,
        "shares": shares(tokens),
        "share_error": share_error(pool, tokens),
    }


def available(limit: Mapping[str, Any], seconds: float) -> float:
    """Return the units that a limit allows in a run that begins with a minute."""
    if limit["per"] == "day":
        return float(limit["amount"] - limit["used_by_others"])
    burst = limit["burst"] if limit["kind"] == "bucket" else 0.0
    return float(burst + limit["amount"] * seconds / 60)


def shares(tokens: Mapping[str, float]) -> dict[str, float]:
    return {tenant: round(100 * units / sum(tokens.values()), 1) for tenant, units in tokens.items()}


def share_error(pool: Pool, tokens: Mapping[str, float]) -> float:
    """Return the largest difference of a tenant's part of the batch tokens to its part by weight, in percent points."""
    weights = {tenant: each.weight for tenant, each in pool.tenants.items()}
    fair = {tenant: 100 * weight / sum(weights.values()) for tenant, weight in weights.items()}
    found = shares(tokens)
    return round(max(abs(found.get(tenant, 0.0) - part) for tenant, part in fair.items()), 1)


def deployments(pool: Pool) -> list[dict[str, Any]]:
    """Return what LiteLLM's router can know of the pool: of each model the least limit of its chain."""
    known = {("requests", "minute"): "rpm", ("tokens", "minute"): "tpm", ("requests", "day"): "rpd"}
    found = []
    for name, resource in pool.resources.items():
        if not resource.takes:
            continue
        limits: dict[str, Any] = {}
        for limit in (limit for each in pool.chain(name) for limit in each.limits):
            key = "max_parallel_requests" if limit.per == "in_flight" else known[limit.name, limit.per]
            limits[key] = min(limits.get(key, math.inf), int(limit.amount))
            if limit.zone is not None:
                limits["daily_reset_time"] = "08:00"  # midnight in Los Angeles, in winter, by UTC
        found.append(
            {"model": name, "group": "large" if "chat" in resource.takes else "small", "limits": limits}
            | {key: pool.attributes(name)[key] for key in ("url", "key")}
        )
    return found


def figures(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return EMQ's figures that have a bound."""
    return {
        "use_percent": max(own["use"].values()),
        "refusals": own["refusals"],
        "urgent_p99_s": own["chat_p99_s"],
        "share_error": own["share_error"],
    }


def version() -> str:
    """Return the version of LiteLLM; empty if it is not installed."""
    program = "import importlib.metadata as m; print(m.version('litellm'))"
    try:
        return subprocess.run([LITELLM, "-c", program], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.asynccontextmanager
async def process(command: list[str], directory: Path) -> AsyncIterator[Any]:
    """Run a command during the block; its errors go to a file in the directory."""
    with (directory / "errors").open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *(sys.path if command[0] == sys.executable else ())]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


BENCHMARK = Benchmark(
    run,
    options=(
        ("seconds", 180, "of the load; whole minutes, since limits count by the minute"),
        ("only", "", "parts of the names of the gateways to run, with commas between; all if empty"),
    ),
    figures=(Figure("urgent_p99_s", "<", 1.0), Figure("share_error", "<=", 3.0)),
    stores=("sqlite",),
    short={"seconds": 60},
)
