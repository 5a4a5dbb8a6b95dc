"""Deliveries that are sent again: one by one, and in replays."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from emq.runtime import durations, plurals
from emq_push.records import deliveries
from emq_push.records.replays import ReplayFilter
from emq_push.service.refusals import Invalid, NotFound, Refused
from emq_push.service.replaying import REPLAYABLE, NewReplay
from emq_push.service.service import PushService
from emq_web.pages import tenant_screen
from emq_web.pages.changes import Change, Field, back, time_in
from emq_web.pages.rendering import PREFIX, number, redirect, segment
from emq_web.pages.routing import View, new_router

router = new_router()

_NAMES = ("endpoint", "states", "event_types", "since", "until", "rate")


@router.post("/tenants/{tenant}/deliveries/{delivery:path}/resend")
async def resend(tenant: str, delivery: str, screen: View) -> Response:
    await screen.form()
    screen.visitor.check_manages(tenant)
    await screen.service.resending.resend(tenant, delivery, screen.visitor.actor)
    return redirect(screen.request, f"{PREFIX}/tenants/{segment(tenant)}/deliveries/{segment(delivery)}?done=resent")


@router.get("/tenants/{tenant}/replay")
async def ask_replay(tenant: str, screen: View) -> Response:
    screen.visitor.check_manages(tenant)
    of = await tenant_screen.subject(screen.service, tenant, any_topic=False)
    given, wrong = dict(screen.request.query_params), ""
    if "states" in given:
        try:
            change = await _confirmed_replay(screen.service, tenant, given)
            return screen.answer("change.html", of=of, change=change)
        except Refused as exc:
            wrong = str(exc)
    names = await tenant_screen.endpoint_names(screen.service, of)
    lines = ["Sends deliveries again that are over. First you see how many."]
    change = Change("Replay", "replay", lines, "Count them", fields=_fields(given, names), wrong=wrong)
    return screen.answer("change.html", of=of, change=change)


def _fields(given: Mapping[str, str], endpoints: Mapping[str, str]) -> list[Field]:
    states = [(state, state) for state in REPLAYABLE]
    types_hint = "With spaces between; order.* for all of order; empty for all."
    return [
        Field("endpoint", "Endpoint", given.get("endpoint", ""), choices=[("", "all"), *endpoints.items()]),
        Field("states", "State", given.get("states", deliveries.DEAD), choices=states),
        Field("event_types", "Event types", given.get("event_types", ""), hint=types_hint),
        Field("since", "Accepted from (UTC)", given.get("since", ""), "datetime-local"),
        Field("until", "Accepted before (UTC)", given.get("until", ""), "datetime-local"),
        Field("rate", "Put back, a second", given.get("rate", "10"), "number", "The endpoints' rates hold, too.", True),
    ]


async def _confirmed_replay(service: PushService, tenant: str, given: Mapping[str, str]) -> Change:
    """Return the second step of a replay: how many deliveries it takes, and for how long. Raises `Refused`."""
    wanted = _replay(given)
    found = await service.replays.count(tenant, wanted)
    if not found.n:
        raise Invalid("invalid_request", "No delivery fits; choose others.")
    many = plurals.count(found.n, "delivery", "deliveries")
    seconds = durations.brief(found.n / wanted.rate_per_s)
    lines = [
        f"{'' if found.exact else 'At least '}{many} will be sent again, as first attempts.",
        f"Putting them back takes about {seconds}, at {number(wanted.rate_per_s)} a second.",
    ]
    hidden = {name: given[name] for name in _NAMES if name in given}
    return Change("Replay", "replay", lines, "Replay them", hidden, confirms=True)


@router.post("/tenants/{tenant}/replay")
async def replay(tenant: str, screen: View) -> Response:
    form = await screen.form()
    screen.visitor.check_manages(tenant)
    await screen.service.replays.create(tenant, _replay(form), screen.visitor.actor)
    return back(screen, tenant, "replay")


@router.post("/tenants/{tenant}/replays/{replay}/{action}")
async def steer_replay(tenant: str, replay: str, action: str, screen: View) -> Response:
    await screen.form()
    screen.visitor.check_manages(tenant)
    asked = {
        "pause": screen.service.replays.pause,
        "resume": screen.service.replays.resume,
        "cancel": screen.service.replays.cancel,
    }.get(action)
    if asked is None:
        raise NotFound("not_found", f"A replay knows no {action[:40]!r}.")
    await asked(tenant, replay, screen.visitor.actor)
    return back(screen, tenant, "asked")


def _replay(given: Mapping[str, str]) -> NewReplay:
    """Return the replay that a form asks for. Raises `Invalid`."""
    try:
        rate_per_s = float(given.get("rate", ""))
    except ValueError:
        raise Invalid("invalid_request", f"A rate is a number, not {given.get('rate', '')[:40]!r}.") from None
    chosen = ReplayFilter(
        endpoint=given.get("endpoint", ""),
        states=tuple(given.get("states", "").split()),
        event_types=tuple(given.get("event_types", "").split()),
        since_us=time_in(given.get("since", ""), 0),
        until_us=time_in(given.get("until", ""), 1 << 62),
    )
    return NewReplay(chosen, rate_per_s)
