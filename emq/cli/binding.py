"""The app of a host that is started from the command line: a module's or a bare one, with HTTP push."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from emq import errors
from emq.app import App
from emq.calls.middleware import Middleware
from emq.cli.session import Session
from emq.groups.deliveries import PUSH
from emq.groups.receiver import Receiver
from emq.host.handlers import Binding, Handlers
from emq.host.throttles import Throttles
from emq.settings import Settings
from emq.storage.opening import hide_password

log = logging.getLogger(__name__)

DEFAULT_ATTRIBUTE = "app"


class WithPush(Handlers):
    """The user's handlers first; a topic without one is pushed if it has an endpoint.

    A topic with neither is not consumed: its messages wait and do not fail until they are dead.

    Args:
        own: handlers bound by the user.
        pusher: the push handler.
        has_endpoint: returns whether the topic of this name is pushed.
    """

    def __init__(self, own: Handlers, pusher: Callable[[Any], Any], has_endpoint: Callable[[str], bool]) -> None:
        super().__init__()
        super().bind("*", pusher)
        self._own = own
        self._has_endpoint = has_endpoint

    def bind(self, pattern: str, function: Callable[[Any], Any], *, batch_size: int = 1) -> None:
        self._own.bind(pattern, function, batch_size=batch_size)

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

    def close(self) -> None:
        self._own.close()
        super().close()


def load(text: str) -> App:
    """Import the `App` with the user's handlers.

    Args:
        text: `module` or `module:attribute`; the attribute is "app" if left out. Modules are looked for in the
            current directory too.

    Raises:
        InvalidSettings: no such module or attribute, it is no `App`, or importing it failed; the text says where.
    """
    module_name, _, attribute = text.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except errors.InvalidSettings as exc:  # as in `emq.App()` at the top of the module
        raise errors.InvalidSettings(f"app {text!r} cannot be imported: {exc}") from exc
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise errors.InvalidSettings(f"app {text!r}: there is no module {exc.name!r} here") from exc
        raise errors.InvalidSettings(f"app {text!r} needs the module {exc.name!r}; install it") from exc
    except Exception as exc:  # a user's module may fail with anything
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        place, what = f"{frame.filename}, line {frame.lineno}", str(exc)
        if isinstance(exc, SyntaxError):  # the frame is in the import system
            place, what = f"{exc.filename}, line {exc.lineno}", exc.msg
        raise errors.InvalidSettings(
            f"app {text!r} cannot be imported: {type(exc).__name__}: {what} ({place})"
        ) from exc
    found = module
    for part in attribute.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not isinstance(found, App):
        raise errors.InvalidSettings(f"app {text!r}: {attribute!r} in {module.__file__} is not an emq.App; name one")
    return found


def app_of(session: Session) -> App:
    """Return the app that a host opens, not open yet: the one that the settings name, or one without handlers.

    The module's own app keeps its arguments; options of the command line go before them. So its handlers publish
    through the app that their host has opened, to the same store.
    """
    asked = session.settings
    if not asked.app:
        return session.app(recorded=True, patient=True, create=True)
    app = load(asked.app)
    overrides = {"app": asked.app, **{name: value for name, value in session.overrides.items() if value is not None}}
    app.configure(session.settings_file, patient=True, **overrides)
    for name in ("store", "database", "environment"):
        given, kept = getattr(asked, name), getattr(app.settings, name)
        if given not in (kept, getattr(Settings(), name)):
            log.warning(
                "%s gives %s=%r itself, which goes before the %r of the environment or the settings file",
                *(asked.app, name, hide_password(kept), hide_password(given)),
            )
    return app


@asynccontextmanager
async def with_push(app: App) -> AsyncIterator[None]:
    """Add push to the handlers of `app`, which is not open yet, for the length of a block."""
    own = app.handlers
    try:
        from emq.push.addresses import AddressFilter
        from emq.push.endpoint import Endpoints
        from emq.push.pusher import Pusher
    except errors.InvalidSettings as exc:
        log.info("%s; topics with push.url are not consumed", exc)
        yield
        return

    def topic_of(name: str) -> Any:
        return None if app.host is None else app.host.ownership.topics.get(name)

    def has_endpoint(name: str) -> bool:
        topic = topic_of(name)
        return topic is not None and "push.url" in topic.options.attributes

    def throttles() -> Throttles | None:
        return None if app.host is None else app.host.throttles

    addresses = AddressFilter.of_setting(app.settings.push_allow)
    async with Pusher(Endpoints(topic_of), clock=app.clock, addresses=addresses, throttles=throttles) as pusher:
        app.handlers = WithPush(own, pusher, has_endpoint)
        try:
            yield
        finally:
            app.handlers = own
