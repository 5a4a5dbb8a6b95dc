"""The API under callers who want it all: requests at once, bytes and connections are shared by accounts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.types import Message

from emq_web import admission, connections
from emq_web.access import CALLER
from emq_web.admission import STRANGERS_DROPPED, Admission
from emq_web.connections import Doors
from emq_web.limits import STRANGERS, Limits, Rates, Room, Turns
from emq_web.problems import Problem
from support import push_api
from support.push_api import Api

PATH = "/v1/tenants/acme/messages"


api = push_api.fixture("acme", "other")


# ---------------------------------------------------------------------------------------------------------------- turns


async def taken(turns: Turns, account: str) -> int:
    at_once = turns.take_at_once(account)
    return await turns.take(account) if at_once is None else at_once


async def test_an_account_whose_requests_hang_leaves_turns_to_others() -> None:
    turns, held = Turns(Limits(at_once=100, wait_s=0.05)), 0
    with contextlib.suppress(Problem):
        while True:
            await taken(turns, "greedy")
            held += 1
    assert 50 <= held < 90
    for n in range(10):
        async with asyncio.timeout(0.04):
            await taken(turns, f"quick {n}")


async def test_a_request_waits_for_its_turn_instead_of_being_refused() -> None:
    turns, order = Turns(Limits(at_once=4)), []

    async def request(n: int) -> None:
        taken_us = await taken(turns, "acme")
        order.append(n)
        await asyncio.sleep(0.01)
        turns.free("acme", taken_us)

    await asyncio.gather(*map(request, range(4)))
    assert order == [0, 1, 2, 3]


async def test_the_turns_of_a_tenant_that_hangs_are_not_those_of_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(at_once=20, wait_s=0.1)
    hanging, release = await api.key_of("manage", "acme"), asyncio.Event()
    get = api.service.tenants.get

    async def slow(tenant: str) -> Any:
        if tenant == "acme":
            await release.wait()
        return await get(tenant)

    monkeypatch.setattr(api.service.tenants, "get", slow)
    async with push_api.served(api.app, api.service, api.admin, limits) as other:
        calls = [asyncio.create_task(other.raw("GET", "/v1/tenants/acme", key=hanging)) for _ in range(60)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # the first that waited for a turn in vain
        key = await other.key_of("read", "other")
        for _ in range(20):
            async with asyncio.timeout(1):
                await other("GET", "/v1/tenants/other", key=key, status=200)
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200, 503}


class Sender:
    """Sends a body to the API's front without an end.

    Args:
        stalls: after the first part.

    Attributes:
        sent: bytes that were taken.
    """

    def __init__(self, address: str = "192.0.2.1", *, stalls: bool = False) -> None:
        self.address = address
        self.sent = 0
        self.answers: list[Message] = []
        self._stalls = stalls

    async def receive(self) -> Message:
        if self._stalls and self.sent:
            await asyncio.Event().wait()
        part = b"x" * 65_536 if not self._stalls else b"key="
        self.sent += len(part)
        await asyncio.sleep(0)
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(self, message: Message) -> None:
        self.answers.append(message)

    async def ask(self, front: Admission, path: str, *headers: tuple[bytes, bytes], method: str = "POST") -> int:
        """Send a request; return the status of the answer."""
        head = [(b"transfer-encoding", b"chunked"), *headers] if method == "POST" else []
        scope = {"type": "http", "method": method, "path": path, "headers": head, "client": (self.address, 1)}
        await front(scope, self.receive, self.send)
        return int(self.answers[0]["status"])


async def test_slow_forms_of_an_address_hold_up_no_visitor_of_another_one_and_no_key(api: Api) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    front = Admission(application, api.service, Limits(at_once=8, strangers_at_once=8))
    greedy = [asyncio.create_task(Sender(stalls=True).ask(front, "/ui/sign-in")) for _ in range(60)]
    await asyncio.sleep(0)  # each has a turn now, or waits for one
    async with asyncio.timeout(4):  # below `wait_s`
        assert await Sender("192.0.2.2").ask(front, "/ui/sign-in", method="GET") == 200
    assert front._of_accounts.turns.take_at_once("acme") is not None
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)


# ---------------------------------------------------------------------------------------------------------------- rates


async def test_a_tenant_gets_no_more_requests_by_making_keys(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        admission, "Rates", lambda per_s, **more: Rates(per_s, lambda: 0.0, **more)
    )  # within one moment
    keys = [await api.key_of("read", "acme") for _ in range(5)]
    other_key = await api.key_of("read", "other")
    async with push_api.another(api, Limits(requests_per_s=5)) as other:
        answers = [await other.raw("GET", "/v1/tenants/acme", key=key) for key in keys * 4]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 15
        assert answers[-1].headers["retry-after"] == "1"
        await other("GET", "/v1/tenants/other", key=other_key, status=200)


async def test_wrong_keys_are_counted_before_the_look_in_the_database(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with push_api.another(api, Limits(unknown_per_s=3)) as other:
        await other("GET", "/v1/tenants/acme")
        looks, owner = [], other.service.keys.owner

        async def counted(text: str) -> Any:
            looks.append(text)
            return await owner(text)

        monkeypatch.setattr(other.service.keys, "owner", counted)
        statuses = [(await other.raw("GET", "/v1/tenants/acme", key=f"emqk_{n}")).status_code for n in range(20)]
        assert statuses == [401] * 3 + [429] * 17
        assert len(looks) == 3
        await other("GET", "/v1/tenants/acme", status=200)  # a key that this process knows


# --------------------------------------------------------------------------------------------------------------- bodies


def test_one_account_leaves_bytes_to_others() -> None:
    room = Room(1_000)
    for _ in range(8):
        room.take("greedy", 100)
    with pytest.raises(Problem, match="your requests together are too large"):
        room.take("greedy", 1)
    room.take("other", 150)
    room.free("greedy", 800)
    room.free("other", 150)
    assert room.used == 0


@pytest.fixture
def front(api: Api) -> Admission:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(f"the application must not see {scope[CALLER]}")

    return Admission(never, api.service, Limits())


async def test_a_body_without_a_key_is_not_kept(front: Admission) -> None:
    sender = Sender()
    assert await sender.ask(front, PATH) == 401
    assert (b"connection", b"close") in sender.answers[0]["headers"]
    assert sender.sent <= STRANGERS_DROPPED + 2 * 65_536
    assert front._of_accounts.room.used == front._of_strangers.room.used == 0


async def test_who_waits_for_a_sign_is_refused_before_any_byte(front: Admission) -> None:
    sender = Sender()
    assert await sender.ask(front, PATH, (b"expect", b"100-continue")) == 401
    assert sender.sent == 0


async def test_the_forms_of_the_pages_are_small(front: Admission) -> None:
    sender = Sender()
    assert await sender.ask(front, "/ui/sign-in") == 413
    assert sender.sent <= Limits().form_bytes + STRANGERS_DROPPED + 3 * 65_536


async def test_a_body_of_settings_is_small(api: Api) -> None:
    """The event loop checks such bodies field by field: a large one would keep all others waiting."""
    key, body = await api.key_of("manage", "acme"), b" " * (Limits().settings_bytes + 1)
    for path, status in ((PATH, 400), ("/v1/tenants/acme/endpoints", 413)):
        answer = await api.raw("POST", path, content=body, key=key, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, path


# ---------------------------------------------------------------------------------------------------------- connections


class Open(connections.Connection):
    """A connection without a network."""

    def __init__(self, doors: Doors) -> None:
        self.doors, self.account, self.is_open = doors, STRANGERS, True
        doors.enter(self, self.account)

    def become(self, account: str) -> None:
        self.doors.leave(self, self.account)
        self.account = account
        self.doors.enter(self, account)

    def drop(self) -> None:
        self.is_open = False
        self.doors.leave(self, self.account)


def test_who_opens_too_many_connections_loses_his_own() -> None:
    doors = Doors(100)
    mine = [Open(doors) for _ in range(10)]
    for each in mine:
        each.become("acme")
    strangers = [Open(doors) for _ in range(500)]
    assert all(each.is_open for each in mine)
    assert [each.is_open for each in strangers] == [False] * 410 + [True] * 90
    newcomer = Open(doors)
    newcomer.become("other")
    assert newcomer.is_open
    greedy = [Open(doors) for _ in range(300)]
    for each in greedy:
        if each.is_open:
            each.become("greedy")
    assert all(each.is_open for each in [*mine, newcomer])
