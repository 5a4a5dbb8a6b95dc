"""`emq run --reload` in processes, as a developer has it."""

from __future__ import annotations

import signal
from pathlib import Path

from support.emq_processes import Shell, line_with, until

SHOP = """
import asyncio

import emq

app = emq.App()


@app.on_startup
async def topics() -> None:
    await app.create_topic("orders", qps=100, exist_ok=True)


@app.handler("orders")
async def order(message: emq.Message) -> None:
    with open("done.txt", "a") as file:
        print({version}, message.payload.decode(), message.attempt, file=file)
    await asyncio.sleep({sleep_s})
"""


def done() -> list[str]:
    file = Path("done.txt")
    return file.read_text().splitlines() if file.exists() else []


def test_messages_in_flight_at_a_change_are_delivered_again_to_the_new_code(emq: Shell) -> None:
    Path("shop.py").write_text(SHOP.format(version=1, sleep_s=3600))
    host = emq.start("run shop --reload")
    line_with(host, "consuming 1 topic")
    emq.here("publish orders a")
    until(lambda: done() == ["1 a 1"])
    Path("shop.py").write_text(SHOP.format(version=2, sleep_s=0))
    line_with(host, "changed: shop.py; starting again")
    until(lambda: len(done()) == 2)
    assert done()[1].startswith("2 a ")
    host.send_signal(signal.SIGINT)
    assert host.wait(10) == 0


HANGING = """
import asyncio
import contextvars

import emq

app = emq.App()
variable = contextvars.ContextVar("variable")


def say(text: str) -> None:
    with open("done.txt", "a") as file:
        print(text, file=file)


@app.on_startup
async def first():
    token, task = variable.set(1), asyncio.current_task()
    await app.create_topic("orders", qps=100, exist_ok=True)
    yield
    variable.reset(token)
    say("ends in the task in which it began" if asyncio.current_task() is task else "another task")


@app.on_shutdown
async def hang():
    say("hangs")
    await asyncio.sleep(3600)


@app.handler("orders")
async def order(message: emq.Message) -> None: ...
"""


def test_a_second_signal_ends_a_shutdown_hook_that_hangs_and_the_others_run(emq: Shell) -> None:
    Path("shop.py").write_text(HANGING)
    host = emq.start("run shop")
    line_with(host, "consuming 1 topic")
    host.send_signal(signal.SIGTERM)
    until(lambda: done() == ["hangs"])
    host.send_signal(signal.SIGTERM)
    assert host.wait(10) == 0
    assert done() == ["hangs", "ends in the task in which it began"]
