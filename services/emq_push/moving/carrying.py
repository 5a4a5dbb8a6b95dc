"""Makes what a plan has. Safe to repeat: what is there already stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from emq_push.moving.plan import NewEndpoint, NewTenant, NewType
from emq_push.records.endpoints import Endpoint
from emq_push.service.endpoint_edits import check_room
from emq_push.service.refusals import NotFound, Refused
from emq_push.service.service import PushService


class Moved(NamedTuple):
    """What became of one endpoint of an export.

    Attributes:
        source: how the export calls it.
        id: here; empty if nothing was made.
        secret: a new one, where the export had none.
        trouble: why it was not made, or what to look at.
    """

    source: str
    tenant: str
    id: str = ""
    is_new: bool = False
    secret: str = ""
    trouble: str = ""


class Carrying:
    """Makes tenants and endpoints.

    An endpoint is made whole in one step, so that one that is there needs nothing more, also after an import that was
    interrupted.

    Args:
        is_trial: only look whether they could be made.
        on_endpoint: called after each endpoint.

    Attributes:
        moved: what became of each endpoint so far.
        types: names of the event types that were made.
        failed: why others were not, by name.
    """

    def __init__(
        self, service: PushService, actor: str, *, is_trial: bool, on_endpoint: Callable[[], object] = lambda: None
    ) -> None:
        self._service, self._actor, self._is_trial, self._on_endpoint = service, actor, is_trial, on_endpoint
        self.moved: list[Moved] = []
        self.types: list[str] = []
        self.failed: dict[str, str] = {}

    async def run(self, tenants: Iterable[NewTenant]) -> list[Moved]:
        """Return what became of each endpoint. A tenant or endpoint that is refused keeps none from being made.

        Raises:
            StoreUnavailable, DatabaseUnavailable: some were not made; repeat.
        """
        for tenant in tenants:
            try:
                found = await self._tenant(tenant)
            except Refused as exc:
                self.moved.append(Moved("", tenant.id, trouble=str(exc)))
                continue
            await self._endpoints(tenant, found)
        return self.moved

    async def add_types(self, types: Iterable[NewType]) -> None:
        """Make event types; those that are there stay as they are. Raises as `run`."""
        events = self._service.event_types
        for name, settings in types:
            try:
                if await events.find(name) is not None:
                    continue
                if self._is_trial:
                    await events.check_new(name, settings)
                else:
                    await events.change(name, settings, self._actor, creates=True)
            except Refused as exc:
                self.failed[name] = str(exc)
            else:
                self.types.append(name)

    async def _endpoints(self, tenant: NewTenant, found: Sequence[Endpoint]) -> None:
        """Make those endpoints of a tenant that are not among the found ones."""
        there: dict[object, list[str]] = {}
        for endpoint in found:
            there.setdefault(_place(endpoint), []).append(endpoint.id)
        alike, count = Counter(map(_place, tenant.endpoints)), len(found)
        for new in tenant.endpoints:
            same = there.get(_place(new))
            # Of several to one place, one that is refused each time must not count as the next one, which is there.
            if same and (alike[_place(new)] == 1 or (await self._look(tenant.id, new, 0)).is_new):
                self.moved.append(Moved(new.source, tenant.id, same.pop(0)))
            else:
                self.moved.append(await (self._look if self._is_trial else self._make)(tenant.id, new, count))
                count += self.moved[-1].is_new
            self._on_endpoint()

    async def _tenant(self, tenant: NewTenant) -> list[Endpoint]:
        """Make the tenant if it is not there; return its endpoints, the oldest first."""
        try:
            await self._service.tenants.get(tenant.id)
        except NotFound:
            if self._is_trial:
                await self._service.tenants.check_new(tenant.id, tenant.settings)
            else:
                await self._service.tenants.change(tenant.id, tenant.settings, self._actor, creates=True)
            return []
        found: list[Endpoint] = []
        cursor = ""
        while True:
            page = await self._service.endpoints.page(tenant.id, 100, cursor)
            found += page.rows
            if not (cursor := page.next):
                return found

    async def _look(self, tenant: str, new: NewEndpoint, count: int) -> Moved:
        """Return what `_make` would, and make nothing."""
        try:
            check_room(tenant, count)
            warnings = await self._service.endpoints.check(tenant, new.settings, new.fields, new.start)
        except Refused as exc:
            return Moved(new.source, tenant, trouble=str(exc))
        return Moved(new.source, tenant, is_new=True, trouble="; ".join(warnings))

    async def _make(self, tenant: str, new: NewEndpoint, count: int) -> Moved:
        """Make an endpoint beside as many of its tenant."""
        try:
            check_room(tenant, count)  # else a topic would be made and deleted again for each one too many
            made = await self._service.endpoints.create(tenant, new.settings, self._actor, new.fields, new.start)
        except Refused as exc:
            return Moved(new.source, tenant, trouble=str(exc))
        return Moved(new.source, tenant, made.endpoint.id, True, made.secret, "; ".join(made.warnings))


def _place(endpoint: Endpoint | NewEndpoint) -> object:
    """Return what tells most endpoints of a tenant apart: where messages go, and which."""
    settings = endpoint.settings
    return settings.url, frozenset(settings.event_types), settings.filters, frozenset(settings.channels)
