"""An endpoint that cannot take its topic's quota gets less, for as long as its answers say so."""

import asyncio
import collections
import functools
import itertools
import random
from collections.abc import Awaitable, Callable

from aiohttp import web

import emq
from emq.quota.breaker import CLOSED_S, JITTER, MOST_CLOSED_S
from emq.runtime import settings
from emq_push.cli.pushing import with_push
from emq_push.health import AFTER_PROBE, FEW, IN_A_ROW, Healths
from emq_testing import Harness
from support.http_receiver import HttpReceiver
from support.waiting import until

QPS = 20

Answer = tuple[int, float | None]
"""Status and Retry-After."""


class Receiver:
    """A model of an endpoint, and the handler that delivers to it as a pusher does.

    Attributes:
        takes: what the endpoint does with a delivery; returns status and Retry-After, or awaits them; raises for no
            answer.
        at: the seconds of the deliveries, by topic.
    """

    def __init__(self, takes: Callable[[emq.Message], Answer | Awaitable[Answer]]) -> None:
        self.takes = takes
        self.at: dict[str, list[float]] = collections.defaultdict(list)
        self.app = emq.App("memory:")
        self.app.handlers.bind("*", self.deliver)

    @functools.cached_property
    def healths(self) -> Healths:
        return Healths(lambda: self.app.throttles, self.app.clock, random.Random(1))  # the harness's clock

    async def deliver(self, message: emq.Message) -> None:
        topic, began = message.topic, self.app.clock.now()
        self.at[topic].append(began)
        try:
            answer = self.takes(message)
            status, after_s = answer if isinstance(answer, tuple) else await answer
        except OSError as exc:
            self.healths.silent(topic, began, str(exc))
            raise emq.Retry(str(exc)) from None
        self.healths.answered(topic, began, status, f"HTTP {status}", after_s)
        if status != 204:
            raise emq.Retry(f"HTTP {status}", after_s=after_s)

    def between(self, topic: str, first: float, last: float) -> int:
        return sum(first <= at < last for at in self.at[topic])


async def backlog(receiver: Receiver, t: Harness, topic: str, n: int, **options: object) -> float:
    """Create a topic with a backlog; return the time."""
    await receiver.app.create_topic(topic, qps=QPS, backoff_s=(1.0,), jitter=0.0, max_attempts=1000, **options)  # type: ignore[arg-type]
    await receiver.app.publish_many(topic, [b"%06d" % i for i in range(n)])
    return t.now.timestamp()


async def test_an_endpoint_that_asks_for_less_gets_about_what_it_takes() -> None:
    window: collections.Counter[int] = collections.Counter()
    refused = 0

    async def takes(message: emq.Message) -> tuple[int, float | None]:
        nonlocal refused
        second = int(receiver.app.clock.now())
        window[second] += 1
        if window[second] > 6:
            refused += 1
            return 429, None
        return 204, None

    receiver = Receiver(takes)
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 2000)
        await t.advance(120)
        taken = sum(min(6, n) for second, n in window.items() if second >= begin + 20)
        assert taken >= 0.7 * 6 * 99, f"{taken} of {6 * 99} that it would have taken"
        assert refused <= 0.15 * sum(window.values())
        assert max(window.values()) <= QPS


async def test_nothing_starts_until_the_time_that_the_endpoint_named() -> None:
    receiver = Receiver(lambda message: (429, 30.0) if len(receiver.at["t"]) == 5 else (204, None))
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 500)
        await t.advance(3)
        asked = receiver.at["t"][4]
        assert receiver.between("t", asked + 0.1, asked + 100) == 0
        await t.advance(200)
        assert receiver.between("t", asked + 0.1, asked + 30) == 0
        assert receiver.between("t", begin, begin + 203) >= 500
        assert not list(receiver.app.throttles)
        assert len(t.failures) == 1


async def test_an_endpoint_out_of_order_is_probed_and_keeps_its_messages_and_their_attempts() -> None:
    down = True

    async def takes(message: emq.Message) -> tuple[int, float | None]:
        if message.topic == "sick" and down:
            raise ConnectionRefusedError("connection refused")
        return 204, None

    receiver = Receiver(takes)
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "sick", 1000)
        await backlog(receiver, t, "well", 1000)
        await t.advance(600)
        tries = receiver.between("sick", begin, begin + 600)
        assert tries <= 5 + QPS + 12, f"{tries} deliveries to an endpoint that is down"
        assert len(receiver.at["well"]) == 1000
        [(_, throttle)] = receiver.app.throttles
        assert "connection refused" in throttle.reason
        pauses = [b - a for a, b in zip(receiver.at["sick"][-5:], receiver.at["sick"][-4:], strict=False)]
        assert all(a <= b * (1 + JITTER) for a, b in itertools.pairwise(pauses))
        assert pauses[0] > CLOSED_S
        assert max(pauses) <= MOST_CLOSED_S * (1 + JITTER) + 1

        down = False
        await t.advance(MOST_CLOSED_S * (1 + JITTER) + 1)
        await t.drained()
        assert {m.payload for m in t.delivered if m.topic == "sick"} == {b"%06d" % i for i in range(1000)}
        assert sum(m.attempt - 1 for m in t.delivered if m.topic == "sick") == tries
        assert not t.dead_letters


async def test_an_endpoint_that_was_good_for_long_and_goes_down_is_closed_soon() -> None:
    down = False

    receiver = Receiver(lambda message: ((500 if down else 204), None))
    async with Harness(receiver.app) as t:
        await backlog(receiver, t, "t", 3000)
        await t.advance(60)
        down = True
        begin = t.now.timestamp()
        await t.advance(4)
        assert receiver.between("t", begin, begin + 4) <= IN_A_ROW + QPS
        assert not [throttle for _, throttle in receiver.app.throttles if throttle.is_limited]
        assert list(receiver.app.throttles)


async def test_an_endpoint_that_is_gone_for_good_gets_its_messages_into_the_dead_letters_at_full_rate() -> None:
    healths = Healths(lambda: throttles, emq.App("memory:").clock)
    app = emq.App("memory:")

    async def handle(message: emq.Message) -> None:
        healths.answered(message.topic, 0.0, 410, "HTTP 410", None)
        raise emq.Reject("HTTP 410")

    app.handlers.bind("*", handle)
    async with Harness(app) as t:
        throttles = app.throttles
        await app.create_topic("t", qps=QPS)
        await app.publish_many("t", [b""] * 100)
        await t.advance(7)
        assert len(t.dead_letters) == 100


async def test_one_refused_message_of_a_quiet_topic_does_not_slow_it_to_a_crawl() -> None:
    receiver = Receiver(lambda message: ((429 if len(receiver.at["t"]) == 1 else 204), None))
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 1)
        await t.advance(2)
        await receiver.app.publish_many("t", [b""] * 400)
        await t.advance(30)
        assert receiver.between("t", begin, begin + 32) >= 400


async def test_an_endpoint_that_answers_again_begins_slowly() -> None:
    down = True

    receiver = Receiver(lambda message: ((503 if down else 204), None))
    async with Harness(receiver.app) as t:
        await backlog(receiver, t, "t", 2000)
        await t.advance(60)
        down = False
        before = len(receiver.at["t"])
        while len(receiver.at["t"]) == before:
            await t.advance(1)
        again = receiver.at["t"][before]
        await t.advance(60)
        assert receiver.between("t", again + 1, again + 4) <= 3 * (AFTER_PROBE + 0.2) * QPS
        assert receiver.between("t", again + 30, again + 40) >= 0.95 * 10 * QPS
        assert not list(receiver.app.throttles)


async def test_an_endpoint_that_gets_slow_gets_less() -> None:
    busy = 0

    async def takes(message: emq.Message) -> tuple[int, float | None]:
        nonlocal busy
        busy += 1
        try:
            await asyncio.sleep(0.1 if busy <= 4 else 0.1 * busy)
        finally:
            busy -= 1
        return 204, None

    receiver = Receiver(takes)
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 3000, max_in_flight=200)
        await t.advance(100)
        assert receiver.between("t", begin + 60, begin + 100) >= 8 * 40
        assert busy <= 30, "the endpoint was not drowned"


async def test_a_message_refused_for_itself_alone_slows_nothing() -> None:
    receiver = Receiver(lambda message: ((400 if message.payload.endswith(b"77") else 204), None))
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 200)
        await t.advance(15)
        assert receiver.between("t", begin, begin + 12) >= 200
        assert not list(receiver.app.throttles)


async def test_endpoints_that_left_this_host_are_forgotten() -> None:
    receiver = Receiver(lambda message: (204, None))
    async with Harness(receiver.app) as t:
        await backlog(receiver, t, "here", 1)
        await t.settled()
        for i in range(3 * FEW):
            receiver.healths.answered(f"gone-{i}", 0.0, 500, "HTTP 500", None)
        assert len(receiver.healths) <= FEW + 1
        assert "here" in receiver.healths._known


async def test_push_follows_the_answers_of_a_real_endpoint(receiver: HttpReceiver) -> None:
    receiver.answers = lambda request: web.Response(status=503, headers={"Retry-After": "30"})
    app = emq.App("memory:", options=settings.load(environ={}, push_allow="127.0.0.1"))
    async with with_push(app), app:
        for name, throttle in (("follows", "on"), ("goes-on", "off")):
            attributes = {"push.url": receiver.url(), "push.throttle": throttle}
            await app.create_topic(name, qps=5, attributes=attributes)
            await app.publish(name, b"1")
        async with app.running():
            await until(lambda: len(receiver.requests) >= 2)
            [(name, found)] = await until(lambda: list(app.throttles))
            assert name == "follows"
            assert "it asked for a pause of 30 s" in found.reason


async def test_an_endpoint_that_is_down_and_says_503_is_probed_with_one_message_at_a_time() -> None:
    receiver = Receiver(lambda message: (503, None))
    async with Harness(receiver.app) as t:
        begin = await backlog(receiver, t, "t", 500)
        await t.advance(600)
        assert receiver.between("t", begin, begin + 600) <= 5 + QPS + 12
        [(_, throttle)] = receiver.app.throttles
        assert "out of order" in throttle.reason


async def test_an_endpoint_of_a_slow_topic_is_found_out_of_order_too() -> None:
    receiver = Receiver(lambda message: (500, None))
    async with Harness(receiver.app) as t:
        await receiver.app.create_topic("t", qps=0.2, backoff_s=(1.0,), jitter=0.0, max_attempts=1000)
        await receiver.app.publish_many("t", [b""] * 20)
        await t.advance(600)
        assert len(receiver.at["t"]) <= 16, "of the 120 that the quota allows"


async def test_an_endpoint_that_is_slow_with_a_single_message_keeps_getting_one_at_a_time() -> None:
    async def takes(message: emq.Message) -> tuple[int, float | None]:
        await asyncio.sleep(0.05 if len(receiver.at["t"]) <= 10 else 4.0)
        return 204, None

    receiver = Receiver(takes)
    async with Harness(receiver.app) as t:
        await receiver.app.create_topic("t", qps=1)
        await receiver.app.publish_many("t", [b""] * 200)
        await t.advance(15)
        before = len(receiver.at["t"])
        await t.advance(200)
        assert len(receiver.at["t"]) - before >= 45, "one in 4 s"


async def test_a_topic_that_has_another_endpoint_begins_with_the_shortest_pause() -> None:
    url = "wrong"

    receiver = Receiver(lambda message: ((500 if url == "wrong" else 204), None))
    async with Harness(receiver.app) as t:
        await backlog(receiver, t, "t", 500)
        await t.advance(300)
        url = "right"
        await receiver.app.update_topic("t", attributes={"url": url})
        await t.advance(10)
        assert receiver.between("t", t.now.timestamp() - 10, t.now.timestamp()) >= 0.7 * 10 * QPS
        url = "wrong"
        await t.advance(60)
        await receiver.app.update_topic("t", attributes={})
        before = t.now.timestamp()
        await t.advance(9)
        assert receiver.between("t", before + 1, before + 9) >= 1, "it is probed after 5 s"
