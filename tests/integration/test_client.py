"""`emq.Client`: publishing from threads, across forks, to the end of the process, and from a server that is silent."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

import emq
import emq_servers as servers
from emq.database.forks import ForkGuard
from emq.producer.outgoing import Outgoing
from emq.runtime import errors
from support.pages import module_of, snippets
from support.python_path import python_path

ROOT = pathlib.Path(__file__).parents[2]

NOT_THERE = {"run", "run_until_signal", "receive"}
"""Methods of `App` that consume."""


@pytest.fixture
def client(tmp_path: pathlib.Path) -> Iterator[emq.Client]:
    with emq.Client(f"sqlite:///{tmp_path}/emq.db") as client:
        client.create_topic("orders", qps=1000)
        yield client


def app_of(client: emq.Client) -> Any:
    return client._background.get()._app


def run(directory: pathlib.Path, script: str, **environment: str) -> str:
    """Run a script as a process of its own; return its output."""
    (directory / "script.py").write_text(script)
    variables = {**os.environ, "PYTHONPATH": python_path(ROOT), "EMQ_STORE": "sqlite:///emq.db", **environment}
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=directory, env=variables, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_it_has_the_methods_of_an_app_with_their_signatures() -> None:
    offered = {
        name
        for name, method in inspect.getmembers(emq.App, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in NOT_THERE
    }
    assert {"publish", "publish_many", "schedule", "create_topic", "recall"} <= offered
    for name in offered:
        assert inspect.signature(getattr(emq.Client, name)) == inspect.signature(getattr(emq.App, name))
        assert not inspect.iscoroutinefunction(getattr(emq.Client, name))


def test_a_script_publishes_plans_and_reads(client: emq.Client) -> None:
    id_ = client.publish("orders", b"17", key="acme", message_id="mine")
    assert id_ == "mine"
    assert len(client.publish_many("orders", [b"1", b"2"])) == 2
    later = client.publish("orders", b"later", delay_ms=60_000)
    assert [planned.id for planned in client.planned()] == [later]
    assert client.recall("orders", later) == {later}
    client.create_topic("mails", qps=5)
    client.update_topic("mails", qps=7)
    client.pause("mails")
    assert client.lag("orders") == 3
    told = {topic.name: (topic.qps, topic.state) for topic in client.topics()}
    assert told == {"orders": (1000, "active"), "mails": (7, "paused")}
    client.resume("mails")
    client.drain("mails")
    assert client.delete("mails") == 0
    with pytest.raises(errors.UnknownTopic, match="nowhere"):
        client.publish("nowhere", b"")
    outcomes = client.send([Outgoing("orders", b""), Outgoing("nowhere", b"")])
    assert [type(outcome) for outcome in outcomes] == [str, errors.UnknownTopic]


def test_threads_share_round_trips(client: emq.Client) -> None:
    client.publish("orders", b"")
    log, sizes = app_of(client).store.log, []
    put = log.put

    async def slow(batch: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(batch))
        await asyncio.sleep(0.02)
        return await put(batch, *arguments, **options)

    log.put = slow
    with ThreadPoolExecutor(64) as threads:
        ids = list(threads.map(lambda i: client.publish("orders", b"%d" % i), range(640)))
    assert len(set(ids)) == 640
    assert len(sizes) < 160, "each thread made round trips of its own"


def test_it_refuses_to_block_an_event_loop(client: emq.Client) -> None:
    async def view() -> None:
        with pytest.raises(errors.WrongState, match=r"emq\.App"):
            client.publish("orders", b"")
        assert await asyncio.to_thread(client.publish, "orders", b"17")

    asyncio.run(view())


def test_a_closed_client_says_so_and_is_gone() -> None:
    with emq.Client("memory:") as client:
        client.create_topic("orders", qps=1)
        background = client._background.get()
    client.close()
    with pytest.raises(errors.WrongState, match="is closed"):
        client.publish("orders", b"")
    with pytest.raises(errors.WrongState, match="is closed"):
        background.call(lambda app: app.create_topic("late", qps=1), 5, writes=True)
    assert not background._thread.is_alive()
    emq.Client("memory:").close()  # never opened


def test_closing_waits_for_calls_under_way(client: emq.Client) -> None:
    put, began = hold(client)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(client.publish, "orders", b"17")
        began.wait(10)
        closing = threading.Thread(target=client.close)
        closing.start()
        time.sleep(0.05)
        assert not call.done()
        put.set()
        assert call.result(10)
        closing.join(10)


def hold(client: emq.Client) -> tuple[threading.Event, threading.Event]:
    """Let the store answer no put until the first event is set; the second is set when a put has begun."""
    log, go_on, began = app_of(client).store.log, threading.Event(), threading.Event()
    put = log.put

    async def held(*arguments: Any, **options: Any) -> Any:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return await put(*arguments, **options)

    log.put = held
    return go_on, began


def test_ctrl_c_ends_a_call_and_not_the_client(client: emq.Client) -> None:
    go_on, began = hold(client)

    def interrupt() -> None:
        began.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        client.publish("orders", b"17")
    interrupting.join()
    go_on.set()
    assert client.publish("orders", b"18")


def test_a_server_that_falls_silent_leaves_the_outcome_unknown(tmp_path: pathlib.Path) -> None:
    with servers.start_redis() as server, emq.Client(server.url, database=f"sqlite:///{tmp_path}/emq.db") as client:
        client.create_topic("orders", qps=10, dedupe_s=60)
        client.publish("orders", b"first")
        server.pause()
        try:
            began_s = time.monotonic()
            with pytest.raises(errors.OutcomeUnknown, match=r"no answer within 0\.3 s"):
                client.with_timeout(0.3).publish("orders", b"17", message_id="mine")
            assert time.monotonic() - began_s < 5
            with pytest.raises(errors.StoreUnavailable, match="no answer") as caught:
                client.with_timeout(0.3).planned()
            assert not isinstance(caught.value, errors.OutcomeUnknown)  # it writes nothing
        finally:
            server.resume()
        for _ in range(2):
            assert client.publish("orders", b"17", message_id="mine") == "mine"
        assert client._call(tails) == 2, "a repeat was stored again"


async def tails(app: emq.App) -> int:
    """Return how many messages the topic orders has ever stored."""
    topic = await app.catalog.get("orders")
    return sum(bounds.tail - app.store.log.first_offset for bounds in await app.store.log.bounds(topic.all_queues()))


def test_a_server_that_never_answers_stores_nothing(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        client = emq.Client(url, database=f"sqlite:///{tmp_path}/emq.db", timeout_s=0.3)
        with pytest.raises(errors.StoreUnavailable, match="nothing was sent") as caught:
            client.publish("orders", b"17")
        assert not isinstance(caught.value, errors.OutcomeUnknown)
        began_s = time.monotonic()
        client.close()
        assert time.monotonic() - began_s < 5


def test_a_store_that_cannot_be_opened_is_tried_again(tmp_path: pathlib.Path) -> None:
    with emq.Client(f"sqlite:///{tmp_path}/later/emq.db") as client:
        for _ in range(2):
            with pytest.raises(errors.EMQError, match="later"):
                client.topics()
        (tmp_path / "later").mkdir()
        assert client.topics() == []


def test_the_process_ends_soon_and_closes_the_client_before(tmp_path: pathlib.Path) -> None:
    """A trail, for one, is written to its end in a thread when the app closes."""
    script = """
import asyncio, emq
client = emq.Client()
client.create_topic("orders", qps=1)
close = emq.App.__aexit__
async def closing(*arguments):
    await close(*arguments)
    await asyncio.to_thread(print, "closed in a thread")
emq.App.__aexit__ = closing
print(client.publish("orders", b"17", message_id="mine"))
"""
    assert run(tmp_path, script) == "mine\nclosed in a thread\n"


def test_a_thread_that_outlives_the_main_thread_is_told_that_nothing_was_applied(tmp_path: pathlib.Path) -> None:
    script = """
import emq, logging, threading
logging.disable()  # the database is said to be away, too
client = emq.Client()
client.create_topic("orders", qps=1)
def go_on():
    threading.main_thread().join()
    try:
        while True:
            client.publish("orders", b"late")
    except emq.EMQError as exc:
        print(type(exc).__name__, exc)
threading.Thread(target=go_on).start()
"""
    assert "Unavailable sqlite:///emq.db takes no more calls, because the process ends; nothing was applied" in run(
        tmp_path, script
    )


def test_a_client_works_in_children_that_are_forked_while_threads_publish(tmp_path: pathlib.Path) -> None:
    script = """
import emq, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside threads
client = emq.Client()
client.create_topic("orders", qps=1)
stopping, published = threading.Event(), []
def publish():
    while not stopping.is_set():
        published.append(client.publish("orders", b"parent"))
threads = [threading.Thread(target=publish) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(3):
    so_far = len(published)
    while len(published) < so_far + 50:
        pass
    if (child := os.fork()) == 0:
        stopping.set()
        with open("children.txt", "a") as file:
            for _ in range(20):
                print(client.publish("orders", b"child"), file=file)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
so_far = len(published)
while len(published) < so_far + 50:
    pass
stopping.set()
for thread in threads:
    thread.join()
print(len(published))
"""
    with servers.start_redis() as server:  # on one SQLite file, the writers of one process would starve the other's
        published = int(run(tmp_path, script, EMQ_STORE=server.url, EMQ_DATABASE="sqlite:///emq.db"))
        ids = (tmp_path / "children.txt").read_text().split()
        assert len(set(ids)) == 60
        with emq.Client(server.url, database=f"sqlite:///{tmp_path}/emq.db") as client:
            assert client._call(tails) == published + 60


def test_a_forked_child_and_its_parent_share_an_sqlite_file(tmp_path: pathlib.Path) -> None:
    """A connection that the child inherited would keep its locks from it, and lose what it publishes."""
    script = """
import emq, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside threads
client = emq.Client()
client.create_topic("orders", qps=1)
client.publish("orders", b"parent")
(told, tell), (heard, say) = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    client.publish("orders", b"child")
    os.write(tell, b"published")
    os.read(heard, 1)
    client.publish("orders", b"child, after the parent has closed")
    sys.exit(0)
os.read(told, 9)
client.close()
with emq.Client() as third:
    print(third.topics()[0].name)
os.write(say, b"x")
assert os.waitpid(child, 0)[1] == 0
"""
    assert run(tmp_path, script) == "orders\n"
    with emq.Client(f"sqlite:///{tmp_path}/emq.db") as client:
        assert client._call(tails) == 3


def test_a_process_of_multiprocessing_closes_its_client_at_its_end(tmp_path: pathlib.Path) -> None:
    """A trail, for one, is written to its end when the app closes."""
    script = """
import emq, multiprocessing, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside threads
client = emq.Client()
client.create_topic("orders", qps=1)
close = emq.App.__aexit__
async def closing(*arguments):
    await close(*arguments)
    print("closed", flush=True)
emq.App.__aexit__ = closing
def work():
    client.publish("orders", b"17")
    def go_on():
        main.join(0.5)  # by then the main thread is at its end
        print(client.publish("orders", b"18", message_id="mine"), flush=True)
    main = threading.main_thread()
    threading.Thread(target=go_on).start()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
print(child.exitcode)
"""
    assert run(tmp_path, script) == "mine\nclosed\n0\nclosed\n"


def test_a_fork_waits_for_transactions_on_sqlite_files_and_closes_their_connections(client: emq.Client) -> None:
    database, begun, go_on = app_of(client).database, threading.Event(), threading.Event()

    def hold(connection: sa.Connection) -> None:
        begun.set()
        go_on.wait(10)

    async def held(app: emq.App) -> None:
        await database.run(hold)

    with ThreadPoolExecutor(2) as threads:
        transaction = threads.submit(client._call, held)
        assert begun.wait(10)
        fork = threads.submit(ForkGuard.before_fork)
        go_on.set()
        transaction.result(10)
        fork.result(10)
        assert database._engine.pool.checkedin() == 0
        # From here to `after_fork` a child may begin. Transactions wait.
        publish = threads.submit(client.publish, "orders", b"17")
        assert not publish.done()
        assert database._engine.pool.checkedin() == 0
        ForkGuard.after_fork()
        assert publish.result(10)


def test_a_call_that_comes_while_the_loop_closes_does_not_wait_for_an_answer() -> None:
    client = emq.Client("memory:")
    client.topics()
    background, late = client._background.get(), ThreadPoolExecutor(1)
    close, asked = background._loop.close, []

    def closing() -> None:
        asked.append(late.submit(background.call, lambda app: app.planned(), 15, writes=False))
        while not background._waiting or not background._loop._ready:  # type: ignore[attr-defined]
            pass
        close()

    background._loop.close = closing  # type: ignore[method-assign]
    client.close()
    with late, pytest.raises(errors.WrongState, match="is closed"):
        asked[0].result(10)


def test_a_call_that_does_not_end_when_the_client_closes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq.app.background.CLOSE_S", 0.1)
    client, threads, begun = emq.Client("memory:"), ThreadPoolExecutor(1), threading.Event()

    async def deaf(_: emq.App) -> None:
        while True:
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    call = threads.submit(client._background.get().call, deaf, None, writes=True)
    assert begun.wait(10)
    client.close()
    with threads, pytest.raises(errors.OutcomeUnknown, match="closed"):
        call.result(10)


@pytest.mark.parametrize("timeout_s", ["5", 0, -1, float("nan"), float("inf"), True])
def test_a_wrong_timeout_is_refused_before_anything_is_sent(client: emq.Client, timeout_s: Any) -> None:
    with pytest.raises(errors.InvalidSettings, match="timeout_s"):
        client.with_timeout(timeout_s)
    with pytest.raises(errors.InvalidSettings, match="timeout_s"):
        emq.Client("memory:", timeout_s=timeout_s)


def test_the_callers_generators_run_in_the_callers_thread(client: emq.Client) -> None:
    """A query of Django, for one, refuses to run beside an event loop; and it would block all other calls."""
    ran_in = []

    def payloads() -> Iterator[str]:
        for i in range(2):
            ran_in.append(threading.current_thread())
            yield client.publish("orders", b"%d" % i)

    assert len(client.publish_many("orders", payloads())) == 2
    assert len(client.publish_many("orders", payloads=payloads())) == 2
    assert len(client.send(Outgoing("orders", payload) for payload in payloads())) == 2
    assert set(ran_in) == {threading.current_thread()}
    with pytest.raises(errors.InvalidMessage, match="is one payload"):
        client.publish_many("orders", b"17")  # type: ignore[arg-type]


def test_a_client_that_nobody_has_any_more_is_closed() -> None:
    client = emq.Client("memory:")
    client.topics()
    thread = client._background.get()._thread
    del client
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


request_id = contextvars.ContextVar("request_id", default="")


class Seen(emq.Middleware):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
        self.calls.append((call.topic, request_id.get()))
        return await call_next(call)


def test_its_middleware_runs_with_the_context_of_the_call() -> None:
    seen = Seen()
    with emq.Client("memory:", middleware=[seen], content_type="application/msgpack") as client:
        client.create_topic("orders", qps=1)
        request_id.set("7")
        client.publish("orders", {"id": 1}, delay_ms=60_000)
        client.publish_many("orders", [b"1"])
        outcomes = client.send([Outgoing("orders", b"2", id="mine"), Outgoing("nowhere", b""), "no message"])  # type: ignore[list-item]
        assert [type(outcome) for outcome in outcomes] == [str, errors.UnknownTopic, errors.InvalidMessage]
        assert outcomes[0] == "mine"
        [planned] = client.planned()
    assert planned.payload == b"\x81\xa2id\x01"
    assert seen.calls == [("orders", "7"), ("orders", "7"), ("orders", "7"), ("nowhere", "7")]
    with pytest.raises(errors.InvalidSettings, match="middleware"):
        emq.Client("memory:", middleware=[object()])  # type: ignore[list-item]


def test_the_documented_module_works(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = module_of(snippets("docs/web.md")[3])
    for _ in range(2):  # each process prepares
        module.prepare()
    assert module.order("acme", b"17")
    module.queues.close()
