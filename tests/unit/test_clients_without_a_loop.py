"""No thread of a client without an event loop waits for ever, whatever happens to the loop of the client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emq_clients import ApiUnavailable, transport
from emq_clients.requests import Request
from emq_clients.transport import Api, AsyncApi

ASKED: Request[Any] = Request("GET", "/v1/x", Any)


class Server:
    """Stands in for the API: one function for each request, in their order; None for no answer."""

    def __init__(self, *answers: Callable[[], tuple[int, dict[str, str], bytes]] | None) -> None:
        self._answers = iter(answers)
        self.has_asked = threading.Semaphore(0)

    async def exchange(self, request: Request[Any]) -> tuple[int, dict[str, str], bytes]:
        answer = next(self._answers)
        self.has_asked.release()
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer()


def fine() -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b"5"


@pytest.fixture
def api() -> Iterator[Api]:
    with Api("http://127.0.0.1:1", "key", tries=1) as api:
        yield api


@pytest.fixture
def threads() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor() as threads:
        yield threads


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_end_of_the_loop_ends_requests_under_way(
    api: Api, threads: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    server = Server(None, fine)
    monkeypatch.setattr(AsyncApi, "_exchange", lambda _, request: server.exchange(request))
    waiting = threads.submit(api.send, ASKED)
    assert server.has_asked.acquire(timeout=10)
    if is_closed:
        api.close()
    else:
        assert api._loop is not None
        api._loop.call_soon_threadsafe(api._loop.stop)
    with pytest.raises(ApiUnavailable, match="closed"):
        waiting.result(10)
    assert threads.submit(api.send, ASKED).result(10) == 5


def test_a_thread_that_cannot_start_is_tried_again(
    api: Api, threads: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncApi, "_exchange", lambda _, request: Server(fine).exchange(request))

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            api.send(ASKED)
    assert threads.submit(api.send, ASKED).result(10) == 5


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("content", [b"<html>", b'{"code": "\xff"}', b'{"a":' * 100_000])
async def test_an_answer_that_nobody_can_read_is_not_one_of_the_api(
    monkeypatch: pytest.MonkeyPatch, status: int, content: bytes
) -> None:
    monkeypatch.setattr(transport, "WAIT_S", 0.001)
    server = Server(lambda: (status, {}, content))
    monkeypatch.setattr(AsyncApi, "_exchange", lambda _, request: server.exchange(request))
    async with AsyncApi("http://127.0.0.1:1", "key", tries=1) as api:
        with pytest.raises(ApiUnavailable):
            await api.send(ASKED)
