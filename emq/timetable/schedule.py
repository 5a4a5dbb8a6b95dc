"""A schedule: the times at which one message is published again and again, and its progress."""

from __future__ import annotations

import math
from itertools import islice
from typing import Literal, get_args

import msgspec

from emq.runtime import errors, inputs
from emq.timetable import cron as crons
from emq.timetable import delay_levels
from emq.topics.model import MAX_DELAY_S

Missed = Literal["skip", "once", "all"]

MAX_RUNS = 100
"""Most runs of one schedule that may be under way at once."""


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule and its state; make it with `create`.

    The encoded schedule is stored in `Message.schedule` of a lane entry, which is due at `due_ms`. Each occurrence gets
    the other fields of this message, except `expires_us`: in the entry this is a *duration*, the time to live of each
    occurrence in microseconds, 0 for no time to live of its own. The entry itself is never delivered, and does not
    count as a published message.

    A *run* is a pause of `delay_ms`, a first occurrence, and then `repeat` more, each `every_ms` after the one before.
    Without `cron`, there is one run. With `cron`, each firing begins a run; runs may overlap. (These are the rules of
    ActiveMQ's delay, period, repeat and cron.) Due times are computed from the start of their run, so they do not
    drift.

    Occurrences are numbered in order of their due times, from 1. A number always means the same due time, whenever it
    is computed. A missed occurrence that is skipped also has a number and counts as a repeat.

    Attributes:
        every_ms: milliseconds from one occurrence of a run to the next; 0 for runs of one occurrence.
        repeat: occurrences of a run after its first; None for no end.
        cron: an expression as in `emq.timetable.cron`, or empty.
        tz: the time zone of `cron`.
        delay_ms: milliseconds from the start of a run to its first occurrence.
        missed: policy for missed occurrences, which no host fired within `occurrences.MISSED_AFTER_MS` of their due
            time, because no host ran or the topic was paused: "skip" drops them, "once" publishes the last, "all"
            publishes all.
        fired: number of occurrences so far, including skipped ones.
        firing_ms: next firing of `cron`, milliseconds since the epoch; None for no more firings, or without `cron`.
        runs: the runs under way, in order: (due time of the next occurrence, repeats still to come after it).
    """

    every_ms: int = 0
    repeat: int | None = None
    cron: str = ""
    tz: str = "UTC"
    delay_ms: int = 0
    missed: Missed = "once"
    fired: int = 0
    firing_ms: int | None = None
    runs: tuple[tuple[int, int | None], ...] = ()

    @property
    def due_ms(self) -> int:
        """Due time of the next occurrence, milliseconds since the epoch."""
        first = self.runs[0][0] if self.runs else None
        if self.firing_ms is None:
            assert first is not None, "a schedule that has ended is not kept"
            return first
        begins = self.firing_ms + self.delay_ms
        return begins if first is None else min(first, begins)

    def encode(self) -> bytes:
        return _encoder.encode(self)

    def __str__(self) -> str:
        """Return the schedule in words: `every 5 m, 3 more`, `cron 0 9 * * 1-5 Europe/Berlin`."""
        if not self.cron:
            left = self.runs[0][1]
            more = {None: "", 0: ", the last one"}.get(left, f", {left} more")
            return f"every {delay_levels.written(self.every_ms)}{more}"
        text = f"cron {self.cron} {self.tz}"
        if self.delay_ms:
            text += f", {delay_levels.written(self.delay_ms)} later"
        if self.repeat:
            text += f", then every {delay_levels.written(self.every_ms)}, {self.repeat} more"
        return text


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Schedule)


def decode(schedule: bytes) -> Schedule:
    """Decode a schedule.

    Raises:
        InvalidMessage: the bytes are not a schedule, or the schedule cannot go on.
    """
    try:
        found = _decoder.decode(schedule)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise errors.InvalidMessage(f"its schedule cannot be read: {exc}") from None
    if not _is_sound(found):
        raise errors.InvalidMessage(f"its schedule cannot go on: {found!r}")
    return found


def _is_sound(schedule: Schedule) -> bool:
    lefts = [left for _, left in schedule.runs]
    if any(left is not None and left < 0 for left in lefts):
        return False
    if not schedule.cron:
        return schedule.firing_ms is None and len(lefts) == 1 and schedule.every_ms >= 1
    has_repeats = schedule.repeat != 0 or any(left != 0 for left in lefts)
    return (schedule.firing_ms is not None or bool(lefts)) and (schedule.every_ms >= 1 or not has_repeats)


def create(
    *,
    start_ms: int,
    every_s: float | None = None,
    repeat: int | None = None,
    cron: str | None = None,
    tz: str | None = None,
    delay_s: float = 0.0,
    missed: Missed = "once",
) -> Schedule:
    """Make a new schedule; the lane entry that carries it is due at its `due_ms`.

    Args:
        start_ms: milliseconds since the epoch. The first run starts at this time; with `cron`, at the first firing
            after it.
        every_s: seconds between the occurrences of a run, 0.001 to ten years; kept to the millisecond.
        repeat: occurrences of a run after its first, at least 0. None means no end; with `cron`, None means 0.
        cron: an expression as in `emq.timetable.cron`.
        tz: time zone of `cron`, an IANA name; None means UTC.
        delay_s: seconds from the start of a run to its first occurrence, 0 to ten years.
        missed: see `Schedule`.

    Raises:
        InvalidMessage: a value is out of range, or two values exclude each other; the text says what would be right.
    """
    if every_s is None and cron is None:
        raise errors.InvalidMessage("a schedule needs every or cron; give one, or delay for a single message")
    if missed not in get_args(Missed):
        raise errors.InvalidMessage(f"missed {missed!r} must be one of {', '.join(get_args(Missed))}")
    if repeat is not None and (not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 0):
        raise errors.InvalidMessage(
            f"repeat {inputs.shown(repeat)} must be a whole number, 0 or more; leave it out for no end"
        )
    every_s = None if every_s is None else inputs.seconds("every", every_s)
    every_ms = 0 if every_s is None else _ms("every", every_s, 0.001)
    delay_ms = _ms("delay", delay_s, 0.0)
    if cron is None:
        if tz is not None:
            raise errors.InvalidMessage(f"tz {tz!r} goes with cron; every and delay are the same in all zones")
        return Schedule(every_ms, repeat, delay_ms=delay_ms, missed=missed, runs=((start_ms + delay_ms, repeat),))
    if every_s is None and repeat:
        raise errors.InvalidMessage(f"repeat {repeat} needs every, the time between repeats; give both")
    if every_s is not None and repeat is None:
        raise errors.InvalidMessage(f"every {every_s:g} with cron needs repeat, how often each firing is repeated")
    zone = "UTC" if tz is None else tz
    firing_ms = next(crons.firings(cron, zone, start_ms), None)
    if firing_ms is None:
        raise errors.InvalidMessage(f"cron {cron!r} never fires; correct its day and month")
    made = Schedule(every_ms, repeat or 0, " ".join(cron.split()), zone, delay_ms, missed, firing_ms=firing_ms)
    _check_overlap(made, firing_ms)
    return made


def _ms(name: str, seconds: float, least: float) -> int:
    if not least <= seconds <= MAX_DELAY_S:
        raise errors.InvalidMessage(
            f"{name} {inputs.shown(seconds)} must be from {least:g} to {MAX_DELAY_S:.0f} seconds (ten years)"
        )
    return math.floor(seconds * 1000 + 0.5)


def _check_overlap(schedule: Schedule, firing_ms: int) -> None:
    """Refuse a schedule with more than `MAX_RUNS` runs under way at once, because the state holds each of them."""
    length_ms = schedule.every_ms * (schedule.repeat or 0)
    last = (
        next(islice(crons.firings(schedule.cron, schedule.tz, firing_ms), MAX_RUNS - 1, None), None)
        if length_ms
        else None
    )
    if last is not None and last <= firing_ms + length_ms:
        raise errors.InvalidMessage(
            f"cron {schedule.cron!r} fires more than {MAX_RUNS} times while {schedule.repeat} repeats every "
            f"{delay_levels.written(schedule.every_ms)} are under way; give fewer repeats"
        )
