"""`/v1/tenants`."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import msgspec
import pydantic

from emq_push.records.tenants import DAY_S, Tenant
from emq_web import access, forms, versions

router = fastapi.APIRouter(prefix="/v1/tenants", tags=["tenants"])

Qps = Annotated[
    float, pydantic.Field(gt=0, le=1e6, description="most deliveries started in a second, over all endpoints")
]
Retention = Annotated[int, pydantic.Field(ge=3600, le=400 * DAY_S)]


class TenantBody(forms.Body):
    """A tenant to create, or to change: settings that the body leaves out keep their values."""

    qps: Qps
    name: str = pydantic.Field("", max_length=200, description="for people")
    payload_retention_s: Retention = pydantic.Field(30 * DAY_S, description="payloads are kept this long")
    log_retention_s: Retention = pydantic.Field(
        90 * DAY_S, description="messages, deliveries and attempts are kept this long"
    )
    delete_on_success: bool = pydantic.Field(
        False, description="delete a payload once all deliveries of its message have succeeded"
    )


class TenantChanges(TenantBody):
    """Settings to change; the others keep their values."""

    qps: Qps = 1.0


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
    match: versions.Match = "",
    none_match: versions.NoneMatch = "",
) -> TenantShown:
    """Create a tenant, or change it: settings that the body leaves out keep their values, or get their defaults."""
    changes, expected = body.model_dump(exclude_unset=True), versions.wanted(match, none_match)
    found, is_new = await service.tenants.change(tenant, changes, caller.actor, creates=True, expected=expected)
    response.status_code = 201 if is_new else 200
    return _tagged(found, response)


@router.patch("/{tenant}")
async def change_tenant(
    tenant: TenantId,
    body: TenantChanges,
    service: access.Service,
    caller: access.TenantAdmin,
    response: fastapi.Response,
    version: versions.Version,
) -> TenantShown:
    """Change settings of a tenant. Those that the body leaves out keep their values."""
    changes = body.model_dump(exclude_unset=True)
    found, _ = await service.tenants.change(tenant, changes, caller.actor, expected=version)
    return _tagged(found, response)


@router.get("/{tenant}")
async def get_tenant(
    tenant: TenantId, service: access.Service, _: access.Reader, response: fastapi.Response
) -> TenantShown:
    """Show a tenant."""
    return _tagged(await service.tenants.get(tenant), response)


@router.delete("/{tenant}", status_code=204, response_model=None)
async def delete_tenant(
    tenant: TenantId, service: access.Service, caller: access.TenantAdmin, version: versions.Version
) -> None:
    """Delete a tenant with its endpoints, messages, deliveries and keys. Safe to repeat."""
    await service.tenants.delete(tenant, caller.actor, version)


@router.post("/{tenant}:pause")
async def pause_tenant(
    tenant: TenantId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> TenantShown:
    """Pause a tenant: nothing is delivered to any of its endpoints. Its messages are taken, and wait."""
    return _tagged(await service.tenants.set_paused(tenant, True, caller.actor, version), response)


@router.post("/{tenant}:resume")
async def resume_tenant(
    tenant: TenantId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> TenantShown:
    """Resume a paused tenant. Endpoints that are paused or disabled themselves stay so."""
    return _tagged(await service.tenants.set_paused(tenant, False, caller.actor, version), response)


def _tagged(tenant: Tenant, response: fastapi.Response) -> TenantShown:
    versions.tag(response, tenant.changed_us)
    return shown(tenant)
