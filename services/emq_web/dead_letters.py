"""`/v1/tenants/{tenant}/dead-letters`: messages that used up their attempts."""

from __future__ import annotations

import datetime
from typing import Annotated

import fastapi
import pydantic

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.service.letters import MOST_IDS, DeadDelivery, LetterFilter
from emq_web import access, forms, models, parameters

router = models.Router(prefix="/v1/tenants/{tenant}/dead-letters", tags=["dead letters"])

MOST_PAYLOAD = 4_096
"""Most bytes of a payload that a list shows."""

Ids = Annotated[list[Annotated[str, pydantic.StringConstraints(max_length=400)]], pydantic.Field(max_length=MOST_IDS)]


models.answer(answers.FailedAttempt, "FailedAttempt")
models.answer(answers.DeadLetter, "LetterShown")
models.answer(answers.EndpointDead, "EndpointCount")
models.answer(answers.DeadLetterCount, "LetterCount")
models.answer(answers.ReplayedLetters, "Replayed")


def _wanted(endpoint: str, reason: str, gte: datetime.datetime | None, lt: datetime.datetime | None) -> LetterFilter:
    return LetterFilter(endpoint, reason, *(us // 1000 for us in forms.span(gte, lt)))


class ReplayLettersBody(forms.Body):
    """Dead letters to put back."""

    ids: Ids = pydantic.Field(min_length=1, description="of deliveries; for more, create a replay")


class PurgeBody(forms.Body):
    """Dead letters to throw away: give ids, or conditions that must all hold."""

    ids: Ids = pydantic.Field([])
    endpoint: parameters.EndpointId = ""
    reason: parameters.Text = ""
    died_gte: forms.Moment | None = None
    died_lt: forms.Moment | None = None


def shown(found: DeadDelivery) -> answers.DeadLetter:
    letter = found.letter
    return forms.shown(
        answers.DeadLetter,
        letter,
        id=found.id,
        endpoint=found.endpoint,
        message=letter.id,
        died=forms.time(letter.dead_ms * 1000),
        history=[answers.FailedAttempt(at=forms.time(e.at_ms * 1000), reason=e.reason) for e in letter.history],
        payload=letter.payload[:MOST_PAYLOAD].decode(errors="replace"),
        payload_bytes=len(letter.payload),
    )


@router.get("")
async def list_dead_letters(
    of: access.ReaderOfExisting,
    at: forms.ListAt,
    endpoint: parameters.OnlyEndpoint = "",
    reason: Annotated[parameters.Text, fastapi.Query(description="part of the reason, in upper or lower case")] = "",
    gte: Annotated[forms.Moment | None, fastapi.Query(alias="died[gte]")] = None,
    lt: Annotated[forms.Moment | None, fastapi.Query(alias="died[lt]")] = None,
) -> Page[answers.DeadLetter]:
    """List dead letters by endpoint, as the store has them.

    A filtered page may have fewer entries than `limit`, although more follow.
    """
    wanted = _wanted(endpoint, reason, gte, lt)
    return forms.page(await of.service.letters.page(of.tenant, wanted, *at), shown)


@router.get("/count")
async def count_dead_letters(
    of: access.ReaderOfExisting, endpoint: parameters.EndpointId = ""
) -> answers.DeadLetterCount:
    """Count dead letters."""
    found = await of.service.letters.count(of.tenant, endpoint)
    return answers.DeadLetterCount(dead=sum(each.dead for each in found), endpoints=found)


# The path of the collection ends without a slash, so that its actions follow behind a colon.
actions = models.Router(prefix="/v1/tenants/{tenant}", tags=["dead letters"])


@actions.post("/dead-letters:replay")
async def replay_dead_letters(of: access.ManagerOfExisting, body: ReplayLettersBody) -> answers.ReplayedLetters:
    """Put dead letters back: each leaves the dead letters once, and waits as a first attempt."""
    return answers.ReplayedLetters(ids=await of.service.letters.replay(of.tenant, body.ids, of.actor))


@actions.post("/dead-letters:purge")
async def purge_dead_letters(of: access.ManagerOfExisting, body: PurgeBody) -> answers.Purged:
    """Throw dead letters away for good."""
    wanted = _wanted(body.endpoint, body.reason, body.died_gte, body.died_lt)
    return await of.service.letters.purge(of.tenant, wanted, body.ids, of.actor)
