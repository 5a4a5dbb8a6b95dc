"""Violations in the history of each single message and in the records of each owner: a part of the proof.

`emq_proof.outcomes` counts missing and surplus events; this module finds events that contradict each other.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.runtime import plurals
from emq.trail import events
from emq.trail.runs import CutShort
from emq_proof import contents, histories, interleaved, lives
from emq_proof.checks import Violations
from emq_proof.history_facts import Facts, Fault, Loss, Losses, Step, concerns
from emq_proof.owners import Owners, Ownership
from emq_proof.rows import lists, losses, only, steps_of

_EVENTS = (
    *(events.PUBLISHED, events.STARTED, events.SETTLED, *events.AGAIN, events.DEAD),
    *(events.REPLAYED, events.RECALLED, events.DOUBTED),
)


class Faults(NamedTuple):
    """Attributes:
    broken: violations by promise.
    contradictions: reasons why the trail proves nothing, one line for each kind.
    """

    broken: Mapping[str, Violations]
    contradictions: tuple[str, ...]


def of(
    table: Any,
    owners: Owners,
    max_attempts: Mapping[str, int],
    rejects: Collection[str],
    slack_us: int,
    is_whole: bool,
) -> Faults:
    """Judge all messages and owners.

    Args:
        table: the trail, with a column `name`: `<topic>/<id>`.
        owners: owners of all groups, by the trail.
        max_attempts: by topic, see `emq_proof.history_facts.Facts`.
        rejects: topics that refuse messages beyond their max_length and never drop any.
        slack_us: largest difference between the clocks of two machines.
        is_whole: whether the trail is complete. If not, violations that a missing event could explain do not count.
    """
    lost = losses(table)
    found: dict[str, list[str]] = defaultdict(list)
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for fault in _faults(table, owners, lost, max_attempts, slack_us, is_whole):
        if fault.promise == "E":
            kinds[fault.kind] += 1
            examples.setdefault(fault.kind, fault.text)
        else:
            found[fault.promise].append(fault.text)
    found["O"] += owners.faults(slack_us, is_whole)
    if is_whole:
        found["O"] += interleaved.faults(table, owners, slack_us)
        found["O"] += _by_strangers(table, owners)
    found["M"] += _one_offset(table, losses(table, events.FORGOTTEN), slack_us)
    found["M"] += _rewound(table, lost, slack_us)
    found["X"] += _never_dead(table, max_attempts)
    found["L"] += _dropped(table, rejects)
    lines = tuple(
        f"{kind}: {plurals.count(count, 'delivery', 'deliveries')} ({examples[kind]})"
        for kind, count in sorted(kinds.items())
    )
    return Faults({promise: Violations.of(texts) for promise, texts in found.items()}, lines)


def ownerships(table: Any, cut_short: Collection[CutShort]) -> Owners:
    """Return the owners of all groups, by the records of ownership and by the starts."""
    said = only(table, events.OWNED, events.RELEASED, events.STARTED)
    owner = ["topic", "group", "source", "epoch"]
    columns = said.group_by([*owner, "event"]).aggregate([("time_us", "min"), ("time_us", "max")])
    found: dict[tuple[str, int, str, int], dict[str, Any]] = defaultdict(dict)
    again: dict[tuple[str, int, str, int], int] = {}
    releases: dict[tuple[str, int, str, int], tuple[int, int]] = {}
    names = (*owner, "event", "time_us_min", "time_us_max")
    for topic, group, source, epoch, event, first_us, last_us in zip(*lists(columns, *names), strict=True):
        epoch = -1 if epoch is None else epoch
        times = found[topic, group, source, epoch]
        if event == events.OWNED:
            times["owned_us"] = first_us
            again[topic, group, source, epoch] = last_us
        elif event == events.RELEASED:
            releases[topic, group, source, epoch] = first_us, last_us
        else:
            times.update(first_us=first_us, last_us=last_us)
    for who, (first_us, last_us) in releases.items():
        # A start after a release does not undo it.
        found[who]["released_us"] = last_us if again.get(who, 0) > first_us else first_us
    return Owners((Ownership(*who)._replace(**times) for who, times in found.items()), cut_short)


# -------------------------------------------------------------------------------------------------------- each message


def _faults(
    table: Any,
    owners: Owners,
    losses: Losses,
    max_attempts: Mapping[str, int],
    slack_us: int,
    is_whole: bool,
) -> Iterator[Fault]:
    def facts_of(topic: str) -> Facts:
        def crashes(group: int) -> Sequence[tuple[float, float]]:
            return owners.crashes(f"{topic}/{group}")

        def lost(group: int, priority: int | None) -> Sequence[Loss]:
            return losses.get((topic, group, priority), ())

        return Facts(max_attempts.get(topic), slack_us, crashes, is_whole, lost)

    for topic, name, steps in _histories(table):
        yield from histories.judge(name, steps, facts_of(topic))
    returning = table.filter(pc.match_substring_regex(table["id"], events.SLOT_ID))
    for topic, steps_of_id in _lives(only(returning, *lives.EVENTS), "origin", *lives.ORDER):
        yield from contents.judge(steps_of_id, facts_of(topic))
    if pc.any(pc.is_valid(returning["due_ms"])).as_py():
        for _, steps_of_id in _lives(only(returning, *contents.DUE), "name", "begun_us", "event"):
            yield from contents.too_early(steps_of_id, slack_us)


def _histories(table: Any) -> Iterator[tuple[str, str, list[Step]]]:
    """Yield topic, name and steps of each message that is published once."""
    rows = only(table, *_EVENTS)
    rows = rows.filter(pc.is_valid(rows["id"]))
    rows = rows.filter(pc.invert(pc.match_substring_regex(rows["id"], events.SLOT_ID)))
    rows = rows.sort_by([("name", "ascending"), ("time_us", "ascending")])
    columns = zip(*lists(rows, "topic", "name"), *lists(rows, *Step._fields), strict=True)
    for (topic, name), mine in itertools.groupby(columns, key=lambda row: row[:2]):
        yield topic, name, histories.in_order(Step(*values) for _, _, *values in mine)


def _lives(table: Any, name: str, *order: str) -> Iterator[tuple[str, Iterator[lives.Step]]]:
    """Yield topic and steps of each id; `name` is the column of the ids."""
    rows = steps_of(table).sort_by([(column, "ascending") for column in (name, *order)])
    columns = zip(rows["topic"].to_pylist(), *lists(rows, *lives.Step._fields), strict=True)
    i = 1 + lives.Step._fields.index(name)
    for (topic, _), mine in itertools.groupby(columns, key=lambda row: (row[0], row[i])):
        yield topic, (lives.Step(*values) for _, *values in mine)


# ------------------------------------------------------------------------------------------------------- each offset


def _one_offset(table: Any, losses: Losses, slack_us: int) -> Iterator[str]:
    """Yield two messages at one offset, unless the store lost or forgot it in between, and gives it out again."""
    rows = only(table, events.PUBLISHED)
    rows = rows.filter(pc.is_valid(rows["offset"]))
    place = ["topic", "group", "priority", "offset"]
    counted = rows.group_by(place).aggregate([("id", "count_distinct")])
    twice = counted.filter(pc.greater(counted["id_count_distinct"], 1))
    for topic, group, priority, offset in sorted(zip(*lists(twice, *place), strict=True)):
        mask = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["offset"], offset))
        there = rows.filter(
            pc.and_(mask, pc.and_(pc.equal(rows["group"], group), pc.equal(rows["priority"], priority)))
        )
        first: dict[str, int] = {}
        for name, time_us in sorted(zip(*lists(there, "id", "time_us"), strict=True), key=lambda row: row[1]):
            first.setdefault(name, time_us)
        # The store must have lost each of them before the next one came.
        lost = losses.get((topic, group, priority), ())
        if not all(concerns(lost, offset, time_us, slack_us) for time_us in [*first.values()][:-1]):
            names = " and ".join(sorted(first))
            yield f"{names} were both published at offset {offset} of {topic}/{group}, priority {priority}"


def _rewound(table: Any, losses: Losses, slack_us: int) -> Iterator[str]:
    """Yield offsets with two first deliveries by one owner under one epoch.

    Except offsets that the store lost then, and deliveries whose handler gave the message back.
    """
    rows = only(table, events.STARTED)
    rows = rows.filter(pc.and_(pc.equal(rows["attempt"], 1), pc.greater_equal(rows["offset"], 0)))
    place = ["topic", "group", "priority", "offset", "id", "source", "epoch"]
    counted = rows.group_by(place).aggregate([("time_us", "count"), ("time_us", "min")])
    twice = counted.filter(pc.greater(counted["time_us_count"], 1))
    columns = zip(*lists(twice, *place, "time_us_count", "time_us_min"), strict=True)
    returned = Counter(zip(*lists(only(table, events.RETURNED), *place[:-1]), strict=True))
    for topic, group, priority, offset, name, source, epoch, times, first_us in sorted(columns):
        if times - returned[topic, group, priority, offset, name, source] <= 1:
            continue
        if not concerns(losses.get((topic, group, priority), ()), offset, first_us, slack_us):
            where = f"offset {offset} of {topic}/{group} ({name})"
            yield f"{where} was delivered {times} times by {source} under epoch {epoch}"


def _by_strangers(table: Any, owners: Owners) -> Iterator[str]:
    """Yield deaths and holes that a source recorded in a group that it never had; other ends need a start."""
    rows = only(table, events.DEAD, events.SKIPPED)
    counted = rows.group_by(["topic", "group", "source", "event"]).aggregate([("time_us", "min")])
    names = ("topic", "group", "source", "event", "time_us_min")
    for topic, group, source, event, time_us in sorted(zip(*lists(counted, *names), strict=True)):
        if not owners.knows(f"{topic}/{group}", source):
            yield f"{source} never owned {topic}/{group}, and recorded {event} messages from {time_us} us on"


def _never_dead(table: Any, max_attempts: Mapping[str, int]) -> Iterator[str]:
    """Yield messages that failed at their last attempt and were put back for another."""
    rows = only(table, events.RETRIED)
    for topic, name, attempt in zip(*lists(rows, "topic", "name", "attempt"), strict=True):
        if attempt >= (most := max_attempts.get(topic, attempt + 1)):
            yield f"{name} failed at attempt {attempt} of {most} and was put back"


def _dropped(table: Any, rejects: Collection[str]) -> Iterator[str]:
    """Yield messages that were dropped for lack of room, of topics that must refuse instead."""
    rows = only(table, events.DROPPED)
    rows = rows.filter(pc.is_in(rows["topic"], pa.array(sorted(rejects), pa.string())))
    for topic, group, start, end, reason in zip(
        *lists(rows, "topic", "group", "offset", "until", "reason"), strict=True
    ):
        if reason == "max_length":
            yield (
                f"offsets {start} to {end} of {topic}/{group} were dropped, although the topic refuses new messages "
                "instead"
            )
