"""Finds troubles of topics and hosts in the snapshots that hosts keep in the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emq.host.statistics import TroubledTopic
from emq.observe.snapshots import AgedSnapshot
from emq.runtime import durations, plurals
from emq_notices.notice import TOPIC

STUCK, DEAD, GONE, TROUBLED = "stuck", "dead", "gone", "troubled"
"""Kinds of troubles: a topic starts too little, or has dead letters; a host is silent, or says what keeps it."""

GONE_S = 30.0
"""A host that has said nothing for so long, and did not stop, is gone. Others take its groups over after its lease."""

TAKEN_S = 60.0
"""After so many seconds, others have the topics of a silent host, and have looked at them."""

_WORDS = {
    "closed": "its handler has closed it",
    "no_handler": "no host has a handler for it",
    "full": "as many of its messages are in flight as may be",
    "limited": "its handler or endpoint takes less than its rate",
    "backlog": "more waits than it may start in a minute",
    "paused": "it is paused",
}


class Key(NamedTuple):
    """Attributes:
    subject: the topic or host.
    """

    kind: str
    subject: str


class Trouble(NamedTuple):
    """Attributes:
    cause: as for `Notice`.
    """

    text: str
    cause: str = ""
    reason: str = ""
    waiting: int = 0
    dead: int = 0


class Found(NamedTuple):
    """Attributes:
    troubles: what is wrong now.
    live: the hosts that are there.
    is_whole: False if a host has more topics in trouble than it names, or fell silent a moment ago: then a topic that
        nobody names may be in trouble still.
    """

    troubles: dict[Key, Trouble]
    live: frozenset[str]
    is_whole: bool


def judged(seen: Sequence[AgedSnapshot]) -> Found:
    """Return the troubles of all hosts' snapshots."""
    troubles: dict[Key, Trouble] = {}
    topics: dict[str, list[TroubledTopic]] = {}
    is_whole = True
    for snapshot in seen:
        host = snapshot.host
        if not snapshot.live:
            is_whole = is_whole and snapshot.age_s > TAKEN_S
            if snapshot.age_s > GONE_S:
                text = f"host {host.host} has said nothing for {durations.brief(snapshot.age_s)}"
                troubles[Key(GONE, host.host)] = Trouble(text)
            continue
        if host.troubles:
            texts = "; ".join(host.troubles)
            troubles[Key(TROUBLED, host.host)] = Trouble(f"host {host.host}: {texts}", reason=texts)
        is_whole = is_whole and host.in_trouble <= len(host.troubled)
        for topic in host.troubled:
            if topic.name != TOPIC:
                topics.setdefault(topic.name, []).append(topic)
    for name, parts in topics.items():
        troubles |= _of_topic(name, parts)
    return Found(troubles, frozenset(each.host.host for each in seen if each.live), is_whole)


def _of_topic(name: str, parts: Sequence[TroubledTopic]) -> Iterable[tuple[Key, Trouble]]:
    """Return the troubles of a topic, whose groups may be on several hosts."""
    stuck = [part for part in parts if part.cause != "dead"]
    dead, waiting = sum(part.dead for part in parts), sum(part.waiting for part in parts)
    found: list[tuple[Key, Trouble]] = []
    if stuck:
        cause, reason = stuck[0].cause, next((part.reason for part in stuck if part.reason), "")
        why = f"{_WORDS.get(cause, cause)}{f' ({reason})' if reason else ''}"
        text = f"topic {name}: {plurals.count(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}; {why}"
        found.append((Key(STUCK, name), Trouble(text, cause, reason, waiting, dead)))
    if dead:
        text = f"topic {name} has {plurals.count(dead, 'dead letter')}"
        found.append((Key(DEAD, name), Trouble(text, waiting=waiting, dead=dead)))
    return found
