"""Where a task with fallbacks goes, when, and what counts there."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.fallbacks import Tries
from emq_scheduling.hosting import shut
from emq_scheduling.hosting.attempts import Dropped, NotNow, record_of
from emq_scheduling.hosting.viewing import Viewer
from emq_scheduling.model import Hours, Limit, Resource, TaskType
from emq_scheduling.outcomes import Overloaded, ResourceFailed, TryNext
from support.fallback_host import POOL, Host, again, held, task
from support.scheduler_bench import rest

# ------------------------------------------------------------------------------------------------------ where it runs


async def test_a_task_begins_at_its_first_entry_and_keeps_to_a_resource_that_it_names() -> None:
    async with Host().working() as host:
        found = [await host.perform(task("large@b", "small")) for _ in range(4)]
        assert found == ["by b"] * 4


async def test_a_task_runs_with_the_costs_the_limits_and_the_priority_of_the_type_where_it_stands() -> None:
    async with Host().working() as host:
        freed = held(host, "c")
        running = [host.perform(task("large", "small", id_=f"t{i}", at=1, former=1, attempt=2)) for i in range(3)]
        await rest()
        used = host.scheduler.accounts.used(host.clock.now())["c"]
        assert (used["tokens/second"], used["calls/in_flight"]) == (100, 2)  # the third waits for the limit of its key
        [left] = host.scheduler.matching.window.all()
        assert (left.task.type, left.level) == ("small", 3)
        freed.set()
        await asyncio.gather(*running)
        assert host.ran == [("small", "c")] * 3
        end = record_of(host.ended[0].task, "done", 4, placement=host.ended[0].placement)
        assert (end.type, end.as_type, end.resource, end.attempt) == ("large", "small", "c", 2)


# --------------------------------------------------------------------------------------------------- when it goes on


async def test_a_performer_sends_a_task_to_its_next_fallback_for_good() -> None:
    async with Host().working() as host:
        host.answers["a"] = lambda: TryNext("it refuses the prompt")
        found = await again(host.perform(task("large@a", "small", "large@b")))
        assert found.tries == Tries(("large@a", "small", "large@b"), at=1, since=host.clock.now(), former=1)
        assert (found.after_s, found.reason) == (0.0, "it refuses the prompt; it goes on to small")
        assert [ended.outcome for ended in host.ended] == ["failed"]
        for _ in range(12):
            await again(host.perform(task("large@a", "small")))
        assert not host.scheduler.healths.known["a"].reason, "the resource is in order"


@pytest.mark.parametrize("refusal", [Overloaded("429"), ResourceFailed("it is down")])
@pytest.mark.parametrize("adapts", [True, False])
async def test_a_task_goes_on_once_each_open_resource_of_its_entry_has_sent_it_away(
    refusal: Exception, adapts: bool
) -> None:
    resources = {name: msgspec.structs.replace(each, adapts=adapts) for name, each in POOL.resources.items()}
    async with Host(msgspec.structs.replace(POOL, resources=resources)).working() as host:
        host.answers["a"] = host.answers["b"] = lambda: refusal
        found = await again(host.perform(task("large", "small")))
        assert found.tries.at == 1
        assert sorted(host.ran) == [("large", "a"), ("large", "b")]


async def test_a_task_goes_on_after_the_attempts_of_its_type_and_each_entry_has_its_own() -> None:
    async with Host().working() as host:
        host.answers["a"] = host.answers["c"] = lambda: ValueError("no answer")
        first = await again(host.perform(task("large@a", "small")))
        assert (first.tries.at, first.after_s) == (0, 7.0)
        second = await again(host.perform(task("large@a", "small", attempt=2)))
        assert (second.tries.at, second.tries.former, second.after_s) == (1, 2, 0.0)
        for attempt, after_s in ((3, 1.0), (4, 2.0)):
            found = await again(host.perform(task("large@a", "small", attempt=attempt, at=1, former=2)))
            assert (found.tries.at, found.after_s) == (1, after_s)
        with pytest.raises(errors.Reject, match="no answer"):
            await host.perform(task("large@a", "small", attempt=5, at=1, former=2))
        assert [ended.outcome for ended in host.ended] == ["failed"] * 4 + ["dead"]


async def test_at_the_end_of_its_list_a_task_is_one_without_fallbacks() -> None:
    async with Host().working() as host:
        host.answers["c"] = lambda: TryNext("it refuses the prompt, too")
        last = task("large@a", "small", attempt=2, at=1, former=1)
        found = await again(host.perform(last))
        assert (found.tries, found.after_s) == (last.tries, 1.0)
        host.answers["c"] = lambda: Overloaded("429", after_s=5)
        waiting = host.perform(last)
        await rest()
        assert [ended.outcome for ended in host.ended] == ["failed", "moved"]
        assert not waiting.done()  # it waits for the resource
        waiting.cancel()


async def test_rejected_is_the_end_wherever_a_task_stands() -> None:
    async with Host().working() as host:
        host.answers["a"] = lambda: errors.Reject("it is no prompt")
        with pytest.raises(errors.Reject, match="it is no prompt"):
            await host.perform(task("large@a", "small"))


# --------------------------------------------------------------------------------------------------- what is shut now


async def test_a_shut_entry_is_passed_over_and_tried_again_later() -> None:
    async with Host().working() as host:
        for name in ("a", "b"):
            host.answers[name] = lambda: ResourceFailed("it is down")
            await asyncio.gather(host.perform(task(f"large@{name}", "small")), return_exceptions=True)
        host.answers.clear()
        assert await host.perform(task("large@a", "large@b", "small")) == "by c"
        host.clock.advance(600.0)
        host.scheduler.sweep()
        assert await host.perform(task("large@a", "large@b", "small")) == "by a"


async def test_only_one_task_waits_for_a_resource_that_is_probed() -> None:
    async with Host().working() as host:
        host.answers["a"] = lambda: ResourceFailed("it is down")
        await asyncio.gather(host.perform(task("large@a", "small")), return_exceptions=True)
        host.clock.advance(600.0)
        host.scheduler.sweep()
        freed = held(host, "a")
        probe = host.perform(task("large@a", "small", id_="probe"))
        await rest()
        assert await host.perform(task("large@a", "small", id_="other")) == "by c"
        freed.set()
        await probe


async def test_a_task_that_waits_leaves_an_entry_that_shuts_and_may_come_back_to_one_that_opens() -> None:
    async with Host().working() as host:
        freed, other = held(host, "a"), held(host, "b")
        busy = [host.perform(task(f"large@{name}", id_=name)) for name in ("a", "b")]
        await rest()
        waiting = host.perform(task("large@a", "large@b", id_="waits"))
        await rest()
        for open_, shut in (("b", "a"), ("a", "b")):
            host.scheduler.matching.lineups.close(open_, 0.0)
            host.scheduler.matching.lineups.close(shut, host.clock.now() + 50)
            host.clock.advance(0.2)
            host.scheduler.sweep()
            await rest()
            [left] = host.scheduler.matching.window.all()
            assert left.keeps_to == open_
        freed.set()
        assert await waiting is True
        assert host.ran == [("large", "a"), ("large", "b"), ("large", "a")]
        other.set()
        await asyncio.gather(*busy)


async def test_a_type_or_resource_that_is_gone_or_that_no_performer_does_is_shut() -> None:
    async with Host().working() as host:
        assert await host.perform(task("large@gone", "gone", "small")) == "by c"
        host.without.add("large")
        assert await host.perform(task("large", "small")) == "by c"


async def test_once_a_task_has_run_at_a_later_entry_it_does_not_go_back() -> None:
    async with Host().working() as host:
        host.scheduler.matching.lineups.close("a", host.clock.now() + 50)
        host.answers["c"] = lambda: ValueError("no answer")
        found = await again(host.perform(task("large@a", "small", attempt=1)))
        assert (found.tries.at, found.tries.former) == (1, 0)


async def test_a_task_that_waits_at_a_fallback_counts_once_in_forecasts() -> None:
    closed = {name: msgspec.structs.replace(POOL.resources[name], paused=True) for name in "ab"}
    pool = msgspec.structs.replace(POOL, resources={**POOL.resources, **closed}, limits={})
    async with Host(pool).working() as host:
        freed = held(host, "c")
        running = [host.perform(task("large", "small", id_=f"t{number}")) for number in range(12)]
        await rest()
        assert len(host.ran) == 5
        viewer = Viewer(host.scheduler, "h", host.clock.now())
        seen = viewer.look({"models.large.acme": 12 + 30}, host.clock.now())
        assert seen.state.waiting == {"large": 30, "small": 7}
        assert (seen.types["large"].waiting, seen.types["small"].waiting) == (37, 0), "as tasks of their own type"
        freed.set()
        await asyncio.gather(*running)
        assert not host.scheduler.matching.window.sums.passed


# ---------------------------------------------------------------------------------------------------------- patience


async def test_a_task_waits_for_its_patience_at_each_entry() -> None:
    async with Host().working() as host:
        freed, other = held(host, "a"), held(host, "b")
        busy = [host.perform(task(f"large@{name}", id_=name)) for name in ("a", "b")]
        await rest()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await host.perform(task("large@a", "large@b", "small", patience_s=0.3, since=host.clock.now())) == "by c"
        assert 0.5 < loop.time() - began < 5
        freed.set()
        other.set()
        await asyncio.gather(*busy)


async def test_the_patience_of_a_task_goes_on_while_resources_send_it_away() -> None:
    async with Host().working() as host:
        freed = held(host, "b")
        other = host.perform(task("large@b", id_="other"))
        await rest()

        def overloaded() -> object:
            host.clock.advance(4.9)
            return Overloaded("429", after_s=60)

        host.answers["a"] = overloaded
        began = asyncio.get_running_loop().time()
        assert await host.perform(task("large", "small", patience_s=5.0)) == "by c"
        assert asyncio.get_running_loop().time() - began < 2.0, "a tenth of a second at the second one"
        freed.set()
        await other


async def test_a_task_whose_patience_is_over_starts_at_a_free_entry_before_the_next() -> None:
    async with Host().working() as host:
        host.clock.advance(60.0)
        assert await host.perform(task("large@a", "small", patience_s=1.0)) == "by a"


async def test_many_tasks_whose_patience_is_over_all_start_at_a_free_entry() -> None:
    wide = Resource(limits=(Limit("calls", 500, "in_flight"),), takes={"large": {}})
    async with Host(msgspec.structs.replace(POOL, resources={**POOL.resources, "a": wide})).working() as host:
        host.clock.advance(60.0)
        running = [host.perform(task("large@a", "small", patience_s=1.0, id_=f"t{i}")) for i in range(200)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # now all wait
        # A busy process: their time is over before the looks that start them.
        asyncio.get_running_loop().call_soon(time.sleep, 1.5 * shut.LEAST_S)
        assert set(await asyncio.gather(*running)) == {"by a"}


async def test_an_impatient_task_goes_back_to_an_open_entry_once_the_last_has_shut() -> None:
    async with Host().working() as host:
        freed, other = held(host, "b"), held(host, "c")
        busy = [host.perform(task("large@b", id_="b")), *(host.perform(task("small", id_=f"c{i}")) for i in range(2))]
        await rest()
        host.scheduler.matching.lineups.close("a", host.clock.now() + 50)
        waiting = host.perform(task("large@a", "large@b", "small", patience_s=0.0))
        await asyncio.sleep(0.3)
        assert [left.task.type for left in host.scheduler.matching.window.all()] == ["small"]
        host.scheduler.matching.lineups.close("c", host.clock.now() + 50)
        host.clock.advance(0.2)
        host.scheduler.sweep()
        await rest()
        assert [left.keeps_to for left in host.scheduler.matching.window.all()] == ["b"]
        freed.set()
        assert await waiting is True
        assert host.ran[-1] == ("large", "b")
        other.set()
        await asyncio.gather(*busy)


async def test_a_task_without_patience_waits_for_room_as_long_as_it_takes() -> None:
    async with Host().working() as host:
        freed = held(host, "a")
        running = [host.perform(task("large@a", "small", id_=f"t{i}")) for i in range(2)]
        await asyncio.sleep(0.4)
        host.scheduler.sweep()
        await rest()
        assert host.ran == [("large", "a")]
        freed.set()
        await asyncio.gather(*running)
        assert host.ran == [("large", "a")] * 2


# ------------------------------------------------------------------------------------------- cancel, expiry, messages


async def test_a_cancelled_or_expired_task_ends_wherever_it_stands() -> None:
    async with Host().working() as host:
        freed = held(host, "c")
        busy = [host.perform(task("large", "small", at=1, id_=f"b{i}")) for i in range(2)]
        await rest()
        waits = host.perform(task("large", "small", at=1, id_="waits"))
        await rest()
        host.scheduler.cancel({"waits": int(host.clock.now() * 1e6)})
        with pytest.raises(Dropped, match="cancelled"):
            await waits
        old = host.perform(task("large", "small", at=1, id_="old"))
        await rest()
        host.clock.advance(1_001.0)  # the time to live of its own type; the other has none
        host.scheduler.sweep()
        with pytest.raises(Dropped, match="expired"):
            await old
        freed.set()
        await asyncio.gather(*busy)


# ------------------------------------------------------------------------------------ where nothing like it may wait


BY_DAY = msgspec.structs.replace(
    POOL, types={**POOL.types, "large": TaskType(hours=(Hours("00:00", "00:20"),))}, limits={}
)  # the clock begins at 00:16


async def test_a_task_goes_on_when_the_hours_of_its_fallback_end_while_it_waits_there() -> None:
    async with Host(BY_DAY).working() as host:
        freed = held(host, "a")
        first = host.perform(task("large@a", id_="first"))
        await rest()
        waits = host.perform(task("large@a", "small"))
        await rest()
        host.clock.advance(400.0)
        host.scheduler.sweep()
        assert await waits == "by c"
        freed.set()
        await first


async def test_a_task_waits_at_a_paused_fallback_while_the_hours_of_another_are_over() -> None:
    paused = msgspec.structs.replace(BY_DAY.resources["c"], paused=True)
    async with Host(msgspec.structs.replace(BY_DAY, resources={**BY_DAY.resources, "c": paused})).working() as host:
        host.clock.advance(400.0)
        waits = host.perform(task("large", "small"))
        await rest()
        assert not waits.done()
        host.scheduler.follow(BY_DAY, 5)
        assert await waits == "by c"


async def test_tasks_whose_fallbacks_are_all_shut_cost_nothing_and_their_patience_counts_once_one_opens() -> None:
    shut = {name: msgspec.structs.replace(each, paused=True) for name, each in POOL.resources.items()}
    async with Host(msgspec.structs.replace(POOL, resources=shut)).working() as host:
        added = host.scheduler.matching.add
        adds = list[object]()

        def add(waiting: Waiting, now: float) -> None:
            adds.append(waiting)
            added(waiting, now)

        host.scheduler.matching.add = add  # type: ignore[method-assign]
        freed = held(host, "a")
        running = [host.perform(task("large", "small", id_=f"t{number}", patience_s=5.0)) for number in range(2)]
        for _ in range(12):
            host.clock.advance(1.0)
            host.scheduler.sweep()
            await asyncio.sleep(0.1)
        assert len(adds) == 2, "each waits in its place"
        host.scheduler.follow(msgspec.structs.replace(POOL, resources={**POOL.resources, "b": shut["b"]}), 5)
        host.scheduler.sweep()
        await rest()
        host.scheduler.sweep()
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert [each.result() for each in done] == ["by c"], "the other runs on `a`, which is full"
        freed.set()
        await asyncio.gather(*running)


async def test_a_task_goes_on_when_the_type_of_its_fallback_is_gone_and_holds_up_no_other_of_its_topic() -> None:
    async with Host().working() as host:
        without = msgspec.structs.replace(
            POOL,
            types={"large": POOL.types["large"]},
            resources={name: each for name, each in POOL.resources.items() if name != "c"},
            limits={},
        )
        freed = held(host, "c")
        running = [host.perform(task("large", "small", id_=f"t{i}", at=1)) for i in range(2)]
        await rest()
        waits = [host.perform(task("large", "small", "large@b", at=1)), host.perform(task("large", "small", at=1))]
        await rest()
        host.scheduler.follow(without, 5)
        host.scheduler.sweep()
        assert await waits[0] == "by b"
        with pytest.raises(NotNow, match="no task type 'small'"):  # not `GiveBack`, which pauses the topic
            await waits[1]
        freed.set()
        await asyncio.gather(*running)


async def test_a_task_whose_last_fallback_nobody_does_holds_up_no_other_of_its_topic() -> None:
    async with Host().working() as host:
        host.without.add("small")
        with pytest.raises(NotNow, match="no performer"):
            await host.perform(task("large", "small", at=1))


async def test_whether_a_named_resource_is_shut_does_not_depend_on_how_many_others_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Host().working() as host:
        asked = list[str]()

        def able(kind: str) -> list[str]:
            asked.append(kind)
            return ["a", "b"]

        monkeypatch.setattr(host.scheduler.matching, "able", able)
        found = task("large@a", "large@gone", "small@a")
        assert found.tries is not None
        assert [host.scheduler.shut.is_shut(found, found.tries, place) for place in range(3)] == [False, True, True]
        assert asked == []


async def test_a_task_whose_attempts_are_counted_anew_has_no_more_of_them_for_that() -> None:
    async with Host().working() as host:
        host.answers["c"] = lambda: ValueError("a bad prompt")
        found = await again(host.perform(task("large", "small", at=1, former=9, attempt=2)))
        assert found.tries.former == 1
        with pytest.raises(errors.Reject, match="a bad prompt"):
            await host.perform(task("large", "small", at=1, former=1, attempt=4))
