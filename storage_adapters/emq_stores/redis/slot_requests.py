"""Sorts requests by slot, and reads the scripts' answers, in a few tenths of a microsecond for each request."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from emq.runtime import errors
from emq.storage import folds
from emq.storage.slot_store import (
    RETRIES,
    DeadMember,
    Entry,
    Keep,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotVerdict,
    slot_sealed,
    told_score,
)
from emq_stores.redis.refusals import not_owner

FLAGS = {Keep.FIRST: "NX", Keep.LAST: "", Keep.LOWEST: "LT", Keep.HIGHEST: "GT"}
"""Option of ZADD for each value of `Keep`."""

_NEW, _NO_ROOM, _NOT_FOLDED, _SEALED = b"1234"

_entry: Callable[[Any], Entry] = functools.partial(tuple.__new__, Entry)
"""Makes an `Entry` as `Entry._make` does, in half the time."""


@dataclass(slots=True, eq=False)
class Group:
    """Requests that go to the server together.

    Attributes:
        rule: the values that all the requests share besides the slot.
        args: arguments of the script, for all requests.
        places: indexes of the requests' answers.
    """

    slot: Slot
    rule: tuple[Any, ...]
    args: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


def group_adds(adds: Sequence[SlotAdd], start: int, end: int) -> list[Group]:
    """Group adds by slot and (keep, max_length, fold); if the rule changes within a slot, a new group begins."""
    groups: list[Group] = []
    latest: dict[str, Group] = {}
    for place, (slot, member, score, keep, body, note, fold, most) in enumerate(adds[start:end], start):
        group = latest.get(slot[0])
        if group is None or (rule := group.rule)[0] is not keep or rule[1] != most or rule[2] != fold:
            group = latest[slot[0]] = Group(slot, (keep, most, fold))
            groups.append(group)
        if slot[2]:
            group.args += (score, member, folds.initial(fold, body), note)
        else:
            group.args += (score, member)
        group.places.append(place)
    return groups


def group_settles(settles: Sequence[SlotSettle], start: int, end: int) -> tuple[list[Group], list[int]]:
    """Group acknowledgements by slot and (token, epoch), and return the places of all other verdicts.

    If a member has other verdicts as well, its acknowledgements count as others, so that the order is kept.
    """
    ack = SlotVerdict.ACK
    part = settles[start:end]
    # As they nearly always come: acknowledgements alone, many in a row of one slot and claim.
    runs = [(key, list(run)) for key, run in itertools.groupby(part, _CLAIM)]
    if all(verdict is ack for (_, verdict, _, _), _ in runs):
        return _grouped(runs, start), []
    mixed = {(s[0][0], s[1]) for s in part if s[2] is not ack}
    groups: dict[tuple[str, int, int | None], Group] = {}
    others: list[int] = []
    for place, (slot, member, verdict, token, epoch, *_) in enumerate(part, start):
        if verdict is not ack or (mixed and (slot[0], member) in mixed):
            others.append(place)
            continue
        key = (slot[0], token, epoch)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(slot, (token, epoch))
        group.args.append(member)
        group.places.append(place)
    return list(groups.values()), others


_CLAIM = operator.itemgetter(0, 2, 3, 4)  # slot, verdict, token, epoch


def _grouped(runs: Sequence[tuple[Any, list[SlotSettle]]], start: int) -> list[Group]:
    """Return the groups of rows of acknowledgements; the first of them has the place `start`."""
    groups: dict[tuple[str, int, int | None], Group] = {}
    for (slot, _, token, epoch), run in runs:
        group = groups.setdefault((slot[0], token, epoch), Group(slot, (token, epoch)))
        group.args += [settle[1] for settle in run]
        group.places += range(start, start := start + len(run))
    return list(groups.values())


def group_others(settles: Sequence[SlotSettle], places: Sequence[int]) -> list[Group]:
    """Group verdicts by slot and fold; if the fold changes within a slot, a new group begins."""
    groups: list[Group] = []
    latest: dict[str, Group] = {}
    for place in places:
        slot, member, verdict, token, epoch, score, reason, fold, keep, rest_ms = settles[place]
        group = latest.get(slot.name)
        if group is None or group.rule != tuple(fold):
            group = latest[slot.name] = Group(slot, tuple(fold))
            groups.append(group)
        fence = "" if epoch is None else epoch
        told = json.dumps(reason) if verdict is SlotVerdict.DEAD else as_json(reason)
        group.args += (verdict.value, member, token, fence, score, told, "-" if keep is None else FLAGS[keep], rest_ms)
        group.places.append(place)
    return groups


def place_add_answers(
    adds: Sequence[SlotAdd], group: Group, marks: bytes, reasons: Sequence[bytes], answers: list[Any]
) -> None:
    """Turn the marks of `slot_add` and `slot_merge` into results, and put these into `answers`."""
    why = iter(reasons)
    for place, mark in zip(group.places, marks, strict=True):
        if mark == _NO_ROOM:
            answers[place] = errors.TopicFull(
                f"slot {group.slot.name} holds its share of max_length, {adds[place].max_length}, and one more message "
                "does not fit; wait for its consumers or raise the limit"
            )
        elif mark == _SEALED:
            answers[place] = slot_sealed(group.slot)
        elif mark == _NOT_FOLDED:
            answers[place] = errors.InvalidMessage(next(why).decode("utf-8", "replace"))
        else:
            answers[place] = mark == _NEW


def place_failure(groups: Sequence[Group], failure: errors.EMQError, answers: list[Any]) -> None:
    """Put the error of a failed call into `answers`, for each of its requests."""
    for group in groups:
        for place in group.places:
            answers[place] = failure


def place_ack_answers(group: Group, answer: int | bytes, answers: list[Any]) -> None:
    """Put the results of `slot_ack` into `answers`, which begins with True for each request."""
    if isinstance(answer, bytes):
        for place, mark in zip(group.places, answer, strict=True):
            answers[place] = mark == _NEW
    elif answer == -1:
        for place in group.places:
            answers[place] = not_owner(group.slot.name, group.rule[1])


def claimed(claim: SlotClaim, reply: Any, second_ms: int) -> SlotClaimed | errors.NotOwner:
    """Return the result of a claim from the answer of `slot_claim` for one slot."""
    if reply == 0:
        return not_owner(claim.slot.name, claim.epoch)
    following, page, records, _, lefts, _, rest = reply
    next_score = None if following is None else number(following)
    rest_ms = None if rest is None else _time(rest)
    if not page:
        return SlotClaimed([], next_score, rest_ms)
    members, scores = page[::2], numbers(page[1::2])
    if lefts:
        return SlotClaimed(_failed_before(claim, members, scores, reply, second_ms), next_score, rest_ms)
    tokens: Any = itertools.repeat(second_ms + RETRIES)
    if min(scores) <= RETRIES:
        tokens = [second_ms + (RETRIES if score > RETRIES else max(0, int(max(score, 0)) - 1)) for score in scores]
    if not claim.slot.apart:
        rows = zip(members, scores, tokens, members, *_WHOLE, strict=False)
        return SlotClaimed(list(map(_entry, rows)), next_score, rest_ms)
    entries = []
    for member, score, token, record in zip(members, scores, tokens, records, strict=False):
        merged, note, body = unpacked(member, record)
        entries.append(Entry(member, score, token, body, note, merged))
    return SlotClaimed(entries, next_score, rest_ms)


_WHOLE = tuple(map(itertools.repeat, (b"", 1, 0, ())))
"""Note, merged, beyond and history of members that are their own bodies and never failed."""


def _failed_before(
    claim: SlotClaim, members: Sequence[bytes], scores: Sequence[float], reply: Any, second_ms: int
) -> list[Entry]:
    """Return the claimed members of a slot in which some failed before, each with the history of its failures."""
    _, _, records, _, lefts, histories, _ = reply
    entries = []
    for n, (member, score, left) in enumerate(zip(members, scores, lefts, strict=True)):
        merged, note, body = unpacked(member, records[n]) if claim.slot.apart else (1, b"", member)
        history = _attempts(histories[n].decode("utf-8", "replace").split("\n")) if histories[n] else ()
        entries.append(Entry(member, score, second_ms + max(0, left), body, note, merged, max(0, -left), history))
    return entries


def _time(told: bytes) -> int:
    try:
        return int(number(told))
    except ValueError:  # another program wrote the time; the next roll-back notes the right one
        return 0


def claimed_bytes(reply: Any) -> int:
    """Return the bytes of members and records in an answer of `slot_claim` for one slot."""
    return 0 if reply == 0 else sum(map(len, reply[1][::2])) + sum(len(record) for record in reply[2] if record)


def joined(
    first: SlotClaimed | errors.NotOwner | None, then: SlotClaimed | errors.NotOwner
) -> SlotClaimed | errors.NotOwner:
    """Join the results of two calls for one claim."""
    if isinstance(first, SlotClaimed) and isinstance(then, SlotClaimed):
        return SlotClaimed([*first.entries, *then.entries], then.next_score, then.rest_ms)
    return then


def dead_member(slot: Slot, row: Sequence[Any]) -> DeadMember:
    """Return the dead member of a row of `slot_dead`."""
    member, dead_ms, record, told = row
    _, note, body = unpacked(member, record)
    reason, *lines = told.decode("utf-8", "replace").split("\n") if told else ('""',)
    return DeadMember(slot, member, body, note, _text(reason), _attempts(lines), dead_ms)


def _attempts(lines: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Read failed attempts, each stored on a line of its own."""
    history = []
    for line in lines:
        ms, _, why = line.partition(" ")
        with contextlib.suppress(ValueError):  # a line that somebody else wrote
            history.append((int(ms), _text(why)))
    return tuple(history)


def _text(told: str) -> str:
    """Read a reason, stored as JSON; return a reason that another program wrote otherwise as it is."""
    try:
        text = json.loads(told)
    except (ValueError, RecursionError):
        return told
    return text if isinstance(text, str) else told


def unpacked(member: bytes, record: bytes | None) -> tuple[int, bytes, bytes]:
    """Return (merged, note, body) of a member's record.

    A member without a record is its own body; another program added it. A damaged record becomes the body as it is,
    with 0 for merged.
    """
    if record is None:
        return 1, b"", member
    try:
        merged, size, rest = record.split(b" ", 2)
        count, length = int(merged), int(size)
    except ValueError:
        return 0, b"", record
    if not 0 <= length <= len(rest) or not 0 < count < 1 << 52:  # no count of EMQ is as large
        return 0, b"", record
    return count, rest[:length], rest[length:]


def backwards(slot: Slot) -> int:
    """Return 1 if the slot's highest score comes first, else 0: an argument of the scripts."""
    return 1 if slot.kind is SlotKind.PRIORITY else 0


def as_json(reason: str) -> str:
    """Return the reason as JSON, on one line; an empty reason stays empty."""
    return json.dumps(reason) if reason else ""


def numbers(scores: Sequence[bytes]) -> list[float]:
    """Return scores as numbers. If all are whole, as almost always, they are ints."""
    try:
        return list(map(int, scores))
    except ValueError:
        return list(map(number, scores))


def number(score: bytes) -> float:
    """Return one score as a number; the server writes 1700000000000 as 1.7e+12 at times."""
    return told_score(float(score))
