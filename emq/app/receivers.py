"""The receivers of an app, from which consumers ask for messages."""

from __future__ import annotations

from emq.groups.receiver import Receiver
from emq.host.handlers import Handlers
from emq.host.host import Host


class Receivers:
    """Makes receivers, tells the app's host that their consumers ask for messages, and forgets those of deleted topics.

    Args:
        handlers: where the receivers are bound.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._host: Host | None = None
        self._of_topics: dict[str, Receiver] = {}
        self._deleted: set[str] = set()  # topics that were deleted while a call waited

    def serve(self, host: Host | None) -> None:
        """Report to this host from now on; None if the app runs no host."""
        self._host = host
        if host is not None:
            host.catalog.when_deleted(self._forget)

    def bind(self, pattern: str, visibility_s: float) -> Receiver:
        """Return a new receiver for the topics that match the pattern."""
        made = Receiver(visibility_s)
        made.on_wanted.append(self._wanted)
        self._handlers.bind_receiver(pattern, made)
        if self._host is not None:
            try:
                self._host.ownership.rebind(pattern)
            except BaseException:  # else the next call would find the pattern taken, by a receiver that nobody has
                self._handlers.unbind_receiver(pattern, made)
                raise
        return made

    def __contains__(self, topic: str) -> bool:
        return topic in self._of_topics

    def of(self, topic: str, visibility_s: float) -> Receiver:
        """Return the topic's own receiver; the first call makes it."""
        found = self._of_topics.get(topic)
        if found is None:
            found = self._of_topics[topic] = self.bind(topic, visibility_s)
        return found

    def used(self, topic: str) -> None:
        """Note that a call to the topic's own receiver has ended, which forgets the receiver of a deleted topic."""
        if self._host is not None and topic in self._deleted:
            self._forget(topic)

    def _forget(self, topic: str) -> None:
        """Forget the receiver of a deleted topic once it is idle; a new topic of that name gets a new receiver."""
        receiver = self._of_topics.get(topic)
        if receiver is None:
            return
        self._deleted.add(topic)
        if receiver.is_idle:
            self._deleted.discard(topic)
            del self._of_topics[topic]
            self._handlers.unbind_receiver(topic, receiver)

    def _wanted(self, receiver: Receiver) -> None:
        if self._host is not None:
            self._host.work.dispatcher.wanted(receiver)
