"""A little day without a fault, for the judge to be judged by."""

from __future__ import annotations

import msgspec
from day_plan import topic_named
from day_record import Death, Evidence, Run, Sent, Version

from emq.topics.model import Topic

BEGIN_US = 1_700_000_000 * 1_000_000
SECOND = 1_000_000
KILLED_US = BEGIN_US + 60 * SECOND
TOPICS = {
    "plain-0": 2.0,
    "keyed-0": 5.0,
    "smooth-0": 10.0,
    "timed-0": 5.0,
    "range-0": 5.0,
    "sums-0": 5.0,
    "mortal-0": 5.0,
    "scheduled-0": 5.0,
    "delayed-0": 5.0,
    "moving-0": 8.0,
    "dropping-0": 2.0,
    "plain-forced": 5.0,
}


def sent(topic: str, name: str, at_s: float, priority: int = 0, key: str | None = None, how: str = "plain") -> Sent:
    at_us = BEGIN_US + round(at_s * SECOND)
    amount = int(name) if how == "sum" else 2 if how == "scheduled" else 1
    return Sent(topic, name, key, priority, how, amount, at_us, at_us + 1000)


def run(topic: str, name: str, at_s: float, priority: int = 0, key: str | None = None, **told: object) -> Run:
    at_us = BEGIN_US + round(at_s * SECOND)
    made = Run("host0.1", topic, name, name, 0, priority, 1, key, at_us - 2, at_us, at_us, at_us + 10, "done")
    return made._replace(**told)  # type: ignore[arg-type]


def good_day() -> Evidence:
    """A little of everything, with a kill that repeats one message."""
    e = Evidence(1, versions={name: [Version(BEGIN_US, _topic(name))] for name in TOPICS})
    e.strict, e.keyed, e.serial = frozenset({"plain-0"}), frozenset({"keyed-0"}), frozenset({"timed-0"})
    e.merging = frozenset({"range-0", "sums-0"})
    e.moving, e.dropping = frozenset({"moving-0"}), frozenset({"dropping-0"})
    e.keyed |= e.moving
    e.killed = {"host0.1": KILLED_US}
    e.disturbed_us = [KILLED_US]
    for i in range(20):
        priority = (0, 1, 2)[i % 3]
        e.sent.append(sent("plain-0", f"{i}:ok", i, priority))
        e.runs.append(run("plain-0", f"{i}:ok", i + 0.5, priority))
        key = f"k{i % 2}"
        e.sent.append(sent("keyed-0", f"{i}:ok", i, key=key))
        e.runs.append(run("keyed-0", f"{i}:ok", i + 0.2, key=key))
        e.sent.append(sent("timed-0", f"{i}:ok", i, how="delayed"))
        e.runs.append(run("timed-0", f"{i}:ok", i + 0.9))
    for i in range(11):  # a second's quota and a burst of 2, then no more for a second
        e.sent.append(sent("smooth-0", f"{i}:ok", 0))
        e.runs.append(run("smooth-0", f"{i}:ok", 3 + i / 100))
    e.sent += [sent("plain-0", "20:flaky", 30, 1), sent("plain-0", "21:reject", 31), sent("plain-0", "22:poison", 31)]
    e.runs += [
        run("plain-0", "20:flaky", 30.1, 1, outcome="failed"),
        run("plain-0", "20:flaky", 30.7, 1, attempt=2),
        run("plain-0", "21:reject", 31.2, outcome="failed"),
        run("plain-0", "22:poison", 31.3, outcome="failed"),
    ]
    e.deaths += [Death("plain-0", "21:reject", "not this one"), Death("plain-0", "22:poison", "ValueError: poison")]
    e.sent.append(sent("mortal-0", "0:ok", 10, how="mortal"))
    e.deaths.append(Death("mortal-0", "0:ok", "expired"))
    e.sent += [sent("delayed-0", "0:ok", 10, how="delayed"), sent("delayed-0", "1:ok", 10, how="delayed")]
    e.recalled.add(("delayed-0", "0:ok"))
    e.runs.append(run("delayed-0", "1:ok", 12))
    e.sent += [sent("range-0", "c", 5), sent("range-0", "c", 5.1), sent("range-0", "c", 7)]
    e.runs += [run("range-0", "c", 5.4), run("range-0", "c", 7.3)]
    e.sent += [sent("sums-0", "4", 5, how="sum"), sent("sums-0", "5", 5.1, how="sum")]
    e.runs += [run("sums-0", "4", 5.05), run("sums-0", "5", 5.2)]
    e.sent.append(sent("scheduled-0", "s", 5, how="scheduled"))
    e.runs += [run("scheduled-0", "s.1", 5.1), run("scheduled-0", "s.2", 6.1)]
    e.sent.append(sent("plain-0", "90:ok", 59))
    e.runs += [run("plain-0", "90:ok", 59.9), run("plain-0", "90:ok", 65, host="host1.2")]
    for i in range(25):
        e.sent.append(sent("dropping-0", f"{i}:ok", 20 + i / 100))
    e.runs += [run("dropping-0", f"{i}:ok", 21 + i / 2) for i in range(5, 25)]
    e.runs.append(run("dropping-0", "4:ok", 59.8, ended_us=None, outcome=""))  # killed in it, and dropped afterwards
    # Deleted with force while it holds messages, one of which runs a little later still; and created again.
    e.sent += [sent("plain-forced", f"0.{i}:ok", 30) for i in range(4)]
    e.forced.append(("plain-forced", BEGIN_US + 31 * SECOND))
    e.sent += [sent("plain-forced", f"1.{i}:ok", 32) for i in range(2)]
    e.runs += [run("plain-forced", f"0.{i}:ok", 30.5 + i) for i in range(2)]
    e.runs += [run("plain-forced", f"1.{i}:ok", 33.5 + i) for i in range(2)]
    # A key has come to another group, and what its former group's host had not saved runs beside the next one.
    e.sent += [sent("moving-0", f"{i}:ok", 58, key="k") for i in range(2)]
    e.runs += [
        run("moving-0", "0:ok", 59.5, key="k"),
        run("moving-0", "0:ok", 65, key="k", host="host1.2", ended_us=BEGIN_US + 67 * SECOND),
        run("moving-0", "1:ok", 66, key="k", host="host1.2", group=1),
    ]
    return e


def _topic(name: str) -> Topic:
    groups = 4 if name == "moving-0" else 1
    return msgspec.structs.replace(topic_named(name, TOPICS[name]), groups=groups, active_groups=groups)


def find(e: Evidence, topic: str, name: str) -> int:
    return next(i for i, r in enumerate(e.runs) if (r.topic, r.name) == (topic, name))
