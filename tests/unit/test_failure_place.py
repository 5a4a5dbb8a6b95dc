"""The place in the user's code where a handler failed: found, bounded, and kept with each failed attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.dispatch import failure_place
from emq.dispatch.failure_place import MAX_PLACE, place_of
from emq.observe import dead_letters
from emq.runtime import errors
from emq.storage import message, reasons
from emq.storage.lane_store import LaneAdd
from emq.topics.model import Topic, split
from emq_stores.memory import MemoryStore
from emq_testing import Harness


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def line_of(function: Callable[..., Any], further: int = 1) -> int:
    return function.__code__.co_firstlineno + further


def written(file: str | Path, name: str = "deliver") -> Callable[[], Any]:
    """Return a function that raises in line 2 of a file."""
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}():\n    raise ConnectionError\n", str(file), "exec"), scope)
    made: Callable[[], Any] = scope[name]
    return made


HERE = "test_failure_place.py"


def divides() -> float:
    return 1 / 0


def reads_json() -> Any:
    return json.loads("{")


def test_the_last_frame_of_the_users_code_counts_and_not_that_of_a_library() -> None:
    assert place_of(caught(divides)).endswith(f"{HERE}:{line_of(divides)} in divides")
    assert place_of(caught(reads_json)).endswith(f"{HERE}:{line_of(reads_json)} in reads_json")


def test_a_file_is_shown_from_the_current_directory_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(caught(written(tmp_path / "shop.py"))) == "shop.py:2 in deliver"


def test_an_error_that_was_never_in_the_users_code_has_the_place_of_its_cause_or_none() -> None:
    late = TimeoutError("too long")
    assert place_of(late) == ""
    late.__cause__ = caught(divides)
    asked = errors.Retry("took too long")
    asked.__cause__ = late
    assert place_of(asked).endswith(" in divides")


def test_the_users_code_may_be_an_installed_package() -> None:
    error = caught(written("/x/site-packages/shop.py"))
    assert place_of(error).endswith(" in caught")  # it called the package
    assert error.__traceback__ is not None
    assert place_of(error.with_traceback(error.__traceback__.tb_next)) == "/x/site-packages/shop.py:2 in deliver"


def test_a_place_is_bounded_and_holds_what_every_store_takes() -> None:
    place = place_of(caught(written("/" + "ö\ud800\n" * 300 + "end.py", "a" * 300)))
    assert len(place) == MAX_PLACE
    assert f"end.py:2 in ...{'a' * 57}" in place
    place.encode()
    assert place.isprintable()


def test_of_a_deep_recursion_only_the_beginning_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    author = failure_place._author
    monkeypatch.setattr(failure_place, "_author", lambda file: looked.append(file) or author(file))

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise RecursionError

    assert place_of(caught(lambda: deeper(500))).endswith(".deeper")
    assert len(looked) == failure_place.STEPS


@pytest.mark.parametrize("place", ["", "shop.py:14 in deliver", "C:/a (b)/shop.py:1 in f.<locals>.g"])
@pytest.mark.parametrize("text", ["", "ConnectionError: no route", "odd (at night)", "twice (at a.py:1 in f)"])
def test_a_reason_comes_back_from_a_store_with_its_place(text: str, place: str) -> None:
    if place:
        assert reasons.parted(reasons.joined(text, place)) == (text, place)
    elif "a.py" not in text:
        assert reasons.parted(reasons.joined(text, place)) == (text, "")


@pytest.mark.parametrize("kind", ["log", "priority"])
async def test_each_failed_attempt_of_a_dead_letter_says_where_it_failed(kind: Any) -> None:
    app = emq.App()

    @app.handler("orders")
    def deliver(m: emq.Message) -> None:
        if m.attempt == 1:
            divides()
        assert m.error == "ZeroDivisionError: division by zero"
        raise errors.Reject("hopeless")

    async with Harness(app) as t:
        options: dict[str, Any] = {} if kind == "log" else {"retry": "backoff"}
        await t.app.create_topic("orders", qps=10, kind=kind, backoff_s=(1,), jitter=0.0, **options)
        await t.publish("orders", b"x", priority=20 if kind == "priority" else None)
        await t.advance(5)
        [letter] = [each async for each in app.dead_letters("orders")]
    assert letter.reason == "rejected: hopeless"
    assert [each.reason for each in letter.history] == ["ZeroDivisionError: division by zero", "rejected: hopeless"]
    first, last = (each.place for each in letter.history)
    assert first.endswith(f"{HERE}:{line_of(divides)} in divides")
    assert f"{HERE}:{line_of(deliver, 5)} in " in last
    assert last.endswith(".deliver")


async def test_letters_of_earlier_versions_have_no_places() -> None:
    store, topic = MemoryStore(), split(Topic("orders", 10))
    m = message.Message("m", b"x", attempt=1, error="HTTP 503", history=[(5, "HTTP 503")])
    await store.lanes.add([LaneAdd(topic.group(0), m.id, message.encode_retry(m), 0, reason="HTTP 503")])
    [letter] = [each async for each in dead_letters.find(store, topic)]
    assert letter.history == ((5, "HTTP 503", ""),)


async def test_a_time_out_says_where_the_handler_was() -> None:
    app = emq.App()

    @app.handler("orders")
    async def waits(m: emq.Message) -> None:
        await asyncio.sleep(1_000)

    async with Harness(app) as t:
        await t.app.create_topic("orders", qps=10, max_attempts=1, handler_timeout_s=1)
        await t.publish("orders", b"x")
        await t.advance(5)
        [letter] = [each async for each in app.dead_letters("orders")]
    assert letter.history[0].place.endswith(waits.__qualname__)
