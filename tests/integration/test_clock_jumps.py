"""What waits for a time starts by the host's clock, also where that leaves hours out or the machine was suspended."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime.clock import SystemClock
from support import rig
from support.rig import Seen
from support.virtual import virtual

pytestmark = virtual

LATE_S = 2.5
HOUR_S = 3_600


class Leaping:
    """A clock whose time leaps: it is corrected forward, or its machine was suspended while the loop's time stood."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.suspended_s = 0.0
        self.clock = SystemClock(lambda: int((1_700_000_000.25 + self._loop.time()) * 1e9), self._passed_ns)

    def _passed_ns(self) -> int:
        return int((self._loop.time() + self.suspended_s) * 1e9)

    def leap(self, how: str, by_s: int) -> None:
        if how == "corrected":
            self.clock.adjust(by_s * 10**6)
        else:
            self.suspended_s += by_s


@pytest.mark.parametrize("how", ["corrected", "suspended"])
async def test_delayed_messages_and_fixed_times_start_soon_after_the_clock_has_leapt_over_their_times(how: str) -> None:
    leaping = Leaping()
    async with rig.rig(leaping.clock) as r:
        await r.topic("log", 10)
        await r.topic("fixed", 10, kind="fixed_time", slots=1)
        seen = Seen()
        async with r.consuming(seen):
            await r.producer.publish("log", b"a", delay_ms=1_800_000)
            await r.producer.publish("fixed", b"b", delay_ms=1_800_000)
            await asyncio.sleep(10)
            assert not seen
            leaping.leap(how, HOUR_S)
            await asyncio.sleep(LATE_S)
            assert sorted(seen.payloads) == [b"a", b"b"]


@pytest.mark.parametrize("how", ["corrected", "suspended"])
async def test_a_group_with_a_small_quota_starts_in_its_next_second_where_the_clock_leaps_to_just_before_it(
    how: str,
) -> None:
    leaping = Leaping()
    async with rig.rig(leaping.clock) as r:
        await r.topic("rare", 0.01)
        seen = Seen()
        async with r.consuming(seen):
            await r.producer.publish_many("rare", [b"a", b"b", b"c", b"d"])
            await asyncio.sleep(12)  # one start in each 100 seconds, the first three seconds after the creation
            assert len(seen) == 1
            leaping.leap(how, 90)
            await asyncio.sleep(8 + LATE_S)
            assert len(seen) == 2
