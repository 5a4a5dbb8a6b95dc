"""Makes what a plan has. Safe to repeat: what is there already stays as it is."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from emq_push.moving.plan import NewEndpoint, NewTenant
from emq_push.records.endpoints import Endpoint
from emq_push.service.refusals import NotFound, Refused
from emq_push.service.service import PushService

MOST_OVERLAP_S = 30 * 86_400.0
"""As for `:rotate-secret`."""


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

    Args:
        is_trial: only look whether they could be made.
        on_endpoint: called after each endpoint.
    """

    def __init__(
        self, service: PushService, actor: str, *, is_trial: bool, on_endpoint: Callable[[], object] = lambda: None
    ) -> None:
        self._service, self._actor, self._is_trial, self._on_endpoint = service, actor, is_trial, on_endpoint

    async def run(self, tenants: Iterable[NewTenant]) -> list[Moved]:
        """Return what became of each endpoint. A tenant or endpoint that is refused keeps none from being made.

        Raises:
            StoreUnavailable, DatabaseUnavailable: some were not made; repeat.
        """
        moved: list[Moved] = []
        for tenant in tenants:
            try:
                there = await self._tenant(tenant)
            except Refused as exc:
                moved.append(Moved("", tenant.id, trouble=str(exc)))
                continue
            for each in tenant.endpoints:
                try:
                    moved.append(await self._endpoint(tenant.id, each, there))
                except Refused as exc:
                    moved.append(Moved(each.source, tenant.id, trouble=str(exc)))
                self._on_endpoint()
        return moved

    async def _tenant(self, tenant: NewTenant) -> dict[object, Endpoint]:
        """Make the tenant if it is not there; return its endpoints by what tells them apart."""
        try:
            await self._service.tenants.get(tenant.id)
        except NotFound:
            if not self._is_trial:
                await self._service.tenants.change(tenant.id, tenant.settings, self._actor, creates=True)
            return {}
        found: list[Endpoint] = []
        cursor = ""
        while True:
            page = await self._service.endpoints.page(tenant.id, 100, cursor)
            found += page.rows
            if not (cursor := page.next):
                return {_place(each): each for each in found}

    async def _endpoint(self, tenant: str, new: NewEndpoint, there: dict[object, Endpoint]) -> Moved:
        if (known := there.get(_place(new))) is not None:
            return Moved(new.source, tenant, known.id)
        endpoints = self._service.endpoints
        if new.former:  # else it would be found wrong half-way
            await endpoints.check(tenant, new.settings, msgspec.structs.replace(new.fields, secret=new.secret))
        if self._is_trial:
            warnings = await endpoints.check(tenant, new.settings, new.fields)
            return Moved(new.source, tenant, is_new=True, trouble="; ".join(warnings))
        made = await endpoints.create(tenant, new.settings, self._actor, new.fields)
        id_ = made.endpoint.id
        there[_place(new)] = made.endpoint
        if new.former:
            assert new.former_until is not None
            left_s = (new.former_until - datetime.datetime.now(datetime.UTC)).total_seconds()
            overlap_s = min(max(left_s, 0.0), MOST_OVERLAP_S)
            await endpoints.rotate_secret(tenant, id_, self._actor, overlap_s=overlap_s, given=new.secret)
        if new.disabled:
            await endpoints.set_disabled(tenant, id_, new.disabled, self._actor)
        return Moved(new.source, tenant, id_, True, made.secret, "; ".join(made.warnings))


def _place(endpoint: Endpoint | NewEndpoint) -> object:
    """Return what tells the endpoints of a tenant apart: where messages go, and which."""
    settings = endpoint.settings
    return settings.url, frozenset(settings.event_types), settings.filters
