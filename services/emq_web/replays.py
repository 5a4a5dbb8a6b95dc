"""`/v1/tenants/{tenant}/replays`: deliveries of the past that are sent again, at a rate of their own."""

from __future__ import annotations

from typing import Annotated, Literal

import fastapi
import msgspec
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.replays import Replay, ReplayFilter
from emq_push.service import replaying
from emq_push.service.replaying import MAX_RATE_PER_S, MIN_RATE_PER_S, NewReplay
from emq_web import access, forms, models, parameters
from emq_web.problems import JSON

router = models.Router(prefix="/v1/tenants/{tenant}/replays", tags=["replays"])

DEFAULT_RATE_PER_S = 10.0

_End = Literal["dead", "delivered", "cancelled"]


class ReplayFilterBody(forms.Body):
    """The deliveries to take; all given conditions must hold."""

    endpoint: parameters.EndpointId = pydantic.Field("", description="id; empty for all endpoints of the tenant")
    states: list[_End] = pydantic.Field(["dead"], min_length=1, max_length=3)
    event_types: list[parameters.EventType] = pydantic.Field(
        [], max_length=20, description="a trailing * fits any ending"
    )
    created_gte: forms.Moment | None = None
    created_lt: forms.Moment | None = None


class ReplayBody(forms.Body):
    """A replay to create."""

    filter: ReplayFilterBody
    rate_per_s: float = pydantic.Field(
        DEFAULT_RATE_PER_S, ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S, description="most deliveries put back in a second"
    )
    priority: str = pydantic.Field(
        "", max_length=32, pattern=r"^[!-~]*$", description="one of the endpoint's; empty for their own"
    )
    dry_run: bool = pydantic.Field(False, description="count only, and create nothing")

    @property
    def wanted(self) -> NewReplay:
        span = forms.span(self.filter.created_gte, self.filter.created_lt)
        states, types = tuple(self.filter.states), tuple(self.filter.event_types)
        return NewReplay(ReplayFilter(self.filter.endpoint, states, types, *span), self.rate_per_s, self.priority)


SHOWN = models.of(answers.Replay)
COUNTED = models.answer(answers.Counted, "Counted")


def shown(replay: Replay) -> answers.Replay:
    body = replay.body
    chosen = body.filter
    filter_ = answers.Filter(
        endpoint=chosen.endpoint,
        states=list(chosen.states),
        event_types=list(chosen.event_types),
        created_gte=forms.time_or_none(chosen.since_us),
        created_lt=forms.time(chosen.until_us),
    )
    state = replaying.shown_state(replay)
    return forms.shown(
        answers.Replay,
        body,
        id=replay.id,
        state=state,
        filter=filter_,
        total_is_exact=body.is_total_exact,
        trouble=body.trouble if state == "running" else "",
        created=forms.time(replay.created_us),
        changed=forms.time(replay.changed_us),
    )


@router.post(
    "",
    status_code=202,
    response_model=SHOWN,
    responses={200: {"model": COUNTED, "description": "dry run"}},
)
async def create_replay(of: access.ManagerOfExisting, body: ReplayBody) -> answers.Replay | fastapi.Response:
    """Send deliveries of the past again. With `dry_run`, count them and create nothing."""
    if body.dry_run:
        counted = await of.service.replays.count(of.tenant, body.wanted)
        found = answers.Counted(total=counted.n, total_is_exact=counted.exact)
        return fastapi.Response(msgspec.json.encode(found), media_type=JSON)
    return shown(await of.service.replays.create(of.tenant, body.wanted, of.actor))


@router.get("")
async def list_replays(of: access.ReaderOfExisting, at: forms.ListAt) -> Page[answers.Replay]:
    """List replays, the newest first."""
    return forms.page(await of.service.replays.page(of.tenant, *at), shown)


ReplayId = Annotated[str, fastapi.Path(max_length=80)]


@router.get("/{replay}")
async def get_replay(replay: ReplayId, of: access.ReaderOfExisting) -> answers.Replay:
    """Show a replay and its progress."""
    return shown(await of.service.replays.get(of.tenant, replay))


@router.post("/{replay}:pause")
async def pause_replay(replay: ReplayId, of: access.ManagerOfExisting) -> answers.Replay:
    """Let a replay rest. What it has put back so far is sent."""
    return shown(await of.service.replays.pause(of.tenant, replay, of.actor))


@router.post("/{replay}:resume")
async def resume_replay(replay: ReplayId, of: access.ManagerOfExisting) -> answers.Replay:
    """Let a paused replay go on where it was."""
    return shown(await of.service.replays.resume(of.tenant, replay, of.actor))


@router.post("/{replay}:cancel")
async def cancel_replay(replay: ReplayId, of: access.ManagerOfExisting) -> answers.Replay:
    """End a replay. What it has put back so far is sent."""
    return shown(await of.service.replays.cancel(of.tenant, replay, of.actor))
