"""`emq push`: tenants, endpoints, messages and deliveries of the push service, straight in its database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from emq.runtime import documents, errors
from emq_cli import output, times
from emq_cli.entry import Room
from emq_cli.extras import needing
from emq_cli.session import ACTOR, Session, command

if TYPE_CHECKING:
    from emq import App
    from emq_push.service.service import PushService

app = typer.Typer(
    cls=Room,
    help="Work with tenants, endpoints and deliveries of the push service, as its API does.",
    pretty_exceptions_enable=False,
)


Shown = Literal["waiting", "held", "delayed", "in_flight", "delivered", "parked", "dead", "cancelled"]
"""The states of deliveries; see `emq_push.service.states`, which needs an extra of EMQ."""
Ended = Literal["dead", "delivered", "cancelled"]
"""The states from which a delivery can be replayed."""

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id, of your own.", show_default=False)]
Endpoint = Annotated[str, typer.Option("--endpoint", metavar="ID", help="Only this endpoint.")]
OneEndpoint = Annotated[
    str, typer.Option("--endpoint", metavar="ID", help="Only this endpoint. (default: the whole tenant)")
]
Limit = Annotated[int, typer.Option(min=1, max=1_000, help="Most lines to list.")]
Delivery = Annotated[str, typer.Argument(metavar="DELIVERY", help="As `emq push deliveries` has it.")]


@contextlib.asynccontextmanager
async def opened_service(session: Session, *, create: bool = False) -> AsyncIterator[tuple[App, PushService]]:
    """Open the app of a command, and the push service over it."""
    with needing("the push service", "push"):
        from emq_push.service.service import PushService
    async with session.app(create=create) as opened:
        service = await PushService.open(opened)
        try:
            yield opened, service
        finally:
            await service.close()


@command(app, "tenant")
async def tenant(
    session: Session,
    tenant: Tenant,
    qps: Annotated[float, typer.Option(help="Most deliveries started in a second, over all its endpoints.")],
    name: Annotated[str | None, typer.Option(help="For people. (default: as it is)", show_default=False)] = None,
) -> None:
    """Create a tenant, or change its rate and name. Its other settings stay as they are.

    Example: emq push tenant acme --qps 50
    """
    async with opened_service(session, create=True) as (_, service):
        from emq_push.records.tenants import TenantSettings

        changes = {"qps": qps} if name is None else {"qps": qps, "name": name}
        _valid(changes, TenantSettings)
        found, is_new = await service.tenants.change(tenant, changes, ACTOR, creates=True)
    text = f"tenant {found.id!r}: {'created' if is_new else 'changed'}, {output.number(qps)} a second"
    session.say(text, {"id": found.id, "created": is_new, **msgspec.structs.asdict(found.settings)})


@command(app, "tenants")
async def tenants(session: Session, limit: Limit = 50) -> None:
    """List tenants by id.

    Example: emq push tenants --limit 200
    """
    async with opened_service(session) as (opened, service):
        page = await service.tenants.page(limit)
    rows = [(t.id, t.settings.qps, "paused" if t.is_paused else "", t.settings.name) for t in page.rows]
    data = [{"id": t.id, "paused": t.is_paused, **msgspec.structs.asdict(t.settings)} for t in page.rows]
    _list(
        session,
        data,
        ("tenant", "qps", "state", "name"),
        rows,
        ("qps",),
        f"no tenants in the {opened.place}",
        page.next,
    )


@command(app, "pause")
async def pause(session: Session, tenant: Tenant, endpoint: OneEndpoint = "") -> None:
    """Deliver nothing to a tenant, or to one of its endpoints, until you resume it. Its messages wait.

    Example: emq push pause acme
    """
    await _set_paused(session, tenant, endpoint, paused=True)


@command(app, "resume")
async def resume(session: Session, tenant: Tenant, endpoint: OneEndpoint = "") -> None:
    """Resume a paused tenant, or one of its endpoints. What was paused by itself stays paused.

    Example: emq push resume acme
    """
    await _set_paused(session, tenant, endpoint, paused=False)


async def _set_paused(session: Session, tenant: str, endpoint: str, *, paused: bool) -> None:
    async with opened_service(session) as (_, service):
        if endpoint:
            await service.endpoints.set_paused(tenant, endpoint, paused, ACTOR)
        else:
            await service.tenants.set_paused(tenant, paused, ACTOR)
    what = f"endpoint {endpoint} of tenant {tenant!r}" if endpoint else f"tenant {tenant!r}"
    text = f"{what}: {'paused' if paused else 'resumed'}; hosts follow within seconds"
    session.say(text, {"tenant": tenant, "endpoint": endpoint or None, "paused": paused})


@command(app, "endpoint")
async def endpoint(
    session: Session,
    tenant: Tenant,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to deliver.", show_default=False)],
    event: Annotated[
        list[str] | None, typer.Option("--event", metavar="TYPE", help="Event types, such as order.*. (default: all)")
    ] = None,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="Only messages that name this channel. (default: all)")
    ] = None,
    qps: Annotated[float | None, typer.Option(help="A rate of its own, below the tenant's.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=2, max=1_000, help="Most messages of one request. (default: each has its own)")
    ] = None,
    signature: Annotated[
        Literal["hmac", "ed25519"],
        typer.Option(help="hmac shares a secret with the receiver; ed25519 gives it a public key."),
    ] = "hmac",
    secret_file: Annotated[
        str, typer.Option(metavar="FILE", help="A file with the secret that the receiver has. (default: a new secret)")
    ] = "",
    signing: Annotated[
        str | None,
        typer.Option(metavar="STYLE", help="svix, stripe, github, or a style of your own. (default: standard)"),
    ] = None,
) -> None:
    """Create an endpoint of a tenant; print its id and its new secret, which nothing shows again, or its public key.

    Example: emq push endpoint acme https://acme.example/hooks --event 'order.*'
    """
    async with opened_service(session) as (_, service):
        from emq_push.records.endpoints import EndpointSettings
        from emq_push.service.topic_fields import TopicFields

        given = {"url": url, "event_types": event or ["*"], "channels": channel or [], "qps": qps}
        settings = _valid(given, EndpointSettings)
        fields = TopicFields(
            batch=None if batch is None else {"most": batch},
            signature=signature,
            secret=_secret(secret_file) if secret_file else "",
            signing=signing,
        )
        made = await service.endpoints.create(tenant, settings, ACTOR, fields)
    for warning in made.warnings:
        typer.echo(f"warning: {output.plain(warning)}", err=True)
    secret, public_key = made.secret or None, made.endpoint.public_key or None
    data = {"id": made.endpoint.id, "url": url, "secret": secret, "public_key": public_key}
    said = f"{made.endpoint.id} {secret or public_key or ''}".rstrip()
    session.say(said, {**data, "warnings": list(made.warnings)})


@command(app, "endpoints")
async def endpoints(session: Session, tenant: Tenant, limit: Limit = 50) -> None:
    """List the endpoints of a tenant with what waits for each of them.

    Example: emq push endpoints acme
    """
    async with opened_service(session) as (_, service):
        await service.tenants.get(tenant)
        page = await service.endpoints.page(tenant, limit)
        lags = {lag.endpoint: lag for lag in (await service.lagging.lag(tenant, limit)).rows}
    rows: list[list[Any]] = []
    data = []
    for each in page.rows:
        lag = lags.get(each.id)
        counts = [None] * 5 if lag is None else [lag.ready, lag.held_by_rate, lag.delayed, lag.parked, lag.dead]
        state = "disabled" if each.disabled else "paused" if each.is_paused else "enabled"
        rows.append([each.id, each.settings.url, state, *counts])
        names = ("ready", "held_by_rate", "delayed", "parked", "dead")
        waiting = dict(zip(names, counts, strict=True))
        data.append({"id": each.id, "url": each.settings.url, "state": state, "reason": each.disabled, **waiting})
    columns = ("endpoint", "url", "state", "ready", "held", "delayed", "parked", "dead")
    _list(session, data, columns, rows, columns[3:], f"tenant {tenant!r} has no endpoints", page.next)


@command(app, "send")
async def send(
    session: Session,
    tenant: Tenant,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as order.created.", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="The payload.", show_default=False)],
    key: Annotated[str | None, typer.Option(help="Messages of one key are delivered one at a time.")] = None,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", help="For endpoints with this channel, and those without any.")
    ] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="An id of your own.")] = None,
) -> None:
    """Publish a message to the endpoints of a tenant that take its type.

    Example: emq push send acme order.created '{"order": 17}'
    """
    async with opened_service(session) as (_, service):
        from emq_push.service.incoming import Incoming

        try:
            body = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(payload.encode())))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise errors.InvalidMessage(f"the payload must be JSON: {exc}") from None
        fields = {"event_type": event_type, "payload": body, "key": key, "id": message_id, "channels": channel}
        message = _valid(fields, Incoming)
        [receipt] = await service.publishing.publish(tenant, [message], is_single=True)
    text = f"published {receipt.id} to {output.count(len(receipt.deliveries), 'endpoint')}"
    session.say(text, {"id": receipt.id, "deliveries": receipt.deliveries})


@command(app, "deliveries")
async def deliveries(
    session: Session,
    tenant: Tenant,
    state: Annotated[Shown | None, typer.Option(help="Only those in this state.")] = None,
    endpoint: Endpoint = "",
    key: Annotated[str, typer.Option(help="Only those of messages with this key.")] = "",
    message: Annotated[str, typer.Option(help="Only those of the message with this id.")] = "",
    event_type: Annotated[
        list[str] | None, typer.Option(help="Only those of this event type; order.* for all below. Repeat it for more.")
    ] = None,
    status: Annotated[int, typer.Option(help="Only those whose last answer had this HTTP status.")] = 0,
    limit: Limit = 50,
) -> None:
    """List the deliveries of a tenant, the latest first.

    Example: emq push deliveries acme --state dead --key customer-5
    """
    async with opened_service(session) as (_, service):
        from emq_push.service.reading import DeliveryFilter
        from emq_push.service.states import State

        await service.tenants.get(tenant)
        shown_as = None if state is None else State(state)
        types = tuple(event_type or ())
        wanted = DeliveryFilter(shown_as, endpoint, types, message=message, status=status, key=key)
        page = await service.reading.deliveries(tenant, wanted, limit)
    rows, data = [], []
    for shown in page.rows:
        d = shown.delivery
        id_ = f"{d.endpoint}:{d.message}"
        reason = d.reason or shown.hold.reason
        rows.append((id_, d.event_type, str(shown.state), d.attempts, output.when_briefly(d.created_us / 1000), reason))
        data.append({**msgspec.structs.asdict(d), "id": id_, "state": str(shown.state), "hold": shown.hold.name})
    at = output.zoned("accepted", (shown.delivery.created_us / 1000 for shown in page.rows))
    columns = ("delivery", "type", "state", "tries", at, "reason")
    _list(session, data, columns, rows, ("tries",), f"tenant {tenant!r} has no such deliveries", page.next)


@command(app, "attempts")
async def attempts(session: Session, tenant: Tenant, delivery: Delivery, limit: Limit = 50) -> None:
    """List the attempts of a delivery, the latest first.

    Example: emq push attempts acme ep_01:msg_01
    """
    async with opened_service(session) as (_, service):
        await service.tenants.get(tenant)
        page = await service.reading.attempts(tenant, delivery, limit)
    rows = [
        (a.number, output.when_briefly(a.started_us / 1000), a.took_us / 1000, a.status or None, a.outcome, a.reason)
        for a in page.rows
    ]
    columns = ("attempt", "started", "ms", "status", "outcome", "reason")
    data = [msgspec.structs.asdict(a) for a in page.rows]
    _list(session, data, columns, rows, ("attempt", "ms", "status"), "no attempts yet", page.next)


@command(app, "resend")
async def resend(session: Session, tenant: Tenant, delivery: Delivery) -> None:
    """Deliver a message to its endpoint once more, as a first attempt.

    Example: emq push resend acme ep_01:msg_01
    """
    async with opened_service(session) as (_, service):
        await service.tenants.get(tenant)
        shown = await service.resending.resend(tenant, delivery, ACTOR)
    session.say(f"delivery {delivery}: {shown.state}", {"id": delivery, "state": str(shown.state)})


@command(app, "replay")
async def replay(
    session: Session,
    tenant: Tenant,
    state: Annotated[Ended, typer.Option(help="Deliveries in this state.")] = "dead",
    endpoint: Endpoint = "",
    event: Annotated[list[str] | None, typer.Option("--event", metavar="TYPE", help="Only these event types.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Accepted at or after: 2030-01-31T12:00, or an age such as 2h.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Most deliveries put back in a second.")] = 10.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
) -> None:
    """Deliver messages of a tenant once more; a process that serves the API carries the replay out.

    Example: emq push replay acme --since 2h --dry-run
    """
    async with opened_service(session) as (opened, service):
        from emq_push.records.replays import ReplayFilter
        from emq_push.service.replaying import NewReplay

        await service.tenants.get(tenant)
        since_us = 0 if since is None else times.ago_ms(since, "--since", opened.clock.now()) * 1000
        chosen = ReplayFilter(endpoint, (state,), tuple(event or ()), max(0, since_us))
        wanted = NewReplay(chosen, rate)
        if dry_run:
            count = await service.replays.count(tenant, wanted)
            at_least = "" if count.exact else "at least "
            text = f"would deliver {at_least}{output.count(count.n, 'message')} again"
            session.say(text, {"total": count.n, "total_is_exact": count.exact})
            return
        made = await service.replays.create(tenant, wanted, ACTOR)
    session.say(f"replay {made.id} begins", {"id": made.id, "state": made.state})


@command(app, "replays")
async def replays(session: Session, tenant: Tenant, limit: Limit = 50) -> None:
    """List the replays of a tenant with their progress, the latest first.

    Example: emq push replays acme
    """
    async with opened_service(session) as (_, service):
        await service.tenants.get(tenant)
        page = await service.replays.page(tenant, limit)
    rows = [(r.id, r.state, r.body.replayed, r.body.total, output.when_briefly(r.created_us / 1000)) for r in page.rows]
    data = [{"id": r.id, "state": r.state, "replayed": r.body.replayed, "total": r.body.total} for r in page.rows]
    columns = ("replay", "state", "done", "of", "began")
    _list(session, data, columns, rows, ("done", "of"), f"tenant {tenant!r} has no replays", page.next)


def _valid(fields: dict[str, Any], struct: type[Any]) -> Any:
    """Return the fields as a struct.

    Raises:
        InvalidMessage: a value does not fit.
    """
    try:
        content = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
        return msgspec.json.decode(content, type=struct)
    except msgspec.ValidationError as exc:
        raise errors.InvalidMessage(documents.explained(exc, fields, struct)) from None
    except UnicodeError as exc:
        raise errors.InvalidMessage(str(exc)) from None


def _secret(file: str) -> str:
    """Return the secret in a file. Raises `InvalidMessage`: it cannot be read, or has no secret or several."""
    try:
        texts = Path(file).read_text().split()
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise errors.InvalidMessage(f"--secret-file {file!r} cannot be read: {why}") from None
    if len(texts) != 1:
        raise errors.InvalidMessage(f"--secret-file {file!r} has {len(texts)} words; write the secret alone into it")
    return texts[0]


def _list(
    session: Session,
    data: Sequence[dict[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    right: Sequence[str],
    none: str,
    more: str,
) -> None:
    below = "these are the first; --limit shows more" if more else ""
    session.page(data, lambda: output.table("", columns, rows, right=right), none=none, more=below)
