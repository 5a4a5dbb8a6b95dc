"""The outcome of each message: the part of the proof for no loss, at least once, dead once (L, D, X)."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.runtime import plurals
from emq.trail import events
from emq.trail.runs import CutShort
from emq_proof import checks, lives
from emq_proof.checks import Violations
from emq_proof.owners import UNSAVED_US
from emq_proof.rows import join, lists, losses, only, steps_of


def of_messages(
    table: Any, still_queued: Collection[str] | int | None, cut_short: Collection[CutShort] = (), slack_us: int = 0
) -> dict[str, Any]:
    """Return the fields of `emq_proof.proof.Proof` that count messages.

    This counts ids that were published once. `emq_proof.lives` judges ids that were published or merged more often, or
    whose publish failed with an unknown outcome. A message that moved from its slot to its lane counts from then on
    under its id in the lane.

    Args:
        table: the trail, with a column `name`: `<topic>/<id>`.
        still_queued: see `emq_proof.proof.Expectations`.
        cut_short: runs of killed hosts.
        slack_us: largest difference between the clocks of two machines.
    """
    names = partial(_names, table)
    published, settled, dead, replayed = map(names, (events.PUBLISHED, events.SETTLED, events.DEAD, events.REPLAYED))
    early = _over_before(table, slack_us)
    more = names(events.MERGED) + names(events.DOUBTED)
    # `histories` judges messages that were recalled and nevertheless settled, except ids that follow from contents.
    taken = names(events.RECALLED)
    more += Counter(name for name in taken.keys() & settled.keys() if events.is_content(name.partition("/")[2]))
    repeated = _lives(table, [name for name, times in published.items() if times > 1 or name in more], slack_us)
    buried = {name for name, times in dead.items() if name not in repeated and times - early[name] > replayed[name]}
    buried |= _buried_again(table, [name for name in dead if name in replayed and events.origin(name) not in published])
    recalled = (taken - early).keys() - settled.keys()
    copies = {name for name in (*names(events.RETRIED), *dead) if events.is_copy(name.partition("/")[2])}
    moved = {name.rpartition(events.COPY)[0] for name in copies}
    open_ = (published.keys() - repeated.keys() - moved | copies) - settled.keys() - buried - recalled
    open_ |= {name for name, life in repeated.items() if life.is_open}
    open_ |= _seen(table, published.keys() | copies) - settled.keys() - buried - recalled
    buried |= {name for name, life in repeated.items() if life.is_buried}
    at_offsets = _places(table, open_)
    dropped = _ranged(at_offsets, table, events.DROPPED, slack_us)
    open_ -= dropped
    forgotten = _forgotten(at_offsets, table) & open_
    open_ -= forgotten
    skipped = only(table, events.SKIPPED)
    lost, unfinished = _lost(open_, _ranged(at_offsets, table, events.SKIPPED) & open_, still_queued)
    repeats = _repeats(table, settled, repeated, slack_us)
    once = dead - _unsaved_deaths(table, cut_short) - replayed
    died_again = [name for name, times in once.items() if name not in repeated and times > 1]
    died_again += [name for name, life in repeated.items() if life.died_again]
    return {
        "published": len(published),
        "merged": only(table, events.MERGED).num_rows,
        "delivered": len(settled),
        "dead": len(buried),
        "dropped": len(dropped | recalled),
        "lost_by_store": len(forgotten),
        "skipped": pc.sum(pc.subtract(skipped["until"], skipped["offset"])).as_py() or 0,
        "still_queued": len(set(still_queued)) if isinstance(still_queued, Collection) else still_queued,
        "unfinished": unfinished,
        "lost": lost,
        "unknown": _listed(settled.keys() - published.keys() - copies),
        "duplicates": Violations.of(_settled(name, settled[name], taken[name]) for name in sorted(repeats)),
        "surplus": sum(repeats.values()),
        "dead_twice": Violations.of(f"{name} became a dead letter {dead[name]} times" for name in sorted(died_again)),
    }


def _names(table: Any, event: str) -> Counter[str]:
    return Counter(only(table, event)["name"].to_pylist())


def _repeats(table: Any, settled: Counter[str], repeated: Mapping[str, lives.Life], slack_us: int) -> dict[str, int]:
    """Return the messages that were settled more than once, with the number of times after the first."""
    repeats = {name: times - 1 for name, times in settled.items() if name not in repeated and times > 1}
    repeats |= {name: again for name, life in repeated.items() if (again := life.settled_again)}
    for name in _ranged(_places(table, repeats), table, events.LOST, slack_us):
        del repeats[name]  # the owner reads such messages again: it does not know how many of them the store had kept
    return repeats


def _settled(name: str, times: int, recalls: int) -> str:
    recalled = f", and recalled {plurals.count(recalls, 'time')}" if recalls else ""
    return f"{name} settled {plurals.count(times, 'time')}{recalled}"


def _over_before(table: Any, slack_us: int) -> Counter[str]:
    """Count, by name, recalls and deaths before the publish of their message: these end an earlier one."""
    ends = only(table, events.RECALLED, events.DEAD)
    mine = only(table, events.PUBLISHED)
    mine = mine.filter(pc.is_in(mine["name"], pc.unique(ends["name"])))
    begun: dict[str, int] = {}
    for name, begun_us, done_us in zip(*lists(mine, "name", "published_us", "time_us"), strict=True):
        begun[name] = min(begun_us or done_us, begun.get(name, done_us))
    told = zip(*lists(ends, "name", "time_us"), strict=True)
    return Counter(name for name, time_us in told if time_us < begun.get(name, 0) - slack_us)


def _seen(table: Any, told: AbstractSet[str]) -> set[str]:
    """Return the messages that were started, put back or replayed, but not published or moved in the trail.

    These were published before the trail began, or by a publisher without a trail.
    """
    rows = only(table, events.STARTED, events.RETRIED, events.REPLAYED)
    found = set(rows["name"].to_pylist()) - told
    gone = {f"{topic}/{group}" for topic, group, _ in losses(table)}
    if not found or not gone:
        return found
    rows = rows.append_column("place", join(rows["topic"], rows["group"]))
    return found - {name for name, place in zip(*lists(rows, "name", "place"), strict=True) if place in gone}


def _buried_again(table: Any, names: Collection[str]) -> set[str]:
    """Return those of `names`, published before the trail began, that died after their last replay.

    Their first death may have been before the trail, too. So the number of deaths proves nothing, and times decide.
    """
    if not names:
        return set()
    rows = only(table, events.DEAD, events.REPLAYED)
    rows = rows.filter(pc.is_in(rows["name"], pa.array(names, pa.string())))
    last = dict(zip(*lists(rows.sort_by("time_us"), "name", "event"), strict=True))
    return {name for name, event in last.items() if event == events.DEAD}


def _unsaved_deaths(table: Any, cut_short: Collection[CutShort]) -> Counter[str]:
    """Count, by name, deaths out of a queue that made no dead letter of their own, because a host was killed.

    A killed host may not have saved its last work. Then the next owner reads the message again. If it dies now, the
    lane already has it, as a dead letter or for a later attempt, and stays as it is.
    """
    if not cut_short:
        return Counter()
    rows = only(table, events.DEAD)
    deaths = list(zip(*lists(rows, "name", "offset", "source", "time_us"), strict=True))
    in_lane = {name: time_us for name, offset, _, time_us in sorted(deaths, key=lambda d: d[3]) if offset == -1}
    first_us = min(run.last_us for run in cut_short)

    def is_unsaved(source: str, time_us: int) -> bool:
        return any(run.source == source and run.last_us - UNSAVED_US <= time_us <= run.last_us for run in cut_short)

    found = Counter(
        name
        for name, offset, source, time_us in deaths
        if offset != -1 and (first_us <= time_us <= in_lane.get(name, -1) or is_unsaved(source, time_us))
    )
    # If the killed host retried a message, the retry in the lane may die, once, before the second reading of the
    # message.
    moved = only(table, events.RETRIED)
    columns = zip(*lists(moved, "name", "offset", "source", "time_us"), strict=True)
    retried = {name for name, offset, source, time_us in columns if offset != -1 and is_unsaved(source, time_us)}
    after = {name for name, offset, _, time_us in deaths if offset != -1 and time_us >= first_us}
    return found + Counter((retried & after) - found.keys())


# ------------------------------------------------------------------------------------------------- ids that come back


def _lives(table: Any, names: Collection[str], slack_us: int) -> dict[str, lives.Life]:
    """Return the lives of these ids."""
    rows = steps_of(only(table, *lives.EVENTS))
    rows = rows.filter(pc.is_in(rows["origin"], pa.array(names, pa.string())))
    rows = rows.sort_by([(name, "ascending") for name in lives.ORDER])
    return lives.of(map(lives.Step._make, zip(*lists(rows, *lives.Step._fields), strict=True)), names, slack_us)


# ------------------------------------------------------------------------------------------------ what is not finished


def _lost(open_: set[str], skipped: set[str], still_queued: Collection[str] | int | None) -> tuple[Violations, int]:
    """Return the lost messages among those without an outcome, and the number of the others, which may still come.

    Args:
        open_: messages published, and neither delivered, dead nor dropped.
        skipped: messages of `open_` that were skipped as holes; no host will read there again.
        still_queued: see `Expectations`.
    """
    waiting = open_ - skipped
    if still_queued is None:
        return _listed(skipped), len(waiting)
    if isinstance(still_queued, int):
        absent = max(0, len(waiting) - still_queued)
        doubt = " or another" if absent < len(waiting) else ""
        suspects = [f"{name}{doubt}" for name in sorted(waiting)[: min(absent, checks.MAX_EXAMPLES)]]
        return Violations.sum((_listed(skipped), Violations(absent, tuple(suspects)))), len(waiting) - absent
    kept = set(still_queued)
    gone = {name for name in waiting if name.partition("/")[2] not in kept}
    return _listed(skipped | gone), len(waiting) - len(gone)


def _listed(names: Iterable[str]) -> Violations:
    return Violations.of(sorted(names))


AT_ANY_TIME = 1 << 62
"""A difference between clocks that lets any event come after any other."""

_Place = tuple[str, int, int]
"""topic, group, priority"""


def _places(table: Any, names: Collection[str]) -> list[tuple[_Place, int, str]]:
    """Return queue, offset and name of published messages."""
    rows = only(table, events.PUBLISHED)
    rows = rows.filter(pc.is_in(rows["name"], pa.array(names, pa.string())))
    rows = rows.filter(pc.is_valid(rows["offset"]))
    topics, groups, priorities, offsets, found = lists(rows, "topic", "group", "priority", "offset", "name")
    return list(zip(zip(topics, groups, priorities, strict=True), offsets, found, strict=True))


def _forgotten(messages: Collection[tuple[_Place, int, str]], table: Any) -> set[str]:
    """Return the messages that the store lost when it came back from a crash.

    The store gives their offsets out again. So of several messages published at one offset before the loss was noticed,
    the last one was not lost.
    """
    lost = losses(table)
    if not lost:
        return set()
    rows = only(table, events.PUBLISHED)
    rows = rows.filter(pc.is_valid(rows["offset"]))
    when: dict[tuple[_Place, int], list[tuple[int, str]]] = defaultdict(list)
    for topic, group, priority, offset, time_us, name in zip(
        *lists(rows, "topic", "group", "priority", "offset", "time_us", "name"), strict=True
    ):
        if (topic, group, priority) in lost:
            when[(topic, group, priority), offset].append((time_us, name))
    gone = set()
    for place, offset, name in messages:
        at = sorted(when[place, offset])
        mine = max((time_us for time_us, other in at if other == name), default=0)
        newest = len(at) > 1 and at[-1][1] == name
        if not newest and any(start <= offset and mine < at_us for start, at_us in lost.get(place, ())):
            gone.add(name)
    return gone


def _ranged(
    messages: Iterable[tuple[_Place, int, str]], table: Any, event: str, slack_us: int = AT_ANY_TIME
) -> set[str]:
    """Return the messages within a range of offsets that was dropped, lost or skipped after their publish."""
    columns = lists(only(table, event), "topic", "group", "priority", "offset", "until", "time_us")
    ranges: dict[_Place, list[tuple[int, int, int]]] = defaultdict(list)
    for topic, group, priority, *span in zip(*columns, strict=True):
        ranges[topic, group, priority].append(tuple(span))
    if not ranges:
        return set()
    rows = only(table, events.PUBLISHED)
    begun = dict(
        zip(rows["name"].to_pylist(), pc.coalesce(rows["published_us"], rows["time_us"]).to_pylist(), strict=True)
    )
    found = set()
    here: dict[_Place, list[tuple[int, int]]] = defaultdict(list)
    for found_in in ranges.values():
        found_in.sort(reverse=True)
    for place, offset, name in sorted(messages, key=lambda message: message[1]):
        # `here` keeps the ranges that have begun and not ended, the latest drop first.
        while ranges[place] and ranges[place][-1][0] <= offset:
            _, end, at_us = ranges[place].pop()
            heapq.heappush(here[place], (-at_us, end))
        while here[place] and here[place][0][1] <= offset:
            heapq.heappop(here[place])
        if here[place] and begun[name] <= slack_us - here[place][0][0]:
            found.add(name)
    return found
