"""`/v1/keys`, `/v1/tenants/{tenant}/tokens` and `/v1/audit-log`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import fastapi
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.audit_log import Entry
from emq_push.records.keys import Key, Role
from emq_web import access, forms, models
from emq_web.tenants import TenantId

router = models.Router(prefix="/v1", tags=["keys"])

TenantRole = Literal["read", "send", "manage"]


class KeyBody(forms.Body):
    """Which key to make."""

    role: Role = pydantic.Field(
        description='"admin"; "submit" for tasks of pools; or of one tenant: "read", "send" or "manage"'
    )
    tenant: str = pydantic.Field("", max_length=64, description="empty for admin and submit")
    name: str = pydantic.Field("", max_length=200, description="for people")
    lifetime_s: int = pydantic.Field(0, ge=0, le=10 * 366 * 86_400, description="0 for ever")


class TokenBody(forms.Body):
    """Which token to make."""

    role: TenantRole = "read"
    name: str = pydantic.Field("", max_length=200, description="for people")
    lifetime_s: int = pydantic.Field(3_600, ge=1, le=86_400)


models.answer(answers.Key, "KeyShown", without=("key",))
models.answer(answers.NewKey, "KeyMade")
models.answer(answers.AuditEntry, "EntryShown")


def _shown(key: Key) -> answers.Key:
    return answers.Key(**_fields(key))


def _made(key: Key, text: str) -> answers.NewKey:
    return answers.NewKey(**_fields(key), key=text)


def _fields(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "role": key.role,
        "tenant": key.tenant or None,
        "name": key.name,
        "kind": key.kind,
        "made_by": key.parent or None,
        "created": forms.time(key.created_us),
        "expires": forms.time_or_none(key.expires_us),
    }


@router.get("/keys")
async def list_keys(
    service: access.Service, _: access.Admin, limit: forms.Limit = forms.DEFAULT_LIMIT, cursor: forms.Cursor = ""
) -> Page[answers.Key]:
    """List keys in the order of their making."""
    page = await service.keys.page(limit, cursor)
    return forms.page(page, _shown)


@router.post("/keys", status_code=201)
async def create_key(body: KeyBody, service: access.Service, caller: access.Admin) -> answers.NewKey:
    """Make a key. The database has its hash alone. It ends with the caller's own key at the latest."""
    key, text = await service.keys.create(
        body.role, caller.actor, tenant=body.tenant, name=body.name, lifetime_s=body.lifetime_s, maker=caller.key
    )
    return _made(key, text)


@router.delete("/keys/{key}", status_code=204, response_model=None)
async def delete_key(
    key: Annotated[str, fastapi.Path(max_length=128, description="the key's id, such as key_...")],
    service: access.Service,
    caller: access.Admin,
    keep_made: Annotated[
        bool, fastapi.Query(description="keep the keys that it made; they end with its own maker from now on")
    ] = False,
) -> None:
    """Delete a key or a session, with all keys and sessions that it made. Other processes take them for a second more.

    To replace a key in use without those that it made, delete it with `keep_made=true`.
    """
    await service.keys.delete(key, caller.actor, keep_made=keep_made)


@router.post("/tenants/{tenant}/tokens", status_code=201)
async def create_token(
    tenant: TenantId, body: TokenBody, service: access.Service, caller: access.Manager
) -> answers.NewKey:
    """Make a short-lived key of the tenant, for a page in the tenant's own portal.

    It ends with the caller's own key at the latest.
    """
    key, text = await service.keys.create(
        body.role,
        caller.actor,
        tenant=tenant,
        name=body.name,
        lifetime_s=body.lifetime_s,
        maker=caller.key,
    )
    return _made(key, text)


def _entry(of: Entry) -> answers.AuditEntry:
    return answers.AuditEntry(
        id=of.id,
        time=forms.time(of.created_us),
        tenant=of.tenant or None,
        actor=of.actor,
        action=of.action,
        target=of.target,
        changes=of.changes,
    )


async def _entries(service: access.Service, limit: int, cursor: str, tenant: str | None) -> Page[answers.AuditEntry]:
    page = await service.audit_log(limit, cursor, tenant)
    return forms.page(page, _entry)


@router.get("/audit-log", tags=["audit log"])
async def list_changes(
    service: access.Service,
    _: access.Admin,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
    tenant: Annotated[forms.Plain | None, fastapi.Query(max_length=64, description="of one tenant")] = None,
) -> Page[answers.AuditEntry]:
    """List who changed what, the latest first."""
    return await _entries(service, limit, cursor, tenant)


@router.get("/tenants/{tenant}/audit-log", tags=["audit log"])
async def list_changes_of_tenant(
    tenant: TenantId,
    service: access.Service,
    _: access.Manager,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
) -> Page[answers.AuditEntry]:
    """List who changed what of a tenant, the latest first."""
    return await _entries(service, limit, cursor, tenant)
