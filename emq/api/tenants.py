"""`/v1/tenants`."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import msgspec
import pydantic

from emq.api import access, forms
from emq.push.records.tenants import DAY_S, Tenant, TenantSettings

router = fastapi.APIRouter(prefix="/v1/tenants", tags=["tenants"])

Retention = Annotated[int, pydantic.Field(ge=3600, le=400 * DAY_S)]


class TenantBody(forms.Body):
    """What a caller says of a tenant."""

    qps: float = pydantic.Field(gt=0, le=1e6, description="most deliveries started in a second, over all endpoints")
    name: str = pydantic.Field("", max_length=200, description="for people")
    payload_retention_s: Retention = pydantic.Field(30 * DAY_S, description="payloads are kept this long")
    log_retention_s: Retention = pydantic.Field(
        90 * DAY_S, description="messages, deliveries and attempts are kept this long"
    )
    delete_on_success: bool = pydantic.Field(
        False, description="delete a payload once all deliveries of its message have succeeded"
    )


class TenantShown(forms.Shown):
    """A tenant."""

    id: str
    name: str
    qps: float
    payload_retention_s: int
    log_retention_s: int
    delete_on_success: bool
    paused: bool = pydantic.Field(description="nothing is delivered to any of its endpoints until somebody resumes it")
    created: datetime.datetime
    changed: datetime.datetime


class TenantPage(forms.Shown):
    """Tenants by id."""

    data: list[TenantShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


def shown(tenant: Tenant) -> TenantShown:
    return TenantShown(
        id=tenant.id,
        paused=tenant.is_paused,
        created=forms.time(tenant.created_us),
        changed=forms.time(tenant.changed_us),
        **msgspec.structs.asdict(tenant.settings),
    )


TenantId = Annotated[str, fastapi.Path(max_length=64, description="the tenant's id, chosen by you")]


@router.get("")
async def list_tenants(
    service: access.Service, _: access.Admin, limit: forms.Limit = forms.DEFAULT_LIMIT, cursor: forms.Cursor = ""
) -> TenantPage:
    """List tenants by id."""
    page = await service.tenants.page(limit, cursor)
    return TenantPage(data=[shown(tenant) for tenant in page.rows], next=page.next or None)


@router.put("/{tenant}", responses={201: {"model": TenantShown, "description": "created"}})
async def put_tenant(
    tenant: TenantId,
    body: TenantBody,
    service: access.Service,
    caller: access.TenantAdmin,
    response: fastapi.Response,
) -> TenantShown:
    """Create a tenant, or change it: settings that the body leaves out get their defaults."""
    settings = TenantSettings(**body.model_dump())
    found, is_new = await service.tenants.put(tenant, settings, caller.actor)
    response.status_code = 201 if is_new else 200
    return shown(found)


@router.get("/{tenant}")
async def get_tenant(tenant: TenantId, service: access.Service, _: access.Reader) -> TenantShown:
    """Show a tenant."""
    return shown(await service.tenants.get(tenant))


@router.delete("/{tenant}", status_code=204, response_model=None)
async def delete_tenant(tenant: TenantId, service: access.Service, caller: access.TenantAdmin) -> None:
    """Delete a tenant with its endpoints, messages, deliveries and keys. Safe to repeat."""
    await service.tenants.delete(tenant, caller.actor)


@router.post("/{tenant}:pause")
async def pause_tenant(tenant: TenantId, service: access.Service, caller: access.Manager) -> TenantShown:
    """Pause a tenant: nothing is delivered to any of its endpoints. Its messages are taken, and wait."""
    return shown(await service.tenants.set_paused(tenant, True, caller.actor))


@router.post("/{tenant}:resume")
async def resume_tenant(tenant: TenantId, service: access.Service, caller: access.Manager) -> TenantShown:
    """Resume a paused tenant. Endpoints that are paused or disabled themselves stay so."""
    return shown(await service.tenants.set_paused(tenant, False, caller.actor))
