"""Single submits that share calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from emq.runtime import errors
from emq_scheduling.submitting import Receipt, Submission
from emq_scheduling.together import AT_ONCE, MOST, Outcomes, Together


class Store:
    """Takes calls; those of the type "bad" are refused, and while it is `shut`, calls wait."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.ids: list[str | None] = []
        self.open = asyncio.Event()
        self.open.set()
        self.breaks = False

    async def send(self, tasks: Sequence[Submission]) -> Outcomes:
        self.calls.append(len(tasks))
        await self.open.wait()
        if self.breaks:
            raise errors.UnknownPool("there is no pool 'p'")
        self.ids += [task.id for task in tasks]
        refused = errors.TaskRefused("no", code="unknown_type")
        return [refused if task.type == "bad" else Receipt(str(task.id)) for task in tasks]


def task(number: int, kind: str = "t") -> Submission:
    return Submission(kind, b"", id=str(number))


async def test_tasks_of_one_turn_share_a_call_and_each_gets_its_own_outcome() -> None:
    store = Store()
    together = Together(store.send)
    found = await asyncio.gather(
        *(together.submit(task(i, "bad" if i % 3 == 0 else "t")) for i in range(9)), return_exceptions=True
    )
    assert store.calls == [9]
    assert [isinstance(each, errors.TaskRefused) for each in found] == [i % 3 == 0 for i in range(9)]
    assert [each.id for each in found if isinstance(each, Receipt)] == [str(i) for i in range(9) if i % 3]


async def test_tasks_wait_for_calls_under_way_and_are_sent_in_order_and_bounded() -> None:
    store = Store()
    store.open.clear()
    together = Together(store.send)
    tasks = [asyncio.ensure_future(together.submit(task(0)))]
    await asyncio.sleep(0.01)
    tasks += [asyncio.ensure_future(together.submit(task(i))) for i in range(1, 3 * MOST)]
    await asyncio.sleep(0.01)
    assert len(store.calls) == AT_ONCE
    store.open.set()
    await asyncio.gather(*tasks)
    assert max(store.calls) == MOST
    assert store.ids == [str(i) for i in range(3 * MOST)]


async def test_a_broken_call_fails_all_of_it_and_later_ones_go_on() -> None:
    store = Store()
    store.breaks = True
    together = Together(store.send)
    found = await asyncio.gather(together.submit(task(1)), together.submit(task(2)), return_exceptions=True)
    assert [type(each) for each in found] == [errors.UnknownPool] * 2
    store.breaks = False
    assert (await together.submit(task(3))).id == "3"


async def test_a_cancelled_submit_takes_no_other_with_it() -> None:
    store = Store()
    together = Together(store.send)
    first, second = asyncio.ensure_future(together.submit(task(1))), asyncio.ensure_future(together.submit(task(2)))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).id == "2"
    with pytest.raises(asyncio.CancelledError):
        await first
    await together.close()


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nobody_waiting() -> None:
    together = Together(Store().send)
    submit = asyncio.ensure_future(together.submit(task(1)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(lambda: [call.cancel() for call in together._calls])
    done, _ = await asyncio.wait([submit], timeout=1)
    assert done
    assert submit.cancelled()
