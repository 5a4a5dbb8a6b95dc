"""`/v1/tenants/{tenant}/dead-letters`: messages that used up their attempts."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import pydantic

from emq_push.service.letters import MOST_IDS, DeadDelivery, LetterFilter
from emq_web import access, forms, queries
from emq_web.queries import Existing
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1/tenants/{tenant}/dead-letters", tags=["dead letters"])

MOST_PAYLOAD = 4_096
"""Most bytes of a payload that a list shows."""

Ids = Annotated[list[Annotated[str, pydantic.StringConstraints(max_length=400)]], pydantic.Field(max_length=MOST_IDS)]


class FailedAttempt(forms.Shown):
    """An attempt that failed."""

    at: datetime.datetime
    reason: str


class LetterShown(forms.Shown):
    """A dead letter."""

    id: str = pydantic.Field(description="of its delivery")
    endpoint: str
    message: str
    priority: str
    attempts: int
    reason: str
    died: datetime.datetime
    history: list[FailedAttempt]
    payload: str = pydantic.Field(description=f"its first {MOST_PAYLOAD} bytes, as text")
    payload_bytes: int


class LetterPage(forms.Shown):
    """Dead letters by endpoint. A filtered page may have fewer entries than `limit`, although more follow."""

    data: list[LetterShown]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class LetterQuery(queries.EndpointQuery):
    """Which dead letters to list."""

    reason: queries.Text = pydantic.Field("", description="part of the reason, in upper or lower case")
    died_gte: forms.Moment | None = pydantic.Field(None, alias="died[gte]")
    died_lt: forms.Moment | None = pydantic.Field(None, alias="died[lt]")

    @property
    def wanted(self) -> LetterFilter:
        since, until = queries.us(self.died_gte, 0) // 1000, queries.us(self.died_lt, 1 << 62) // 1000
        return LetterFilter(self.endpoint, self.reason, since, until)


class CountQuery(queries.Query):
    """Whose dead letters to count."""

    endpoint: queries.EndpointId = ""


class EndpointCount(forms.Shown):
    """The dead letters of an endpoint."""

    endpoint: str
    dead: int


class LetterCount(forms.Shown):
    """The dead letters of a tenant, and of its endpoints that have any."""

    dead: int
    endpoints: list[EndpointCount]


class ReplayLettersBody(forms.Body):
    """Dead letters to put back."""

    ids: Ids = pydantic.Field(min_length=1, description="of deliveries; for more, create a replay")


class Replayed(forms.Shown):
    """The dead letters that wait again."""

    ids: list[str]


class PurgeBody(forms.Body):
    """Dead letters to throw away: give ids, or conditions that must all hold."""

    ids: Ids = pydantic.Field([])
    endpoint: queries.EndpointId = ""
    reason: queries.Text = ""
    died_gte: forms.Moment | None = None
    died_lt: forms.Moment | None = None

    @property
    def wanted(self) -> LetterFilter:
        since, until = queries.us(self.died_gte, 0) // 1000, queries.us(self.died_lt, 1 << 62) // 1000
        return LetterFilter(self.endpoint, self.reason, since, until)


class PurgedShown(forms.Shown):
    """What was thrown away."""

    purged: int
    more: bool = pydantic.Field(description="true if another call may throw away more")


def shown(found: DeadDelivery) -> LetterShown:
    letter = found.letter
    return LetterShown(
        id=found.id,
        endpoint=found.endpoint,
        message=letter.id,
        priority=letter.priority,
        attempts=letter.attempts,
        reason=letter.reason,
        died=forms.time(letter.dead_ms * 1000),
        history=[FailedAttempt(at=forms.time(each.at_ms * 1000), reason=each.reason) for each in letter.history],
        payload=letter.payload[:MOST_PAYLOAD].decode(errors="replace"),
        payload_bytes=len(letter.payload),
    )


@router.get("")
async def list_dead_letters(
    tenant: TenantId,
    _: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[LetterQuery, fastapi.Query()],
) -> LetterPage:
    """List dead letters by endpoint, as the store has them."""
    page = await service.letters.page(tenant, query.wanted, query.limit, query.cursor)
    return LetterPage(data=[shown(each) for each in page.rows], next=page.next or None)


@router.get("/count")
async def count_dead_letters(
    tenant: TenantId,
    _: access.Reader,
    __: Existing,
    service: access.Service,
    query: Annotated[CountQuery, fastapi.Query()],
) -> LetterCount:
    """Count dead letters."""
    found = await service.letters.count(tenant, query.endpoint)
    counts = [EndpointCount(endpoint=each.endpoint, dead=each.n) for each in found]
    return LetterCount(dead=sum(each.n for each in found), endpoints=counts)


# The path of the collection ends without a slash, so that its actions follow behind a colon.
actions = fastapi.APIRouter(prefix="/v1/tenants/{tenant}", tags=["dead letters"])


@actions.post("/dead-letters:replay")
async def replay_dead_letters(
    tenant: TenantId, caller: access.Manager, __: Existing, service: access.Service, body: ReplayLettersBody
) -> Replayed:
    """Put dead letters back: each leaves the dead letters once, and waits as a first attempt."""
    return Replayed(ids=await service.letters.replay(tenant, body.ids, caller.actor))


@actions.post("/dead-letters:purge")
async def purge_dead_letters(
    tenant: TenantId, caller: access.Manager, __: Existing, service: access.Service, body: PurgeBody
) -> PurgedShown:
    """Throw dead letters away for good."""
    found = await service.letters.purge(tenant, body.wanted, body.ids, caller.actor)
    return PurgedShown(purged=found.n, more=found.more)
