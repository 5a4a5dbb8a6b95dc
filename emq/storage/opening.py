"""Opening a store: finding the adapter for its URL."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from emq.runtime import errors, extras
from emq.runtime.clock import Clock
from emq.runtime.environment import Environment
from emq.runtime.passwords import hide_password
from emq.storage.store import Store

ENTRY_POINTS = "emq.stores"

_EXTRAS = {
    **{f"{tls}{kind}": "redis" for tls in ("redis", "rediss") for kind in ("", "+cluster", "+sentinel", "+servers")},
    "postgresql": "postgres",
}


async def open_store(url: str, environment: Environment, clock: Clock | None = None) -> Store:
    """Open the store that a URL names, through the adapter installed for its scheme.

    An adapter registers a factory `async (url, environment) -> Store` in the entry-point group `emq.stores`, under
    the scheme it serves: the URL up to the first colon, so `redis+cluster` differs from `redis`.

    Args:
        url: such as `memory:`, `sqlite:///queues.db`, `postgresql://...` or `redis://...`.
        environment: the environment to serve; the data of the other one is neither seen nor touched.
        clock: the clock that stamps dead letters, if the adapter can follow one (see `emq.storage.store.Store`).

    Raises:
        InvalidSettings: no adapter serves the scheme, a driver is not installed, or the adapter refuses the URL.
            Correct the URL or install what the text names.
        StoreUnavailable: the server does not answer. Try again later.
    """
    scheme = url.partition(":")[0] if ":" in url else ""
    found = _adapters()
    if scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found)) or "none; install emq again"
        raise errors.InvalidSettings(f"no store adapter for the URL {hide_password(url)!r}; schemes there are: {known}")
    try:
        factory: Callable[[str, Environment], Awaitable[Store]] = found[scheme].load()
        # Drivers are often imported only when the connection pool is made, hence inside the same try.
        opened = await factory(url, environment)
    except ModuleNotFoundError as exc:
        extra = _EXTRAS.get(scheme)
        remedy = extras.remedy(extra) if extra else f"install the package that provides {exc.name!r}"
        raise errors.InvalidSettings(f"stores with {scheme}: need the module {exc.name!r}; {remedy}") from exc
    follow = getattr(opened, "follow", None)  # a third party's adapter may have none
    if clock is not None and follow is not None:
        follow(clock)
    return opened


@functools.cache
def _adapters() -> Mapping[str, EntryPoint]:
    """Return the installed adapters by scheme. Python reads the metadata of all installed packages to find them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
