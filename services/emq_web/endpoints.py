"""`/v1/tenants/{tenant}/endpoints`."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import fastapi
import msgspec
import pydantic

from emq_push.records.endpoints import Endpoint, EndpointSettings, Handshake
from emq_push.service.matching import EVENT_TYPE
from emq_web import access, endpoint_forms, forms, versions
from emq_web.endpoint_forms import (
    EndpointBody,
    EndpointChanged,
    EndpointChanges,
    EndpointMade,
    EndpointPage,
    EndpointShown,
    shown,
)
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1/tenants/{tenant}/endpoints", tags=["endpoints"])

EndpointId = Annotated[str, fastapi.Path(max_length=128, description="the endpoint's id, such as ep_...")]


class Rotation(forms.Body):
    """How a secret is replaced."""

    overlap_s: float = pydantic.Field(
        86_400, ge=0, le=30 * 86_400, description="for so long, deliveries are signed with the old secret, too"
    )


class Reason(forms.Body):
    """Why an endpoint is disabled."""

    reason: str = pydantic.Field("disabled by hand", min_length=1, max_length=500)


@router.get("")
async def list_endpoints(
    tenant: TenantId,
    service: access.Service,
    _: access.Reader,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
) -> EndpointPage:
    """List the endpoints of a tenant in the order of their making."""
    page = await service.endpoints.page(tenant, limit, cursor)
    return EndpointPage(data=[shown(endpoint) for endpoint in page.rows], next=page.next or None)


@router.post("", status_code=201)
async def create_endpoint(
    tenant: TenantId,
    body: EndpointBody,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
) -> EndpointMade:
    """Create an endpoint. The answer has its secret, which nothing shows again, or its public key."""
    settings = msgspec.convert(body.model_dump(exclude=endpoint_forms.OF_TOPIC), EndpointSettings)
    fields = endpoint_forms.topic_fields(body, endpoint_forms.OF_TOPIC)
    made = await service.endpoints.create(tenant, settings, caller.actor, fields)
    versions.tag(response, made.endpoint.changed_us)
    return endpoint_forms.made_shown(made)


@router.get("/{endpoint}")
async def get_endpoint(
    tenant: TenantId, endpoint: EndpointId, service: access.Service, _: access.Reader, response: fastapi.Response
) -> EndpointShown:
    """Show an endpoint."""
    return _tagged(await service.endpoints.get(tenant, endpoint), response)


@router.patch("/{endpoint}")
async def change_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    body: EndpointChanges,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> EndpointChanged:
    """Change settings. Those that the body leaves out keep their values; `headers` replaces all headers.

    `auth` replaces all that authenticated before. Another `signature` makes a new secret; deliveries are signed with
    both for a day.
    """
    changes = body.model_dump(exclude_unset=True, exclude=endpoint_forms.OF_TOPIC)
    fields = endpoint_forms.topic_fields(body, body.model_fields_set)
    made = await service.endpoints.change(tenant, endpoint, changes, caller.actor, fields, version)
    versions.tag(response, made.endpoint.changed_us)
    return endpoint_forms.changed_shown(made)


@router.delete("/{endpoint}", status_code=204, response_model=None)
async def delete_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    version: versions.Version,
) -> None:
    """Delete an endpoint. Its waiting deliveries are cancelled. Safe to repeat."""
    await service.endpoints.delete(tenant, endpoint, caller.actor, version)


@router.post("/{endpoint}:rotate-secret")
async def rotate_secret(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
    body: Rotation | None = None,
) -> EndpointMade:
    """Give an endpoint a new secret. For a while, deliveries are signed with both."""
    overlap_s = (body or Rotation.model_validate({})).overlap_s
    made = await service.endpoints.rotate_secret(tenant, endpoint, caller.actor, overlap_s=overlap_s, expected=version)
    versions.tag(response, made.endpoint.changed_us)
    return endpoint_forms.made_shown(made)


@router.post("/{endpoint}:disable")
async def disable_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
    body: Reason | None = None,
) -> EndpointShown:
    """Disable an endpoint: its deliveries wait until somebody enables it."""
    reason = (body or Reason.model_validate({})).reason
    return _tagged(await service.endpoints.set_disabled(tenant, endpoint, reason, caller.actor, version), response)


@router.post("/{endpoint}:enable")
async def enable_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> EndpointShown:
    """Enable an endpoint that somebody, or a host after many failures, has disabled."""
    return _tagged(await service.endpoints.set_disabled(tenant, endpoint, "", caller.actor, version), response)


@router.post("/{endpoint}:pause")
async def pause_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> EndpointShown:
    """Pause an endpoint: nothing is started until somebody resumes it."""
    return _tagged(await service.endpoints.set_paused(tenant, endpoint, True, caller.actor, version), response)


@router.post("/{endpoint}:resume")
async def resume_endpoint(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    caller: access.Manager,
    response: fastapi.Response,
    version: versions.Version,
) -> EndpointShown:
    """Resume a paused endpoint."""
    return _tagged(await service.endpoints.set_paused(tenant, endpoint, False, caller.actor, version), response)


def _tagged(endpoint: Endpoint, response: fastapi.Response) -> EndpointShown:
    versions.tag(response, endpoint.changed_us)
    return shown(endpoint)


class HandshakeBody(forms.Body):
    """For whom to ask."""

    origin: str = pydantic.Field(
        max_length=253,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$",
        description="a DNS name for the sending system as a whole; each delivery names it",
    )


class HandshakeShown(forms.Shown):
    """What the endpoint said of deliveries."""

    state: Literal["none", "asked", "agreed", "refused", "outdated"] = pydantic.Field(
        description='"none": nobody asked; "asked": no host has asked yet; "outdated": the URL is another one since'
    )
    origin: str | None
    allowed_rate_per_min: int | None = pydantic.Field(description="deliveries a minute; null for any number")
    reason: str = pydantic.Field(description="why it refused")
    asked: datetime.datetime | None


def _handshake(found: Handshake | None) -> HandshakeShown:
    if found is None:
        return HandshakeShown(state="none", origin=None, allowed_rate_per_min=None, reason="", asked=None)
    return HandshakeShown(
        state=found.state,
        origin=found.origin,
        allowed_rate_per_min=found.rate_per_min,
        reason=found.reason,
        asked=forms.time(found.at_us),
    )


@router.post("/{endpoint}:handshake", status_code=202)
async def start_handshake(
    tenant: TenantId, endpoint: EndpointId, body: HandshakeBody, service: access.Service, caller: access.Manager
) -> HandshakeShown:
    """Ask the endpoint, as CloudEvents webhooks do, whether it wants deliveries; the rate it allows binds from now on.

    A host asks in the endpoint's queue, under its limit; `GET .../handshake` then shows the answer. An endpoint that
    refuses still gets deliveries: disable it if you want none.
    """
    return _handshake(await service.handshakes.start(tenant, endpoint, body.origin, caller.actor))


@router.get("/{endpoint}/handshake")
async def get_handshake(
    tenant: TenantId, endpoint: EndpointId, service: access.Service, _: access.Reader
) -> HandshakeShown:
    """Show the last handshake with the endpoint."""
    return _handshake((await service.endpoints.get(tenant, endpoint)).handshake)


class ExampleBody(forms.Body):
    """Which example to send."""

    event_type: str = pydantic.Field("example", max_length=128, pattern=EVENT_TYPE)
    payload: dict[str, Any] | None = pydantic.Field(None, description="null for one that the service makes up")


class ExampleShown(forms.Shown):
    """An example that was accepted."""

    id: str = pydantic.Field(description="the webhook-id of the request")
    delivery: str = pydantic.Field(description="id of its delivery, which shows what became of it")
    payload: dict[str, Any]


@router.post("/{endpoint}:send-example", status_code=202)
async def send_example(
    tenant: TenantId,
    endpoint: EndpointId,
    service: access.Service,
    _: access.Sender,
    body: ExampleBody | None = None,
) -> ExampleShown:
    """Send one signed example to this endpoint, in its queue and under its limits, at its highest priority."""
    asked = body or ExampleBody.model_validate({})
    payload = None if asked.payload is None else forms.encoded(asked.payload)
    receipt, sent = await service.examples.send(tenant, endpoint, asked.event_type, payload)
    return ExampleShown(id=receipt.id, delivery=receipt.deliveries[0], payload=msgspec.json.decode(sent))
