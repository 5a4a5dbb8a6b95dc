"""The day's own judge: from publishes and runs to violated promises, each a line with topic and message.

It knows nothing of the trail and shares no code with its proof.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from day_plan import MAX_LENGTH, trait_of
from day_record import Evidence, Run, Sent, Version, shown

from emq.topics.model import Topic, quotas

SECOND_US = 1_000_000

KNOWN_LATE_US = 3 * SECOND_US
"""Hosts learn of a change of the catalog within this time, also on a busy machine."""

AT_RISK_US = 2_500_000
"""What a killed host had settled so shortly before may not be saved: a checkpoint a second, and a second for a busy
machine. Spans in which a host was late do not count."""

READY_US = 6 * SECOND_US
"""Who published so long before a start was ready by then, whatever the hosts say of it."""

MOVED_US = 10 * SECOND_US
"""After a host was killed, stopped or started, and after its first run, all groups have an owner within this time.
Spans in which a host was late do not count."""

PLAIN = ("plain", "flood", "grown", "wide", "weighted", "aging", "little")
"""Traits of topics that nothing but their quota holds back."""

USED = 0.95
"""Part of a quota that a backlog uses at least, on a busy machine; or one start less than that, whichever is less."""

EXPECTED_DEATHS = {"reject": "not this one", "poison": "poison", "": "expired"}


def judged(evidence: Evidence) -> list[str]:
    """Every violation, by promise; empty if the day was as promised."""
    checks = (lost, phantoms, recalled, sums, schedules, topic_caps, use, key_order, overlaps, priority)
    checks += (deaths, duplicates, endless, ghosts)
    return [f"{check.__name__}: {line}" for check in checks for line in check(evidence)]


# ------------------------------------------------------------------------------------------------------------- L and X


def unfinished(e: Evidence) -> list[Sent]:
    """What was published and not taken back, and has neither been handled since nor lies in `e.deaths`."""
    last_done: dict[tuple[str, str], int] = {}
    ticks: Counter[tuple[str, str]] = Counter()
    for run in e.runs:
        if run.outcome == "done":
            key = (run.topic, run.name)
            last_done[key] = max(last_done.get(key, 0), run.begun_us)
            ticks[run.topic, run.id.rpartition(".")[0]] += 1
    dead = {(death.topic, death.name) for death in e.deaths}
    gone = {(sent.topic, sent.name) for sent in (*dropped(e), *(s for s in e.sent if _deleted_us(s, e) is not None))}
    found = []
    for sent in e.sent:
        key = (sent.topic, sent.name)
        if key in e.recalled or key in dead or key in gone or sent.how == "sum":
            continue
        if sent.how == "scheduled":
            if ticks[key] < sent.amount:
                found.append(sent)
        # What merged into a waiting twin is handled with it, so after it was published.
        elif last_done.get(key, 0) < (sent.begun_us if sent.topic in e.merging else 1):
            found.append(sent)
    return found


def dropped(e: Evidence) -> list[Sent]:
    """What a topic that drops its oldest messages may have dropped: what was never handled and had enough behind it.

    The newest `MAX_LENGTH` are never dropped, nor what was put back for another attempt, since a lane is not full.
    A message that a killed host ran, and whose end it could not save, is in its queue as before.
    """
    begun = {(run.topic, run.name) for run in e.runs if not _at_risk(run, e)}
    found = []
    for topic, all_sent in _grouped(e.sent, lambda sent: sent.topic):
        if topic in e.dropping:
            old = sorted(all_sent, key=lambda sent: sent.done_us)[:-MAX_LENGTH]
            found += [sent for sent in old if (topic, sent.name) not in begun]
    return found


def _deleted_us(sent: Sent, e: Evidence) -> int | None:
    """When its topic was deleted with force, with this message in it."""
    return next((at_us for topic, at_us in e.forced if topic == sent.topic and sent.begun_us < at_us), None)


def ghosts(e: Evidence) -> Iterator[str]:
    """Deleted with its topic, and started after all hosts had heard of that."""
    ends = {(s.topic, s.name): at_us for s in e.sent if (at_us := _deleted_us(s, e)) is not None}
    for run in e.runs:
        if run.begun_us > ends.get((run.topic, run.name), run.begun_us) + KNOWN_LATE_US:
            yield shown(run, e.killed)


def lost(e: Evidence) -> Iterator[str]:
    """L: published, and neither handled nor dead."""
    for sent in unfinished(e):
        yield f"{sent.topic} {sent.name} ({sent.how}, key {sent.key}) published {sent.done_us} was never handled"


def phantoms(e: Evidence) -> Iterator[str]:
    """Handled, and never published."""
    published = {(sent.topic, sent.name) for sent in e.sent} | {(topic, name) for topic, name, _ in e.unknown}
    for run in e.runs:
        if trait_of(run.topic) not in ("sums", "scheduled") and (run.topic, run.name) not in published:
            yield f"nobody published {shown(run, e.killed)}"


def recalled(e: Evidence) -> Iterator[str]:
    """Taken back, and started all the same."""
    for run in e.runs:
        if (run.topic, run.name) in e.recalled:
            yield shown(run, e.killed)


def sums(e: Evidence) -> Iterator[str]:
    """L and D of what merges by addition: what was handled adds up to what was published."""
    given: Counter[str] = Counter()
    for sent in e.sent:
        if sent.how == "sum":
            given[sent.topic] += sent.amount
    for topic, amount in given.items():
        done = [run for run in e.runs if run.topic == topic and run.outcome == "done"]
        handled = sum(int(run.name) for run in done)
        excused = sum(int(run.name) for run in e.runs if run.topic == topic and _at_risk(run, e))
        excused += sum(perhaps for of, _, perhaps in e.unknown if of == topic)
        if not amount <= handled <= amount + excused:
            yield f"{topic}: {amount} published, {handled} handled, {excused} of it perhaps twice"


def schedules(e: Evidence) -> Iterator[str]:
    """Each occurrence of a schedule is a message of its own, and there are no more than asked for."""
    for sent in e.sent:
        if sent.how == "scheduled":
            ids = {run.id for run in e.runs if run.topic == sent.topic and run.id.startswith(f"{sent.name}.")}
            if len(ids) > sent.amount:
                yield f"{sent.topic}: {len(ids)} occurrences of {sent.amount}: {sorted(ids)}"


def deaths(e: Evidence) -> Iterator[str]:
    """X: who is to die is dead exactly once, with its reason, and nobody else is."""
    counts = Counter((death.topic, death.name) for death in e.deaths)
    done = {(run.topic, run.name) for run in e.runs if run.outcome == "done"} - at_risk(e)
    mortal = {(sent.topic, sent.name) for sent in e.sent if sent.how == "mortal"}
    for death in e.deaths:
        place = (death.topic, death.name)
        fate = death.name.rpartition(":")[2]
        if counts[place] > 1:
            yield f"{death.topic} {death.name} is dead {counts[place]} times"
        if place in done and trait_of(death.topic) != "range":
            yield f"{death.topic} {death.name} is dead ({death.reason!r}) and was handled"
        expired = place in mortal and death.reason == EXPECTED_DEATHS[""]
        if not expired and EXPECTED_DEATHS.get(fate, "\0") not in death.reason:
            yield f"{death.topic} {death.name} is dead for no good reason: {death.reason!r}"


def endless(e: Evidence) -> Iterator[str]:
    """A run of a host that was not killed has an end."""
    for run in e.runs:
        if run.ended_us is None and run.host not in e.killed:
            yield f"never ended: {shown(run, e.killed)}"


# -------------------------------------------------------------------------------------------------------------- D


def duplicates(e: Evidence) -> Iterator[str]:
    """D: a message is handled once and each attempt made once; one that a killed host could not save, once more."""
    for (topic, _), runs in _grouped(e.runs, lambda run: (run.topic, run.name)):
        if topic in e.merging:
            continue
        sure = [run for run in runs if not _at_risk(run, e)]
        most = 1 if len(sure) == len(runs) else 2
        done = sum(run.outcome == "done" for run in sure)
        if done > most:
            yield f"handled {done} times: {'; '.join(shown(run, e.killed) for run in runs)}"
        elif any(n > most for n in Counter(run.attempt for run in sure).values()):
            yield f"an attempt was made again: {'; '.join(shown(run, e.killed) for run in runs)}"


def at_risk(e: Evidence) -> set[tuple[str, str]]:
    """(topic, name) of messages that a killed host may have handled, and not saved."""
    return {(run.topic, run.name) for run in e.runs if _at_risk(run, e)}


def _at_risk(run: Run, e: Evidence) -> bool:
    """It ran on a host that was killed before its end was surely saved."""
    return run.host in e.killed and (run.ended_us is None or run.ended_us > e.before(e.killed[run.host], AT_RISK_US))


# -------------------------------------------------------------------------------------------------------------- Q


def topic_caps(e: Evidence) -> Iterator[str]:
    """Q: a topic starts no more than its qps in an aligned second; paced smoothly, in any second and with its burst."""
    for name, runs in _grouped(e.runs, lambda run: run.topic):
        versions = e.versions[name]
        times = sorted(run.started_us for run in runs)
        if versions[0].topic.options.pacing == "smooth":
            yield from _sliding(name, times, versions)
            continue
        for second, n in sorted(Counter(at // SECOND_US for at in times).items()):
            cap = max(math.ceil(topic.qps) for topic in _in_force(versions, second * SECOND_US))
            if n > cap:
                yield f"{name}: {n} starts in second {second}, at most {cap} are allowed"


def _sliding(name: str, times: Sequence[int], versions: Sequence[Version]) -> Iterator[str]:
    first = 0
    for i, at in enumerate(times):
        while times[first] <= at - SECOND_US:
            first += 1
        cap = max(topic.qps + sum(1 + q / 10 for q in quotas(topic)) for topic in _in_force(versions, at))
        if i - first + 1 > cap + 1e-6:
            yield f"{name}: {i - first + 1} starts in the second up to {at}, at most {cap:g} are allowed"


def use(e: Evidence) -> Iterator[str]:
    """Q from below: while a message waits, its topic uses its quota, after each change of it, too.

    On the host where the message waits, the topic may start at least the share of the message's group; of a topic with
    one group, that is the whole quota. Seconds in which groups may have moved do not count, nor those in which a host
    or its store had no time, nor those from the start of a host to its first run, which take long on a busy machine.
    """
    plain = dict(_grouped((s for s in e.sent if s.how == "plain" and trait_of(s.topic) in PLAIN), lambda s: s.topic))
    late = {second for begun, ended in e.late for second in range(begun // SECOND_US, ended // SECOND_US + 1)}
    joined_us = {host: min(run.begun_us for run in runs) for host, runs in _grouped(e.runs, lambda run: run.host)}
    for host, at_us in e.started_us.items():
        late.update(range(at_us // SECOND_US, joined_us.get(host, at_us) // SECOND_US + 1))
    moves_us = [*e.disturbed_us, *joined_us.values()]
    for name, runs in _grouped(e.runs, lambda run: run.topic):
        published = {s.name: s.done_us for s in plain.get(name, ())}
        used = _used(e, e.versions[name], published, runs, moves_us)
        judged_ = [each for second, each in used.items() if second not in late]
        had, might = sum(had for had, _ in judged_), sum(allowed for _, allowed in judged_)
        if had < min(USED * might, might - 1):
            yield f"{name}: {had} of {might} starts used while messages waited"


def _used(
    e: Evidence, versions: Sequence[Version], published: Mapping[str, int], runs: Sequence[Run], moves_us: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Starts of a topic, at most as many as it might have, and how many it might have, by second with a backlog."""
    waits: dict[int, int] = {}
    for run in runs:
        if run.attempt == 1 and run.name in published:
            first = -(-(published[run.name] + READY_US) // SECOND_US)
            waits.update(dict.fromkeys(range(first, run.started_us // SECOND_US), run.group))
    starts = Counter(run.started_us // SECOND_US for run in runs)
    found = {}
    for second, group in waits.items():
        if any(e.before(second * SECOND_US, MOVED_US) < at < (second + 1) * SECOND_US for at in moves_us):
            continue
        known = _in_force(versions, second * SECOND_US)
        allowed = math.floor(min(quotas(topic)[group] if group < topic.groups else 0 for topic in known))
        found[second] = min(starts[second], allowed), allowed
    return found


def _in_force(versions: Sequence[Version], at_us: int) -> list[Topic]:
    """What hosts may have held for the topic in the second from `at_us`."""
    until_us = at_us + SECOND_US
    ends = [*(version.from_us for version in versions[1:]), until_us * 2]
    return [
        version.topic
        for version, end_us in zip(versions, ends, strict=True)
        if version.from_us - SECOND_US < until_us and end_us + KNOWN_LATE_US > at_us
    ] or [versions[0].topic]


# -------------------------------------------------------------------------------------------------------------- K


def key_order(e: Evidence) -> Iterator[str]:
    """K: first deliveries of a key are in the order of its publishes."""
    first: dict[tuple[str, str], int] = {}
    for run in e.runs:
        place = (run.topic, run.name)
        first[place] = min(first.get(place, run.begun_us), run.begun_us)
    in_order = (sent for sent in e.sent if sent.topic in e.keyed and sent.how == "plain")
    keyed = [sent for sent in in_order if (sent.topic, sent.name) in first]
    for (topic, key, _), all_sent in _grouped(keyed, lambda sent: (sent.topic, sent.key, sent.priority)):
        for earlier, later in pairwise(all_sent):
            if first[topic, earlier.name] > first[topic, later.name]:
                yield f"{topic} key {key}: {later.name} was delivered before {earlier.name}"


def overlaps(e: Evidence) -> Iterator[str]:
    """K: one at a time of a key, and of a slot that runs serially."""
    keyed = (run for run in e.runs if run.key is not None and run.topic in e.keyed)
    serial = (run for run in e.runs if run.topic in e.serial)
    for runs in (*_grouped(keyed, lambda r: (r.topic, r.key)), *_grouped(serial, lambda r: (r.topic, r.group))):
        running: Run | None = None
        for run in sorted(runs[1], key=lambda run: run.begun_us):
            if running is not None and _end_us(running, e) > run.begun_us and not _moved_on(running, run, e):
                yield f"at the same time: {shown(running, e.killed)}; {shown(run, e.killed)}"
            if running is None or _end_us(run, e) > _end_us(running, e):
                running = run


def _moved_on(one: Run, other: Run, e: Evidence) -> bool:
    """Either repeats what a killed host had not saved, of a key that came to another group meanwhile.

    The former group has passed the change when its success was known to that host alone.
    """
    return one.topic in e.moving and any(
        (run.topic, run.name) in at_risk(e) and not _at_risk(run, e) for run in (one, other)
    )


def _end_us(run: Run, e: Evidence) -> float:
    return run.ended_us if run.ended_us is not None else e.killed.get(run.host, math.inf)


# -------------------------------------------------------------------------------------------------------------- P


def priority(e: Evidence) -> Iterator[str]:
    """P: no lower priority starts while a higher one of the group is ready.

    By the host's word for it; and by the clock: what was published long before is in the host's buffer, or the store
    holds more of its priority than the buffer does, which is filled again before it runs out. While groups move, a new
    owner may not have read all of its queues yet.
    """
    strict = [run for run in e.runs if run.topic in e.strict]
    published = {(s.topic, s.name): s.done_us for s in e.sent if s.how == "plain"}
    for _, runs in _grouped(strict, lambda run: (run.topic, run.group)):
        for _, of_host in _grouped(runs, lambda run: run.host):
            yield from _passed_over(of_host, {id(run): run.ready_us for run in of_host}, e)
        first = [run for run in runs if run.attempt == 1 and (run.topic, run.name) in published]
        told = {id(run): published[run.topic, run.name] + READY_US for run in first}
        passed: dict[int, list[Run]] = defaultdict(list)
        for low, high in _passed(first, told):
            passed[id(high)].append(low)
        for high in first:
            lows = passed[id(high)]
            disturbed = any(told[id(high)] - READY_US < at + READY_US and at < high.started_us for at in e.disturbed_us)
            if lows and not disturbed:
                yield f"published long before, and passed over by {len(lows)}: {shown(high, e.killed)}"


def _passed_over(runs: Sequence[Run], ready: dict[int, int], e: Evidence) -> Iterator[str]:
    for low, high in _passed(runs, ready):
        yield f"{shown(low, e.killed)} passed over {shown(high, e.killed)}"


def _passed(runs: Sequence[Run], ready_us: dict[int, int]) -> Iterator[tuple[Run, Run]]:
    """(low, high): low started while high, which started later, was ready; one high for each low."""
    soonest: dict[int, Run] = {}
    in_order = sorted(runs, key=lambda run: run.started_us, reverse=True)
    for _, together in groupby(in_order, key=lambda run: run.started_us):
        block = list(together)
        for low in block:
            for level, high in soonest.items():
                if level < low.priority and ready_us[id(high)] < low.started_us:
                    yield low, high
                    break
        for run in block:
            known = soonest.get(run.priority)
            if known is None or ready_us[id(run)] < ready_us[id(known)]:
                soonest[run.priority] = run


def _grouped(items: Iterable, by) -> list:  # type: ignore[no-untyped-def, type-arg]
    """Items by what `by` says, each group in the order given."""
    found = defaultdict(list)
    for item in items:
        found[by(item)].append(item)
    return list(found.items())
