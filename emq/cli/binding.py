"""The handlers of a host that is started from the command line: those of a module, and HTTP push."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from emq import errors
from emq.app import App
from emq.host.handlers import Binding, Handlers

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
        self.bind("*", pusher)
        self._own = own
        self._has_endpoint = has_endpoint

    def patterns(self) -> None:
        """A topic's endpoint decides, not its name."""

    def find(self, topic: str) -> Binding | None:
        found = self._own.find(topic)
        if found is None and self._has_endpoint(topic):
            found = super().find(topic)
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
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise errors.InvalidSettings(f"app {text!r}: there is no module {exc.name!r} here") from exc
        raise errors.InvalidSettings(f"app {text!r} needs the module {exc.name!r}; install it") from exc
    except Exception as exc:  # a user's module may fail with anything
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        raise errors.InvalidSettings(
            f"app {text!r} cannot be imported: {type(exc).__name__}: {exc} ({frame.filename}, line {frame.lineno})"
        ) from exc
    found = module
    for part in attribute.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not isinstance(found, App):
        raise errors.InvalidSettings(f"app {text!r}: {attribute!r} in {module.__file__} is not an emq.App; name one")
    return found


@asynccontextmanager
async def handlers(app: App) -> AsyncIterator[None]:
    """Give `app`, before it is opened, the handlers that its settings name, and push while inside."""
    own = app.handlers
    if app.settings.app:
        theirs = load(app.settings.app)
        own = theirs.handlers
        if theirs.settings.store not in (app.settings.store, type(theirs.settings)().store):
            log.warning(
                "the app was made for the store %s, but the host uses %s (--store, EMQ_STORE or the settings file)",
                theirs.settings.store,
                app.settings.store,
            )
    try:
        from emq.push.endpoint import Endpoints
        from emq.push.pusher import Pusher
    except errors.InvalidSettings as exc:
        log.info("%s; topics with push.url are not consumed", exc)
        app.handlers = own
        yield
        return

    def topic_of(name: str) -> Any:
        return None if app.host is None else app.host.ownership.topics.get(name)

    def has_endpoint(name: str) -> bool:
        topic = topic_of(name)
        return topic is not None and "push.url" in topic.options.attributes

    async with Pusher(Endpoints(topic_of), clock=app.clock) as pusher:
        app.handlers = WithPush(own, pusher, has_endpoint)
        yield
