"""Errors, named for what the caller should do about them.

Everything that EMQ raises on purpose derives from `EMQError`, and its text is one line that names the offending
value and the remedy. Anything else that escapes is a bug in EMQ.
"""

from __future__ import annotations


class EMQError(Exception):
    """Root of every error that EMQ raises on purpose."""


class InvalidTopic(EMQError, ValueError):
    """A topic's name or one of its settings is out of range. Correct the value."""


class InvalidMessage(EMQError, ValueError):
    """A message cannot be published as given (size, priority, key). Correct the message."""


class InvalidSettings(EMQError, ValueError):
    """A setting, a store URL or a settings file is wrong. Correct it; `emq settings --defaults` lists all."""


class UnknownTopic(EMQError, LookupError):
    """No such topic in this environment. Create it first, or correct the name."""


class TopicExists(EMQError):
    """A topic of that name is there already, with other settings. Choose another name or update it."""


class TopicClosed(EMQError):
    """The topic takes no new messages now (draining or deleted). Resume it, or publish elsewhere."""


class TopicFull(EMQError):
    """The topic has reached its `max_length`. Wait for its consumers, or raise the limit."""


class QueueSealed(EMQError):
    """The group was retired after the caller read the catalog. Read the catalog again and route anew."""


class NotOwner(EMQError):
    """A newer owner of the group exists. Stop consuming the group; nothing of yours was applied."""


class MessagesLost(EMQError):
    """The store came back from a crash without messages that the caller has seen. Start again from what it has."""


class StoreFull(EMQError):
    """The storage server refuses writes for lack of room. Free memory or disk; settling still works."""


class StoreUnavailable(EMQError):
    """The storage cannot be reached or refused the call; nothing was applied. Try again later."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke after a write was sent; it may have happened. Repeat it if duplicates are harmless."""


class KeyDamaged(StoreUnavailable):
    """A key of the storage holds what EMQ did not put there. Repair or delete the key; nothing was applied."""


class DatabaseUnavailable(EMQError):
    """The catalog and offsets database cannot be reached. Try again later."""


class ClusterUnavailable(EMQError):
    """No ZooKeeper server answers; whether a write happened is unknown. Try again later."""


class ForeignTree(EMQError):
    """The coordination tree holds what EMQ did not write, or what is damaged. Choose another chroot, or repair it."""


class HostConflict(EMQError):
    """Another host already consumes from this place. Stop it, or use a store and membership that many hosts share."""


class StillConsumed(EMQError):
    """The operation needs the group to be at rest, and a host consumes it. Stop the host or pause the topic."""


class Retry(Exception):
    """Raised by a handler: this delivery failed, try again.

    Args:
        reason: kept with the message, shown in the dead letters should it end there.
        after_s: seconds to wait before the next attempt; None, or what is not a number (NaN), means the topic's backoff
            schedule. A value below the schedule's is honoured as given; one below 0 counts as 0, and one above ten
            years, infinity too, as ten years.
    """

    def __init__(self, reason: str = "handler asked for a retry", *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = None if after_s is None else float(after_s)


class Reject(Exception):
    """Raised by a handler: this message can never succeed; put it into the dead letters at once."""

    def __init__(self, reason: str = "handler rejected the message") -> None:
        super().__init__(reason)
        self.reason = reason


class PartialFailure(Exception):
    """Raised by a batch handler: these messages failed, the others of the batch succeeded.

    Args:
        failures: message id to the exception that it failed with (`Retry` and `Reject` are honoured).
    """

    def __init__(self, failures: dict[str, Exception]) -> None:
        super().__init__(f"{len(failures)} messages of the batch failed")
        self.failures = dict(failures)
