"""`/v1/keys`, `/v1/tenants/{tenant}/tokens` and `portal-links`, and `/v1/audit-log`."""

from __future__ import annotations

from typing import Annotated, Literal

import fastapi
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.audit_log import AuditFilter, Entry
from emq_push.records.keys import Key, Role
from emq_web import access, forms, models, parameters
from emq_web.pages.rendering import PREFIX

router = models.Router(prefix="/v1", tags=["keys"])
audit = models.Router(prefix="/v1", tags=["audit log"])

TenantRole = Literal["read", "send", "poll", "manage"]


class KeyBody(forms.Body):
    """Which key to make."""

    role: Role = pydantic.Field(
        description='"admin"; "submit" for tasks of pools; or of one tenant: "read", "send", "poll" or "manage"'
    )
    tenant: str = pydantic.Field("", max_length=64, description="empty for admin and submit")
    name: str = pydantic.Field("", max_length=200, description="for people")
    lifetime_s: int = pydantic.Field(0, ge=0, le=10 * 366 * 86_400, description="0 for ever")


class TokenBody(forms.Body):
    """Which token to make."""

    role: TenantRole = "read"
    name: str = pydantic.Field("", max_length=200, description="for people")
    lifetime_s: int = pydantic.Field(3_600, ge=1, le=86_400)


class LinkBody(forms.Body):
    """Which link to make."""

    role: Literal["read", "manage"] = "manage"
    name: str = pydantic.Field("", max_length=200, description="of who opens it, for the audit log")
    lifetime_s: int = pydantic.Field(300, ge=10, le=3_600, description="until when it must be opened")


models.answer(answers.Key, "KeyShown", without=("key",))
models.answer(answers.Link, "PortalLink")
models.answer(answers.NewKey, "KeyMade")
models.answer(answers.AuditEntry, "EntryShown")


def _shown(key: Key) -> answers.Key:
    return forms.shown(answers.Key, key, made_by=key.parent or None)


def _made(key: Key, text: str) -> answers.NewKey:
    return forms.shown(answers.NewKey, key, made_by=key.parent or None, key=text)


@router.get("/keys")
async def list_keys(of: access.Admin, at: forms.ListAt) -> Page[answers.Key]:
    """List keys in the order of their making."""
    return forms.page(await of.service.keys.page(*at), _shown)


@router.post("/keys", status_code=201)
async def create_key(body: KeyBody, of: access.Admin) -> answers.NewKey:
    """Make a key. The database has its hash alone. It ends with the caller's own key at the latest."""
    return await _create(of, body, body.tenant)


async def _create(of: access.Visit, body: KeyBody | TokenBody, tenant: str) -> answers.NewKey:
    key, text = await of.service.keys.create(
        body.role, of.actor, tenant=tenant, name=body.name, lifetime_s=body.lifetime_s, maker=of.caller.key
    )
    return _made(key, text)


@router.delete("/keys/{key}", status_code=204, response_model=None)
async def delete_key(
    key: Annotated[str, fastapi.Path(max_length=128, description="the key's id, such as key_...")],
    of: access.Admin,
    keep_made: Annotated[
        bool, fastapi.Query(description="keep the keys that it made; they end with its own maker from now on")
    ] = False,
) -> None:
    """Delete a key or a session, with all keys and sessions that it made. Other processes take them for a second more.

    To replace a key in use without those that it made, delete it with `keep_made=true`.
    """
    await of.service.keys.delete(key, of.actor, keep_made=keep_made)


@router.post("/tenants/{tenant}/tokens", status_code=201)
async def create_token(body: TokenBody, of: access.Manager) -> answers.NewKey:
    """Make a short-lived key of the tenant, for a page in the tenant's own portal.

    It ends with the caller's own key at the latest.
    """
    return await _create(of, body, of.tenant)


@router.post("/tenants/{tenant}/portal-links", status_code=201)
async def create_portal_link(body: LinkBody, of: access.Manager) -> answers.Link:
    """Make a link that signs one of the tenant's users in to the tenant's pages, once.

    The session lives for eight hours at most, and ends with the key that made the link.
    """
    link, text = await of.service.keys.create_link(
        body.role, of.actor, tenant=of.tenant, name=body.name, lifetime_s=body.lifetime_s, maker=of.caller.key
    )
    return forms.shown(answers.Link, link, path=f"{PREFIX}/sign-in#{text}", expires=forms.time(link.expires_us))


def _entry(of: Entry) -> answers.AuditEntry:
    return forms.shown(answers.AuditEntry, of, time=forms.time(of.created_us))


async def _wanted(
    span: forms.Span,
    actor: Annotated[parameters.Text, fastapi.Query(description="how it begins, such as the id of a key")] = "",
    action: Annotated[parameters.Text, fastapi.Query(description="how it begins, such as `endpoint.`")] = "",
    target: Annotated[parameters.Text, fastapi.Query(description="id of the changed thing")] = "",
) -> AuditFilter:
    return AuditFilter(None, actor, action, target, *span)


Wanted = Annotated[AuditFilter, fastapi.Depends(_wanted)]


@audit.get("/audit-log")
async def list_changes(
    of: access.Admin,
    at: forms.ListAt,
    wanted: Wanted,
    tenant: Annotated[forms.Plain | None, fastapi.Query(max_length=64, description="of one tenant")] = None,
) -> Page[answers.AuditEntry]:
    """List who changed what, the latest first."""
    return forms.page(await of.service.audit_log(*at, wanted._replace(tenant=tenant)), _entry)


@audit.get("/tenants/{tenant}/audit-log")
async def list_changes_of_tenant(of: access.Manager, at: forms.ListAt, wanted: Wanted) -> Page[answers.AuditEntry]:
    """List who changed what of a tenant, the latest first."""
    return forms.page(await of.service.audit_log(*at, wanted._replace(tenant=of.tenant)), _entry)
