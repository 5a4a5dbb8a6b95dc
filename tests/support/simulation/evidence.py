"""The events of a run, as handlers, stores and checkpoints saw them; `promises` judges them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from emq.offsets.checkpoints import Checkpoint, Fenced, newest
from emq.runtime import errors
from emq.storage import lane_store, log_store, message, names, slot_store
from support.doubles import group_of_entry
from support.simulation.epochs import Epochs
from support.simulation.folding import Folding
from support.simulation.layouts import Layouts
from support.simulation.occurrences import Occurrences
from support.simulation.progress import Progress
from support.simulation.seals import Seals
from support.simulation.sleeps import Sleep
from support.simulation.violation import Violation
from support.simulation.work import Work


class Start(NamedTuple):
    """Attributes:
    id: of the message.
    at: true time, seconds since the simulation began.
    number: place among all starts.
    epoch: of the owner; -1 if the host did not own the group.
    started_us: by the host's clock; what caps go by.
    ready_us: by the host's clock: when it was in the buffer, and no former group of its key held it back.
    priority: 0 is the highest.
    """

    at: float
    number: int
    host: str
    group: str
    epoch: int
    work: Work
    id: str
    offset: int
    queue: str
    attempt: int
    started_us: int
    ready_us: int = 0
    priority: int = 0


class Acquired(NamedTuple):
    """Attributes:
    number: how many starts there were before.
    """

    number: int
    at: float
    host: str
    group: str
    epoch: int


class Evidence:
    """The events of a run, in the order in which they happened.

    Attributes:
        ends: by number of the start: when the handler returned, and whether it succeeded.
        published: what was published, in order: (work, whether it was confirmed).
        refusals: what fences have refused, by call.
        history: (when, group, text) to tell a failure with.
        lost_at: when the store came back without its last writes, and when hosts went back because of that.
        emptied_at: when the database came back empty: hosts let go of all topics, and acquire what is created again
            without a checkpoint, under the epoch of the plan in force.
        forgotten: names of works of which nothing was left then; no promise of ours.
        returned: names of works that a queue had lost, and had again when the store came back once more.
        replaced: names of works that such a queue had taken in between, and that were lost then.
        late: attempts by receivers that would have said in time that all went well, had their host not stood still.
        seals: of queues, lanes and slots.
        layouts: of topics whose keys move.
        doubled: names of works that were in a slot again then, while a host could still have their lane's entry: it
            puts that back, and each of the two goes its own way.
        ever_acknowledged: entries of lanes. A copy of such a message that a lost owner left in a queue may come to the
            lane again. If the answer to the acknowledgement was lost, its repeat takes that copy, claimed or not.
        claimed: what a host has claimed and not settled: (lane, its entry's id), (slot, member).
        unstarted: entries of lanes that have not started since their last claim.
        claimed_twice: those that were claimed when the store lost its last writes, and may wait there again: of each
            the host may have two, and start one when the other waits for its next attempt or is done.
        confirmed_at: when a publish returned, by name of the work.
        due_ms: of what was put into a lane or slot to wait for a time, by the environment's time: (lane, its entry's
            id) or (slot, member).
        first_due_ms: the same of first deliveries, by name of the work; lanes and slots have told of it.
        ended_us: by number of the start, when the handler returned by the host's clock.
        let_go: when a host let go of a group in order: (host, group, epoch).
        paused: topics, and from when to when they were to be paused.
        sleeps: of hosts whose machine was suspended.
        dropped_names: works that a topic has dropped, being full.
        head_of: tells a queue's head in the store.
        recalled: works that were taken back before they started.
        replayed: works that were dead letters, and when they were put back.
        hangs: topics whose handlers do not return, until then.
        folding: what was published under merge keys.
        occurrences: of schedules.
        progress: of queues, as saved and loaded.
        epochs: which were given out, and who acquired what under them.
        closed: it is over; what happens now is only the taking down of hosts that were killed.
    """

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.ends: dict[int, tuple[float, bool]] = {}
        self.published: dict[str, tuple[Work, bool]] = {}
        self.refusals: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.history: list[tuple[float, str, str]] = []
        self.owned: list[Acquired] = []
        self.loads: dict[tuple[str, str], dict[str, Checkpoint]] = {}
        self.loaded: dict[tuple[str, str, int], list[tuple[int, Checkpoint]]] = defaultdict(list)
        self.offsets: dict[str, dict[int, str]] = defaultdict(dict)
        self.succeeded: set[str] = set()
        self.moved: set[str] = set()
        self.acknowledged: set[tuple[str, str | bytes]] = set()  # (lane, its entry's id), (slot, member): none is left
        self.ever_acknowledged: set[tuple[str, str]] = set()
        self.unstarted: set[tuple[str, str | bytes]] = set()
        self.in_lanes: dict[tuple[str, str], str] = {}  # entries of lanes that wait or run: names of their works
        self.doubled: set[str] = set()
        self.claimed: set[tuple[str, str | bytes]] = set()
        self.claimed_twice: set[tuple[str, str | bytes]] = set()
        self.progress = Progress(self)
        self.epochs = Epochs(self)
        self.lost_at: list[float] = []
        self.emptied_at: list[float] = []
        self.forgotten: set[str] = set()
        self.returned: set[str] = set()
        self.replaced: set[str] = set()
        self.late: Counter[str] = Counter()
        self.seals = Seals()
        self.layouts = Layouts()
        self.confirmed_at: dict[str, float] = {}
        self.due_ms: dict[tuple[str, str | bytes], float] = {}
        self.first_due_ms: dict[str, float] = {}
        self.ended_us: dict[int, int] = {}
        self.paused: list[tuple[str, float, float]] = []
        self.sleeps: list[Sleep] = []
        self.recalled: set[str] = set()
        self.replayed: dict[str, float] = {}
        self.dropped_names: set[str] = set()
        self.head_of: Callable[[str], int] = lambda queue: 1
        self._heads: dict[str, int] = defaultdict(lambda: 1)
        self.let_go: dict[tuple[str, str, int], float] = {}
        self.closed = False
        self.hangs: dict[str, float] = {}
        self.folding = Folding(self)
        self.occurrences = Occurrences(self)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def note(self, group: str, text: str) -> None:
        if not self.closed:
            self.history.append((self.now, group, text))

    def violated(self, promise: str, group: str, text: str) -> None:
        self.violations.append(Violation(promise, group, f"{text}, at {self.now:.3f} s"))

    def failed(self, host: str, failure: BaseException) -> None:
        """Note that a host has ended by itself."""
        if not self.closed:
            self.violated("run", "", f"{host} has ended: {failure!r}")

    def complained(self, text: str) -> None:
        """Note a logged error, or an exception that nobody caught."""
        if not self.closed:
            self.violated("run", "", text)

    # ------------------------------------------------------------------------------------------------ what hosts did

    def started(self, host: str, epoch: int, m: message.Message, queue: str) -> int:
        work, group = self._work_of(m), f"{m.topic}/{m.group}"
        number = len(self.starts)
        self.starts.append(
            Start(
                *(self.now, number, host, group, epoch, work, m.id, m.offset, queue, m.attempt, m.started_us),
                *(m.ready_us, m.priority),
            )
        )
        if work.name in self.recalled:
            self.violated("recall", group, f"{work.name} starts, which was recalled")
        self._judge_time(m, group, work)
        if 0 < m.expires_us <= m.started_us:
            self.violated("time", group, f"{work.name} starts after it has expired")
        entry = group, m.id if m.member is None else m.member
        if m.offset < 0 and entry in self.acknowledged and entry not in self.claimed_twice:
            self.violated("D", group, f"{host} starts {work.name}, which was acknowledged before")
        if m.offset < 0:
            self.unstarted.discard(entry)
        source = f"offset {m.offset} of {queue}" if m.offset >= 0 else "lane or slot"
        self.folding.started(number, m)
        self.note(group, f"{host} starts {work.name} attempt {m.attempt} epoch {epoch} from {source}")
        return number

    def _work_of(self, m: message.Message) -> Work:
        return self.folding.work_of(m) or self.occurrences.work_of(m) or Work.parse(m.payload)

    def name_of(self, body: bytes) -> str:
        """Return the name of a message's work, by the message's body in a queue or lane."""
        m = message.decode(body)
        return self.occurrences.name_of(m.id) or Work.parse(m.payload).name

    def _judge_time(self, m: message.Message, group: str, work: Work) -> None:
        """Report a start before its time."""
        entry = group, m.id if m.member is None else m.member
        due_ms = self.due_ms.get(entry) if m.offset < 0 and entry not in self.claimed_twice else None
        if due_ms is not None and m.started_us < due_ms * 1000:
            early_s = due_ms / 1000 - m.started_us / 1e6
            self.violated("time", group, f"{work.name} starts {early_s:.3f} s before its time")

    def ended(self, number: int, succeeded: bool, now_us: int) -> None:
        if self.closed:
            return
        self.ends[number] = self.now, succeeded
        self.ended_us[number] = now_us
        start = self.starts[number]
        if succeeded:
            self.succeeded.add(start.work.name)
        self.note(start.group, f"{start.host} {'finished' if succeeded else 'failed'} {start.work.name}")

    def acquired(self, host: str, group: str, epoch: int) -> None:
        self.epochs.acquired(host, group, epoch)
        self.owned.append(Acquired(len(self.starts), self.now, host, group, epoch))
        self.note(group, f"{host} acquires under epoch {epoch}")
        for queue, checkpoint in self.loads.get((host, group), {}).items():
            self.loaded[host, queue, epoch].append((len(self.starts), checkpoint))

    def released(self, host: str, group: str, epoch: int) -> None:
        self.let_go[host, group, epoch] = self.now
        self.note(group, f"{host} releases epoch {epoch}")

    # ------------------------------------------------------------------------------------ what stores and database took

    def applied(self, by: str, call: str, args: Sequence[Any], result: Any) -> None:
        """Note that a store has carried out a call of `by`."""
        if isinstance(result, list):
            for asked, answer in zip(args[0], result, strict=False):
                if isinstance(answer, errors.NotOwner):
                    self.refusals[call] += 1
                    self.note(group_of_entry(asked), f"{by}: {call} is refused: {answer}")
        look = _LOOKS.get(call)
        if look is not None:
            for asked, answer in zip(args[0], result, strict=True):
                if not isinstance(answer, errors.EMQError):
                    look(self, by, asked, answer)

    def _put(self, by: str, put: log_store.Put, offsets: Sequence[int]) -> None:
        for offset, body in zip(offsets, put.bodies, strict=True):
            self.offsets[put.queue][offset] = self.name_of(body)
        if self.seals.may_find_no_owner(put.queue):
            self.forgotten.update(map(self.name_of, put.bodies))
        if put.drop_oldest:
            there, head = self.offsets[put.queue], self.head_of(put.queue)
            self.dropped_names.update(there.get(offset, "") for offset in range(self._heads[put.queue], head))
            self._heads[put.queue] = head

    def _trimmed(self, by: str, trim: log_store.Trim, was_done: bool) -> None:
        self._heads[trim.queue] = self.head_of(trim.queue)
        if trim.seal is not None:
            self.seals.told(trim.queue, trim.seal and was_done)
        if trim.layout is not None:
            self.layouts.told(trim.queue, trim.layout)

    def _added(self, by: str, add: lane_store.LaneAdd, was_new: bool) -> None:
        if self.occurrences.added(by, add, message.decode(add.body), was_new):
            return
        name = self.name_of(add.body)
        if add.epoch is not None:
            self.moved.add(name)
            self.note(add.lane, f"{name} is in the lane{' as dead' if add.reason else ''}")
        self.acknowledged.discard((add.lane, add.id))
        if was_new and not add.reason:
            self.due_ms[add.lane, add.id] = add.due_ms
            if add.epoch is None:
                self.first_due_ms[name] = add.due_ms
        if not add.reason:
            self.in_lanes[add.lane, add.id] = name
        if add.epoch is None and self.seals.may_find_no_owner(add.lane):
            self.forgotten.add(name)

    def _slot_added(self, by: str, add: slot_store.SlotAdd, was_new: bool) -> None:
        if add.slot.apart:
            self.folding.added(add, was_new)
            return
        self.acknowledged.discard((add.slot.name, add.member))
        if self.seals.may_find_no_owner(add.slot.address):
            self.forgotten.add(Work.parse(add.member).name)
        if was_new and add.slot.kind is not slot_store.SlotKind.PRIORITY:
            self.due_ms[add.slot.name, add.member] = add.score
            self.first_due_ms[Work.parse(add.member).name] = add.score

    def _lane_settled(self, by: str, settle: lane_store.LaneSettle, was_prepared: bool) -> None:
        self.seals.settled(settle.lane, settle.verdict)
        self.claimed.discard((settle.lane, settle.id))
        if self.occurrences.settled(by, settle, was_prepared):
            return
        if was_prepared and settle.verdict in (lane_store.LaneVerdict.ACK, lane_store.LaneVerdict.DEAD):
            self.in_lanes.pop((settle.lane, settle.id), None)
        if was_prepared and settle.verdict is lane_store.LaneVerdict.RETRY:
            self.due_ms[settle.lane, settle.id] = settle.due_ms
        if was_prepared and settle.verdict is lane_store.LaneVerdict.ACK:
            entry = settle.lane, settle.id
            is_repeat = entry in self.ever_acknowledged and entry in self.unstarted
            self.ever_acknowledged.add(entry)
            if not is_repeat:
                self.acknowledged.add(entry)
            self.note(settle.lane, f"lane entry {settle.id} is acknowledged{' again' if is_repeat else ''}")
        elif settle.epoch is not None:
            self.note(settle.lane, f"lane entry {settle.id}: {settle.verdict}, {was_prepared}, due {settle.due_ms}")

    def _lane_claimed(self, by: str, claim: lane_store.LaneClaim, claimed: lane_store.LaneClaimed) -> None:
        for id_, _ in claimed.entries:
            self.claimed.add((claim.lane, id_))
            self.unstarted.add((claim.lane, id_))
            self.note(claim.lane, f"lane entry {id_} is claimed under {claim.epoch}")
            self.occurrences.claimed(by, claim.epoch, id_)

    def _slot_claimed(self, by: str, claim: slot_store.SlotClaim, claimed: slot_store.SlotClaimed) -> None:
        if claim.slot.apart:
            self.folding.claimed(claim, claimed)
        else:
            self.claimed.update((claim.slot.name, entry.member) for entry in claimed.entries)

    def _slot_settled(self, by: str, settle: slot_store.SlotSettle, was_prepared: bool) -> None:
        self.seals.settled(settle.slot.address, settle.verdict)
        if settle.slot.apart:
            self.folding.told(settle, was_prepared)
            return
        self.claimed.discard((settle.slot.name, settle.member))
        if was_prepared and settle.verdict is slot_store.SlotVerdict.ACK:
            self.acknowledged.add((settle.slot.name, settle.member))
            self.note(settle.slot.name, f"slot member {Work.parse(settle.member).name} is acknowledged")

    def dropped(self, topic: str) -> None:
        """A topic was deleted with what it held; what was in flight may still end."""
        for name, (work, _) in self.published.items():
            if work.topic == topic and name not in self.succeeded:
                self.forgotten.add(name)
                self.moved.add(name)  # finished, as far as its queue is concerned
        # The deletion has acknowledged what a host that has not heard of it may have claimed, and start.
        self.acknowledged = {entry for entry in self.acknowledged if not entry[0].startswith(f"{topic}/")}
        self.seals.deleted.add(topic)
        self.progress.dropped(topic)

    def slept(self, topics: Iterable[str]) -> None:
        """Topics of a family were put to sleep by their host: they were empty, and their checkpoints are gone."""
        for topic in topics:
            self.note(topic, "sleeps")
            self.happened["slept"] += 1
            self.seals.deleted.add(topic)
            self.progress.dropped(topic)

    def store_lost(
        self,
        queues: dict[str, tuple[int, dict[int, bytes]]],
        lanes: dict[str, bytes],
        members: Sequence[bytes],
        known: Mapping[str, Mapping[int, str]],
        sealed: Set[str] | None = None,
        raised: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """The store came back with these queues (tail, bodies by offset), entries of lanes by id, members of slots.

        `known` are the names by queue and offset of the time to which the store went back: a store that lost
        everything and then comes back as it was before has cut off messages of which only these names tell. `sealed`
        are the queues, lanes and slots that were sealed then; None if the store came back empty. `raised` are the
        layouts that the queues took then.
        """

        def names(bodies: Iterable[bytes]) -> set[str]:
            return {self.name_of(body) for body in bodies}

        self.lost_at.append(self.now)
        self.seals.store_lost(sealed)
        self.layouts.store_lost(raised)
        in_slots = {Work.parse(member).name for member in members}
        self.doubled |= in_slots & set(self.in_lanes.values())
        self.claimed_twice |= self.claimed
        left = names(lanes.values()) | in_slots
        self.occurrences.lost(lanes)
        for _, bodies in queues.values():
            # What had moved to a lane counts as finished in its queue; if the lane has forgotten it, it is gone.
            left |= names(bodies.values()) - self.moved
        self.forgotten |= self.published.keys() - left - self.folding.taken
        for queue, offsets in self.offsets.items():
            tail, bodies = queues.get(queue, (1, {}))
            # A store that comes back twice may have again what it had lost the first time.
            there = {o: self.name_of(body) for o, body in bodies.items()}
            if any(o >= tail or there.get(o, name) != name for o, name in offsets.items()):
                self.progress.unnoticed.add(queue)
            before = dict(offsets)
            for offset in [o for o in offsets if o >= tail]:
                del offsets[offset]
            offsets.update({o: name for o, name in known.get(queue, {}).items() if o < tail})
            offsets.update(there)
            if returned := set(there.values()).difference(before.values()):
                self.returned |= returned
                self.replaced |= set(before.values()).difference(offsets.values())
        self.acknowledged.clear()
        self.due_ms.clear()
        for queue in self._heads:
            self._heads[queue] = self.head_of(queue)
        self.progress.store_lost()

    def database_lost(self, kept: dict[str, Checkpoint]) -> None:
        """Note that the database came back with these checkpoints by queue, and no others."""
        self.progress.database_lost(kept)
        if not kept:
            self.emptied_at.append(self.now)

    def checkpoints_rewound(self, host: str, batch: Sequence[Checkpoint]) -> None:
        """Note that a host has taken checkpoints back, and goes on from them."""
        self.lost_at.append(self.now)
        for checkpoint in batch:
            self.happened["rewound"] += 1
            group = names.group_of(checkpoint.queue)
            self.note(group, f"{host} goes back to {checkpoint}")
            self.progress.rewound(checkpoint.queue)
            self.loads.setdefault((host, group), {})[checkpoint.queue] = checkpoint

    def checkpoints_loaded(self, host: str, found: Fenced, queues: Sequence[str]) -> None:
        refused = {names.group_of(queue) for queue in found.refused}
        for queue in queues:
            if (group := names.group_of(queue)) in refused:
                continue
            checkpoint = found.saved.get(queue, Checkpoint(queue, 0, 1))
            self.progress.loaded(host, group, checkpoint)
            self.loads.setdefault((host, group), {})[queue] = checkpoint

    def checkpoints_saved(self, host: str, batch: Sequence[Checkpoint], refused: Sequence[str]) -> None:
        for checkpoint in newest(batch):
            group = names.group_of(checkpoint.queue)
            if checkpoint.queue in refused:
                self.refusals["checkpoint"] += 1
                self.note(group, f"{host}: checkpoint of {checkpoint.queue} under {checkpoint.epoch} is refused")
                continue
            self.note(group, f"{host} checkpoints {checkpoint}")
            self.progress.saved(host, group, checkpoint)

    def resumed_from(self, start: Start) -> Checkpoint | None:
        """Return the checkpoint from which the owner had gone on before a start."""
        found = [c for number, c in self.loaded[start.host, start.queue, start.epoch] if number <= start.number]
        return found[-1] if found else None


_LOOKS: dict[str, Callable[[Evidence, str, Any, Any], None]] = {
    "log.put": Evidence._put,
    "log.trim": Evidence._trimmed,
    "lanes.add": Evidence._added,
    "lanes.claim": Evidence._lane_claimed,
    "lanes.settle": Evidence._lane_settled,
    "sorted.add": Evidence._slot_added,
    "sorted.claim": Evidence._slot_claimed,
    "sorted.settle": Evidence._slot_settled,
}
