"""Every store against a plain Python model, over call sequences that hypothesis thinks of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from emq.runtime import errors
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.log_store import Batch, Put, Read, Trim
from emq.storage.store import Store
from emq_testing.contract.chance import variant
from emq_testing.contract.target import Can, Target

T = TypeVar("T")

PRIORITIES = ("high", "low")
IDS = ("a", "b", "c", "d")
STARTS = {LaneVerdict.REPLAY: "dead", LaneVerdict.PURGE: "dead", LaneVerdict.RECALL: "waiting"}
"""The state that a verdict of the administration starts from; those of an owner start from prepared."""
_runs = 0


def run_machine(machine: type[StoreMachine], target: Target) -> None:
    """Try the machine on the target; where each call crosses to a server, fewer sequences, and failures as found."""
    near = target.is_near
    phases = [phase for phase in Phase if near or phase not in (Phase.shrink, Phase.explain)]
    run_state_machine_as_test(
        variant(machine, target.name, target=target),
        settings=settings(
            max_examples=40 if near else 8,
            stateful_step_count=30,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """Opens the target's store on an event loop of its own; each sequence uses a topic of its own."""

    target: Target

    def __init__(self) -> None:
        super().__init__()
        global _runs
        _runs += 1
        self.topic = f"{self.target.topic}m{_runs}"
        self.runner = asyncio.Runner()
        self.store: Store = self.runner.run(self.target.open())

    def call(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.runner.run(wait())

    def teardown(self) -> None:
        self.runner.run(self.target.close())
        self.runner.close()


class LogModel:
    def __init__(self, first_offset: int) -> None:
        self.bodies: dict[int, bytes] = {}
        self.head = self.tail = first_offset
        self.sealed = False

    def trim(self, upto: int) -> None:
        self.head = max(self.head, min(upto, self.tail))
        self.bodies = {offset: body for offset, body in self.bodies.items() if offset >= self.head}


class LogMachine(StoreMachine):
    """Two queues of one group; all calls come from its owner or from administration."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.store.log
        self.dense = Can.DENSE in self.target.can
        self.models = {f"{self.topic}/0/{priority}": LogModel(self.log.first_offset) for priority in PRIORITIES}
        self.queues = list(self.models)
        self.epoch = 1
        self.count = 0

    def _bodies(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % (self.count - n) for n in range(count)]

    @rule(which=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=3))
    def put(self, which: list[tuple[int, int]]) -> None:
        puts = [Put(self.queues[n], self._bodies(count)) for n, count in which]
        for put, answer in zip(puts, self.call(self.log.put(puts)), strict=True):
            model = self.models[put.queue]
            assert isinstance(answer, errors.QueueSealed) == model.sealed
            if isinstance(answer, Exception):
                continue
            assert len(answer) == len(put.bodies)
            assert list(answer) == sorted(answer)
            assert answer[0] == model.tail if self.dense else answer[0] >= model.tail
            model.bodies.update(zip(answer, put.bodies, strict=True))
            model.tail = answer[-1] + 1

    @precondition(lambda self: Can.MAX_LENGTH in self.target.can)
    @rule(n=st.integers(0, 1), count=st.integers(1, 4), most=st.integers(1, 10), drop=st.booleans())
    def put_bounded(self, n: int, count: int, most: int, drop: bool) -> None:
        queue, model = self.queues[n], self.models[self.queues[n]]
        bodies = self._bodies(count)
        excess = sum(len(m.bodies) for m in self.models.values()) + count - most
        (answer,) = self.call(self.log.put([Put(queue, bodies, most, drop, self.queues)]))
        if model.sealed:
            assert isinstance(answer, errors.QueueSealed)
        elif excess > 0 and (not drop or excess > len(model.bodies)):
            assert isinstance(answer, errors.TopicFull)
        else:
            assert not isinstance(answer, Exception)
            for offset in sorted(model.bodies)[: max(excess, 0)]:
                model.trim(offset + 1)
            model.bodies.update(zip(answer, bodies, strict=True))
            model.tail = answer[-1] + 1

    @rule(starts=st.tuples(st.integers(-3, 40), st.integers(-3, 40)), limit=st.integers(1, 6), step=st.integers(0, 1))
    def read(self, starts: tuple[int, int], limit: int, step: int) -> None:
        self.epoch += step
        reads = [
            Read(queue, min(max(model.head + start, self.log.first_offset), model.tail), limit, self.epoch)
            for (queue, model), start in zip(self.models.items(), starts, strict=True)
        ]
        for read, batch in zip(reads, self.call(self.log.read(reads)), strict=True):
            assert isinstance(batch, Batch)
            model = self.models[read.queue]
            there = [offset for offset in sorted(model.bodies) if offset >= read.start]
            assert list(batch.offsets) == there[:limit]
            assert list(batch.bodies) == [model.bodies[offset] for offset in batch.offsets]
            assert not [offset for offset in there[limit:] if offset < batch.next]
            if len(there) < limit:
                assert batch.exhausted
                assert batch.next == max(read.start, model.tail)
            elif len(there) > limit:
                assert not batch.exhausted
            else:
                assert batch.next <= model.tail

    @rule(n=st.integers(0, 1), ahead=st.integers(-3, 12), seal=st.sampled_from([None, None, True, False]))
    def trim(self, n: int, ahead: int, seal: bool | None) -> None:
        queue, model = self.queues[n], self.models[self.queues[n]]
        model.trim(model.head + ahead)
        if seal is False or (seal and not model.bodies):
            model.sealed = seal
        epoch = self.epoch if n else None
        assert self.call(self.log.trim([Trim(queue, model.head + min(ahead, 0), epoch, seal)])) == [model.sealed]

    @rule()
    def look(self) -> None:
        bounds = self.call(self.log.bounds(self.queues))
        assert [(b.head, b.tail) for b in bounds] == [(model.head, model.tail) for model in self.models.values()]
        for queue, model in self.models.items():
            for offset in (model.head - 1, model.head, (model.head + model.tail) // 2, model.tail):
                assert self.call(self.log.get(queue, offset)) == model.bodies.get(offset)


PRIORITY = st.sampled_from([0, 1, 2, 15])


class Entry(NamedTuple):
    """State ("waiting", "prepared", "dead"), due time, body, the claim's epoch and time, and the priority."""

    state: str
    due_ms: int
    body: bytes
    epoch: int = 0
    claimed_ms: int = 0
    priority: int = 0


class SortedMachine(StoreMachine):
    """One slot, whose ids come back again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.slot = f"{self.topic}/0"
        self.entries: dict[str, Entry] = {}
        self.now_ms = 1_700_000_000_000
        self.epoch = 1
        # An epoch that nobody has claimed under fences nobody off.
        self.call(self.store.lanes.claim([LaneClaim(self.slot, 1, self.epoch)], self.now_ms))

    def _count(self, state: str) -> int:
        return sum(entry.state == state for entry in self.entries.values())

    @rule(
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
        wait=st.integers(-3, 9),
        dead=st.booleans(),
        priority=PRIORITY,
    )
    def add(self, ids: list[str], wait: int, dead: bool, priority: int) -> None:
        adds, expected = [], []
        for n, id_ in enumerate(ids):
            due_ms, body = self.now_ms + wait + n, f"{id_}{n}".encode()
            entry = Entry("dead" if dead else "waiting", due_ms, body, priority=priority)
            adds.append(LaneAdd(self.slot, id_, body, due_ms, "born dead" if dead else None, priority=priority))
            expected.append(id_ not in self.entries)
            self.entries.setdefault(id_, entry)
        assert self.call(self.store.lanes.add(adds)) == expected

    @rule(
        limit=st.integers(1, 4),
        passed=st.integers(0, 5),
        step=st.integers(0, 1),
        rooms=st.lists(st.integers(0, 3), max_size=3),
    )
    def claim(self, limit: int, passed: int, step: int, rooms: list[int]) -> None:
        self.now_ms += passed
        self.epoch += step
        (answer,) = self.call(self.store.lanes.claim([LaneClaim(self.slot, limit, self.epoch, rooms)], self.now_ms))
        assert isinstance(answer, LaneClaimed)
        due = sorted((e.priority, e.due_ms) for e in self.entries.values() if e.state == "waiting")
        left, expected = list(rooms), list[tuple[int, int]]()
        for priority, due_ms in due:
            place = min(priority, len(left) - 1)
            if due_ms <= self.now_ms and len(expected) < limit and (not left or left[place] > 0):
                expected.append((priority, due_ms))
                if left:
                    left[place] -= 1
        got = []
        for id_, body in answer.entries:
            entry = self.entries[id_]
            assert (entry.state, entry.body) == ("waiting", body)
            got.append((entry.priority, entry.due_ms))
            self.entries[id_] = entry._replace(state="prepared", epoch=self.epoch, claimed_ms=self.now_ms)
        assert got == expected
        self._check_next(answer.next_due_ms)

    def _check_next(self, next_due_ms: int | None) -> None:
        waiting = [entry.due_ms for entry in self.entries.values() if entry.state == "waiting"]
        assert next_due_ms == min(waiting, default=None)

    @rule(
        id_=st.sampled_from(IDS),
        verdict=st.sampled_from([v for v in LaneVerdict if not v.is_of_all]),
        wait=st.integers(-3, 9),
        stale=st.integers(0, 9),
        priority=PRIORITY,
    )
    def settle(self, id_: str, verdict: LaneVerdict, wait: int, stale: int, priority: int) -> None:
        starts_from = STARTS.get(verdict, "prepared")
        administration = starts_from != "prepared"
        epoch = None if administration else self.epoch - (stale == 0)
        body = f"{id_}{verdict}{wait}".encode()
        due_ms = self.now_ms + wait
        decided = LaneSettle(self.slot, id_, verdict, epoch, due_ms, body, "why", priority)
        (answer,) = self.call(self.store.lanes.settle([decided]))
        if epoch is not None and epoch < self.epoch:
            assert isinstance(answer, errors.NotOwner)
            return
        entry = self.entries.get(id_)
        starts = entry is not None and entry.state == starts_from
        assert answer is starts
        if not starts or (verdict is LaneVerdict.RETRY and entry[:3] == ("prepared", due_ms, body)):
            return
        if verdict in (LaneVerdict.ACK, LaneVerdict.PURGE, LaneVerdict.RECALL):
            del self.entries[id_]
        else:
            state = "dead" if verdict is LaneVerdict.DEAD else "waiting"
            self.entries[id_] = Entry(state, due_ms, body, priority=priority)

    @rule(by_time=st.booleans(), age=st.integers(0, 5))
    def recover(self, by_time: bool, age: int) -> None:
        older_than_ms = self.now_ms - age if by_time else None
        stranded = [
            id_
            for id_, e in self.entries.items()
            if e.state == "prepared" and (e.epoch < self.epoch or (by_time and e.claimed_ms < self.now_ms - age))
        ]
        assert self.call(self.store.lanes.recover([(self.slot, self.epoch)], older_than_ms)) == [len(stranded)]
        # Which due time they get is the store's choice, as long as it has passed: claim them all, and put them back.
        waiting = self._count("waiting")
        (answer,) = self.call(self.store.lanes.claim([LaneClaim(self.slot, 99, self.epoch)], self.now_ms))
        assert isinstance(answer, LaneClaimed)
        got = dict(answer.entries)
        assert {id_: self.entries[id_].body for id_ in stranded}.items() <= got.items()
        assert waiting + len(stranded) >= len(got)
        for id_, body in got.items():
            entry = self.entries[id_] = Entry("waiting", self.now_ms - 1, body + b".")  # another: it is no repeat
            retry = LaneSettle(self.slot, id_, LaneVerdict.RETRY, self.epoch, entry.due_ms, entry.body)
            assert self.call(self.store.lanes.settle([retry])) == [True]

    @rule()
    def look(self) -> None:
        (state,) = self.call(self.store.lanes.inspect([self.slot]))
        assert state[:3] == tuple(self._count(s) for s in ("waiting", "prepared", "dead"))
        self._check_next(state.next_due_ms)
        letters = self.call(self.store.lanes.dead(self.slot))
        assert {x.id: x.body for x in letters} == {i: e.body for i, e in self.entries.items() if e.state == "dead"}


def test_the_log_behaves_like_its_model(target: Target) -> None:
    target.hole_grace_s = 0.0  # nothing is on its way while the machine looks
    run_machine(LogMachine, target)


def test_the_slots_behave_like_their_model(target: Target) -> None:
    run_machine(SortedMachine, target)
