"""`/v1/keys`, `/v1/tenants/{tenant}/tokens` and `/v1/audit-log`."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import fastapi
import pydantic

from emq_push.records.keys import Key, Kind, Role
from emq_web import access, forms
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1", tags=["keys"])

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


class KeyShown(forms.Shown):
    """A key without the key itself."""

    id: str
    role: Role
    tenant: str | None
    name: str
    kind: Kind = pydantic.Field(description='"session" for somebody who is signed in to the pages')
    made_by: str | None = pydantic.Field(description="id of the key that made it, and with which it ends")
    created: datetime.datetime
    expires: datetime.datetime | None = pydantic.Field(description="no later than that of the key that made it")


class KeyMade(KeyShown):
    """A new key."""

    key: str = pydantic.Field(description="nothing shows it again")


class KeyPage(forms.Shown):
    """Keys in the order of their making."""

    data: list[KeyShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class EntryShown(forms.Shown):
    """A change that somebody made."""

    id: str
    time: datetime.datetime
    tenant: str | None
    actor: str = pydantic.Field(description="id and name of the key")
    action: str = pydantic.Field(description="such as endpoint.changed")
    target: str
    changes: dict[str, Any]


class EntryPage(forms.Shown):
    """Changes, the latest first."""

    data: list[EntryShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


def _shown(key: Key) -> dict[str, Any]:
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
) -> KeyPage:
    """List keys in the order of their making."""
    page = await service.keys.page(limit, cursor)
    return KeyPage(data=[KeyShown(**_shown(key)) for key in page.rows], next=page.next or None)


@router.post("/keys", status_code=201)
async def create_key(body: KeyBody, service: access.Service, caller: access.Admin) -> KeyMade:
    """Make a key. The database has its hash alone. It ends with the caller's own key at the latest."""
    key, text = await service.keys.create(
        body.role, caller.actor, tenant=body.tenant, name=body.name, lifetime_s=body.lifetime_s, maker=caller.key
    )
    return KeyMade(**_shown(key), key=text)


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
async def create_token(tenant: TenantId, body: TokenBody, service: access.Service, caller: access.Manager) -> KeyMade:
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
    return KeyMade(**_shown(key), key=text)


async def _entries(service: access.Service, limit: int, cursor: str, tenant: str | None) -> EntryPage:
    page = await service.audit_log(limit, cursor, tenant)
    data = [
        EntryShown(
            id=entry.id,
            time=forms.time(entry.created_us),
            tenant=entry.tenant or None,
            actor=entry.actor,
            action=entry.action,
            target=entry.target,
            changes=entry.changes,
        )
        for entry in page.rows
    ]
    return EntryPage(data=data, next=page.next or None)


@router.get("/audit-log", tags=["audit log"])
async def list_changes(
    service: access.Service,
    _: access.Admin,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
    tenant: Annotated[forms.Plain | None, fastapi.Query(max_length=64, description="of one tenant")] = None,
) -> EntryPage:
    """List who changed what, the latest first."""
    return await _entries(service, limit, cursor, tenant)


@router.get("/tenants/{tenant}/audit-log", tags=["audit log"])
async def list_changes_of_tenant(
    tenant: TenantId,
    service: access.Service,
    _: access.Manager,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
) -> EntryPage:
    """List who changed what of a tenant, the latest first."""
    return await _entries(service, limit, cursor, tenant)
