"""The proof: checks of EMQ's promises (no loss, at least once, cap, priority, key order, ...) on a finished trail.

    proof = prove("trail/", Expectations(still_queued=ids_in_the_store, quotas={"shop/0": 50.0}))
    assert proof.ok, proof

A proof needs a complete ledger. If a segment is missing, torn or was never closed, or if events were dropped, the proof
is void (`void_reasons`), whatever the counts are. All events are held in memory: some million events take seconds; for
more, read the same files with Spark.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.runtime import errors
from emq.trail import events, segments
from emq.trail.runs import CutShort
from emq_proof import checks, faults, keys, outcomes, priorities, waiting
from emq_proof.checks import Violations
from emq_proof.owners import UNTOLD_US
from emq_proof.rows import join, lists, losses, only, origins


@dataclasses.dataclass(frozen=True)
class Expectations:
    """Facts for the proof that the trail does not hold.

    Attributes:
        still_queued: message ids that are still in the store (ready, delayed or in flight), or their number. None if
            not known: the proof then reports messages that were not delivered as unfinished, and only messages at
            skipped offsets as lost.
        quotas: starts a second by `<topic>/<group>` and, for a topic's sum, by `<topic>`; a number, a share, or a
            list of (from_us, quota) as it changed. Hosts learn of a change late: for a lower quota give the time by
            which the last host knew of it, for a higher one the time by which the first host did. Groups and topics
            without a quota here are not checked.
        bursts: bursts of topics paced "smooth", by the same names; the proof checks these in any stretch of one second
            instead of the aligned seconds.
        budgets: the budgets in which the starts of a topic count, by the topic, as `emq_proof.limits` names them.
        strict: topics that serve strictly by priority; None for all.
        serial: sorted topics that run one message of a slot at a time.
        max_attempts: by topic, the number of attempts after which a message is dead; topics not named here are not
            checked.
        rejects: topics that refuse messages beyond their `max_length`.
        max_skew_s: seconds by which the clocks of two machines may differ.
        duplicates_allowed: deliveries that a crash may repeat (of messages in flight or not checkpointed).
    """

    still_queued: Collection[str] | int | None = None
    quotas: Mapping[str, checks.Quota] = dataclasses.field(default_factory=dict)
    bursts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    budgets: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    strict: Collection[str] | None = None
    serial: Collection[str] = ()
    max_attempts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rejects: Collection[str] = ()
    max_skew_s: float = 0.25
    duplicates_allowed: int = 0

    def __post_init__(self) -> None:
        for name in self.bursts:
            if name not in self.quotas:
                raise errors.InvalidSettings(f"burst given for {name!r} but no quota; name it in quotas too")


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """The waits of first attempts from publish to start, in microseconds (two clocks may differ)."""

    count: int = 0
    p50_us: int = 0
    p99_us: int = 0

    @classmethod
    def of(cls, waits_us: Iterable[int]) -> Wait:
        ascending = sorted(waits_us)
        n = len(ascending)
        return cls(n, ascending[(n - 1) // 2], ascending[(n - 1) * 99 // 100]) if n else cls()


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of the checks. Messages are counted once, however often they were delivered.

    In sorted topics ids repeat, so all messages of one id count as one message: it is lost if its last publish had
    no outcome, and its settles are compared with its publishes, see `emq_proof.lives`.

    Attributes:
        events: events read from the trail.
        segments: files read.
        published: messages whose publish returned.
        merged: publishes that were merged with a waiting message.
        delivered: messages settled at least once.
        dead: messages in the dead letters and not replayed since.
        dropped: published messages dropped on purpose (`max_length`) or recalled, never delivered.
        lost_by_store: published messages that their store lost in a crash. They break no promise of EMQ's, since a
            publish can wait for a replica or the disk.
        skipped: offsets taken for holes.
        still_queued: as given; None if not known.
        unfinished: published messages, neither delivered, dead, dropped nor lost.
        lost (L): published messages, neither delivered, dead, dropped nor in the store; or skipped as a hole.
        unknown: messages delivered but not published in this trail; reported, not a violation.
        duplicates (D): messages settled more than once; in sorted topics, more often than publishes without a merge.
        duplicates_allowed: number of surplus settles that are not a violation.
        surplus: number of surplus settles, over all messages of `duplicates`.
        deliveries (D): impossible deliveries: from two places, twice by one owner, or of a settled message.
        cap_violations (Q): seconds with too many starts.
        priority_inversions (P): starts that overtook a message of higher priority, or had a priority that differs from
            that of the publish.
        owners (O): starts by a source that did not own the group.
        offsets (M): two messages at one offset, or a message from an offset that differs from that of its publish.
        times (T): starts before the due time or after the expiry, and messages that expired too early.
        key_order (K): overlapping runs of a key, and first deliveries out of order.
        dead_twice (X): messages that became dead letters more than once without a replay.
        deaths (X): messages that died too early, or lived on after their last attempt.
        waits: the waits of each topic.
        void_reasons: the reasons why the ledger is incomplete.
    """

    events: int
    segments: int
    published: int
    merged: int
    delivered: int
    dead: int
    dropped: int
    lost_by_store: int
    skipped: int
    still_queued: int | None
    unfinished: int
    lost: Violations
    unknown: Violations
    duplicates: Violations
    duplicates_allowed: int
    surplus: int
    deliveries: Violations
    cap_violations: Violations
    priority_inversions: Violations
    key_order: Violations
    owners: Violations
    offsets: Violations
    times: Violations
    dead_twice: Violations
    deaths: Violations
    waits: Mapping[str, Wait]
    void_reasons: tuple[str, ...]

    @property
    def promises(self) -> dict[str, bool]:
        """By letter, True for each promise that held."""
        return {
            "L": not self.lost,
            "D": self.surplus <= self.duplicates_allowed and not self.deliveries,
            "Q": not self.cap_violations,
            "P": not self.priority_inversions,
            "K": not self.key_order,
            "O": not self.owners,
            "M": not self.offsets,
            "T": not self.times,
            "X": not self.dead_twice and not self.deaths,
        }

    @property
    def ok(self) -> bool:
        """True if all promises held and the ledger is complete."""
        return not self.void_reasons and all(self.promises.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as plain values, fit for JSON."""
        return {"ok": self.ok, "promises": self.promises, **dataclasses.asdict(self)}


def prove(directory: Path | str, expected: Expectations | None = None) -> Proof:
    """Check every promise against the trail in `directory`.

    Raises:
        InvalidSettings: there is no such directory.
    """
    expected = expected or Expectations()
    ledger = segments.read(Path(directory))
    ids = ledger.table["id"]
    table = ledger.table.append_column("name", join(ledger.table["topic"], ids))
    of_origins = ledger.table.append_column("name", join(ledger.table["topic"], origins(ids)))
    owners = faults.ownerships(table, ledger.cut_short)
    starts, ends = _starts(of_origins), _ends(of_origins)
    aligned = {name: quota for name, quota in expected.quotas.items() if name not in expected.bursts}
    slack_us = round(expected.max_skew_s * 1e6)
    caps = (
        checks.aligned_caps(starts, aligned, slack_us, expected.budgets),
        checks.sliding_caps(starts, expected.quotas, expected.bursts, slack_us),
    )
    left = waiting.of(table, owners.crashes)
    begun = losses(table, events.FORGOTTEN)
    noticed = {(f"{t}/{g}", p): found for (t, g, p), found in begun.items()}
    doubtful = _doubtful(ledger)
    order = (
        keys.overlaps(starts, ends, owners.over_us, slack_us, doubtful),
        keys.overlaps(*_by_slot(of_origins, starts, expected.serial, ledger.cut_short), owners.over_us, slack_us),
        keys.disorder(starts, noticed, slack_us, left),
        keys.overtaken(starts, _publishes(table), slack_us, doubtful),
    )
    single = faults.of(table, owners, expected.max_attempts, expected.rejects, slack_us, ledger.is_whole)
    broken = defaultdict(Violations, single.broken)
    accounts = outcomes.of_messages(table, expected.still_queued, ledger.cut_short, slack_us)
    accounts["lost"] = Violations.sum((accounts["lost"], broken["L"]))
    return Proof(
        events=table.num_rows,
        segments=ledger.segments,
        **accounts,
        duplicates_allowed=expected.duplicates_allowed,
        deliveries=broken["D"],
        cap_violations=Violations.sum(caps),
        priority_inversions=Violations.sum(
            (priorities.inversions(starts, ends, expected.strict, owners.owned_us, left), broken["P"])
        ),
        key_order=Violations.sum((*order, broken["K"])),
        owners=broken["O"],
        offsets=broken["M"],
        times=broken["T"],
        deaths=broken["X"],
        waits=_waits(starts),
        void_reasons=(*ledger.flaws, *_behind(starts, slack_us), *single.contradictions),
    )


# --------------------------------------------------------------------------------------------- from columns to records


def _starts(table: Any) -> list[checks.Start]:
    """Return all starts in order of time; starts of one microsecond in order of their offsets."""
    rows = only(table, events.STARTED).sort_by([("time_us", "ascending"), ("offset", "ascending")])
    rows = rows.append_column("place", join(rows["topic"], rows["group"]))
    return list(map(checks.Start._make, zip(*lists(rows, *checks.Start._fields), strict=True)))


def _by_slot(
    table: Any, starts: Sequence[checks.Start], serial: Collection[str], cut_short: Collection[CutShort]
) -> tuple[list[checks.Start], list[checks.End]]:
    """Starts and ends of these topics, with their slot for a key.

    A failed delivery counts as over at once, because the slot's next message starts when the handler returns, while the
    failure is recorded once the store knows of it. A delivery of a killed host that has no end may have failed in the
    last second of the trail, while the host waited for the store.
    """
    mine = [start._replace(key=start.place) for start in starts if start.topic in serial]
    begun: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for start in mine:
        begun[start.name, start.attempt, start.source].append(start.time_us)
    rows = only(table, events.SETTLED, events.RETRIED, events.RETURNED, events.DEAD)
    rows = rows.filter(pc.is_in(rows["topic"], pa.array(sorted(serial), pa.string())))
    ends = []
    for event, time_us, name, attempt, source in zip(
        *lists(rows, "event", "time_us", "name", "attempt", "source"), strict=True
    ):
        if event != events.SETTLED:
            time_us = max((at for at in begun[name, attempt, source] if at <= time_us), default=time_us)
        ends.append(checks.End(time_us, name, attempt, source, event not in events.AGAIN))
    ends.extend(_untold(mine, ends, cut_short))
    return mine, ends


def _untold(
    starts: Iterable[checks.Start], ends: Iterable[checks.End], cut_short: Collection[CutShort]
) -> Iterator[checks.End]:
    """Yield the failures that a killed host may not have recorded, each at the earliest possible time."""
    told = {(end.name, end.attempt, end.source) for end in ends}
    for start in starts:
        for run in cut_short:
            is_of_run = run.source == start.source and run.first_us <= start.time_us <= run.last_us
            if is_of_run and (start.name, start.attempt, start.source) not in told:
                time_us = max(start.time_us, run.last_us - UNTOLD_US)
                yield checks.End(time_us, start.name, start.attempt, start.source, final=False)


def _ends(table: Any) -> list[checks.End]:
    rows = only(table, events.SETTLED, events.RETRIED, events.RETURNED, events.DEAD)
    rows = rows.filter(pc.is_valid(rows["key"]))
    rows = rows.append_column("final", pc.invert(pc.is_in(rows["event"], pa.array(events.AGAIN))))
    return list(map(checks.End._make, zip(*lists(rows, *checks.End._fields), strict=True)))


def _publishes(table: Any) -> dict[str, keys.Publish]:
    """Return the publishes of the messages with a key that were certainly published once."""
    rows = only(table, events.PUBLISHED, events.DOUBTED)
    found: dict[str, keys.Publish] = {}
    twice: set[str] = set()
    columns = lists(rows, "event", "name", "key", "published_us", "time_us", "source")
    for event, name, key, begun_us, done_us, source in zip(*columns, strict=True):
        if event == events.DOUBTED or name in found:
            twice.add(name)
        elif key is not None:
            found[name] = keys.Publish(begun_us or done_us, done_us, source)
    return {name: publish for name, publish in found.items() if name not in twice}


def _doubtful(ledger: segments.Ledger) -> set[str]:
    """Return the groups that a killed host had, or whose store has lost messages."""
    rows = only(ledger.table, events.OWNED, events.LOST)
    killed = {run.source for run in ledger.cut_short}
    places = join(rows["topic"], rows["group"]).to_pylist()
    told = zip(places, *lists(rows, "event", "source"), strict=True)
    return {place for place, event, source in told if event == events.LOST or source in killed}


def _behind(starts: Sequence[checks.Start], slack_us: int) -> list[str]:
    """Return a line for each source whose clock is behind a publisher's: starts of two hosts cannot be compared."""
    found: dict[str, int] = {}
    for start in starts:
        if start.attempt == 1 and start.published_us and start.published_us > start.time_us + slack_us:
            found[start.source] = max(found.get(start.source, 0), start.published_us - start.time_us)
    return [
        f"the clock of {source} is at least {us / 1e6:.3f} s behind its publishers', more than {slack_us / 1e6:g}: "
        "starts of two hosts cannot be compared"
        for source, us in sorted(found.items())
    ]


def _waits(starts: Sequence[checks.Start]) -> dict[str, Wait]:
    waits: dict[str, list[int]] = defaultdict(list)
    for start in starts:
        if start.attempt == 1 and start.published_us:
            waits[start.topic].append(start.time_us - start.published_us)
    return {topic: Wait.of(values) for topic, values in sorted(waits.items())}
