"""Errors, named for what the caller should do about them.

Every error that EMQ raises on purpose derives from `EMQError`. Its text is one line that names the offending value and
the remedy. Any other exception that escapes is a bug in EMQ.
"""

from __future__ import annotations

import contextlib

from emq.runtime import durations


class EMQError(Exception):
    """Root of every error that EMQ raises on purpose."""


class InvalidTopic(EMQError, ValueError):
    """A topic's name or one of its settings is out of range. Correct the value."""


class InvalidMessage(EMQError, ValueError):
    """A message cannot be published as given (size, priority, key). Correct the message."""


class InvalidSettings(EMQError, ValueError):
    """A setting, a store URL or a settings file is wrong. Correct it; `emq settings --defaults` lists all settings."""


class UnknownTopic(EMQError, LookupError):
    """The environment has no topic of that name. Create the topic first, or correct the name."""


class TopicExists(EMQError):
    """A topic of that name exists already, with other settings. Choose another name or update the topic."""


class TopicClosed(EMQError):
    """The topic takes no new messages now (draining or deleted). Resume it, or publish elsewhere."""


class TopicFull(EMQError):
    """The topic has reached its `max_length`. Wait for its consumers, or raise the limit."""


class FamilyFull(TopicFull):
    """The family has as many topics as it may have. Delete some, or raise its `max_topics`."""


class QueueSealed(EMQError):
    """The group was retired after the caller read the catalog. Read the catalog again and route the message again.

    Args:
        text: one line that names the group.
        layout: the lowest layout whose keyed messages the queue takes when it is open (`emq.topics.key_layouts`); 0 if
            it takes all, and for lanes and slots.
    """

    def __init__(self, text: str, layout: int = 0) -> None:
        super().__init__(text)
        self.layout = layout


class NotOwner(EMQError):
    """A newer owner of the group exists. Stop consuming the group; nothing of yours was applied."""


class MessagesLost(EMQError):
    """The store lost messages in a crash that the caller has read. Start again from the messages that are left."""


class StoreFull(EMQError):
    """The storage server refuses writes for lack of room. Free memory or disk; settling still works."""


class StoreUnavailable(EMQError):
    """The storage cannot be reached or refused the call; nothing was applied. Try again later."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke after a write was sent, so it may have happened.

    Repeat the write if duplicates do no harm. To a topic with `dedupe_s` repeat a publish with the same `message_id`.
    """


class KeyDamaged(StoreUnavailable):
    """A key of the storage holds foreign or damaged data. Repair or delete the key; nothing was applied."""


class DatabaseUnavailable(EMQError):
    """The catalog and offsets database cannot be reached. Try again later."""


class DatabaseInDoubt(DatabaseUnavailable):
    """The database did not answer a change in time, so it may have been applied. Look before you repeat it."""


class NoDatabase(DatabaseUnavailable):
    """Nothing was ever created in this database. Create a topic, start a host, or name the right database."""


class ClusterUnavailable(EMQError):
    """No ZooKeeper server answers; a write may or may not have happened. Try again later."""


class ForeignTree(EMQError):
    """The coordination tree holds foreign or damaged data. Choose another chroot, or repair the data."""


class HostConflict(EMQError):
    """Another host already consumes from this store. Stop that host, or use a store and membership for many hosts."""


class StillConsumed(EMQError):
    """The operation needs the group at rest, but a host consumes the group. Stop the host or pause the topic."""


class ChangedMeanwhile(EMQError):
    """Somebody has changed the topic or pool since the caller read it. Read it again, and repeat the change."""


class StillNamed(EMQError):
    """Other topics name the topic as their budget. Delete those topics first."""


class InvalidPool(EMQError, ValueError):
    """A pool of resources cannot be as given (an unknown name, a value out of range). Correct the value."""


class UnknownPool(EMQError, LookupError):
    """The environment has no pool of that name. Import the pool first, or correct the name."""


class UnknownTask(EMQError, LookupError):
    """EMQ has no record of a task with that id: it waits, or its record is too old.

    Correct the id, or ask again later.
    """


class TasksWaiting(EMQError):
    """Tasks of the pool wait. Let them end, or delete the pool with force."""


class TaskRefused(EMQError):
    """The pool does not take the task, so nothing was submitted. `code` says why.

    Args:
        text: one line that names the task type, the reason and the remedy.
        code: "unknown_type"; "no_able_resource": no resource takes the type; "cost_above_limit": the task costs more
            than a limit ever allows; "deadline": the task would not be done in time; "queue_full": too many wait.
        wait_s: predicted seconds until the task would have started; None if unknown.
    """

    def __init__(self, text: str, *, code: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.wait_s = wait_s


class WrongState(EMQError, RuntimeError):
    """The app is not open, is open already, or is a host already. Enter it once, with `async with app:`."""


class HookFailed(EMQError):
    """A start-up hook of the app failed, so the app did not start. Mend what the text names; `__cause__` has it."""


class Retry(Exception):
    """Raised by a handler: this delivery failed, try again.

    Args:
        reason: kept with the message; shown if the message becomes a dead letter.
        after_s: wait before the next attempt, in seconds or as in "15m"; None or NaN means the topic's backoff
            schedule. A value shorter than the schedule's wait counts as well. A negative value counts as 0; more than
            ten years count as ten years.
        at_least: True if the schedule's wait counts where it is longer than `after_s`.
    """

    def __init__(
        self, reason: str = "handler asked for a retry", *, after_s: float | str | None = None, at_least: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = None if after_s is None else float(durations.in_seconds("after_s", str(after_s)))
        self.at_least = at_least


def tell_attempt(failure: BaseException, attempt: int, most: int | None = None) -> None:
    """Let the log of failed deliveries show this number of the attempt instead of the delivery's.

    For a layer between the host and the user's code that counts attempts itself. Call this before the failure leaves
    the handler.

    Args:
        attempt: from 1; 0 if the delivery was no attempt.
        most: attempts that the message has in all; None if nobody knows.
    """
    with contextlib.suppress(Exception):  # the failure may be of the user's own class
        failure._emq_attempt = (attempt, most)  # type: ignore[attr-defined]


def told_attempt(failure: BaseException) -> tuple[int, int | None] | None:
    """Return the arguments of `tell_attempt`; None without a call."""
    told = getattr(failure, "_emq_attempt", None)
    return told if isinstance(told, tuple) else None


class Reject(Exception):
    """Raised by a handler: this message can never succeed; put it into the dead letters at once."""

    def __init__(self, reason: str = "handler rejected the message") -> None:
        super().__init__(reason)
        self.reason = reason


class GiveBack(Exception):
    """Raised by a handler: it cannot try this message now. The message goes back to its place, uncounted.

    The message keeps its order, uses no attempt, and is delivered again. Its topic starts nothing on this host until
    `pause_s` seconds have passed.

    Args:
        reason: why, in words for an operator.
        pause_s: seconds, from a tenth to a year; values beyond count as the nearest of these.
    """

    def __init__(self, reason: str = "the handler gave the message back", *, pause_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_s = float(pause_s)


class PartialFailure(Exception):
    """Raised by a batch handler: these messages failed, the others of the batch succeeded.

    After a crash of the store, a batch may hold two copies of a message; their id stands for both.

    Args:
        failures: the exception of each failed message, by message id (`Retry` and `Reject` are honoured).
    """

    def __init__(self, failures: dict[str, Exception]) -> None:
        super().__init__(f"{len(failures)} message{'' if len(failures) == 1 else 's'} of the batch failed")
        self.failures = dict(failures)
