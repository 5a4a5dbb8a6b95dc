"""What was published under merge keys, and what became of it: nothing lost, nothing folded in twice.

A member's publishes are *unsettled* from when the store took them until a delivery that stands for them is
acknowledged or dead. While a delivery is out, nothing else of its member can be claimed, and what comes back unharmed
or failed merges with what came meanwhile. So every delivery stands for all that is unsettled when it is claimed: that
says what its body, its count and its time have to be, whatever failed before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from emq.storage import message, slot_store
from support.simulation.rules import NOTICED_S
from support.simulation.violation import Violation
from support.simulation.work import Work

if TYPE_CHECKING:
    from support.simulation.evidence import Evidence
    from support.simulation.rules import Rules

WORK = "work"
"""The header that names a publish."""

Member = tuple[str, bytes]
"""Slot and member."""


class Publish(NamedTuple):
    """Attributes:
    name: of its work.
    score: its time in milliseconds, or its priority.
    """

    name: str
    body: bytes
    score: float


class Delivery:
    """A member that was claimed.

    Attributes:
        body: of the message, as it has to be.
        publishes: what it stands for, in the order in which the store took it.
        due_ms: when it may start at the earliest; 0 if it goes by priority.
        start: number of the start that it came to, or -1.
        is_settled: the store has heard how it ended.
    """

    def __init__(self, publishes: Sequence[Publish], body: bytes, due_ms: float) -> None:
        self.publishes = tuple(publishes)
        self.body = body
        self.due_ms = due_ms
        self.start = -1
        self.is_settled = False


class Folding:
    """Attributes:
    unsettled: of each member, what no delivery has settled.
    dead: of each member, what its dead letter stands for.
    taken: names of publishes that the store has taken.
    settled: names of publishes that were delivered, and whose delivery the store knows of.
    free_at: of a publish that came while a delivery of its member was out: when that was settled; of one that later
        publishes of its member gave another time: when the last of them came.
    buried: bodies of the dead letters that are there in the end.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.unsettled: dict[Member, tuple[Publish, ...]] = {}
        self.dead: dict[Member, tuple[Publish, ...]] = {}
        self.settled: set[str] = set()
        self.taken: set[str] = set()
        self.free_at: dict[str, float] = {}
        self.buried: dict[Member, bytes] = {}
        self._claims: dict[tuple[str, bytes, int], list[Delivery]] = defaultdict(list)
        self._latest: dict[Member, int] = {}
        self._joined_at: dict[Member, float] = {}
        self._folds: dict[str, str] = {}  # by slot

    # ----------------------------------------------------------------------------------------- what the store has done

    def added(self, add: slot_store.SlotAdd, was_new: bool) -> None:
        """Note that the store has taken a publish."""
        member, note = (add.slot.name, add.member), message.decode_note(add.note)
        self._folds[add.slot.name] = add.fold.name
        before = self.unsettled.get(member, ())
        publish = Publish((note.headers or {})[WORK], add.body, add.score)
        self.unsettled[member] = (*before, publish)
        self._joined_at[member] = self._evidence.now
        self.taken.add(publish.name)
        self._evidence.note(add.slot.name, f"{publish.name} joins {len(before)} of {_shown(member)}")
        if not before and not was_new:
            self._evidence.violated("fold", add.slot.name, f"{publish.name} merged with something settled before")

    def claimed(self, claim: slot_store.SlotClaim, claimed: slot_store.SlotClaimed) -> None:
        """Note that the store has handed out members."""
        for entry in claimed.entries:
            self._hand_out(claim.slot, entry)

    def _hand_out(self, slot: slot_store.Slot, entry: slot_store.Entry) -> None:
        member = slot.name, entry.member
        found = self.unsettled.get(member, ())
        self._evidence.note(slot.name, f"{_shown(member)} is claimed, {len(found)} publishes, token {entry.token}")
        if not found:
            self._wrong(member, f"a delivery of {entry.body!r} stands for nothing that was published")
            return
        self._evidence.happened["merged"] += len(found) > 1
        wanted = folded(self._folds[slot.name], [publish.body for publish in found])
        first, last = found[0].score, found[-1].score
        score = first if slot.kind is slot_store.SlotKind.RANGE_MERGE else last
        if entry.body != wanted:
            self._wrong(member, f"its body is {entry.body!r}, and {wanted!r} was published")
        if entry.merged != len(found):
            self._wrong(member, f"it stands for {entry.merged} publishes, and {len(found)} are unsettled")
        if entry.left == slot_store.RETRIES and entry.score != score:
            self._wrong(member, f"it has score {entry.score:.0f} instead of {score:.0f}")
        due_ms = 0.0
        if slot.kind is not slot_store.SlotKind.PRIORITY:
            due_ms = score if entry.left == slot_store.RETRIES else min(publish.score for publish in found)
            self._evidence.first_due_ms[found[0].name] = score
            if slot.kind is slot_store.SlotKind.FIXED_TIME:
                self.free_at[found[0].name] = max(self.free_at.get(found[0].name, 0.0), self._joined_at[member])
        self._claims[slot.name, entry.member, entry.token].append(Delivery(found, wanted, due_ms))

    def told(self, settle: slot_store.SlotSettle, was_prepared: bool) -> None:
        """Note that the store has carried out a verdict."""
        if not was_prepared or settle.verdict not in (slot_store.SlotVerdict.ACK, slot_store.SlotVerdict.DEAD):
            return
        member = settle.slot.name, settle.member
        wanted = settle.verdict is slot_store.SlotVerdict.ACK
        claims = self._claims[settle.slot.name, settle.member, settle.token]
        left = [d for d in claims[::-1] if d.start >= 0 and not d.is_settled]
        if not left:
            self._wrong(member, f"{settle.verdict} of a delivery that was never started")
            return
        # A store that came back may have handed it out again under the same token; it does not matter which is settled.
        delivery = next((d for d in left if self._succeeded(d) is wanted), None)
        if delivery is None:
            delivery = left[0]
            self._wrong(member, f"{settle.verdict} of a delivery whose handler {'did not' if wanted else 'succeeded'}")
        delivery.is_settled = True
        names = {publish.name for publish in delivery.publishes}
        self._evidence.note(settle.slot.name, f"{_shown(member)}: {settle.verdict} of {sorted(names)}")
        self.unsettled[member] = more = tuple(p for p in self.unsettled.get(member, ()) if p.name not in names)
        if more:
            self.free_at[more[0].name] = self._evidence.now
        if wanted:
            self.settled |= names
        else:
            self.dead[member] = (*self.dead.get(member, ()), *delivery.publishes)

    def _succeeded(self, delivery: Delivery) -> bool:
        return self._evidence.ends.get(delivery.start, (0.0, False))[1]

    # -------------------------------------------------------------------------------------------------- what hosts did

    def keeps(self, slot: str) -> bool:
        """Return whether a slot is of a topic with merge keys; this is known after the first publish there."""
        return slot in self._folds

    def work_of(self, m: message.Message) -> Work | None:
        """Return the work that a message asks for: that of its first publish. None if it has no merge key."""
        if m.member is None or f"{m.topic}/{m.group}" not in self._folds:
            return None
        found = self._claims.get((f"{m.topic}/{m.group}", m.member, m.token))
        if not found:
            return Work(f"{m.topic}#-1")
        return self._evidence.published[found[-1].publishes[0].name][0]

    def started(self, number: int, m: message.Message) -> None:
        """Note that a handler has begun a message; do nothing if it has no merge key."""
        group = f"{m.topic}/{m.group}"
        if m.member is None or group not in self._folds:
            return
        member = group, m.member
        delivery = next((d for d in self._claims[group, m.member, m.token][::-1] if d.body == m.payload), None)
        if delivery is None:
            self._wrong(member, f"{m.payload!r} starts, which was never claimed")
            return
        delivery.start = number
        if m.merged != len(delivery.publishes):
            self._wrong(member, f"its handler is told of {m.merged} publishes instead of {len(delivery.publishes)}")
        if (told := (m.headers or {}).get(WORK)) != delivery.publishes[-1].name:
            self._wrong(member, f"it has the headers of {told} instead of {delivery.publishes[-1].name}")
        if m.started_us < delivery.due_ms * 1000:
            early_s = delivery.due_ms / 1000 - m.started_us / 1e6
            self._evidence.violated("time", group, f"{_shown(member)} starts {early_s:.3f} s before its time")
        self._judge_alone(number, member)

    def _judge_alone(self, number: int, member: Member) -> None:
        """Report two messages of one merge key that run at once under the same owner."""
        before, self._latest[member] = self._latest.get(member), number
        if before is None or before in self._evidence.ends:
            return
        start, other = self._evidence.starts[number], self._evidence.starts[before]
        forgotten = any(other.at - NOTICED_S <= at <= start.at for at in self._evidence.lost_at)
        if (start.host, start.epoch) == (other.host, other.epoch) and not forgotten:
            self._evidence.violated("K", member[0], f"{_shown(member)} starts while it runs")

    # ------------------------------------------------------------------------------------------------- when it is lost

    def snapshot(self) -> tuple[Mapping[Member, tuple[Publish, ...]], Mapping[Member, tuple[Publish, ...]]]:
        return dict(self.unsettled), dict(self.dead)

    def lost(
        self, kept: tuple[Mapping[Member, tuple[Publish, ...]], Mapping[Member, tuple[Publish, ...]]] | None
    ) -> None:
        """The store came back as it was at a snapshot, or empty: what it has forgotten is no promise of ours."""
        unsettled, dead = kept or ({}, {})
        there = {publish.name for each in (unsettled, dead) for found in each.values() for publish in found}
        for found in (*self.unsettled.values(), *self.dead.values()):
            self._evidence.forgotten.update(publish.name for publish in found if publish.name not in there)
        self.unsettled, self.dead = dict(unsettled), dict(dead)
        again = {publish.name for found in unsettled.values() for publish in found}
        for claims in self._claims.values():
            for delivery in claims:  # the store has forgotten how it ended, and may hear of that once more
                delivery.is_settled &= again.isdisjoint(publish.name for publish in delivery.publishes)

    def _wrong(self, member: Member, text: str) -> None:
        self._evidence.violated("fold", member[0], f"{_shown(member)}: {text}")


def folded(fold: str, bodies: Sequence[bytes]) -> bytes:
    """Return the fold of the bodies of some publishes, in their order."""
    match fold:
        case "latest":
            return bodies[-1]
        case "sum":
            return b"%d" % sum(map(int, bodies))
        case "max":
            return max(bodies, key=int)
        case "min":
            return min(bodies, key=int)
        case "count":
            return b"%d" % len(bodies)
        case _:
            return b"\n".join(dict.fromkeys(line for body in bodies for line in body.split(b"\n")))


def _shown(member: Member) -> str:
    return f"merge key {member[1].decode()}"


def judge(evidence: Evidence, rules: Rules) -> Iterator[Violation]:
    """In the end all that was published is settled or dead, once, and dead letters are what died."""
    folding = evidence.folding
    for (group, key), found in folding.unsettled.items():
        if found:
            names = [publish.name for publish in found]
            yield Violation("L", group, f"{_shown((group, key))}: nothing has settled {names}")
    died = {publish.name for found in folding.dead.values() for publish in found}
    for name, (work, confirmed) in evidence.published.items():
        if not rules.plans[work.topic].merges:
            continue
        if confirmed and name not in folding.settled | died | evidence.forgotten:
            yield Violation("L", work.topic, f"{name} is lost: no delivery stands for it")
    for member, found in folding.dead.items():
        wanted = folded(folding._folds[member[0]], [publish.body for publish in found])
        there = folding.buried.get(member)
        if there != wanted:
            yield Violation("X", member[0], f"the dead letter of {_shown(member)} is {there!r} instead of {wanted!r}")
        work = evidence.published[found[0].name][0]
        if work.fails < rules.plans[work.topic].dead_after:
            yield Violation("X", member[0], f"{_shown(member)} is dead; {found[0].name} fails only {work.fails} times")
    for member in folding.buried.keys() - folding.dead.keys():
        yield Violation("X", member[0], f"{_shown(member)} is dead, and nothing of it died")
