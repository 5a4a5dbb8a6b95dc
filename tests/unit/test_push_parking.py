"""Endpoints that are gone, fail for days or were disabled: their messages wait, in order and uncounted."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import yarl

import emq
from emq.runtime import errors, settings
from emq_push import outages
from emq_push.cli.pushing import with_push
from emq_push.endpoint import Endpoint, failing_note
from emq_push.outages import FEWEST, FORGET_S, NOTE_AFTER_S, Outages
from emq_push.pusher import Pusher, Reports
from support.http_receiver import HttpReceiver
from support.manual_clock import ManualClock
from support.pushing import Attempts, endpoint, message
from support.waiting import until

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
SOON_S = 20.0


@asynccontextmanager
async def pushing(receiver: HttpReceiver) -> AsyncIterator[emq.App]:
    app = emq.App("memory:", options=settings.load(environ={}, push_allow="127.0.0.1"))
    async with with_push(app), app:
        await app.create_topic("t", qps=100, group_qps=100, attributes={"push.url": receiver.url()})
        async with app.running():
            yield app


async def attributes(app: emq.App) -> Mapping[str, str]:
    return (await app.catalog.get("t")).options.attributes


async def test_an_endpoint_that_is_gone_is_disabled_and_its_messages_wait_in_order(receiver: HttpReceiver) -> None:
    receiver.answers = lambda _: 410
    async with pushing(receiver) as app:
        await app.publish_many("t", [b"%03d" % i for i in range(50)], keys=["k"] * 50)

        async def disabled() -> str:
            return (await attributes(app)).get("push.disabled", "")

        assert await until(disabled, step_s=0.02) == "it is gone: HTTP 410"
        await asyncio.sleep(1.0)
        tried = len(receiver.requests)
        assert tried <= 2
        await app.publish("t", b"050", key="k")
        await asyncio.sleep(1.0)
        assert len(receiver.requests) == tried, "nothing is tried while it is disabled"
        assert [letter async for letter in app.dead_letters("t")] == []

        receiver.answers = lambda _: 204
        await outages.set_disabled(app.catalog.set_attributes, "t", "")
        await until(lambda: len(receiver.requests) >= tried + 51)
        taken = receiver.requests[tried:]
        assert [request.body for request in taken] == [b"%03d" % i for i in range(51)]
        assert {request.headers["emq-attempt"] for request in taken} == {"1"}


async def test_an_endpoint_that_its_owner_disables_gets_nothing_until_it_is_enabled(receiver: HttpReceiver) -> None:
    async with pushing(receiver) as app:
        await outages.set_disabled(app.catalog.set_attributes, "t", "maintenance")
        await asyncio.sleep(1.0)
        await app.publish_many("t", [b"x"] * 10)
        await asyncio.sleep(1.0)
        assert not receiver.requests
        await outages.set_disabled(app.catalog.set_attributes, "t", "")
        await until(lambda: len(receiver.requests) == 10)


class Catalog:
    """Takes changes of attributes, as the catalog does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.changes: list[Mapping[str, str]] = []
        self.away = False

    async def change(self, topic: str, changes: Mapping[str, str], given: Mapping[str, str]) -> None:
        if self.away:
            raise errors.DatabaseUnavailable("away")
        self.changes.append(changes)
        since = float(changes.get("push.failing_since", "").partition(" ")[0] or 0)
        disabled = changes.get("push.disabled", self.endpoint.disabled)
        self.endpoint = dataclasses.replace(self.endpoint, failing_since=since, disabled=disabled)


ENDPOINT = endpoint()


async def fail(found: Outages, catalog: Catalog, clock: ManualClock, for_s: float, every_s: float = 3600.0) -> None:
    until_s = clock.now() + for_s
    while clock.now() < until_s and not catalog.endpoint.disabled:
        clock.advance(every_s)
        found.failed(catalog.endpoint, "HTTP 500")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_five_days_of_failure_disable_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, catalog = ManualClock(NOW_S), Catalog(ENDPOINT)
    found = Outages(catalog.change, clock)
    real, waits = asyncio.sleep, []

    async def sleep(delay: float) -> None:
        waits.append(delay)
        await real(0)

    monkeypatch.setattr("emq_push.outages.asyncio.sleep", sleep)
    await fail(found, catalog, clock, NOTE_AFTER_S + 3600)
    await real(0.01)
    assert catalog.endpoint.failing_since == pytest.approx(NOW_S + 3600, abs=1)
    await fail(found, catalog, clock, 4.5 * DAY_S)
    assert not catalog.endpoint.disabled
    await fail(found, catalog, clock, DAY_S)
    await real(0.01)
    assert catalog.endpoint.disabled.startswith("it has failed for 5")
    assert "HTTP 500" in catalog.endpoint.disabled
    assert not catalog.endpoint.failing_since, "or it would be disabled at once when it is enabled"
    await found.close()


async def test_a_restart_does_not_forget_since_when_an_endpoint_fails() -> None:
    clock = ManualClock(NOW_S)
    catalog = Catalog(dataclasses.replace(ENDPOINT, failing_since=NOW_S - 4.9 * DAY_S))
    found = Outages(catalog.change, clock)
    await fail(found, catalog, clock, 6 * 3600)
    await asyncio.sleep(0.01)
    assert catalog.endpoint.disabled
    await found.close()


async def test_an_endpoint_does_not_inherit_the_failures_of_the_url_before() -> None:
    clock, catalog = ManualClock(NOW_S), Catalog(ENDPOINT)
    found = Outages(catalog.change, clock)
    await fail(found, catalog, clock, 4.9 * DAY_S)
    other = "http://shop.example/new"
    catalog.endpoint = dataclasses.replace(ENDPOINT, url=yarl.URL(other), written_url=other)
    await fail(found, catalog, clock, DAY_S)
    await asyncio.sleep(0.01)
    assert not catalog.endpoint.disabled
    await found.close()


def test_a_note_of_failures_is_about_one_url() -> None:
    def read(url: str) -> float:
        return endpoint(url, failing_since=failing_note(NOW_S, "http://shop.example/")).failing_since

    assert read("http://shop.example/") == NOW_S
    assert read("http://shop.example/new") == 0


@pytest.mark.parametrize("what", ["noted", "disabled"])
async def test_a_state_whose_write_broke_is_written_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq_push.outages.AGAIN_S", 0.0)
    since = 0.0 if what == "noted" else NOW_S - 4.9 * DAY_S
    clock, catalog = ManualClock(NOW_S), Catalog(dataclasses.replace(ENDPOINT, failing_since=since))
    breaks = [RuntimeError("the driver is confused")]

    async def change(topic: str, changes: Mapping[str, str], given: Mapping[str, str]) -> None:
        if breaks:
            raise breaks.pop()
        await catalog.change(topic, changes, given)

    found = Outages(change, clock)
    await fail(found, catalog, clock, 7 * 3600)
    await asyncio.sleep(0.01)
    assert not breaks
    assert catalog.endpoint.failing_since if what == "noted" else catalog.endpoint.disabled
    await found.close()


@pytest.mark.parametrize("what", ["success", "silence", "few", "off"])
async def test_what_is_no_outage_disables_nothing(what: str) -> None:
    clock, catalog = ManualClock(NOW_S), Catalog(ENDPOINT)
    if what == "off":
        catalog.endpoint = dataclasses.replace(ENDPOINT, disable_after_s=float("inf"))
    found = Outages(catalog.change, clock)
    if what == "few":
        for _ in range(FEWEST - 1):
            clock.advance(1.4 * DAY_S)
            found.failed(catalog.endpoint, "HTTP 500")
    elif what == "silence":
        for _ in range(20):
            clock.advance(FORGET_S + 1)
            found.failed(catalog.endpoint, "HTTP 500")
    else:
        for _ in range(5):
            await fail(found, catalog, clock, 2 * DAY_S)
            if what == "success":
                found.succeeded(catalog.endpoint)
                await asyncio.sleep(1.1)
    await asyncio.sleep(0.01)
    assert not catalog.endpoint.disabled
    await found.close()


async def test_a_success_clears_what_was_noted() -> None:
    clock, catalog = ManualClock(NOW_S), Catalog(dataclasses.replace(ENDPOINT, failing_since=NOW_S - DAY_S))
    found = Outages(catalog.change, clock)
    found.succeeded(catalog.endpoint)
    await asyncio.sleep(0.01)
    assert catalog.changes == [{"push.failing_since": ""}]
    await found.close()


@pytest.mark.parametrize("fault", ["files", "network", "disabled"])
async def test_a_fault_of_our_own_is_charged_to_nobody(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    to = dataclasses.replace(ENDPOINT, disabled="by its owner" if fault == "disabled" else "")
    attempts = Attempts()
    async with Pusher({"t": to}.get, reports=Reports(attempted=attempts.attempted)) as push:

        async def post(*_: object) -> None:
            number = errno.EMFILE if fault == "files" else errno.ENETUNREACH
            raise OSError(number, "out of order")

        monkeypatch.setattr(push._connections, "deliver", post)
        with pytest.raises(errors.GiveBack) as caught:
            await push(message())
        assert caught.value.pause_s >= 1
        assert not push._outages._known
        assert not len(push._healths)
        assert [a.outcome for a in attempts.all] == ([] if fault == "disabled" else ["parked"])


@pytest.mark.parametrize("change", ["none", "url", "disabled"])
async def test_an_answer_of_the_former_endpoint_disables_no_other(change: str) -> None:
    async with emq.App("memory:") as app:
        given = {"push.url": "http://shop.example", "owner": "not ours"}
        await app.create_topic("t", qps=1, attributes=given)
        found = Endpoint.from_topic(await app.catalog.get("t"))
        assert found is not None
        if change == "url":
            await app.update_topic("t", attributes={**given, "push.url": "http://other.example"})
        elif change == "disabled":
            await outages.set_disabled(app.catalog.set_attributes, "t", "by me")
        followed = Outages(app.catalog.set_attributes, app.clock)
        followed.gone(found, "HTTP 410")
        await asyncio.sleep(0.5)
        await followed.close()
        after = (await app.catalog.get("t")).options.attributes
        expected = {"none": "it is gone: HTTP 410", "url": None, "disabled": "by me"}
        assert after.get("push.disabled") == expected[change]
        assert after["owner"] == "not ours"
