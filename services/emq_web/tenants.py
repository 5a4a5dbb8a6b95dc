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
Changes = Annotated[dict[str, Any], models.patch(TenantSettings, "TenantChanges")]


def shown(tenant: Tenant) -> answers.Tenant:
    return forms.shown(answers.Tenant, tenant, paused=tenant.is_paused, **msgspec.structs.asdict(tenant.settings))


@router.get("")
async def list_tenants(of: access.Admin, at: forms.ListAt) -> Page[answers.Tenant]:
    """List tenants by id."""
    return forms.page(await of.service.tenants.page(*at), shown)


@router.put("/{tenant}", responses={201: {"model": models.of(answers.Tenant), "description": "created"}})
async def put_tenant(
    body: Settings, of: access.TenantAdmin, response: fastapi.Response, version: versions.Version
) -> answers.Tenant:
    """Create a tenant, or change it: settings that the body leaves out keep their values, or get their defaults."""
    found, is_new = await of.service.tenants.change(of.tenant, body, of.actor, creates=True, expected=version)
    response.status_code = 201 if is_new else 200
    return _tagged(found, response)


@router.patch("/{tenant}")
async def change_tenant(
    body: Changes, of: access.TenantAdmin, response: fastapi.Response, version: versions.Version
) -> answers.Tenant:
    """Change settings of a tenant by JSON Merge Patch: what the body leaves out stays, null gives the default again."""
    found, _ = await of.service.tenants.change(of.tenant, body, of.actor, expected=version)
    return _tagged(found, response)


@router.get("/{tenant}")
async def get_tenant(of: access.Reader, response: fastapi.Response) -> answers.Tenant:
    """Show a tenant."""
    return _tagged(await of.service.tenants.get(of.tenant), response)


@router.delete("/{tenant}", status_code=204, response_model=None)
async def delete_tenant(of: access.TenantAdmin, version: versions.Version) -> None:
    """Delete a tenant with its endpoints, messages, deliveries and keys. Safe to repeat."""
    await of.service.tenants.delete(of.tenant, of.actor, version)


@router.post("/{tenant}:pause")
async def pause_tenant(of: access.Manager, response: fastapi.Response, version: versions.Version) -> answers.Tenant:
    """Pause a tenant: nothing is delivered to any of its endpoints. Its messages are taken, and wait."""
    return _tagged(await of.service.tenants.set_paused(of.tenant, True, of.actor, version), response)


@router.post("/{tenant}:resume")
async def resume_tenant(of: access.Manager, response: fastapi.Response, version: versions.Version) -> answers.Tenant:
    """Resume a paused tenant. Endpoints that are paused or disabled themselves stay so."""
    return _tagged(await of.service.tenants.set_paused(of.tenant, False, of.actor, version), response)


def _tagged(tenant: Tenant, response: fastapi.Response) -> answers.Tenant:
    versions.tag(response, tenant.changed_us)
    return shown(tenant)
