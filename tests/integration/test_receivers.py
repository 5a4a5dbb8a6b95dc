"""The demonstration's receivers: a process of their own that answers as told and keeps an exact log."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import yarl

from emq.runtime import errors
from emq.storage.message import Message
from emq_demo import receivers
from emq_demo.receivers import Receivers
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher

TENANTS = {"quick": "fast", "späte/r": "slow:0.05", "shaky": "flaky:3", "dead": "down"}


@pytest.fixture
def running() -> Iterator[Receivers]:
    with Receivers(TENANTS) as r:
        yield r


def connect(r: Receivers) -> socket.socket:
    url = yarl.URL(r.url("quick"))
    assert url.host
    assert url.port
    return socket.create_connection((url.host, url.port), timeout=5)


def post(path: str, message_id: str, body: bytes = b"{}") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nWebhook-Id: {message_id}\r\nEMQ-Attempt: 2\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def read_answers(connection: socket.socket, count: int) -> list[bytes]:
    """Read so many answers without a body; returns their status lines."""
    data = b""
    while data.count(b"\r\n\r\n") < count:
        chunk = connection.recv(65536)
        assert chunk, f"closed after {data!r}"
        data += chunk
    return [answer.split(b"\r\n")[0] for answer in data.split(b"\r\n\r\n")[:count]]


async def test_each_tenant_behaves_as_told_and_the_log_is_exact(running: Receivers) -> None:
    endpoints = {name: Endpoint(name, yarl.URL(running.url(name), encoded=True)) for name in TENANTS}
    started_us = time.time_ns() // 1000
    outcomes = []
    async with Pusher(endpoints.get, addresses=AddressFilter(("127.0.0.1",))) as push:
        for n, name in enumerate(["quick", "späte/r", "shaky", "shaky", "shaky", "dead"]):
            try:
                await push(Message(f"m{n}", b"x" * 100, topic=name, attempt=n + 1))
                outcomes.append("ok")
            except errors.Retry as exc:
                outcomes.append(exc.reason)
    assert outcomes == ["ok", "ok", "ok", "ok", "HTTP 500", "connection refused"]
    receipts = running.stop()
    assert [(r.tenant, r.id, r.attempt, r.status) for r in receipts] == [
        ("quick", "m0", 1, 204),
        ("späte/r", "m1", 2, 204),
        ("shaky", "m2", 3, 204),
        ("shaky", "m3", 4, 204),
        ("shaky", "m4", 5, 500),
    ]
    assert started_us <= receipts[0].arrived_us <= time.time_ns() // 1000
    assert receipts[2].arrived_us - receipts[1].arrived_us >= 50_000
    assert running.stop() == []


def test_pipelined_and_torn_requests_are_answered_in_order(running: Receivers) -> None:
    slow = "/t/sp%C3%A4te%2Fr"
    stream = post("/t/quick", "a", b"\r\n\r\n" * 9) + post(slow, "b") + post("/t/quick", "c") + post("/t/nobody", "d")
    with connect(running) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(stream), 7):
            connection.sendall(stream[at : at + 7])
        assert read_answers(connection, 4) == [
            b"HTTP/1.1 204 No Content",
            b"HTTP/1.1 204 No Content",
            b"HTTP/1.1 204 No Content",
            b"HTTP/1.1 404 Not Found",
        ]
    assert [(r.id, r.attempt) for r in running.stop()] == [("a", 2), ("b", 2), ("c", 2)]


def test_a_flood_behind_a_slow_answer_is_held_back_and_then_served(running: Receivers) -> None:
    with connect(running) as connection:
        connection.sendall(post("/t/sp%C3%A4te%2Fr", "first"))
        connection.sendall(post("/t/quick", "next", b"x" * 1000) * 500)
        assert len(read_answers(connection, 501)) == 501
    assert Counter((r.tenant, r.status) for r in running.stop()) == {("späte/r", 204): 1, ("quick", 204): 500}


def test_a_caller_that_hangs_up_is_on_record(running: Receivers) -> None:
    with connect(running) as connection:
        connection.sendall(post("/t/sp%C3%A4te%2Fr", "a"))
    with connect(running) as connection:
        connection.sendall(post("/t/quick", "b"))
        read_answers(connection, 1)
    assert [r.status for r in running.stop() if r.tenant == "späte/r"] == [receivers.HUNG_UP]


@pytest.mark.parametrize(
    "request_head", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"]
)
def test_what_is_not_understood_is_refused(running: Receivers, request_head: bytes) -> None:
    with connect(running) as connection:
        connection.sendall(request_head)
        assert read_answers(connection, 1) == [b"HTTP/1.1 400 Bad Request"]
        assert connection.recv(1) == b""


def test_the_process_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from emq_demo.receivers import Receivers; r = Receivers({'a': 'fast'}).start();"
            "print(r.url('a'), flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout
    with parent:
        url = yarl.URL(parent.stdout.readline().decode().strip())
        os.kill(parent.pid, signal.SIGKILL)
    assert url.host
    assert url.port
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            socket.create_connection((url.host, url.port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    pytest.fail("the receivers outlived their parent")


@pytest.mark.parametrize(
    "text", ["", "quick", "slow", "slow:0", "slow:x", "slow:nan", "flaky:0", "flaky:1.5", "fast:1"]
)
def test_an_unknown_behaviour_is_refused_by_value(text: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"receiver behaviour '{text}' is not known; use fast"):
        Receivers({"a": text})
