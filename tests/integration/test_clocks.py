"""Hosts whose machines' clocks differ by an hour count the same seconds: real servers, two hosts, groups that move."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest

from emq import App
from emq.database.environment_time import EnvironmentTime
from emq.runtime import timekeeping
from emq.runtime.clock import SystemClock
from emq.runtime.settings import Settings
from emq.runtime.timekeeping import Asked
from emq.storage.message import Message
from support.waiting import until

HOUR_NS = 3600 * 10**9
QPS = 20
_names = itertools.count()


class Starts:
    def __init__(self) -> None:
        self.at_us: list[int] = []
        self.hosts: Counter[str] = Counter()
        self.wrong_s: list[float] = []

    async def take(self, m: Message, host: str) -> None:
        self.at_us.append(m.started_us)
        self.hosts[host] += 1
        self.wrong_s.append(abs(m.started_us / 1e6 - time.time()))


def app(redis_url: str, postgres_url: str, host: str, ahead_ns: int, starts: Starts) -> App:
    made = App(options=Settings(store=redis_url, database=postgres_url, host_name=host, session_timeout_s=2.0))
    made.clock = SystemClock(lambda: time.time_ns() + ahead_ns)

    async def handler(m: Message) -> None:
        await starts.take(m, host)

    made.handler("*")(handler)
    return made


async def test_groups_that_move_between_hosts_an_hour_apart_keep_their_cap(redis_url: str, postgres_url: str) -> None:
    topic, starts = f"clocks-{next(_names)}-{time.time_ns()}", Starts()
    apps = [app(redis_url, postgres_url, "on-time", 0, starts), app(redis_url, postgres_url, "ahead", HOUR_NS, starts)]
    async with apps[0], apps[1]:
        await apps[0].create_topic(topic, qps=QPS, group_qps=5)
        await apps[1].producer.refresh()
        await apps[1].publish_many(topic, [b"x"] * 400)
        async with apps[0].running():
            await asyncio.sleep(2.0)
            for _ in range(2):
                async with apps[1].running():
                    await asyncio.sleep(2.0)
            state = apps[1].timekeeper
            assert state is not None
            assert abs(state.state().corrected_s) < 1
        seconds = Counter(at_us // 1_000_000 for at_us in starts.at_us)
        await apps[0].admin.delete(topic, force=True)
    assert max(seconds.values()) <= QPS
    assert set(starts.hosts) == {"on-time", "ahead"}
    assert max(starts.wrong_s) < 0.5
    assert sum(seconds.values()) > QPS * 4


async def test_the_database_tells_the_time_of_an_environment(postgres_url: str) -> None:
    async with App(options=Settings(store="memory://", database=postgres_url)) as opened:
        asked = [await EnvironmentTime(opened.database, "online").ask(opened.clock.passed_us, True) for _ in range(3)]
        assert all(a.sent_us <= a.came_us for a in asked)
        assert [a.time_us for a in asked] == sorted(a.time_us for a in asked)
        assert abs(asked[-1].time_us / 1e6 - time.time()) < 5


async def test_an_app_that_is_no_host_follows_the_clock_after_an_error_that_nobody_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    ask = EnvironmentTime.ask

    async def breaks_once(*args: Any) -> Asked:
        asked.append(True)
        if len(asked) == 2:
            raise RuntimeError("unable to perform operation; the handler is closed")
        return await ask(*args)

    monkeypatch.setattr(EnvironmentTime, "ask", breaks_once)
    monkeypatch.setattr(timekeeping, "FIRST", 1)
    monkeypatch.setattr(timekeeping, "LOOK_S", 0.01)
    monkeypatch.setattr(timekeeping, "INTERVAL_S", 0.02)
    async with App("memory://clocks-broken", database="sqlite://"):
        await until(lambda: len(asked) > 4)
