"""Logs failed deliveries: a line for each while they are few, then some lines and a count of the others.

A handler that always fails must neither fill the disk nor slow down other messages. A line costs tens of microseconds,
a failure without a line a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import traceback
import types
from collections import Counter

from emq.dispatch import failure_place, retry
from emq.dispatch.error_kinds import ErrorKinds, kind_of
from emq.dispatch.retry import Decision
from emq.groups.owned import OwnedGroup
from emq.runtime import durations, errors, inputs
from emq.runtime.clock import Clock
from emq.storage.message import Message
from emq.trail import events

log = logging.getLogger(__name__)

WINDOW_S = 10.0
"""Seconds of a window, which begins with a failure. At its end the log says how many lines were left out."""

TOPIC_LINES = 10
"""Most lines about one topic in a window."""

LINES = 20
"""Most lines about all topics in a second. Half of them are for topics without a line in this window, so that a few
topics in trouble hide no other."""

TRACEBACKS = 20
"""Most tracebacks in a window. A topic without lines left gets them, too, so that the log shows each kind of error."""

TOPICS = 1_000
"""Most topics whose omitted lines are counted by name."""

NAMED = 3
"""Most topics that the line at the end of a window names."""


class FailureLog:
    """Writes the log lines of one host's failed deliveries.

    Each line has these fields as `extra`, for programs that configure logging themselves: topic, group, message_id,
    attempt, reason, outcome ("retry" or "dead"), and for a retry retry_in_s and retry_at (ISO 8601, UTC). The line
    about omitted lines has left_out and left_out_by_topic.

    Args:
        clock: the host's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds = ErrorKinds()
        self._window: asyncio.TimerHandle | None = None
        self._lines: Counter[str] = Counter()
        self._tracebacks = 0
        self._second = 0
        self._in_second = 0
        self._left_out: Counter[str] = Counter()
        self._left_out_of_others = 0

    def failed(self, group: OwnedGroup, m: Message, failure: BaseException, decision: Decision) -> None:
        """Log a failed delivery, with the next attempt or the dead letter."""
        if log.isEnabledFor(logging.WARNING):
            with contextlib.suppress(Exception):  # an error of a user's log filter must not decide on the message
                self._failed(group, m, failure, decision)

    def buried(self, group: OwnedGroup, m: Message, reason: str) -> None:
        """Log a message that became a dead letter without a failed delivery, or against an earlier decision."""
        if log.isEnabledFor(logging.WARNING):
            with contextlib.suppress(Exception):
                self._buried(group, m, reason)

    def close(self) -> None:
        """Log the count of omitted lines. Safe to repeat."""
        if self._window is not None:
            self._window.cancel()
            self._end_window()

    def _failed(self, group: OwnedGroup, m: Message, failure: BaseException, decision: Decision) -> None:
        now = self._clock.now()
        has_line = self._take_line(group.owner.topic.name, int(now))
        repeats = None
        if (kind := kind_of(failure)) is not None:
            repeats = self._kinds.show(kind, now, allowed=self._tracebacks < TRACEBACKS)
            self._tracebacks += repeats is not None
        if not has_line and repeats is None:
            self._leave_out(group.owner.topic.name)
            return
        reason, (attempt, most) = _encodable(decision.reason), _attempt(group, m, failure)
        log.warning(
            "topic %s: message %s %s: %s; %s%s",
            group.owner.topic.name,
            _shown(m.id),
            _what(attempt, most),
            reason,
            _fate(m, decision, now, is_last=attempt == most),
            f" ({repeats:,} more like this since the last traceback)" if repeats else "",
            exc_info=None if repeats is None else _traceback(failure),
            extra=_facts(group, m, reason) | {"attempt": attempt} | _outcome(decision, now),
        )

    def _buried(self, group: OwnedGroup, m: Message, reason: str) -> None:
        if not self._take_line(group.owner.topic.name, int(self._clock.now())):
            self._leave_out(group.owner.topic.name)
            return
        reason = _encodable(reason)
        log.warning(
            "topic %s: message %s is a dead letter now: %s",
            group.owner.topic.name,
            _shown(m.id),
            reason,
            extra=_facts(group, m, reason) | {"outcome": "dead"},
        )

    def _take_line(self, topic: str, second: int) -> bool:
        """Return True, and count the line, if a line about the topic may be written in this second."""
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)
        if second != self._second:
            self._second, self._in_second = second, 0
        had = self._lines[topic]
        if had >= TOPIC_LINES or self._in_second >= (LINES // 2 if had else LINES):
            return False
        self._in_second += 1
        self._lines[topic] = had + 1  # so there are never more topics here than lines in a window
        return True

    def _leave_out(self, topic: str) -> None:
        if topic in self._left_out or len(self._left_out) < TOPICS:
            self._left_out[topic] += 1
        else:
            self._left_out_of_others += 1

    def _end_window(self) -> None:
        left_out, others = self._left_out, self._left_out_of_others
        self._window, self._lines, self._tracebacks = None, Counter(), 0
        self._left_out, self._left_out_of_others = Counter(), 0
        if not left_out:
            return
        total, most = left_out.total() + others, left_out.most_common(NAMED)
        named = [f"{count:,} of topic {topic}" for topic, count in most]
        if rest := total - sum(count for _, count in most):
            named.append(f"{rest:,} of others")
        log.warning(
            "left out the lines of %s more failed deliveries in the last %g s: %s",
            f"{total:,}",
            WINDOW_S,
            ", ".join(named),
            extra={"left_out": total, "left_out_by_topic": dict(most)},
        )


def _attempt(group: OwnedGroup, m: Message, failure: BaseException) -> tuple[int, int | None]:
    """Return the number of the failed attempt (0 for none), and the number of attempts."""
    if (told := errors.told_attempt(retry.sole(failure))) is not None:
        return told
    options = group.owner.topic.options
    counted = m.member is None or options.retry != "rmq"  # RMQ counts retries, and gives no number of attempts
    return m.attempt, options.max_attempts if counted else None


def _what(attempt: int, most: int | None) -> str:
    if not attempt:
        return "was not tried"
    return f"failed, attempt {attempt}" if most is None else f"failed, attempt {attempt} of {most}"


def _facts(group: OwnedGroup, m: Message, reason: str) -> dict[str, object]:
    return {
        "topic": group.owner.topic.name,
        "group": group.name,
        "message_id": _encodable(m.id) if isinstance(m.id, str) else m.id,
        "attempt": m.attempt,
        "reason": reason,
    }


def _outcome(decision: Decision, now: float) -> dict[str, object]:
    if decision.due_ms is None:
        return {"outcome": "dead"}
    due_s = decision.due_ms / 1000
    at = datetime.datetime.fromtimestamp(due_s, datetime.UTC).isoformat(timespec="milliseconds")
    return {"outcome": "retry", "retry_in_s": round(max(0.0, due_s - now), 3), "retry_at": at}


def _fate(m: Message, decision: Decision, now: float, *, is_last: bool) -> str:
    if decision.due_ms is None:
        rejected = decision.cause == events.REJECTED and not is_last
        return "it is a dead letter now, " + ("since the handler rejected it" if rejected else "after its last attempt")
    wait_s = decision.due_ms / 1000 - now
    if 0 < m.expires_us <= decision.due_ms * 1000:
        return f"it expires in {durations.brief(wait_s)}, before another attempt"
    return f"tried again in {durations.brief(wait_s)}" if wait_s > 0.001 else "tried again at once"


def _traceback(failure: BaseException) -> tuple[type[BaseException], BaseException, types.TracebackType | None] | None:
    """Return the traceback from the handler on; None if a log file would not take its text."""
    found = (type(failure), failure, failure_place.of_handler(failure.__traceback__))
    text = "".join(traceback.format_exception(*found))
    return found if _encodable(text) == text else None


def _encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: a log file would not take them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _shown(id_: object) -> str:
    return id_ if isinstance(id_, str) and id_.isprintable() else inputs.shown(id_)
