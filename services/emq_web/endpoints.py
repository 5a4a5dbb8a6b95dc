"""`/v1/tenants/{tenant}/endpoints`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import fastapi
import msgspec
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.endpoints import EVENT_TYPE, Endpoint, EndpointSettings, Handshake
from emq_push.service import examples
from emq_push.service.endpoint_edits import Made
from emq_push.service.endpoints import EndpointService
from emq_push.service.incoming import decoded
from emq_push.service.refusals import converted
from emq_push.service.topic_fields import MAX_SECRET, EndpointFields, TopicFields
from emq_web import access, forms, models, versions

router = models.Router(prefix="/v1/tenants/{tenant}/endpoints", tags=["endpoints"])

EndpointId = Annotated[str, fastapi.Path(max_length=128, description="the endpoint's id, such as ep_...")]


Settings = Annotated[dict[str, Any], models.body(EndpointFields, "EndpointBody")]
Changes = Annotated[dict[str, Any], models.patch(EndpointFields, "EndpointChanges")]

models.answer(answers.Endpoint, "EndpointShown", without=("warnings", "secret"))
CHANGED = models.answer(answers.Endpoint, "EndpointChanged")
MADE = models.answer(answers.Endpoint, "EndpointMade")


class Rotation(forms.Body):
    """How a secret is replaced."""

    overlap_s: float = pydantic.Field(
        86_400, ge=0, le=30 * 86_400, description="for so long, deliveries are signed with the old secret, too"
    )
    secret: str = pydantic.Field(
        "",
        max_length=MAX_SECRET,
        pattern=r"^\S*$",
        description="one that the receiver has already; empty for a new one",
    )


class Reason(forms.Body):
    """Why an endpoint is disabled."""

    reason: str = pydantic.Field("disabled by hand", min_length=1, max_length=500)


def shown(endpoint: Endpoint, secret: str = "", warnings: Sequence[str] = ()) -> answers.Endpoint:
    values = msgspec.to_builtins(endpoint.settings)
    return forms.shown(
        answers.Endpoint,
        endpoint,
        **values,
        paused=endpoint.is_paused,
        warnings=warnings,
        secret=secret or None,
    )


def _tagged(endpoint: Endpoint, response: fastapi.Response) -> answers.Endpoint:
    versions.tag(response, endpoint.changed_us)
    return shown(endpoint)


def _made(made: Made, response: fastapi.Response) -> answers.Endpoint:
    versions.tag(response, made.endpoint.changed_us)
    return shown(made.endpoint, made.secret, made.warnings)


class _At(NamedTuple):
    """A manager's request to change an endpoint.

    Attributes:
        place: ids of tenant and endpoint.
        version: the one that the request is for; None for any.
    """

    place: tuple[str, str]
    endpoints: EndpointService
    actor: str
    response: fastapi.Response
    version: int | None

    def shown(self, endpoint: Endpoint) -> answers.Endpoint:
        return _tagged(endpoint, self.response)

    def made(self, made: Made) -> answers.Endpoint:
        return _made(made, self.response)


async def _at(endpoint: EndpointId, of: access.Manager, response: fastapi.Response, version: versions.Version) -> _At:
    return _At((of.tenant, endpoint), of.service.endpoints, of.actor, response, version)


At = Annotated[_At, fastapi.Depends(_at)]


def _split(given: Mapping[str, Any]) -> tuple[dict[str, Any], TopicFields]:
    """Return the given fields that the row keeps, and those that only the topic keeps."""
    of_topic = {name: given[name] for name in TopicFields.__struct_fields__ if name in given}
    return {name: given[name] for name in given if name not in of_topic}, converted(of_topic, TopicFields)


@router.get("")
async def list_endpoints(of: access.Reader, at: forms.ListAt) -> Page[answers.Endpoint]:
    """List the endpoints of a tenant in the order of their making."""
    return forms.page(await of.service.endpoints.page(of.tenant, *at), shown)


@router.post("", status_code=201, response_model=MADE)
async def create_endpoint(body: Settings, of: access.Manager, response: fastapi.Response) -> answers.Endpoint:
    """Create an endpoint. The answer has its new secret, which nothing shows again, or its public key.

    With a `secret` of your own, and the `signing` of your former sender, receivers need no change.
    """
    settings, fields = _split(msgspec.to_builtins(converted(body, EndpointFields)))
    wanted = converted(settings, EndpointSettings)
    return _made(await of.service.endpoints.create(of.tenant, wanted, of.actor, fields), response)


@router.get("/{endpoint}")
async def get_endpoint(endpoint: EndpointId, of: access.Reader, response: fastapi.Response) -> answers.Endpoint:
    """Show an endpoint."""
    return _tagged(await of.service.endpoints.get(of.tenant, endpoint), response)


@router.patch("/{endpoint}", response_model=CHANGED)
async def change_endpoint(at: At, body: Changes) -> answers.Endpoint:
    """Change settings by JSON Merge Patch: what the body leaves out stays, null gives the default again.

    So `headers`, `batch`, `template` and `auth` change the members that they name; null removes one. Another type of
    `auth` keeps nothing of the one before. Another `signature` makes a new secret. Deliveries are signed with both for
    a day, also after a change to a `secret` of your own.
    """
    changes, fields = _split(body)
    return at.made(await at.endpoints.change(*at.place, changes, at.actor, fields, at.version))


@router.delete("/{endpoint}", status_code=204, response_model=None)
async def delete_endpoint(at: At) -> None:
    """Delete an endpoint. Its waiting deliveries are cancelled. Safe to repeat."""
    await at.endpoints.delete(*at.place, at.actor, at.version)


@router.post("/{endpoint}:rotate-secret", response_model=MADE)
async def rotate_secret(at: At, body: Rotation | None = None) -> answers.Endpoint:
    """Give an endpoint another secret. For a while, deliveries are signed with both."""
    asked = body or Rotation.model_validate({})
    rotate = functools.partial(at.endpoints.rotate_secret, overlap_s=asked.overlap_s, given=asked.secret)
    return at.made(await rotate(*at.place, at.actor, expected=at.version))


@router.post("/{endpoint}:disable")
async def disable_endpoint(at: At, body: Reason | None = None) -> answers.Endpoint:
    """Disable an endpoint: its deliveries wait until somebody enables it."""
    reason = (body or Reason.model_validate({})).reason
    return at.shown(await at.endpoints.set_disabled(*at.place, reason, at.actor, at.version))


@router.post("/{endpoint}:enable")
async def enable_endpoint(at: At) -> answers.Endpoint:
    """Enable an endpoint that somebody, or a host after many failures, has disabled."""
    return at.shown(await at.endpoints.set_disabled(*at.place, "", at.actor, at.version))


@router.post("/{endpoint}:pause")
async def pause_endpoint(at: At) -> answers.Endpoint:
    """Pause an endpoint: nothing is started until somebody resumes it."""
    return at.shown(await at.endpoints.set_paused(*at.place, True, at.actor, at.version))


@router.post("/{endpoint}:resume")
async def resume_endpoint(at: At) -> answers.Endpoint:
    """Resume a paused endpoint."""
    return at.shown(await at.endpoints.set_paused(*at.place, False, at.actor, at.version))


class HandshakeBody(forms.Body):
    """For whom to ask."""

    origin: str = pydantic.Field(
        max_length=253,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$",
        description="a DNS name for the sending system as a whole; each delivery names it",
    )


def _handshake(found: Handshake | None) -> answers.Handshake:
    if found is None:
        return answers.Handshake(state="none")
    return forms.shown(answers.Handshake, found, allowed_rate_per_min=found.rate_per_min, asked=forms.time(found.at_us))


@router.post("/{endpoint}:handshake", status_code=202)
async def start_handshake(endpoint: EndpointId, body: HandshakeBody, of: access.Manager) -> answers.Handshake:
    """Ask the endpoint, as CloudEvents webhooks do, whether it wants deliveries; the rate it allows binds from now on.

    A host asks in the endpoint's queue, under its limit; `GET .../handshake` then shows the answer. An endpoint that
    refuses still gets deliveries: disable it if you want none.
    """
    return _handshake(await of.service.handshakes.start(of.tenant, endpoint, body.origin, of.actor))


@router.get("/{endpoint}/handshake")
async def get_handshake(endpoint: EndpointId, of: access.Reader) -> answers.Handshake:
    """Show the last handshake with the endpoint."""
    return _handshake((await of.service.endpoints.get(of.tenant, endpoint)).handshake)


class ExampleBody(forms.Body):
    """Which example to send."""

    event_type: str = pydantic.Field("example", max_length=128, pattern=EVENT_TYPE)
    payload: dict[str, Any] | None = pydantic.Field(None, description="null for one that the service makes up")


@router.post("/{endpoint}:send-example", status_code=202)
async def send_example(endpoint: EndpointId, of: access.Sender, body: ExampleBody | None = None) -> answers.Example:
    """Send one signed example to this endpoint, in its queue and under its limits, at its highest priority."""
    asked = body or ExampleBody.model_validate({})
    payload = None if asked.payload is None else forms.encoded(asked.payload)
    receipt, sent = await examples.send(of.service, of.tenant, endpoint, asked.event_type, payload)
    return answers.Example(id=receipt.id, delivery=receipt.deliveries[0], payload=decoded(sent))


class PreviewBody(ExampleBody):
    """Which payload to rewrite."""

    template: dict[str, Any] | None = pydantic.Field(None, description="null for that of the endpoint")


@router.post("/{endpoint}:preview")
async def preview_payload(endpoint: EndpointId, of: access.Reader, body: PreviewBody | None = None) -> answers.Preview:
    """Show the payload that the endpoint would get: as its template rewrites it, or one that you try. Sends nothing."""
    asked, there = body or PreviewBody.model_validate({}), await of.service.endpoints.get(of.tenant, endpoint)
    template = there.template if asked.template is None else asked.template
    given = None if asked.payload is None else forms.encoded(asked.payload)
    made = await examples.preview(of.service, of.tenant, template, asked.event_type, given)
    return answers.Preview(decoded(made))
