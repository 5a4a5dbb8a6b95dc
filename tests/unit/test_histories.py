"""The history of one message: each fault that is planted is found, and what is odd and lawful is not."""

from __future__ import annotations

import pytest

from emq.trail import events
from emq_proof.histories import in_order, judge
from emq_proof.history_facts import Facts, Step

MS = 1000
T0 = 1_000_000_000_000_000
MAX_ATTEMPTS = 3
OF_ITS_START = -2
"""Offset of an end, in place of that of its start."""


def at(ms: float) -> int:
    return T0 + round(ms * MS)


def published(ms: float = 0, **given: object) -> Step:
    values: dict[str, object] = {"priority": 1, "offset": 7, "published_us": at(ms), "due_ms": None, **given}
    return step(events.PUBLISHED, ms, attempt=None, source="producer", **values)


def started(ms: float, attempt: int = 1, **given: object) -> Step:
    offset = 7 if attempt == 1 else -1
    return step(events.STARTED, ms, attempt=attempt, **{"offset": offset, "epoch": 1, "published_us": at(0), **given})


def settled(ms: float, attempt: int = 1, **given: object) -> Step:
    return step(events.SETTLED, ms, attempt=attempt, **{"offset": OF_ITS_START, **given})


def retried(ms: float, attempt: int = 1, wait: float = 0, **given: object) -> Step:
    given = {"offset": OF_ITS_START, "due_ms": (at(ms) // MS) + round(wait), **given}
    return step(events.RETRIED, ms, attempt=attempt, reason="failed", **given)


def dead(ms: float, attempt: int = MAX_ATTEMPTS, reason: str = "failed", **given: object) -> Step:
    return step(events.DEAD, ms, attempt=attempt, reason=reason, **{"offset": OF_ITS_START, **given})


def replayed(ms: float) -> Step:
    return step(events.REPLAYED, ms, attempt=None)


def step(event: str, ms: float, **given: object) -> Step:
    blank: dict[str, object] = dict.fromkeys(Step._fields)
    blank |= {"event": event, "time_us": at(ms), "source": "host", "group": 0, "priority": 1, "offset": 7}
    return Step(**{**blank, **given})  # type: ignore[arg-type]


def faults(*steps: Step, facts: Facts | None = None) -> list[tuple[str, str]]:
    facts = facts or Facts(max_attempts=MAX_ATTEMPTS, slack_us=250 * MS)
    return [(fault.promise, fault.kind) for fault in judge("shop/m", placed(in_order(steps)), facts)]


def placed(steps: list[Step]) -> list[Step]:
    """Give the ends the places of their starts."""
    offsets: dict[tuple[str, int | None], int | None] = {}
    found = []
    for each in steps:
        if each.event == events.STARTED:
            offsets[each.source, each.attempt] = each.offset
        found.append(
            each._replace(offset=offsets.get((each.source, each.attempt), 7)) if each.offset == OF_ITS_START else each
        )
    return found


def failed_once() -> list[Step]:
    return [published(), started(10), retried(20, wait=100), started(130, 2)]


def returned(ms: float) -> Step:
    return step(events.RETURNED, ms, attempt=2, offset=-1)


def used_up() -> list[Step]:
    return [*failed_once(), retried(140, 2), started(150, 3), dead(160)]


LAWFUL = {
    "delivered": [published(), started(10), settled(20)],
    "published by a clock that is ahead": [published(50), started(10), settled(20)],
    "tried again and settled": [*failed_once(), settled(140, 2)],
    "dead with its attempts used up": used_up(),
    "dead and replayed": [*used_up(), replayed(200), started(210, offset=-1), settled(220)],
    "rejected": [published(), started(10), dead(20, 1, f"{events.REJECTED}no such address")],
    "expired in its queue": [published(), dead(20, 1, events.EXPIRED, until=at(19))],
    "unreadable": [published(), dead(20, 1, f"{events.UNFIT}its stored record is damaged")],
    "started and not ended": [published(), started(10)],
    "a retry given back": [
        *failed_once(),
        returned(131),
        started(140, 2),
        returned(141),
        started(150, 2),
        settled(160, 2),
    ],
    "started again by the next owner": [
        published(),
        started(10),
        started(50, source="b", epoch=2),
        settled(60, source="b"),
    ],
    "delayed": [published(due_ms=at(100) // MS, offset=None), started(101, offset=-1), settled(110)],
    "published twice": [
        published(),
        published(5, offset=8),
        started(10),
        settled(11),
        started(20, offset=8),
        settled(21),
    ],
    "of unknown outcome, and published again": [
        *(step(events.DOUBTED, 1, attempt=None), published(5)),
        *(started(10), settled(11), started(20, offset=3), settled(21)),
    ],
    "an occurrence recorded again": [published(), published(50)._replace(published_us=at(0)), started(10), settled(20)],
}


@pytest.mark.parametrize("steps", LAWFUL.values(), ids=LAWFUL)
def test_what_is_lawful_is_not_condemned(steps: list[Step]) -> None:
    assert faults(*steps) == []


PLANTED = {
    "settled without a start": (("E", "ended without a start"), [published(), settled(20)]),
    "settled before its start": (("E", "ended before its start"), [published(), settled(5), started(10)]),
    "settled by another host": (("O", "ended by another host"), [published(), started(10), settled(20, source="b")]),
    "settled and put back": (("D", "settled and put back"), [published(), started(10), settled(20), retried(21)]),
    "settled and dead": (
        ("X", "settled and dead"),
        [published(), started(10), settled(20), dead(21, 1, events.REJECTED)],
    ),
    "settled, and dead later": (("X", "settled and dead"), [*failed_once(), settled(140, 2), dead(150)]),
    "dead and put back": (("X", "dead and put back"), [*used_up(), retried(161, 3)]),
    "dead too early": (("X", "dead too early"), [*failed_once(), dead(140, 2)]),
    "delivered after its death": (
        ("X", "delivered after its death"),
        [*used_up(), started(170, 3, epoch=2), settled(171, 3)],
    ),
    "an attempt missing": (
        ("X", "an attempt is missing"),
        [published(), started(10), retried(20), started(50, 3), dead(60)],
    ),
    "begins with its second attempt": (("X", "an attempt is missing"), [published(), started(50, 2), settled(60, 2)]),
    "a retry started twice": (("D", "started twice"), [*failed_once(), started(131, 2), settled(140, 2)]),
    "a retry given back once and started three times": (
        ("D", "started twice"),
        [*failed_once(), returned(131), started(132, 2), started(133, 2), settled(140, 2)],
    ),
    "from two offsets": (
        ("D", "from two places"),
        [published(), started(10), settled(11), started(20, offset=8), settled(21)],
    ),
    "from two groups": (
        ("D", "from two places"),
        [published(), started(10), settled(11), started(20, group=1), settled(21)],
    ),
    "from another offset": (("M", "from another offset"), [published(), started(10, offset=8), settled(11)]),
    "with another priority": (("P", "another priority"), [published(), started(10, priority=0), settled(11)]),
    "started before its time": (
        ("T", "started before it was due"),
        [published(due_ms=at(1000) // MS, offset=None), started(700, offset=-1), settled(710)],
    ),
    "retried before its backoff was over": (
        ("T", "retried too early"),
        [published(), started(10), retried(20, wait=100), started(119, 2), settled(130, 2)],
    ),
    "started after it expired": (
        ("T", "started after it expired"),
        [published(), started(10, until=at(10)), settled(11)],
    ),
    "from another group at its offset": (
        ("M", "from another offset"),
        [published(), started(10, group=1), settled(11, group=1)],
    ),
    "begins in its queue with its second attempt": (
        ("X", "an attempt is missing"),
        [published(), started(50, 2, offset=7), settled(60, 2)],
    ),
    "recorded twice and from two offsets": (
        ("D", "from two places"),
        [
            *(published(), published(50)._replace(published_us=at(0))),
            *(started(10), settled(11), started(20, offset=8)),
        ],
    ),
    "rejected without a start": (
        ("E", "ended without a start"),
        [published(), dead(20, 1, f"{events.REJECTED}no such address")],
    ),
    "put back twice": (("E", "ended twice"), [published(), started(10), retried(20), retried(21)]),
    "expired too early": (("T", "expired too early"), [published(), dead(20, 1, events.EXPIRED, until=at(271))]),
    "ended at another offset": (("E", "ended in another place"), [published(), started(10), settled(20, offset=8)]),
    "ended in another group": (("E", "ended in another place"), [published(), started(10), settled(20, group=1)]),
    "ended with another priority": (
        ("E", "ended in another place"),
        [published(), started(10), retried(20, priority=0)],
    ),
    "started before its publish": (("E", "started before its publish"), [published(500), started(249), settled(260)]),
    "from a lane that it never reached": (
        ("M", "from another offset"),
        [published(), started(10, offset=-1), settled(20)],
    ),
    "delayed and from a queue": (
        ("M", "from another offset"),
        [published(offset=None), started(10, offset=0), settled(20)],
    ),
}


@pytest.mark.parametrize(("found", "steps"), PLANTED.values(), ids=PLANTED)
def test_each_planted_fault_is_found(found: tuple[str, str], steps: list[Step]) -> None:
    assert found in faults(*steps)


CRASH_RISKS = [
    *("an attempt missing", "a retry started twice", "delivered after its death", "settled, and dead later"),
    "retried before its backoff was over",
]


@pytest.mark.parametrize("name", CRASH_RISKS)
@pytest.mark.parametrize(("from_ms", "until_ms", "excused"), [(-50, 200, True), (500, 600, False), (-100, -50, False)])
def test_repeats_are_excused_only_where_a_crash_met_the_message(
    name: str, from_ms: float, until_ms: float, excused: bool
) -> None:
    """Unless it was over before the crash can have lost anything, or published after that."""
    found, steps = PLANTED[name]
    facts = Facts(MAX_ATTEMPTS, 250 * MS, lambda _group: [(at(from_ms), at(until_ms))])
    assert (found not in faults(*steps, facts=facts)) == excused


def test_a_retry_on_another_host_is_given_the_difference_of_their_clocks() -> None:
    steps = [published(), started(10), retried(20, wait=1000)]
    for early_ms, found in ((250, []), (251, [("T", "retried too early")])):
        again = started(1020 - early_ms, 2, source="b", epoch=2), settled(1030, 2, source="b")
        assert faults(*steps, *again) == found


def test_without_the_events_since_its_publish_nothing_is_held_to_be_missing() -> None:
    facts = Facts(MAX_ATTEMPTS, 250 * MS, is_complete=False)
    assert faults(settled(20, 2), facts=facts) == []
    assert faults(started(10, 3), settled(20, 3), facts=facts) == []
