"""The checker itself: what is planted is found, each kind of fault by the promise that it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from emq.allocation.plan import plan
from emq.dispatch.endings import Endings
from emq.dispatch.flight import Flight
from emq.fetcher.readiness import Readiness
from emq.groups import priority
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import Buffers
from emq.host.ownership import Acquired, Ownership
from emq.host.retirement import Retirement
from emq.quota.counter import WindowCounter
from emq.runtime.lease import Lease
from emq.storage import message
from emq.storage.lane_store import LaneClaimed
from emq.storage.log_store import Batch
from emq.topics.model import Kind
from emq.topics.shares import Division, Share, Turns
from emq_stores.memory.lane_store import MemoryLanes
from emq_stores.memory.log_store import MemoryLog
from emq_stores.memory.slot_store import MemorySorted
from support.simulation.plans import Event, TopicPlan
from support.simulation.run import Outcome, carry_out
from support.simulation.schedule import Schedule

LOG = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
SLOTS = {"prepare_timeout_s": 20.0, "time_range_ms": 500, "ordering": "none"}
EASY = TopicPlan("keyed", 24.0, 8.0, 12.0, keys=5, failing=0.2, options=LOG)
BACKLOG = EASY._replace(rate=36.0)

NOTHING: tuple[Event, ...] = ()
SILENCE = (Event(4.0, "partition", 0, 9.0, 0.0),)
CRASH = (Event(4.3, "crash", 0, 0.0, 0.0),)


def outcome(
    events: Sequence[Event] = NOTHING,
    topic: TopicPlan = EASY,
    *,
    clean: bool = True,
    ahead_s: tuple[float, ...] = (0.0,),
) -> Outcome:
    return carry_out(Schedule(1, clean, ahead_s, 2, (topic,), tuple(events)))


def broken(found: Outcome) -> set[str]:
    return {violation.promise for violation in found.violations}


@pytest.mark.parametrize("events", [NOTHING, SILENCE, CRASH], ids=["nothing", "silence", "crash"])
def test_nothing_is_found_where_nothing_is_planted(events: Sequence[Event]) -> None:
    assert outcome(events, BACKLOG, clean=not events).violations == []


def test_a_host_that_wakes_may_go_on_with_the_cap_that_it_knew() -> None:
    topic = TopicPlan("resized", 12.0, 3.0, 14.0, sizes=(12.0, 6.0, 12.0), options=LOG)
    events = (Event(5.2, "resize", 0, 9.0, 0.5), Event(5.22, "suspend_all", 0, 3.0, 0.5))
    found = carry_out(Schedule(3, False, (0.0,), 2, (topic,), events))
    assert [(sleep.host, sleep.since, sleep.until) for sleep in found.evidence.sleeps] == [
        ("h1", pytest.approx(5.22), pytest.approx(8.22)),
        ("h2", pytest.approx(5.22), pytest.approx(8.22)),
    ]
    assert found.violations == []


def test_a_message_that_was_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once = _once()
    spoil_reads(
        monkeypatch,
        lambda b: b._replace(offsets=b.offsets[1:], bodies=b.bodies[1:]) if len(b.offsets) > 0 and next(once) else b,
    )
    assert broken(outcome()) == {"L", "M"}


def test_messages_of_a_key_in_the_wrong_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_reads(monkeypatch, lambda b: b._replace(bodies=b.bodies[::-1]))
    assert "K" in broken(outcome(topic=BACKLOG))


def test_messages_of_a_key_that_run_side_by_side_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_reads(monkeypatch, lambda b: b._replace(bodies=[without_key(body) for body in b.bodies]))
    assert "K" in broken(outcome(topic=EASY._replace(slow=0.5, keys=1)))


def test_a_message_that_was_handed_out_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once = _once()

    async def claim(self: MemoryLanes, *args: Any, **kwargs: Any) -> list[Any]:
        answers = await real(self, *args, **kwargs)
        for i, answer in enumerate(answers):
            if isinstance(answer, LaneClaimed) and answer.entries and next(once):
                answers[i] = answer._replace(entries=[*answer.entries, answer.entries[0]])
        return answers

    real = MemoryLanes.claim
    monkeypatch.setattr(MemoryLanes, "claim", claim)
    assert "D" in broken(outcome())


def test_a_member_of_a_slot_that_starts_after_its_acknowledgement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once, handed_out = _once(), dict[str, Any]()

    async def claim(self: MemorySorted, claims: Any, *bounds: Any) -> list[Any]:
        answers = await real(self, claims, *bounds)
        for i, (claim, answer) in enumerate(zip(claims, answers, strict=True)):
            earlier = handed_out.get(claim.slot.name)
            if answer.entries:
                handed_out[claim.slot.name] = answer.entries[0]
            if earlier is not None and not self._slot(claim.slot).prepared and next(once):
                answers[i] = answer._replace(entries=[*answer.entries, earlier])
        return answers

    real = MemorySorted.claim
    monkeypatch.setattr(MemorySorted, "claim", claim)
    found = outcome(topic=TopicPlan("ranged", 12.0, 12.0, 6.0, Kind.RANGE_MERGE, options=SLOTS, failing=0.0))
    assert any("was acknowledged before" in violation.text for violation in found.violations)


def test_one_start_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(self: WindowCounter, n: int, now: float) -> int:
        return min(n, real(self, n, now) + 1)

    real = WindowCounter.reserve
    monkeypatch.setattr(WindowCounter, "reserve", reserve)
    assert broken(outcome(topic=BACKLOG)) == {"Q"}


def test_hosts_that_deal_out_the_turns_of_their_groups_in_the_same_seconds_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part(self: Division, groups: Iterable[int]) -> Share | Turns:
        found = real(self, groups)
        return found._replace(positions=tuple(range(len(found.positions)))) if isinstance(found, Turns) else found

    real = Division.part
    many = TopicPlan(
        "many", 2.0, 50.0, 6.0, Kind.RANGE_MERGE, failing=0.0, doomed=0.0, slow=0.0, options=SLOTS, slots=8
    )
    assert outcome(topic=many).violations == []
    monkeypatch.setattr(Division, "part", part)
    assert broken(outcome(topic=many)) == {"Q"}


def test_a_host_that_goes_on_without_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lease.renew
    monkeypatch.setattr(Lease, "renew", lambda self, until: real(self, float("inf")))
    monkeypatch.setattr(Lease, "suspend", lambda self: None)
    # With nothing to retry, the first thing that the store could refuse it is to refill a buffer.
    topic = BACKLOG._replace(failing=0.0, slow=0.0, keys=0)
    moments = [(SILENCE[0]._replace(at=at),) for at in (3.6, 4.2, 4.4)]  # a refusal may also come before its starts
    assert any("O" in broken(outcome(moment, topic, clean=False, ahead_s=(-0.3, 0.3))) for moment in moments)


def test_a_watermark_past_a_hole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: OffsetTracker, start: int, end: int) -> None:
        real(self, max(start, self.watermark), max(end, self.watermark))
        real(self, self.watermark, self.watermark + 1)

    real = OffsetTracker.finish
    monkeypatch.setattr(OffsetTracker, "finish", finish)
    assert "M" in broken(outcome())


# What only a whole host can break is planted in one: it is judged when everything has come to rest.


def test_a_message_that_stays_in_flight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once, real = _once(), Endings.settled

    def settled(self: Endings, group: OwnedGroup, m: message.Message) -> None:
        if m.offset >= 0 and next(once):
            group.queues[m.priority].tracker.finish(m.offset, m.offset + 1)
        else:
            real(self, group, m)

    monkeypatch.setattr(Endings, "settled", settled)
    assert broken(outcome(topic=EASY._replace(keys=0))) == {"rest"}


def test_memory_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = OwnedGroup.take

    def take(self: OwnedGroup, now_us: int) -> message.Message | None:
        m = real(self, now_us)
        if m is not None and m.attempt > 1:
            self.gauge.bytes += 1
        return m

    monkeypatch.setattr(OwnedGroup, "take", take)
    assert broken(outcome()) == {"rest"}


def test_a_loop_that_breaks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once, real = _once(), Retirement.watch

    async def watch(self: Retirement) -> None:
        if next(once):
            raise RuntimeError("planted")
        await real(self)

    monkeypatch.setattr(Retirement, "watch", watch)
    found = outcome()
    assert "rest" in broken(found)
    assert any("loops broke: {'retirement': 1}" in violation.text for violation in found.violations)


def test_a_host_that_gets_all_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = plan.effective
    monkeypatch.setattr(plan, "effective", lambda weights: dict(list(real(weights).items())[:1]))
    assert broken(outcome()) == {"balance"}


def test_a_group_that_nobody_gets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ownership.acquire

    async def acquire(self: Ownership, assigned: Mapping[str, int], *args: Any) -> Acquired:
        kept = {group: epoch for group, epoch in assigned.items() if not group.endswith("/2")}
        return await real(self, kept, *args)

    monkeypatch.setattr(Ownership, "acquire", acquire)
    found = outcome(topic=EASY._replace(rate=0.001))
    assert "nobody owns ['keyed/2']" in "".join(violation.text for violation in found.violations)


def test_buffers_that_grow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq.fetcher.readiness.wanted", lambda queue: 1_000)
    assert "memory" in broken(outcome(topic=BACKLOG._replace(rate=100.0)))


FULL = (Event(4.0, "store_full", 0, 8.0, 0.0),)
BRIEF = TopicPlan("varied", 4.0, 4.0, 250.0, options={**LOG, "ttl_s": 3.0})


@pytest.mark.parametrize("planted", [False, True])
def test_expired_messages_that_fill_the_memory_while_the_store_is_full_are_found(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("emq.groups.capacity", "support.simulation.memory"):
        monkeypatch.setattr(f"{module}.MAX_BUFFER", 50)
    if planted:
        monkeypatch.setattr(OwnedTopic, "is_overfull", lambda self: False)
    found = [v for v in outcome(FULL, BRIEF, clean=False).violations if v.promise == "memory"]
    assert bool(found) is planted
    assert all(violation.text.rpartition(", at")[0].endswith("in flight") for violation in found)


def test_a_change_that_counts_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq.topics.shares.LEARN_S", 4)
    found = outcome(topic=EASY._replace(name="resized", keys=0, sizes=(24.0,)))
    assert "its new quota counts from second" in "".join(violation.text for violation in found.violations)


def test_a_wake_up_that_is_slow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def woken(self: Readiness, queue: OwnedQueue) -> None:
        asyncio.get_running_loop().call_later(0.3, real, self, queue)

    real = Readiness.woken
    monkeypatch.setattr(Readiness, "woken", woken)
    assert "delay" in broken(outcome())


def test_strict_priority_upside_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inverted:
        def choose(self, buffers: Buffers, now_us: int) -> int:
            return max((i for i, buffer in enumerate(buffers) if buffer), default=-1)

    monkeypatch.setattr(priority, "policy_for", lambda topic: Inverted())
    assert "P" in broken(outcome(topic=BACKLOG))


def spoil_reads(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Batch], Batch]) -> None:
    async def read(self: MemoryLog, *args: Any, **kwargs: Any) -> list[Any]:
        answers = await real(self, *args, **kwargs)
        return [spoil(answer) if isinstance(answer, Batch) else answer for answer in answers]

    real = MemoryLog.read
    monkeypatch.setattr(MemoryLog, "read", read)


def without_key(body: bytes) -> bytes:
    m = message.decode(body)
    return message.encode(m.id, m.payload, None, m.published_us, m.headers)


def _once() -> Iterator[bool]:
    yield True
    while True:
        yield False


@pytest.mark.parametrize("sick", [False, True])
def test_a_topic_that_hangs_and_keeps_others_waiting_is_found(sick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = (EASY._replace(keys=0), EASY._replace(name="other", keys=0))
    real = Flight.places

    def places(self: Flight, owner: OwnedTopic, wanted: int, now: float) -> int:
        return real(self, owner, wanted, now) if self.count < 10 else 0

    if sick:
        monkeypatch.setattr(Flight, "places", places)
    outcomes = (carry_out(Schedule(seed, True, (0.0,), 2, topics, ())) for seed in range(9))
    found = next(one for one in outcomes if one.happened["hang"])
    assert found.happened["hang"] == 1
    assert bool(broken(found) & {"delay", "use"}) == sick
