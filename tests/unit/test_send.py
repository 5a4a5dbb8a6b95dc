"""`Producer.send`: messages of any topics and kinds in few calls, and what became of each."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pytest

from emq.producer import Outcome, Outgoing
from emq.producer.batcher import BATCH
from emq.producer.log_topics import FEW
from emq.producer.producer import AT_ONCE
from emq.producer.sorted_topics import CHUNK
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Read
from emq.storage.slot_store import SlotAdd
from emq.topics.model import State
from support.manual_clock import ManualClock
from support.rig import Rig, rig

NOW_S = 1_800_000_000.0


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig(ManualClock(NOW_S)) as made:
        await made.topic("log", 50)
        await made.topic("merged", 100, kind="range_merge", slots=4, time_range_ms=500)
        await made.topic("urgent", 100, kind="priority", slots=4)
        await made.topic("timed", 100, kind="fixed_time", slots=4)
        await made.topic("sums", 100, kind="range_merge", slots=4, merge="key", fold="sum", time_range_ms=500)
        yield made


async def stored(r: Rig, topic: str, priority: str = "mid") -> list[message.Message]:
    """The messages of the topic's queues of a priority, group by group."""
    queues = [queue for queue in (await r.catalog.get(topic)).all_queues() if queue.endswith(f"/{priority}")]
    batches = await r.store.real.log.read([Read(queue, 1, 100_000, None) for queue in queues], 1 << 30)
    return [message.decode(body) for batch in batches for body in batch.bodies]


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    return [*map(type, outcomes)]


Real = Callable[[Sequence[Any]], Awaitable[Any]]


def meddled(r: Rig, answer: Callable[[int, Sequence[Any], Real], Awaitable[Any]], call: str = "log.put") -> list[int]:
    """Have a call of the store answered by a function; return the sizes of the calls so far.

    Args:
        answer: gets the number of the call, from 1, what it brings, and what calls the store itself. Calls for topics
            named `other` are neither counted nor answered.
    """
    part, _, name = call.partition(".")
    real: Callable[..., Any] = getattr(getattr(r.store.real, part), name)
    sizes: list[int] = []

    async def replacement(items: Sequence[Any], durability: Any) -> Any:
        if name == "put" and items[0].queue.startswith("other/"):
            return await real(items, durability)
        sizes.append(len(items[0].bodies) if name == "put" else len(items))
        return await answer(len(sizes), items, lambda some: real(some, durability))

    getattr(r.store, part).replace(name, replacement)
    return sizes


async def test_messages_go_each_its_way_in_one_call_and_keep_their_order(r: Rig) -> None:
    sent = [
        Outgoing("log", "first", "a", key="k", priority="high", headers={"h": "1"}),
        Outgoing("merged", b"merged", "ids are not for slots"),
        Outgoing("log", "later", "b", delay_ms=60_000),
        Outgoing("urgent", b"now", priority=30),
        Outgoing("urgent", b"later", "c", priority=30, at=NOW_S + 60),
        Outgoing("timed", b"timed", at=NOW_S + 60),
        Outgoing("log", "second", priority="high", ttl_s=60.0),
        Outgoing("sums", b"5", merge_key="item", headers={"h": "2"}),
        Outgoing("log", "third", "d", priority="high"),
    ]
    ids = await r.producer.send(sent)
    assert set(kinds(ids)) == {str}
    assert [ids[i] for i in (0, 2, 4, 8)] == ["a", "b", "c", "d"]
    first, second, third = await stored(r, "log", "high")
    assert [first.payload, second.payload, third.payload] == [b"first", b"second", b"third"]
    assert [first.id, second.id, third.id] == [ids[0], ids[6], ids[8]]
    assert (first.key, first.headers, second.headers) == ("k", {"h": "1"}, None)
    assert (first.expires_us, second.expires_us) == (0, int((NOW_S + 60) * 1e6))
    lag = {entry.topic: entry for entry in await r.admin.slot_lag(await r.catalog.list())}
    assert (lag["log"].delayed, lag["merged"].delayed, lag["timed"].delayed, lag["sums"].delayed) == (1, 1, 1, 1)
    assert (lag["urgent"].ready, lag["urgent"].delayed) == (1, 1)
    assert r.producer.published == len(sent)


async def test_many_messages_take_few_calls(r: Rig) -> None:
    for i in range(40):
        await r.topic(f"t{i}", 50)
    await r.producer.refresh()
    sent = [Outgoing("log", b"%d" % i) for i in range(4 * BATCH)] + [Outgoing(f"t{i}", b"x") for i in range(40)]
    sent += [Outgoing("merged", b"%d" % i) for i in range(1_000)]
    assert set(kinds(await r.producer.send(sent))) == {str}
    assert r.store.log.calls["put"] <= 4 + 2
    assert r.store.sorted.calls["add"] == 1
    assert sorted(int(m.payload) for m in await stored(r, "log")) == list(range(4 * BATCH))


def released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view


class NoOffset(datetime.tzinfo):
    """A time zone that does not say how far it is from UTC."""

    def utcoffset(self, _: object) -> None:
        return None


class NoItems(dict[str, str]):
    """Headers that cannot be read."""

    def items(self) -> NoReturn:
        raise RuntimeError("no items")


class Detached:
    """An object that cannot be shown, as a row of a database whose session is closed."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")

    __str__ = __repr__


def log(payload: Any = b"x", *args: Any, **fields: Any) -> Outgoing:
    return Outgoing("log", payload, *args, **fields)


BAD: dict[str, tuple[Any, str]] = {
    "too large": (log(bytes(2 << 20)), "its max_payload"),
    "no payload": (log(5), "is of type int"),
    "half a character": (log("\ud800"), "UTF-8 cannot hold"),
    "a key of no text": (log(key=5), "key 5"),
    "an empty id": (log(b"x", ""), "1 to 128 characters"),
    "headers of numbers": (log(headers={"n": 5}), "header 'n'"),
    "ttl 0": (log(ttl_s=0), "ttl_s 0"),
    "an unknown priority": (log(priority="top"), "no priority 'top'"),
    "a merge key": (log(merge_key="k"), "are for slots"),
    "a long delay": (log(delay_ms=1e15), "ten years"),
    "a key for bare contents": (Outgoing("merged", b"x", headers={"h": "x"}), "stores bare contents"),
    "a negative range": (Outgoing("merged", b"x", time_range_ms=-5), "must be above 0"),
    "a priority by name": (Outgoing("urgent", b"x", priority="high"), "must be a number above 16"),
    "no time": (Outgoing("timed", b"x"), "has fixed times"),
    "no number to sum": (Outgoing("sums", b"x", merge_key="k"), "sum"),
    "a view that is released": (log(released()), ""),
    "a view that waits": (log(released(), delay_ms=5), ""),
    "a time zone without an offset": (log(at=datetime.datetime(2027, 1, 1, tzinfo=NoOffset())), ""),
    "headers that break": (log(headers=NoItems()), ""),
    "none": (None, ""),
    "what cannot be shown": (Detached(), ""),
    "what cannot be shown as topic": (Outgoing(Detached(), b"x"), ""),  # type: ignore[arg-type]
    "what cannot be shown as payload": (log(Detached()), ""),
    "what cannot be shown as key": (log(key=Detached()), ""),
    "what cannot be shown as priority": (log(priority=Detached()), ""),
    "what cannot be shown as delay": (log(delay=Detached()), ""),
    "a tuple": (("log", b"x"), ""),
    "a list as topic": (Outgoing(["log"], b"x"), ""),  # type: ignore[arg-type]
    "no topic": (Outgoing(None, b"x"), ""),  # type: ignore[arg-type]
    "a list as priority": (log(priority=["high"]), ""),
    "half a character as topic": (Outgoing("\ud800", b"x"), ""),
    "half a character as priority": (log(priority="\ud800"), ""),
    "what nobody thought of": (log(headers=NoItems(), delay_ms=5), "no items"),
}
FITTING: dict[str, dict[str, Any]] = {"merged": {}, "sums": {}, "urgent": {"priority": 20}, "timed": {"at": NOW_S + 5}}
"""By topic, fields that a message for it needs."""


@pytest.mark.parametrize("bad", list(BAD))
async def test_a_message_that_is_not_right_is_refused_alone(r: Rig, bad: str) -> None:
    wrong, why = BAD[bad]
    topic = next((name for name in FITTING if isinstance(wrong, Outgoing) and wrong.topic == name), "log")
    sent = [Outgoing(topic, b"%d" % i, **FITTING.get(topic, {})) for i in range(20)]
    outcomes = await r.producer.send([*sent[:7], wrong, *sent[7:], Outgoing("urgent", b"x", priority=20)])
    refused = outcomes.pop(7)
    nobody_s = bad == "what nobody thought of"
    assert isinstance(refused, errors.EMQError if nobody_s else errors.InvalidMessage | errors.InvalidTopic)
    assert why in str(refused)
    assert set(kinds(outcomes)) == {str}
    assert r.producer.published == 21


async def test_topics_that_take_nothing_refuse_only_what_is_for_them(r: Rig) -> None:
    await r.topic("draining", 50)
    await r.admin.update("draining", state=State.DRAINING)
    outcomes = await r.producer.send([Outgoing(topic, b"x") for topic in ("log", "missing", "draining", "log")])
    assert kinds(outcomes) == [str, errors.UnknownTopic, errors.TopicClosed, str]


@pytest.mark.parametrize(
    ("fault", "rest"),
    [(errors.StoreFull("full"), errors.StoreFull), (errors.OutcomeUnknown("?"), errors.StoreUnavailable)],
)
async def test_after_a_failure_nothing_overtakes_and_each_outcome_is_true(
    r: Rig, fault: errors.EMQError, rest: type[errors.EMQError]
) -> None:
    await r.topic("other", 50)

    async def fail(number: int, puts: Sequence[Any], real: Real) -> Any:
        if number == 2:
            raise fault
        return await real(puts)

    sizes = meddled(r, fail)
    sent = [Outgoing("log", b"%d" % i) for i in range(3 * BATCH)]
    outcomes = await r.producer.send([Outgoing("other", b"x"), *sent, Outgoing("other", b"y")])
    assert kinds(outcomes[:1] + outcomes[-1:]) == [str, str]
    of_log = kinds(outcomes[1:-1])
    assert of_log == [str] * BATCH + [type(fault)] * BATCH + [rest] * BATCH
    assert len(sizes) == 2
    assert [m.id for m in await stored(r, "log")] == outcomes[1 : 1 + BATCH]


async def test_after_a_failure_nothing_overtakes_where_one_is_not_right_either(r: Rig) -> None:
    r.store.log.fail(errors.OutcomeUnknown("?"), "put")
    outcomes = await r.producer.send([*(Outgoing("log", b"x") for _ in range(7)), Outgoing("log", bytes(2 << 20))])
    assert r.store.log.calls["put"] == 1
    assert kinds(outcomes) == [errors.OutcomeUnknown] * 7 + [errors.InvalidMessage]


async def test_what_is_sealed_is_sent_again_and_nothing_else_is_counted_twice(r: Rig) -> None:
    async def seal_five(number: int, adds: Sequence[SlotAdd], real: Real) -> Any:
        if number > 1:
            return await real(adds)
        return [errors.QueueSealed("sealed")] * 5 + list(await real(adds[5:]))

    sizes = meddled(r, seal_five, "sorted.add")
    outcomes = await r.producer.send([Outgoing("sums", b"1", merge_key=f"k{i}") for i in range(20)])
    assert set(kinds(outcomes)) == {str}
    assert sizes == [20, 5]
    assert r.producer.published == 20


async def test_a_part_of_the_store_that_is_down_touches_only_its_own(r: Rig) -> None:
    await r.topic("parts", 500)
    down = errors.StoreUnavailable("this part is down")
    r.store.fail_parts(lambda group: down if group == "parts/1" else None)
    outcomes = await r.producer.send([Outgoing("parts", b"%d" % i) for i in range(100)])
    assert kinds(outcomes).count(errors.StoreUnavailable) == 10
    assert {m.id for m in await stored(r, "parts")} == {o for o in outcomes if isinstance(o, str)}


async def test_nothing_to_send_is_no_call(r: Rig) -> None:
    assert await r.producer.send([]) == []
    assert "put" not in r.store.log.calls


@pytest.mark.parametrize(
    "again", [{"priorities": ("only",)}, {"priorities": ("low", "x", "high")}, {"kind": "priority"}]
)
async def test_a_topic_created_again_while_its_messages_wait_takes_none_into_another_priority(
    r: Rig, again: dict[str, Any]
) -> None:
    others = [f"t{i}" for i in range(AT_ONCE)]
    for name in (*others, "victim"):
        await r.topic(name, 50)
    await r.producer.refresh()
    created = asyncio.Event()

    async def create_again(number: int, puts: Sequence[Any], real: Real) -> Any:
        if number == 1:
            await r.admin.delete("victim", force=True)
            await r.topic("victim", 50, **again)
            await r.producer.refresh()
            created.set()
        await created.wait()
        return await real(puts)

    meddled(r, create_again)
    sent = [Outgoing(name, b"x") for name in others for _ in range(FEW)]
    outcomes = await r.producer.send([*sent, *[Outgoing("victim", b"x", priority="low") for _ in range(FEW)]])
    assert kinds(outcomes) == [str] * len(sent) + [errors.InvalidMessage] * FEW
    assert await stored(r, "victim", "high") == await stored(r, "victim", "low") == []


@pytest.mark.parametrize("broken", [asyncio.CancelledError(), ValueError("a bug"), "too few"])
async def test_a_driver_that_breaks_makes_only_its_own_call_doubtful(r: Rig, broken: BaseException | str) -> None:
    await r.topic("other", 50)

    async def break_second(number: int, puts: Sequence[Any], real: Real) -> Any:
        answers = await real(puts)
        if number != 2:
            return answers
        if isinstance(broken, BaseException):
            raise broken
        return []

    meddled(r, break_second)
    sent = [*(Outgoing("log", b"x") for _ in range(3 * BATCH)), Outgoing("other", b"x"), Outgoing("other", b"x")]
    outcomes = await r.producer.send(sent)
    assert kinds(outcomes[-2:]) == [str] * 2
    of_log = outcomes[:-2]
    assert [isinstance(o, str) for o in of_log] == [True] * BATCH + [False] * 2 * BATCH
    assert all(isinstance(o, errors.OutcomeUnknown) for o in of_log[BATCH : 2 * BATCH])
    assert kinds(of_log[2 * BATCH :]) == [errors.StoreUnavailable] * BATCH


async def test_a_caller_that_is_cancelled_is_cancelled(r: Rig) -> None:
    waits = asyncio.Event()

    async def hang(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    meddled(r, hang)
    task = asyncio.create_task(r.producer.send([Outgoing("log", b"x"), Outgoing("log", b"y")]))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def created_again(r: Rig, calls: int, **settings: Any) -> list[SlotAdd]:
    """The topic `victim` refuses this many calls, and is created again in the last; returns what is added later."""
    taken: list[SlotAdd] = []

    async def create_again(number: int, adds: Sequence[SlotAdd], real: Real) -> Any:
        if number == calls:
            await r.admin.delete("victim", force=True)
            await r.topic("victim", 50, **settings)
        if number <= calls:
            return [errors.QueueSealed("sealed")] * len(adds)
        taken.extend(adds)
        return await real(adds)

    meddled(r, create_again, "sorted.add")
    return taken


async def test_nothing_is_summed_twice_where_a_later_message_of_the_call_is_no_number(r: Rig) -> None:
    sums: dict[str, Any] = {"kind": "range_merge", "slots": 4, "time_range_ms": 500, "merge": "key"}
    await r.topic("victim", 50, **sums)
    taken = created_again(r, 3, **sums, fold="sum")
    sent = [Outgoing("victim", b"1", merge_key="k") for _ in range(2 * CHUNK + 500)]
    sent[CHUNK + 200] = Outgoing("victim", b"no number", merge_key="k")
    outcomes = await r.producer.send(sent)
    assert len(taken) == r.producer.published == kinds(outcomes).count(str)
    assert set(kinds(outcomes)) == {errors.InvalidMessage}


async def test_an_error_of_a_whole_call_hides_no_call_before_it(r: Rig) -> None:
    async def fail(number: int, adds: Sequence[SlotAdd], real: Real) -> Any:
        if number == 2:
            raise errors.InvalidMessage("not right")
        return await real(adds)

    sizes = meddled(r, fail, "sorted.add")
    outcomes = await r.producer.send([Outgoing("sums", b"1", merge_key="k") for _ in range(2 * CHUNK)])
    assert kinds(outcomes) == [str] * CHUNK + [errors.InvalidMessage] * CHUNK
    assert (len(sizes), r.producer.published) == (2, CHUNK)


FIXED: dict[str, Any] = {"kind": "fixed_time", "slots": 4}
URGENT: dict[str, Any] = {"kind": "priority", "slots": 4}
SPANS: dict[str, Any] = {"kind": "range_merge", "slots": 4, "time_range_ms": 500}


@pytest.mark.parametrize(
    ("first", "again", "each"),
    [
        (FIXED, URGENT, {"at": NOW_S + 60}),
        (URGENT, FIXED, {"priority": 20}),
        (URGENT, {**URGENT, "priority_policy": "aging"}, {"priority": 20}),
        (SPANS, {**SPANS, "merge": "key"}, {}),
        ({**SPANS, "merge": "key"}, SPANS, {"headers": {"h": "x"}}),
    ],
)
async def test_scores_go_only_into_a_topic_of_the_kind_they_were_made_for(
    r: Rig, first: dict[str, Any], again: dict[str, Any], each: dict[str, Any]
) -> None:
    await r.topic("victim", 50, **first)
    taken = created_again(r, 1, **again)
    outcomes = await r.producer.send([Outgoing("victim", b"%d" % i, **each) for i in range(3)])
    assert kinds(outcomes) == [errors.InvalidMessage] * 3
    assert taken == []


async def test_a_time_to_live_that_is_refused_is_not_noted(r: Rig) -> None:
    refused: list[Outcome] = await r.producer.send([Outgoing("log", b"x", ttl_s=-1), Outgoing("log", b"x")])
    assert kinds(refused) == [errors.InvalidMessage, str]
    with pytest.raises(errors.InvalidMessage):
        await r.producer.publish("log", b"x", ttl_s=-1)
    with pytest.raises(errors.InvalidMessage):
        await r.producer.publish_many("log", [b"x"], ttl_s=-1)
    with pytest.raises(errors.InvalidMessage):
        await r.producer.schedule("log", b"x", every_s=1, ttl_s=-1)
    assert not (await r.catalog.get("log")).may_expire
    await r.producer.send([Outgoing("log", b"x", ttl_s=5), Outgoing("log", b"x")])
    assert (await r.catalog.get("log")).may_expire


async def test_a_time_to_live_refuses_no_neighbour_while_the_database_is_away(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise errors.DatabaseUnavailable("the database is away")

    await r.producer.refresh()
    monkeypatch.setattr(r.catalog, "change", away)
    sent = [Outgoing("log", b"%d" % i, ttl_s=5 if i == 2 else None) for i in range(4)]
    assert kinds(await r.producer.send(sent)) == [str] * 4


@pytest.mark.parametrize("bad", [False, True])
async def test_a_topic_without_room_for_all_takes_the_first_in_few_calls(r: Rig, bad: bool) -> None:
    await r.topic("small", 50, max_length=BATCH + 17)
    sent = [Outgoing("small", b"%d" % i) for i in range(3 * BATCH)]
    outcomes = await r.producer.send([*sent, *[Outgoing("small", bytes(2 << 20))] * bad])
    assert kinds(outcomes[: len(sent)]) == [str] * (BATCH + 17) + [errors.TopicFull] * (2 * BATCH - 17)
    assert [m.payload for m in await stored(r, "small")] == [m.payload for m in sent[: BATCH + 17]]
    assert r.store.log.calls["put"] <= 15
    assert r.producer.published == BATCH + 17


async def test_a_full_queue_refuses_only_its_own(r: Rig) -> None:
    await r.topic("parts", 100, group_qps=50, max_length=2 * BATCH)
    await r.producer.publish_many("parts", [b"x"] * (BATCH - 10), key="one")
    outcomes = await r.producer.send([Outgoing("parts", b"x", key="one" if i % 2 else "other") for i in range(BATCH)])
    later = await r.producer.send([Outgoing("parts", b"x", key="one"), Outgoing("parts", b"x", key="one")])
    assert kinds(outcomes[::2]) == [str] * (BATCH // 2)
    assert kinds(outcomes[1::2]) == [str] * 10 + [errors.TopicFull] * (BATCH // 2 - 10)
    assert kinds(later) == [errors.TopicFull] * 2


async def test_nothing_overtakes_into_room_that_was_made_meanwhile(r: Rig) -> None:
    async def refuse(number: int, puts: Sequence[Any], real: Real) -> Any:
        full = 1 not in sizes[:-1]  # room is made as soon as one message alone was refused
        return [errors.TopicFull("full")] if full else await real(puts)

    sizes = meddled(r, refuse)
    await r.topic("small", 50, max_length=10 * BATCH)
    outcomes = await r.producer.send([Outgoing("small", b"x") for _ in range(2 * BATCH)])
    assert kinds(outcomes) == [errors.TopicFull] * 2 * BATCH
    assert sizes == [500, 250, 125, 62, 31, 15, 7, 3, 1]


@pytest.mark.parametrize("fault", [errors.StoreUnavailable("gone"), errors.OutcomeUnknown("?")])
async def test_a_failure_while_a_queue_is_filled_stops_what_follows(r: Rig, fault: errors.EMQError) -> None:
    async def fail(number: int, puts: Sequence[Any], real: Real) -> Any:
        if number == 3:
            raise fault
        return await real(puts)

    sizes = meddled(r, fail)
    await r.topic("small", 50, max_length=300)
    outcomes = await r.producer.send([Outgoing("small", b"x") for _ in range(2 * BATCH)])
    assert kinds(outcomes) == [str] * 250 + [type(fault)] * 250 + [errors.StoreUnavailable] * BATCH
    assert sizes == [500, 250, 250]


async def test_messages_that_are_sealed_while_a_queue_is_filled_are_routed_again(r: Rig) -> None:
    async def seal(number: int, puts: Sequence[Any], real: Real) -> Any:
        return [errors.QueueSealed("sealed")] if number == 3 else await real(puts)

    meddled(r, seal)
    await r.topic("small", 50, max_length=300)
    outcomes = await r.producer.send([Outgoing("small", b"x") for _ in range(BATCH)])
    assert kinds(outcomes) == [str] * 300 + [errors.TopicFull] * 200
    assert [m.id for m in await stored(r, "small")] == outcomes[:300]


async def test_a_generator_of_messages_is_sent(r: Rig) -> None:
    assert kinds(await r.producer.send(Outgoing("log", b"x") for _ in range(3))) == [str] * 3


@pytest.mark.parametrize("topic", ["log", "merged"])
async def test_any_number_of_messages_that_are_not_right_takes_no_more_calls(r: Rig, topic: str) -> None:
    good, bad = Outgoing(topic, b"x", key="k"), Outgoing(topic, bytes(2 << 20))
    outcomes = await r.producer.send([good, bad] * 1_000)
    assert kinds(outcomes) == [str, errors.InvalidMessage] * 1_000
    assert r.store.log.calls.get("put", 0) + r.store.sorted.calls.get("add", 0) <= 2
    assert kinds(await r.producer.send([bad] * 3)) == [errors.InvalidMessage] * 3
    assert r.store.log.calls.get("put", 0) + r.store.sorted.calls.get("add", 0) <= 2


@pytest.mark.parametrize("sealed", [False, True])
async def test_no_later_call_goes_to_a_topic_that_was_created_again_as_another_kind(r: Rig, sealed: bool) -> None:
    await r.topic("victim", 50, **SPANS)

    async def create_again(number: int, adds: Sequence[SlotAdd], real: Real) -> Any:
        answers = await real(adds)
        if number > 1:
            return answers
        await r.admin.delete("victim", force=True)
        await r.topic("victim", 50, **SPANS, merge="key", fold="sum")
        if sealed:
            return [errors.QueueSealed("sealed")] * len(adds)
        await r.producer.refresh()
        return answers

    meddled(r, create_again, "sorted.add")
    outcomes = await r.producer.send([Outgoing("victim", b"%d" % i) for i in range(2 * CHUNK)])
    assert kinds(outcomes[:CHUNK]) == [errors.InvalidMessage if sealed else str] * CHUNK
    assert kinds(outcomes[CHUNK:]) == [errors.InvalidMessage] * CHUNK
    assert sum(lag.delayed for lag in await r.admin.slot_lag([await r.catalog.get("victim")])) == 0


async def test_what_breaks_outside_a_call_hides_no_other_way(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(topic: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(r.producer._expiring, "note", broken)
    sent = [Outgoing(topic, b"x", ttl_s=5 if topic == "log" else None) for topic in ("log", "log", "merged", "merged")]
    assert kinds(await r.producer.send(sent)) == [errors.OutcomeUnknown] * 2 + [str] * 2
