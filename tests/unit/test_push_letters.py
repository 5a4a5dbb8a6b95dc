"""Dead letters of a tenant, and single deliveries that are sent again or taken back."""

from __future__ import annotations

from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.lane_store import LaneClaim
from emq_clients.push.answers import EndpointDead, Purged
from emq_push.records.cursors import InvalidCursor
from emq_push.service import again, letters
from emq_push.service.host_facts import HostView
from emq_push.service.letters import LetterFilter, LetterService
from emq_push.service.reading import ReadingService
from emq_push.service.refusals import Conflict, Invalid, NotFound, TryAgain
from emq_push.service.resending import ResendingService
from support import push_tenant
from support.push_tenant import Tenant, through

tenant = push_tenant.fixture("ep_a", "ep_b", "ep_c")


def resending(tenant: Tenant) -> ResendingService:
    return ResendingService(tenant.parts, ReadingService(tenant.parts, HostView(tenant.parts)))


async def listed(tenant: Tenant, wanted: LetterFilter, limit: int) -> list[str]:
    service = LetterService(tenant.parts)
    return [each.id for each in await through(lambda cursor: service.page(tenant.id, wanted, limit, cursor), limit)]


async def test_letters_in_pages_with_filters(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "CHUNK", 4)
    await tenant.add(7)
    await tenant.add(5, endpoint="ep_c", first=100)
    await tenant.bury(["z-expired"], "ep_c", "expired")
    other = await Tenant.make(tenant.app, "t2")
    await other.add(2)
    everything = [*(f"ep_a:m{i:05d}" for i in range(7)), *(f"ep_c:m{i:05d}" for i in range(100, 105)), "ep_c:z-expired"]
    for limit in (1, 3, 100):
        assert await listed(tenant, LetterFilter(), limit) == everything
    assert await listed(tenant, LetterFilter(endpoint="ep_c", reason="EXPIRED"), 2) == ["ep_c:z-expired"]
    assert await listed(tenant, LetterFilter(until_ms=1), 2) == []
    assert await listed(tenant, LetterFilter(since_ms=tenant.parts.now_us() // 1000 + 9_000), 2) == []
    monkeypatch.setattr(letters, "LOOKED_AT", 2)
    assert await listed(tenant, LetterFilter(reason="expired"), 5) == ["ep_c:z-expired"]
    service = LetterService(tenant.parts)
    assert await service.count(tenant.id) == [EndpointDead("ep_a", 7), EndpointDead("ep_c", 6)]
    for asked in (service.page("t2", LetterFilter(endpoint="ep_b"), 5), service.count("t2", "ep_b")):
        with pytest.raises(NotFound):
            await asked
    cursor = (await service.page(tenant.id, LetterFilter(), 1)).next
    with pytest.raises(InvalidCursor):
        await service.page("t2", LetterFilter(), 1, cursor)


async def test_named_letters_are_put_back_once(tenant: Tenant) -> None:
    await tenant.add(4)
    await tenant.bury(["no-row"])
    service = LetterService(tenant.parts)
    wanted = ["ep_a:m00001", "ep_a:no-row", "ep_a:m99999"]
    assert sorted(await service.replay(tenant.id, wanted, "me")) == ["ep_a:m00001", "ep_a:no-row"]
    assert await service.replay(tenant.id, wanted, "me") == []
    assert await tenant.lane() == (["m00001", "no-row"], ["m00000", "m00002", "m00003"])
    assert (await tenant.get("m00001")).state == "pending"
    for wrong in (["ep_x:m00000"], ["nonsense"]):
        with pytest.raises(NotFound):
            await service.replay(tenant.id, wrong, "me")
    with pytest.raises(NotFound):
        await service.replay("t2", ["ep_a:m00000"], "me")
    with pytest.raises(Invalid):
        await service.replay(tenant.id, [], "me")
    with pytest.raises(Invalid):
        await service.replay(tenant.id, [f"ep_a:{i}" for i in range(501)], "me")


async def test_letters_are_thrown_away_only_on_purpose(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "CHUNK", 3)
    monkeypatch.setattr(letters, "MOST_PURGED", 6)
    await tenant.add(10)
    await tenant.add(2, endpoint="ep_b", first=50)
    other = await Tenant.make(tenant.app, "t2")
    await other.add(2)
    service = LetterService(tenant.parts)
    with pytest.raises(Invalid):
        await service.purge(tenant.id, LetterFilter(), [], "me")
    assert await service.purge(tenant.id, LetterFilter(), ["ep_a:m00003", "ep_b:m00003"], "me") == Purged(1, False)
    assert await service.purge(tenant.id, LetterFilter("ep_a"), [], "me") == Purged(6, True)
    assert await service.purge(tenant.id, LetterFilter("ep_a"), [], "me") == Purged(3, False)
    assert (await tenant.lane())[1] == []
    assert len((await tenant.lane("ep_b"))[1]) == 2
    assert len((await other.lane())[1]) == 2
    assert (await tenant.get("m00000")).state == "dead"
    with pytest.raises(NotFound):
        await service.purge("t2", LetterFilter("ep_b"), [], "me")


# --------------------------------------------------------------------------------------------------------------- resend


@pytest.mark.parametrize("state", ["delivered", "dead", "cancelled"])
async def test_a_delivery_that_is_over_is_sent_again(tenant: Tenant, state: str) -> None:
    await tenant.add(2, state)
    found = await resending(tenant).resend(tenant.id, "ep_a:m00001", "me")
    assert (found.delivery.state, found.delivery.attempts) == ("pending", 0)
    waiting, dead = await tenant.lane()
    assert (waiting, "m00001" in dead) == (["m00001"], False)
    with pytest.raises(Conflict, match="under way"):
        await resending(tenant).resend(tenant.id, "ep_a:m00001", "me")


async def test_what_cannot_be_sent_again(tenant: Tenant) -> None:
    await tenant.add(1, "delivered", payload=None)
    await tenant.add(1, "delivered", first=5)
    await tenant.add(1, "delivered", first=6, endpoint="ep_b")
    service = resending(tenant)
    with pytest.raises(Conflict, match="erased"):
        await service.resend(tenant.id, "ep_a:m00000", "me")
    with pytest.raises(Invalid, match="priority"):
        await service.resend(tenant.id, "ep_a:m00005", "me", "urgent!")
    with pytest.raises(NotFound):
        await service.resend("t2", "ep_a:m00005", "me")
    await tenant.app.admin.delete(tenant.topic("ep_b"), force=True)
    with pytest.raises(Conflict, match="deleted"):
        await service.resend(tenant.id, "ep_b:m00006", "me")


async def test_a_resend_that_the_store_refuses_changes_nothing(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    await tenant.add(1)

    async def refuse(*_: Any) -> Any:
        raise errors.StoreUnavailable("away")

    monkeypatch.setattr(again, "put", refuse)
    before = await tenant.get("m00000")
    with pytest.raises(TryAgain):
        await resending(tenant).resend(tenant.id, "ep_a:m00000", "me")
    assert await tenant.get("m00000") == before
    assert await tenant.lane() == ([], ["m00000"])


async def test_a_message_of_a_topic_that_remembers_ids_is_sent_again(tenant: Tenant) -> None:
    await tenant.app.update_topic(tenant.topic(), dedupe_s=3600)
    topic = await tenant.app.catalog.get(tenant.topic())
    await tenant.app.publish(tenant.topic(), b"{}", message_id="m00000", delay_ms=0)
    await tenant.app.admin.recall(tenant.topic(), ["m00000"])
    await tenant.app.publish(tenant.topic(), b"{}", message_id="m00000", delay_ms=0)
    assert await tenant.lane() == ([], []), "the topic takes a repeat for a mistake"
    await tenant.add(1, "delivered")
    await resending(tenant).resend(tenant.id, "ep_a:m00000", "me")
    assert (await tenant.lane())[0] == ["m00000"]
    assert topic.options.dedupe_s == 3600


async def test_a_waiting_delivery_is_cancelled_and_a_started_one_is_not(tenant: Tenant) -> None:
    await tenant.add(3, "pending")
    await tenant.add(1, "delivered", first=10)
    topic = await tenant.app.catalog.get(tenant.topic())
    for id_ in ("m00000", "m00001"):
        await tenant.app.publish(topic.name, b"{}", message_id=id_, delay_ms=0)
    await tenant.app.publish(topic.name, b"{}", message_id="m00002")
    service = resending(tenant)
    found = await service.cancel(tenant.id, "ep_a:m00000", "key_1 ops")
    assert (found.delivery.state, found.delivery.reason) == ("cancelled", "cancelled by key_1 ops")
    await tenant.app.store.lanes.claim([LaneClaim(topic.group(0), 1, 1)], tenant.parts.now_us() // 1000)
    for id_ in ("m00001", "m00002"):
        with pytest.raises(Conflict, match="taken back"):
            await service.cancel(tenant.id, f"ep_a:{id_}", "me")
        assert (await tenant.get(id_)).state == "pending"
    with pytest.raises(Conflict, match="delivered"):
        await service.cancel(tenant.id, "ep_a:m00010", "me")
    with pytest.raises(NotFound):
        await service.cancel("t2", "ep_a:m00002", "me")
