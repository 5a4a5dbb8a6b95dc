"""Operational notices: what is told, when, how often, and that nothing is told that is not so."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from emq.host.statistics import HostStatistics, TroubledTopic
from emq.observe.snapshots import AgedSnapshot
from emq_notices import judging, opening, watching
from emq_notices.judging import DEAD, GONE, STUCK, TROUBLED, Key
from emq_notices.notice import TOPIC, Notice, decode
from emq_notices.opening import News, Open
from emq_notices.watching import AFTER, Watching
from support import push_api
from support.emq_shell import Shell
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import endpoint_of, hosting
from support.waiting import until

api = push_api.fixture("acme", push_allow="127.0.0.1", lag_s=1.0)


def host(name: str = "a", *troubled: TroubledTopic, age_s: float = 0.0, **more: object) -> AgedSnapshot:
    more.setdefault("in_trouble", len(troubled))
    return AgedSnapshot(HostStatistics(name, 0.0, troubled=troubled, **more), age_s)  # type: ignore[arg-type]


def topic(name: str = "shop", cause: str = "no_handler", waiting: int = 3, dead: int = 0) -> TroubledTopic:
    return TroubledTopic(name, cause, "", waiting, dead, 0.0, None)


class Told:
    """What an operator was told by a series of looks."""

    def __init__(self, after_s: float = 60.0, told: dict[Key, int] | None = None) -> None:
        self.open = Open(told or {}, after_s)
        self.news: list[News] = []

    def look(self, now_s: float, *hosts: AgedSnapshot) -> list[tuple[str, str, str]]:
        news = self.open.news(judging.judged(hosts), now_s)
        for each in news:
            self.open.note(each, now_s)
        self.news += news
        return [(each.key.kind, each.key.subject, each.ended) for each in news]


# -------------------------------------------------------------------------------------------------------- what is news


def test_a_topic_is_told_once_when_it_has_been_stuck_long_enough_and_once_when_it_is_well() -> None:
    told = Told()
    assert told.look(1_000, host("a", topic())) == []
    assert told.look(1_050, host("a", topic())) == []
    assert told.look(1_060, host("a", topic())) == [(STUCK, "shop", "")]
    assert told.look(1_500, host("a", topic())) == []
    assert told.look(1_510, host()) == []
    assert told.look(1_560, host()) == [], "nobody names it for less than a minute"
    assert told.look(1_570, host()) == [(STUCK, "shop", "well")]
    assert told.look(9_000, host()) == []
    assert told.look(9_010, host("a", topic())) == []
    assert told.look(9_070, host("a", topic())) == [(STUCK, "shop", "")], "a new trouble is news again"


def test_a_trouble_that_comes_and_goes_is_no_end() -> None:
    told = Told()
    for second in range(0, 600, 20):
        told.look(1_000 + second, *([host("a", topic())] if second % 40 else [host()]))
    assert [each.key for each in told.news] == [Key(STUCK, "shop")]


def test_dead_letters_are_told_when_there_are_more_and_not_more_often_than_the_time() -> None:
    told = Told()
    assert told.look(1_000, host("a", topic(cause="dead", waiting=0, dead=2))) == [(DEAD, "shop", "")]
    assert told.look(1_010, host("a", topic(cause="dead", waiting=0, dead=3))) == []
    assert told.look(1_060, host("a", topic(cause="dead", waiting=0, dead=4))) == [(DEAD, "shop", "")]
    assert told.look(2_000, host("a", topic(cause="dead", waiting=0, dead=4))) == []
    told.look(3_000, host())
    assert told.look(3_100, host()) == [(DEAD, "shop", "unseen")], "of which nobody is told"
    assert told.look(4_000, host("a", topic(cause="dead", waiting=0, dead=1))) == [(DEAD, "shop", "")]


def test_the_parts_of_a_topic_on_several_hosts_are_one_trouble() -> None:
    found = judging.judged([host("a", topic(waiting=2, dead=1)), host("b", topic(waiting=5, dead=2))])
    assert {key: (each.waiting, each.dead) for key, each in found.troubles.items()} == {
        Key(STUCK, "shop"): (7, 3),
        Key(DEAD, "shop"): (7, 3),
    }
    assert found.troubles[Key(STUCK, "shop")].text == "topic shop: 7 messages wait; no host has a handler for it"


def test_a_silent_host_is_gone_after_half_a_minute_and_back_when_it_speaks() -> None:
    told = Told()
    assert told.look(1_000, host("a"), host("b", age_s=20.0)) == []
    assert told.look(1_020, host("a"), host("b", age_s=40.0)) == [(GONE, "b", "")]
    assert told.look(1_030, host("a"), host("b", age_s=50.0)) == []
    assert told.look(1_040, host("a"), host("b")) == [(GONE, "b", "well")]
    assert told.look(2_000, host("a"), host("b", age_s=40.0)) == [(GONE, "b", "")]
    assert told.look(9_000, host("a")) == [(GONE, "b", "unseen")], "forgotten, which is not back"


def test_a_topic_of_a_host_that_fell_silent_is_not_well_before_another_host_has_looked() -> None:
    told = Told()
    told.look(1_000, host("a"), host("b", topic()))
    assert told.look(1_060, host("a"), host("b", topic())) == [(STUCK, "shop", "")]
    assert told.look(1_080, host("a"), host("b", topic(), age_s=20.0)) == []
    assert told.look(1_200, host("a", topic()), host("b", age_s=140.0)) == [(GONE, "b", "")]
    told.look(1_300, host("a"), host("b", age_s=240.0))
    assert told.look(1_360, host("a"), host("b", age_s=300.0)) == [(STUCK, "shop", "well")]


def test_a_topic_that_a_host_no_longer_names_among_too_many_is_not_well() -> None:
    told = Told()
    told.look(1_000, host("a", topic()))
    told.look(1_060, host("a", topic()))
    for second in range(2_000, 3_000, 100):
        assert told.look(second, host("a", topic("other"), in_trouble=80)) in ([], [(STUCK, "other", "")])


def test_what_a_host_says_of_itself_is_told_and_its_silence_is_no_end() -> None:
    told = Told()
    told.look(1_000, host("a", store_unreachable="redis is silent"))
    assert told.look(1_060, host("a", store_unreachable="redis is silent")) == [(TROUBLED, "a", "")]
    assert told.look(1_100, host("a", age_s=15.0)) == []
    assert told.look(1_110, host("a")) == [(TROUBLED, "a", "well")]


def test_the_topic_of_notices_is_no_trouble_of_its_own() -> None:
    assert judging.judged([host("a", topic(TOPIC))]).troubles == {}


def test_a_new_leader_goes_on_with_what_was_told() -> None:
    told = Told(told={Key(STUCK, "shop"): 1_000_000, Key(DEAD, "mail"): 7, Key(GONE, "b"): 900_000})
    assert told.look(5_000, host("a", topic(), topic("mail", "dead", 0, 7)), host("b", age_s=99.0)) == []
    told.look(5_010, host("a"), host("b"))
    assert told.look(5_070, host("a"), host("b")) == [(STUCK, "shop", "well"), (DEAD, "mail", "unseen")]


def test_what_is_remembered_goes_with_the_troubles() -> None:
    told = Told()
    for second in range(100):
        told.look(1_000 + second * 200, host("a", *[topic(f"t{second}-{i}", dead=1) for i in range(50)]))
    known = (told.open.told, told.open._since, told.open._missing, told.open._dead_s)
    assert max(map(len, known)) <= 200


# -------------------------------------------------------------------------------------------------- on a host, for real


async def look(api: Api, watch: Watching, monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """Let a host that leads look; return the notices that it publishes."""
    told: list[Notice] = []
    real = watching.publish

    async def publish(app: object, notice: Notice) -> str:
        told.append(notice)
        return await real(api.app, notice)

    monkeypatch.setattr(watching, "publish", publish)
    await watch.look()
    monkeypatch.setattr(watching, "publish", real)
    return told


async def test_a_topic_without_a_handler_and_a_disabled_endpoint_are_messages(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = api.app
    await app.create_topic("shop", 5)
    await app.create_topic(TOPIC, 10, attributes={AFTER: "10"})
    await app.publish("shop", b"1")
    made = await endpoint_of(api)
    async with hosting(api):
        watch = Watching(app)
        assert app.host is not None
        await until(lambda: app.host.statistics().in_trouble == 1, 30)  # type: ignore[union-attr]
        await until(lambda: _saved(api), 30)
        assert await look(api, watch, monkeypatch) == []
        await api("POST", f"/v1/tenants/acme/endpoints/{made['id']}:disable", {"reason": "410 Gone"})
        [disabled] = await look(api, watch, monkeypatch)
        assert (disabled.type, disabled.tenant, disabled.reason) == ("endpoint.disabled", "acme", "410 Gone")
        assert disabled.subject == f"acme.{made['id']}"
        assert await look(api, watch, monkeypatch) == [], "once"
        watch._open._since[Key(STUCK, "shop")] -= 20  # type: ignore[union-attr]
        [stuck] = await look(api, watch, monkeypatch)
        assert (stuck.type, stuck.subject, stuck.cause, stuck.waiting) == ("topic.stuck", "shop", "no_handler", 1)
        assert await look(api, Watching(app), monkeypatch) == [], "another leader knows what was told"
        await api("POST", f"/v1/tenants/acme/endpoints/{made['id']}:enable")
        [enabled] = await look(api, Watching(app), monkeypatch)
        assert enabled.type == "endpoint.enabled", "although it came to lead after the change"
        app.host.membership._inner.leads = False
        assert await look(api, Watching(app), monkeypatch) == [], "others do not look"
    seen = []
    for delivery in await app.receive(TOPIC, max_messages=10, timeout_s=5):
        seen.append(delivery.message)
        delivery.ack()
    assert {decode(message.payload).type for message in seen} <= {
        "topic.stuck",
        "endpoint.disabled",
        "endpoint.enabled",
    }
    assert {message.headers["event-type"] for message in seen if message.headers} >= {decode(seen[0].payload).type}


async def _saved(api: Api) -> bool:
    from emq.observe import snapshots

    return any(each.host.in_trouble for each in await snapshots.load(api.app))


async def test_nobody_looks_without_the_topic(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(app: object) -> list[AgedSnapshot]:
        raise AssertionError("it looks at all hosts")

    monkeypatch.setattr("emq.observe.snapshots.load", load)
    async with hosting(api):
        await Watching(api.app).look()


async def test_notices_reach_an_address_that_takes_text(api: Api, receiver: HttpReceiver) -> None:
    await api.app.create_topic(TOPIC, 10, attributes={"push.url": receiver.url("/hook")})
    async with hosting(api):
        await watching.publish(api.app, Notice(type="notices.test", text="hello"))
        await until(lambda: receiver.requests)
    request = receiver.requests[0]
    assert json.loads(request.body) == {"type": "notices.test", "text": "hello"}
    assert request.headers["emq-header-event-type"] == "notices.test"


# ------------------------------------------------------------------------------------------------------ from a terminal


def test_the_commands_switch_on_test_list_and_switch_off(emq: Shell, tmp_path: Path) -> None:
    assert "notices are off; switch them on: emq notices on" in (
        emq("topic create t --qps 1") and emq.refused("notices test")
    )
    assert "troubles of 120 s are messages of topic emq.notices" in emq("notices on --after 120")
    assert "were before" in emq("notices on --after 60")
    assert emq.json(f"topic show {TOPIC}")["options"]["attributes"] == {AFTER: "60"}
    emq("notices test")
    assert emq("notices list") == "nothing was told that lasts\n"
    assert emq("notices off") == "notices are off; 1 notice went\n"
    assert "were before" in emq("notices off")


def test_a_wrong_time_gets_one_clear_line(emq: Shell) -> None:
    emq("notices on")
    assert "must be a number of seconds from 1 to 86400" in emq.refused(f"topic set {TOPIC} notices.after_s=0.5")
    assert "must be a number" in emq.refused(f"topic set {TOPIC} notices.after_s=soon")
    assert "notices.every is not known; known is notices.after_s" in emq.refused(f"topic set {TOPIC} notices.every=5")


def test_a_notice_says_what_it_is() -> None:
    with pytest.raises(ValueError, match="truncated"):
        decode(b"{")
    assert decode(msgspec.json.encode(Notice(type="host.gone", text="x", subject="a"))).subject == "a"
    assert opening.ENDED_S >= 3 * watching.LOOK_S, "hosts look every ten seconds"
