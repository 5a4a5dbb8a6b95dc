"""`/v1/tenants`."""

from __future__ import annotations

from typing import Annotated, Any

import fastapi
import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.tenants import Tenant, TenantSettings
from emq_web import access, forms, models, versions

router = models.Router(prefix="/v1/tenants", tags=["tenants"])

Settings = Annotated[dict[str, Any], models.body(TenantSettings, "TenantBody")]
Changes = Annotated[dict[str, Any], models.body(TenantSettings, "TenantChanges", partial=True)]


def shown(tenant: Tenant) -> answers.Tenant:
    return answers.Tenant(
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
) -> Page[answers.Tenant]:
    """List tenants by id."""
    page = await service.tenants.page(limit, cursor)
    return forms.page(page, shown)


@router.put("/{tenant}", responses={201: {"model": models.of(answers.Tenant), "description": "created"}})
async def put_tenant(
    tenant: TenantId,
    body: Settings,
    service: access.Service,
    caller: access.TenantAdmin,
    response: fastapi.Response,
    match: versions.Match = "",
    none_match: versions.NoneMatch = "",
) -> answers.Tenant:
    """Create a tenant, or change it: settings that the body leaves out keep their values, or get their defaults."""
    expected = versions.wanted(match, none_match)
    found, is_new = await service.tenants.change(tenant, body, caller.actor, creates=True, expected=expected)
    response.status_code = 201 if is_new else 200
    return _tagged(found, response)


@router.patch("/{tenant}")
async def change_tenant(
    tenant: TenantId,
    body: Changes,
    service: access.Service,
    caller: access.TenantAdmin,
    response: fastapi.Response,
    version: versions.Version,
) -> answers.Tenant:
    """Change settings of a tenant. Those that the body leaves out keep their values."""
    found, _ = await service.tenants.change(tenant, body, caller.actor, expected=version)
    return _tagged(found, response)


@router.get("/{tenant}")
async def get_tenant(
    tenant: TenantId, service: access.Service, _: access.Reader, response: fastapi.Response
) -> answers.Tenant:
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
) -> answers.Tenant:
    """Pause a tenant: nothing is delivered to any of its endpoints. Its messages are taken, and wait."""
    return _tagged(await service.tenants.set_paused(tenant, True, caller.actor, version), response)


@router.post("/{tenant}:resume")
async def resume_tenant(
    tenant: TenantId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> answers.Tenant:
    """Resume a paused tenant. Endpoints that are paused or disabled themselves stay so."""
    return _tagged(await service.tenants.set_paused(tenant, False, caller.actor, version), response)


def _tagged(tenant: Tenant, response: fastapi.Response) -> answers.Tenant:
    versions.tag(response, tenant.changed_us)
    return shown(tenant)
