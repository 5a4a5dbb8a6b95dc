"""The proof: what a finished trail says about the promises no loss, at least once, cap, priority, key order, dead once.

    proof = prove("trail/", Expectations(still_queued=ids_in_the_store, quotas={"shop/0": 50.0}))
    assert proof.ok, proof

A proof is only as good as its ledger: where a segment is missing, torn or was never closed, or events were dropped,
the proof is void (`void_reasons`) whatever the counts say. Everything is held in memory: some million events take
seconds; for more, read the same files with Spark.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq import errors
from emq.trail import checks, schema, segments
from emq.trail.checks import Violations


@dataclasses.dataclass(frozen=True)
class Expectations:
    """What the trail cannot know.

    Attributes:
        still_queued: message ids that are still in the store (ready, delayed or in flight), or how many; None if not
            known: then whatever was not delivered is reported as unfinished and, skipped offsets apart, not as lost.
        quotas: starts a second by `<topic>/<group>` or, for a topic's sum, by `<topic>`; a number, or a list of
            (from_us, quota) as it changed. Hosts learn of a change late: give the time by which the last one knew of
            a lower quota, and the first one of a higher. What is not named is not checked.
        bursts: of topics paced "smooth", by the same names: checked in any second instead of the aligned ones.
        allowance: the counter's rule for an aligned second.
        strict: topics that serve strictly by priority; None for all.
        duplicates_allowed: deliveries that a crash may repeat (what was in flight or not checkpointed).
    """

    still_queued: Collection[str] | int | None = None
    quotas: Mapping[str, checks.Quota] = dataclasses.field(default_factory=dict)
    bursts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    allowance: checks.Allowance = checks.window_allowance
    strict: Collection[str] | None = None
    duplicates_allowed: int = 0

    def __post_init__(self) -> None:
        for name in self.bursts:
            if name not in self.quotas:
                raise errors.InvalidSettings(f"burst given for {name!r} but no quota; name it in quotas too")


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """How long first attempts of a topic waited from publish to start, in microseconds (two clocks may differ)."""

    count: int
    p50_us: int
    p99_us: int


@dataclasses.dataclass(frozen=True)
class Proof:
    """What the trail says. Messages are counted once, however often they were delivered.

    Attributes:
        events: read from the trail.
        segments: files read.
        published: messages whose publish returned.
        delivered: messages settled at least once.
        dead: messages in the dead letters and not replayed since.
        dropped: published messages dropped on purpose (`max_length`) or recalled, never delivered.
        skipped: offsets taken for holes.
        still_queued: as given; None if not known.
        unfinished: published, and neither delivered, dead, dropped nor lost.
        lost (L): published, and neither delivered, dead, dropped nor in the store; or skipped as a hole.
        unknown: delivered but not published in this trail; reported, not a violation.
        duplicates (D): messages settled more often than they were published.
        duplicates_allowed: surplus settles that are no violation.
        surplus: settles beyond the first of each message.
        cap_violations (Q): seconds with too many starts.
        priority_inversions (P): starts that overtook a ready message of higher priority.
        key_order (K): overlapping runs of a key, and first deliveries out of order.
        dead_twice (X): messages that became dead letters more than once without a replay.
        waits: by topic.
        void_reasons: why the ledger is incomplete.
    """

    events: int
    segments: int
    published: int
    delivered: int
    dead: int
    dropped: int
    skipped: int
    still_queued: int | None
    unfinished: int
    lost: Violations
    unknown: Violations
    duplicates: Violations
    duplicates_allowed: int
    surplus: int
    cap_violations: Violations
    priority_inversions: Violations
    key_order: Violations
    dead_twice: Violations
    waits: Mapping[str, Wait]
    void_reasons: tuple[str, ...]

    @property
    def promises(self) -> dict[str, bool]:
        """Whether each promise held, by its letter."""
        return {
            "L": not self.lost,
            "D": self.surplus <= self.duplicates_allowed,
            "Q": not self.cap_violations,
            "P": not self.priority_inversions,
            "K": not self.key_order,
            "X": not self.dead_twice,
        }

    @property
    def ok(self) -> bool:
        """All promises held, and the ledger is complete."""
        return not self.void_reasons and all(self.promises.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, fit for JSON."""
        return {"ok": self.ok, "promises": self.promises, **dataclasses.asdict(self)}


def prove(directory: Path | str, expected: Expectations | None = None) -> Proof:
    """Check every promise against the trail in `directory`.

    Raises:
        InvalidSettings: there is no such directory.
    """
    expected = expected or Expectations()
    ledger = segments.read(Path(directory))
    table = ledger.table.append_column("name", _join(ledger.table["topic"], ledger.table["id"]))
    starts, ends = _starts(table), _ends(table)
    aligned = {name: quota for name, quota in expected.quotas.items() if name not in expected.bursts}
    caps = (
        checks.aligned_caps(starts, aligned, expected.allowance),
        checks.sliding_caps(starts, expected.quotas, expected.bursts),
    )
    order = (checks.overlaps(starts, ends), checks.disorder(starts))
    return Proof(
        events=table.num_rows,
        segments=ledger.segments,
        **_account(table, expected.still_queued),
        duplicates_allowed=expected.duplicates_allowed,
        cap_violations=_sum(caps),
        priority_inversions=checks.inversions(starts, ends, expected.strict),
        key_order=_sum(order),
        waits=_waits(starts),
        void_reasons=ledger.flaws,
    )


# --------------------------------------------------------------------------------------------- from columns to records


def _join(left: Any, right: Any) -> Any:
    """`left/right`, null where either is."""
    return pc.binary_join_element_wise(left.cast(pa.string()), right.cast(pa.string()), "/")


def _only(table: Any, *events: str) -> Any:
    return table.filter(pc.is_in(table["event"], pa.array(events)))


def _lists(table: Any, *columns: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in columns]


def _starts(table: Any) -> list[checks.Start]:
    """All starts in order of time; those of one microsecond in order of their offsets."""
    rows = _only(table, schema.STARTED).sort_by([("time_us", "ascending"), ("offset", "ascending")])
    rows = rows.append_column("place", _join(rows["topic"], rows["group"]))
    return list(map(checks.Start._make, zip(*_lists(rows, *checks.Start._fields), strict=True)))


def _ends(table: Any) -> list[checks.End]:
    rows = _only(table, schema.SETTLED, schema.RETRIED, schema.DEAD)
    rows = rows.filter(pc.is_valid(rows["key"]))
    rows = rows.append_column("final", pc.not_equal(rows["event"], schema.RETRIED))
    return list(map(checks.End._make, zip(*_lists(rows, *checks.End._fields), strict=True)))


def _sum(parts: Iterable[Violations]) -> Violations:
    parts = tuple(parts)
    examples = [line for part in parts for line in part.examples]
    return Violations(sum(part.count for part in parts), tuple(examples[: checks.MAX_EXAMPLES]))


def _waits(starts: Sequence[checks.Start]) -> dict[str, Wait]:
    waits: dict[str, list[int]] = defaultdict(list)
    for start in starts:
        if start.attempt == 1 and start.published_us:
            waits[start.topic].append(start.time_us - start.published_us)
    return {topic: _wait(sorted(values)) for topic, values in sorted(waits.items())}


def _wait(ascending: list[int]) -> Wait:
    n = len(ascending)
    return Wait(n, ascending[(n - 1) // 2], ascending[(n - 1) * 99 // 100])


# --------------------------------------------------------------------------------------- L, D, X: each message's fate


def _account(table: Any, still_queued: Collection[str] | int | None) -> dict[str, Any]:
    """The fields of `Proof` that count messages."""

    def names(event: str) -> Counter[str]:
        return Counter(_only(table, event)["name"].to_pylist())

    published, settled, dead, replayed = map(names, (schema.PUBLISHED, schema.SETTLED, schema.DEAD, schema.REPLAYED))
    buried = {name for name, times in dead.items() if times > replayed[name]}
    dropped = names(schema.RECALLED).keys() - settled.keys()
    open_ = published.keys() - settled.keys() - buried - dropped
    at_offsets = _places(table, open_)
    dropped |= _within(at_offsets, _only(table, schema.DROPPED))
    open_ -= dropped
    skipped = _only(table, schema.SKIPPED)
    lost, unfinished = _lost(open_, _within(at_offsets, skipped) & open_, still_queued)
    repeated = {name: times for name, times in settled.items() if times > max(1, published[name])}
    return {
        "published": len(published),
        "delivered": len(settled),
        "dead": len(buried),
        "dropped": len(dropped),
        "skipped": pc.sum(pc.subtract(skipped["until"], skipped["offset"])).as_py() or 0,
        "still_queued": len(set(still_queued)) if isinstance(still_queued, Collection) else still_queued,
        "unfinished": unfinished,
        "lost": lost,
        "unknown": _listed(settled.keys() - published.keys()),
        "duplicates": Violations.of(f"{name} settled {times} times" for name, times in sorted(repeated.items())),
        "surplus": sum(times - max(1, published[name]) for name, times in repeated.items()),
        "dead_twice": Violations.of(
            f"{name} became a dead letter {times} times"
            for name, times in sorted(dead.items())
            if times > 1 + replayed[name]
        ),
    }


def _lost(open_: set[str], skipped: set[str], still_queued: Collection[str] | int | None) -> tuple[Violations, int]:
    """What of the unaccounted messages is lost, and how many remain that may still come.

    Args:
        open_: published, and neither delivered, dead nor dropped.
        skipped: those of them that were skipped as holes: no host will look there again.
        still_queued: see `Expectations`.
    """
    waiting = open_ - skipped
    if still_queued is None:
        return _listed(skipped), len(waiting)
    if isinstance(still_queued, int):
        absent = max(0, len(waiting) - still_queued)
        doubt = " or another" if absent < len(waiting) else ""
        suspects = [f"{name}{doubt}" for name in sorted(waiting)[: min(absent, checks.MAX_EXAMPLES)]]
        return _sum((_listed(skipped), Violations(absent, tuple(suspects)))), len(waiting) - absent
    kept = set(still_queued)
    gone = {name for name in waiting if name.partition("/")[2] not in kept}
    return _listed(skipped | gone), len(waiting) - len(gone)


def _listed(names: Iterable[str]) -> Violations:
    return Violations.of(sorted(names))


_Place = tuple[str, int, int]
"""topic, group, priority"""


def _places(table: Any, names: Collection[str]) -> list[tuple[_Place, int, str]]:
    """Queue and offset of published messages."""
    rows = _only(table, schema.PUBLISHED)
    rows = rows.filter(pc.is_in(rows["name"], pa.array(names, pa.string())))
    rows = rows.filter(pc.is_valid(rows["offset"]))
    topics, groups, priorities, offsets, found = _lists(rows, "topic", "group", "priority", "offset", "name")
    return list(zip(zip(topics, groups, priorities, strict=True), offsets, found, strict=True))


def _within(messages: Iterable[tuple[_Place, int, str]], ranges: Any) -> set[str]:
    """Those of the messages that lie in one of the ranges of offsets."""
    columns = _lists(ranges, "topic", "group", "priority", "offset", "until")
    spans: dict[_Place, list[tuple[int, int]]] = defaultdict(list)
    for topic, group, priority, start, end in zip(*columns, strict=True):
        spans[topic, group, priority].append((start, end))
    merged = {place: _merge(sorted(found)) for place, found in spans.items()}
    inside = set()
    for place, offset, name in messages:
        found = merged.get(place, [])
        i = bisect_right(found, (offset, 1 << 63)) - 1
        if i >= 0 and offset < found[i][1]:
            inside.add(name)
    return inside


def _merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
