"""HTTP push on a host on the command line: endpoints get the messages that no handler takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from emq import App
from emq.calls.middleware import Middleware
from emq.groups.receiver import Receiver
from emq.host.handlers import Binding, HandlerOptions, Handlers, OnExpired
from emq.host.throttles import Throttles
from emq.runtime import errors
from emq.storage.message import Message
from emq_cli.extras import needing

if TYPE_CHECKING:
    from emq_push.attempts import Attempt

log = logging.getLogger(__name__)

PUSH = "(push)"
"""The name under which the metrics count deliveries to endpoints."""


class WithPush(Handlers):
    """The user's handlers first; a topic without one is pushed if it has an endpoint.

    A topic with neither is not consumed: its messages wait and do not fail until they are dead.

    Args:
        own: handlers bound by the user.
        pusher: the push handler.
        has_endpoint: returns whether the topic of this name is pushed.
        on_expired: called with each expired message of a topic that no handler takes.
    """

    def __init__(
        self,
        own: Handlers,
        pusher: Callable[[Any], Any],
        has_endpoint: Callable[[str], bool],
        on_expired: OnExpired | None = None,
    ) -> None:
        super().__init__()
        super().bind("*", pusher)
        self._own = own
        self._has_endpoint = has_endpoint
        self._on_expired = on_expired

    def bind(
        self,
        pattern: str,
        function: Callable[[Any], Any],
        *,
        batch_size: int = 1,
        **options: Unpack[HandlerOptions],
    ) -> None:
        self._own.bind(pattern, function, batch_size=batch_size, **options)

    def bind_receiver(self, pattern: str, receiver: Receiver) -> None:
        self._own.bind_receiver(pattern, receiver)

    def unbind_receiver(self, pattern: str, receiver: Receiver) -> None:
        self._own.unbind_receiver(pattern, receiver)

    @property
    def overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        return self._own.overrides

    def run_within(self, around: Sequence[Middleware]) -> None:
        """Run middleware around the user's handlers, not around push."""
        self._own.run_within(around)

    def patterns(self) -> None:
        """A topic's endpoint decides, not its name."""

    def find(self, topic: str) -> Binding | None:
        found = self._own.find(topic)
        if found is None and self._has_endpoint(topic):
            pushed = super().find(topic)
            found = pushed and pushed._replace(pattern=PUSH)
        return found

    def told_of_expired(self, topic: str) -> OnExpired | None:
        """Messages also expire while their endpoint is paused or disabled, and so has no handler."""
        return self._on_expired if self._own.find(topic) is None else self._own.told_of_expired(topic)

    def close(self) -> None:
        self._own.close()
        super().close()


class _Surroundings:
    """What push needs of an app whose host may not run yet."""

    def __init__(self, app: App) -> None:
        self._app = app

    def topic(self, name: str) -> Any:
        return None if self._app.host is None else self._app.host.ownership.topics.get(name)

    async def pushed(self, names: Iterable[str]) -> list[str]:
        """Return those of the topics that have an endpoint, also a disabled one, and also while they sleep."""
        topics = await self._app.catalog.some(names)
        return [name for name, topic in topics.items() if "push.url" in topic.options.attributes]

    def throttles(self) -> Throttles | None:
        return None if self._app.host is None else self._app.host.throttles

    def host(self) -> str:
        return self._app.host_name() if self._app.host is None else self._app.host.name


@asynccontextmanager
async def with_push(app: App) -> AsyncIterator[None]:
    """Add push to the handlers of `app`, which is not open yet, for the length of a block."""
    own = app.handlers
    try:
        with needing("HTTP push", "push"):
            from emq_push.addresses import AddressFilter
            from emq_push.attributes import URL
            from emq_push.destinations import Around, Destinations
            from emq_push.endpoint import Endpoints, is_delivered
            from emq_push.pusher import Pusher, Reports
            from emq_push.secrets import Secrets
            from emq_push.service.host_changes import HostChanges
    except errors.InvalidSettings as exc:
        log.info("topics with push.url are not consumed on this host: %s", exc)
        yield
        return
    around = _Surroundings(app)

    def has_endpoint(name: str) -> bool:
        topic = around.topic(name)
        return topic is not None and is_delivered(topic.options.attributes)

    addresses, secrets = AddressFilter.of_settings(app.settings), Secrets.of_setting(app.settings)
    changes = HostChanges(app, around.host)
    reports = Reports(around.throttles, _kept_records(app, around), changes.change, changes.heard)
    endpoints = Endpoints(around.topic, secrets)
    others = Destinations(Around(app, addresses))
    async with Pusher(endpoints, clock=app.clock, addresses=addresses, reports=reports, destinations=others) as pusher:

        def expired(message: Message) -> None:
            topic = around.topic(message.topic)
            if topic is not None and URL in topic.options.attributes:
                pusher.expired(message)

        app.handlers = WithPush(own, pusher, has_endpoint, expired)
        try:
            yield
        finally:
            app.handlers = own


def _kept_records(app: App, around: _Surroundings) -> Callable[[Attempt], object] | None:
    """Return what takes the records of attempts, which the app's host writes while it runs; None to keep none."""
    from emq_push.attempt_log import AttemptLog
    from emq_push.retention import Retention

    if not app.settings.push_attempts:
        return None
    environment = str(app.settings.environment)
    attempts = AttemptLog(lambda: app.database, environment, around.host)
    retention = Retention(lambda: app.database, environment, around.pushed, app.clock)

    @app.on_startup(host_only=True)
    async def keep_records() -> AsyncIterator[None]:
        task = asyncio.create_task(retention.run(), name="emq push retention")
        try:
            async with attempts.running():
                app.records.append(attempts)
                try:
                    yield
                finally:
                    app.records.remove(attempts)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return attempts.attempted
