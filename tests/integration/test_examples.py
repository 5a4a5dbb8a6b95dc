"""Every example runs as a new user would run it, and prints what it promises to show."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import emq_servers as servers
from support.python_path import python_path

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 30.0
AT_ONCE = 3
"""They sleep more than they work; with more at once on two cores, some would be late."""

NEEDS_SERVERS = "rmq_interop.py"

LINES = {
    "range_merge.py": [r"^31 changes, indexed 4 times$"],
    "priority.py": [
        r"^order: account 20, account 110, account 100,",
        r"^the key account came last and was number [3-5] of 11$",
    ],
    "fixed_time.py": [
        r"^taken back: True$",
        r"(?s)^stamp closed.*^globe closed.*^clock closed.*^violin closed",
        r"^4 closed, 0 early, at most \d{1,2} ms late$",
    ],
    "merge_key.py": [
        r"^stock-moved: 7 \(merged from 4, last sent by sender 4\)$",
        r"^profile-saved: name=Anna \(merged from 3, last sent by sender 3\)$",
        r"^basket: apples \+ bread \+ butter \(merged from 3,",
        r"^temperature: 17\.\.21 \(merged from 4,",
    ],
    "serial_per_key.py": [
        r"^ordering slot: at most 1 at a time, of one customer at most 1$",
        r"^ordering key: at most 2 at a time, of one customer at most 1$",
        r"^ordering none: at most ([3-9]|1\d) at a time, of one customer at most [2-9]$",
    ],
    NEEDS_SERVERS: [
        r"^we got image 3, priority 23$",
        r"^we got image 2, priority 22$",
        r"^we got image 1, priority 21$",
        r"^the stranger got \[b'report 1', b'report 2'\]$",
        r"^and left 1$",
    ],
    "like_rabbitmq.py": [
        r"^refused: group 'mail/0' holds 8 of at most 8",
        r"^order: alarm, letter 1",
        r"(?s)^dead: code 1234, expired after 1\.[5-9] s$.*^dead: letter 5, expired after 2\.[5-9] s$",
        r"^dead: too patient, expired after 2\.[5-9] s$",
        r"^at most 3 in flight$",
    ],
    "like_rocketmq.py": [
        r"^18 levels: 1s, 5s, .*, 1h, 2h$",
        r"^refused: topic 'orders' has no delay level '25s'",
        *(rf"^{name}: \d{{1,2}} ms late$" for name in ("level", "enum", "timedelta", "any")),
        r"^bought after all, taken back: True$",
    ],
    "like_kafka.py": [
        r"^wanted 3 within 5 s: got 3 after 0\.[01] s$",
        r"^wanted 10 within 0\.5 s: got 1 after 0\.[56] s$",
        r"^wanted 1 within 5 s: got 1 after 0\.[7-9] s$",
        r"^wanted 4 within 5 s: got 4 after 0\.[4-7] s$",
    ],
    "like_activemq.py": [
        r"^planned: payday, cron 0 9 25 \* \* Asia/Tokyo$",
        r"(?s)^taken back: True$.*^taken back: True$",
        # Late on a busy machine, and never early.
        r"(?s)^thrice at [1-9]\.\d s.*^thrice at (1\.[5-9]|[2-9]\.\d) s.*^thrice at [2-9]\.\d s",
        r"(?s)^fails once at (1\.[5-9]|[2-9]\.\d) s, attempt 1$.*^fails once at (1\.[7-9]|[2-9]\.\d) s, attempt 2$",
        r"(?s)(^cron at .*){2}",
        r"(?s)(^missed all at .*){3}",
        r"^missed once at ",
    ],
    "like_redis_zset.py": [
        r"^fragile, attempt 3: claimed 1,",
        r"^idle for a second: \d{1,2} ms of CPU$",
        r"^in 50 ms: started \d{1,2} ms after its time$",
        r"^1 waits, 0 claimed, 0 dead$",
    ],
}


def _has_redis() -> bool:
    try:
        servers.start_redis().close()
    except servers.ServerMissing:
        return False
    return True


async def _run(name: str, cwd: Path, places: asyncio.Semaphore, **more: str) -> tuple[int, str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("EMQ_")}
    async with places:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", str(EXAMPLES / name)),
            cwd=cwd,
            env={**environ, "PYTHONPATH": python_path(EXAMPLES.parent), **more},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        except TimeoutError:
            process.kill()
            output, _ = await process.communicate()
            return -1, f"not over within {LIMIT_S:g} s:\n{output.decode()}"
    return process.returncode or 0, output.decode()


async def _run_all(names: list[str], cwd: Path) -> dict[str, tuple[int, str]]:
    places = asyncio.Semaphore(AT_ONCE)
    answers = await asyncio.gather(*(_run(name, cwd, places) for name in names))
    return dict(zip(names, answers, strict=True))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str]]]:
    """Exit status and output of each example, run side by side in an empty directory."""
    cwd = tmp_path_factory.mktemp("examples")
    names = [name for name in LINES if name != NEEDS_SERVERS or _has_redis()]
    yield asyncio.run(_run_all(names, cwd))
    assert not list(cwd.iterdir())  # with everything in memory, nothing is left behind


def test_every_example_is_listed_and_checked() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == set(LINES)
    listed = (EXAMPLES / "README.md").read_text()
    assert found <= set(re.findall(r"\]\((\w+\.py)\)", listed))


@pytest.mark.xdist_group("examples")  # they run once, side by side
@pytest.mark.parametrize("name", LINES)
def test_an_example_prints_what_it_promises(
    name: str, outputs: dict[str, tuple[int, str]], request: pytest.FixtureRequest
) -> None:
    if name not in outputs:
        request.getfixturevalue("redis_server")  # skips or fails, with the reason
    status, output = outputs[name]
    assert status == 0, output
    for line in LINES[name]:
        assert re.search(line, output, re.MULTILINE), f"{line}\n\n{output}"


def test_an_example_runs_on_the_store_that_the_environment_names(tmp_path: Path) -> None:
    store = tmp_path / "emq.db"
    status, output = asyncio.run(_run("range_merge.py", tmp_path, asyncio.Semaphore(1), EMQ_STORE=f"sqlite:///{store}"))
    assert status == 0, output
    assert re.search(LINES["range_merge.py"][0], output, re.MULTILINE), output
    assert store.stat().st_size
