"""Processes that change one catalogue at once: no change is lost, and each process follows the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from emq import App
from emq.runtime import settings
from emq_push.records import event_types as records
from emq_push.service import catalogue
from emq_push.service.incoming import Incoming
from emq_push.service.refusals import Conflict, Invalid, OtherVersion
from emq_push.service.service import PushService

AMOUNT = {"type": "object", "required": ["amount"]}
EMPTY = Incoming("order.paid", msgspec.Raw(b"{}"))


@pytest.fixture(params=["sqlite", "postgresql"])
async def services(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[PushService, PushService]]:
    """Two processes' services over one database."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/emq.db" if is_file else request.getfixturevalue("fresh_postgres")
    options = settings.Settings(store="memory:", database=url)
    async with App(options=options) as app, App(options=options) as other:
        found = await PushService.open(app), await PushService.open(other)
        yield found
        for service in found:
            await service.close()


async def test_changes_come_one_after_another(services: tuple[PushService, PushService]) -> None:
    here, there = (service.event_types for service in services)
    await asyncio.gather(
        here.change_all({"check": "known"}, "test"),
        *(each.change(f"t{n}", {}, "test", creates=True) for n in range(10) for each in (here, there)),
    )
    page = await here.page(4)
    names = [head.name for head in page.rows]
    while page.next:
        page = await there.page(4, page.next)
        names += [head.name for head in page.rows]
    assert names == sorted(f"t{n}" for n in range(10))
    times = [head.changed_us for head in await here.all()]
    assert len(set(times)) == 10
    of_all = await there.of_all()
    assert of_all.settings.check == "known", "the first change of all is not written over by that of a type"
    assert of_all.changed_us >= max(times)


async def test_of_two_changes_of_one_version_one_is_made(services: tuple[PushService, PushService]) -> None:
    here, there = (service.event_types for service in services)
    made, _ = await here.change("order.paid", {}, "test", creates=True)
    for calls in (
        [each.change("order.paid", {}, "test", expected=made.changed_us) for each in (here, there)],
        [each.change("order.sent", {}, "test", creates=True, expected=0) for each in (here, there)],
    ):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, OtherVersion) for each in outcomes) == 1, outcomes
    version = (await here.of_all()).changed_us
    calls_of_all = [each.change_all({"check": "known"}, "test", version) for each in (here, there)]
    found = await asyncio.gather(*calls_of_all, return_exceptions=True)
    assert sum(isinstance(each, OtherVersion) for each in found) == 1, found


async def test_the_catalogue_has_an_end_for_all_processes_together(
    services: tuple[PushService, PushService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST", 3)
    calls = [
        service.event_types.change(f"{place}.{n}", {}, "test", creates=True)
        for place, service in zip("ab", services, strict=True)
        for n in range(5)
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, Conflict) for each in outcomes) == 7
    assert len(await services[0].event_types.all()) == 3


async def test_another_process_checks_by_the_changed_catalogue(
    services: tuple[PushService, PushService], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = services
    monkeypatch.setattr(catalogue, "LOOK_US", 20_000)
    await here.tenants.change("acme", {"qps": 5}, "test", creates=True)
    await there.publishing.publish("acme", [EMPTY], is_single=True)
    await here.event_types.change("order.paid", {"schemas": {"1": AMOUNT}, "checked": True}, "test", creates=True)
    await asyncio.sleep(0.03)
    for service in services:
        with pytest.raises(Invalid) as refused:
            await service.publishing.publish("acme", [EMPTY], is_single=True)
        assert refused.value.pointer == "/payload"
