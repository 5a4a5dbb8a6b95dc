"""An app with hooks, with state for its handlers, and as the lifespan of a web app."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Self, TypeVar, overload

from emq.app.hooks import HookFunction, Hooks
from emq.app.opened import OpenedApp
from emq.runtime import errors
from emq.runtime.settings import Settings
from emq.trail.sink import TrailSink

_current: contextvars.ContextVar[HookedApp] = contextvars.ContextVar("emq app")
"""The app whose host or hook runs the calling code."""

OneHook = TypeVar("OneHook", bound=HookFunction)


class HookedApp(OpenedApp):
    """An app with the hooks and the state that the user adds; see `emq.app.app.App`.

    Attributes:
        hooks: the functions that `on_startup` and `on_shutdown` have added.
        state: a plain namespace that handlers and hooks share. EMQ neither reads nor clears it.
    """

    def __init__(self, settings: Settings, trail: TrailSink | None, *, patient: bool, create: bool) -> None:
        super().__init__(settings, trail, patient=patient, create=create)
        self.hooks = Hooks()
        self.state = types.SimpleNamespace()

    @classmethod
    def current(cls) -> Self:
        """Return the app whose handler or hook calls, so that modules of handlers need no global app.

        Raises:
            WrongState: no handler and no hook runs the calling code.
        """
        app = _current.get(None)
        if not isinstance(app, cls):
            raise errors.WrongState("no host runs this code; App.current() is for handlers, use your own App elsewhere")
        return app

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self._start_hooks()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            with self._as_current():
                await self.hooks.stop(host_only=False)
        finally:
            await super().__aexit__(*exc_info)

    async def _start_hooks(self) -> None:
        with self._as_current():
            await self.hooks.start(host_only=False)

    @contextlib.contextmanager
    def _as_current(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @overload
    def on_startup(self, function: OneHook) -> OneHook: ...

    @overload
    def on_startup(self, *, host_only: bool) -> Callable[[OneHook], OneHook]: ...

    def on_startup(self, function: OneHook | None = None, *, host_only: bool = False) -> Any:
        """Decorate a function without parameters, which the app calls when it opens: `@app.on_startup`.

        The function may be plain (it runs in a thread), `async def`, or `async def` with one `yield`. The part after
        the `yield` runs at shutdown. The methods of the app work in hooks, and `app.state` holds objects for handlers.
        Hooks run in the order in which they are defined.

        Args:
            host_only: call it only where the app consumes: after it is open, before the first message starts.

        Raises:
            InvalidSettings: the function needs arguments, or is a generator that is not `async def`.
        """
        return self._add_hook(function, at_start=True, host_only=host_only)

    @overload
    def on_shutdown(self, function: OneHook) -> OneHook: ...

    @overload
    def on_shutdown(self, *, host_only: bool) -> Callable[[OneHook], OneHook]: ...

    def on_shutdown(self, function: OneHook | None = None, *, host_only: bool = False) -> Any:
        """Decorate a function without parameters, which the app calls before it closes: `@app.on_shutdown`.

        Shutdown hooks run in the reverse order of their definition. Each runs even if another one failed (the log has
        the error), or a start-up hook failed.

        Args:
            host_only: call it when the app has stopped consuming: after the last message, before it closes.

        Raises:
            InvalidSettings: the function needs arguments, or has a `yield`.
        """
        return self._add_hook(function, at_start=False, host_only=host_only)

    def _add_hook(self, function: OneHook | None, *, at_start: bool, host_only: bool) -> Any:
        def add(function: OneHook) -> OneHook:
            self.hooks.add(function, at_start=at_start, host_only=host_only)
            return function

        return add if function is None else add(function)

    @contextlib.asynccontextmanager
    async def lifespan(self, _web_app: object = None) -> AsyncIterator[Mapping[str, Any]]:
        """Open this app with a web app and close it with the web app: `FastAPI(lifespan=app.lifespan)`.

        The web process publishes, and does not consume. Yields the state of a lifespan: `request.state.emq` is the app.
        """
        async with self:
            yield {"emq": self}
