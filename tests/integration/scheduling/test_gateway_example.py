"""The example of a gateway to models, beside its stand-in of the providers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import socket
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiohttp", reason="the gateway needs the extra push")

import aiohttp
from aiohttp import web

from emq_scheduling.pools import documents
from support import page_blocks
from support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "gateway"
TEXT = (EXAMPLE / "models.toml").read_text()
PAGE = EXAMPLE.parents[1] / "docs" / "model-gateway.md"
LARGE = 'takes = ["chat", "batch"]'
KEY = {"Authorization": "Bearer sk-acme"}
ASKED = {"messages": [{"role": "user", "content": "Say something"}], "max_tokens": 20}


class Place(NamedTuple):
    """A gateway, its providers, and a caller."""

    example: ModuleType
    module: ModuleType
    providers: Any
    url: str
    session: aiohttp.ClientSession

    async def ask(self, **more: Any) -> tuple[int, str]:
        async with self.session.post(self.url, json=ASKED | more, headers=KEY) as answer:
            return answer.status, await answer.text()


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_of_example", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


Opened = Callable[..., contextlib.AbstractAsyncContextManager[Place]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Open a gateway; `pool` and `real` are the texts of its pool, and of the limits that providers really have."""

    @contextlib.asynccontextmanager
    async def place(pool: str = TEXT, real: str = TEXT) -> AsyncIterator[Place]:
        port, providers_port = free_port(), free_port()
        monkeypatch.setenv("EMQ_STORE", f"sqlite:///{tmp_path}/emq.db")
        monkeypatch.setenv("GATEWAY_PORT", str(port))
        example, module = loaded("gateway"), loaded("providers")
        providers = module.Providers(tomllib.loads(real))
        runner = web.AppRunner(providers.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", providers_port).start()
        try:
            async with aiohttp.ClientSession() as session, example.app:
                await example.gateway.scheduling.pools.put(documents.load(pool.replace("8070", str(providers_port))))
                async with example.app.running():
                    url = f"http://127.0.0.1:{port}/v1/chat/completions"
                    yield Place(example, module, providers, url, session)
        finally:
            await runner.cleanup()

    return place


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = {block.title: block.text for block in page_blocks.blocks(PAGE) if block.title}
    for name in ("models.toml", "gateway.py", "providers.py"):
        assert shown[name] == (EXAMPLE / name).read_text(), f"docs/model-gateway.md shows another {name}"


async def test_a_caller_gets_a_whole_answer_or_its_chunks(opened: Opened) -> None:
    async with opened() as place:
        status, text = await place.ask()
        told = json.loads(text)
        assert (status, told["choices"][0]["message"]["content"]) == (200, "word " * 20)
        assert told["usage"] == {"prompt_tokens": 2, "completion_tokens": 20, "total_tokens": 22}
        status, text = await place.ask(stream=True, service_tier="flex")
        assert status == 200
        assert text.count("data: {") == 4
        assert text.endswith("data: [DONE]\n\n")
        assert place.providers.by_user == {"acme": 44}


async def test_a_call_that_no_model_can_do_is_refused_at_once(opened: Opened) -> None:
    async with opened() as place:
        status, text = await place.ask(max_tokens=200_000)
        assert status == 400
        assert "above 100000, the most that any able resource allows" in text
        async with place.session.post(place.url, json=ASKED) as answer:
            assert answer.status == 401


async def test_a_chat_takes_its_fallback_where_no_large_model_is_open(opened: Opened) -> None:
    async with opened(TEXT.replace(LARGE, f"{LARGE}\npaused = true")) as place:
        status, text = await place.ask()
        assert (status, json.loads(text)["model"]) == (200, "north-small")


async def test_callers_do_not_see_that_a_provider_refuses(opened: Opened) -> None:
    real = TEXT.replace(
        '{ name = "requests", amount = 150, per = "minute" }', '{ name = "requests", amount = 0, per = "minute" }'
    )
    async with opened(real=real) as place:
        answers = await asyncio.gather(*(place.ask() for _ in range(9)))
        assert [status for status, _ in answers] == [200] * 9
        assert sum(limit.refused for limit in place.providers.own["north-large"]) >= 1
        assert "north-large" not in {json.loads(text)["model"] for _, text in answers}


async def test_the_gateway_keeps_to_what_is_left_of_the_quota_of_a_day(opened: Opened) -> None:
    pool = TEXT.replace("[resources.north-large]", "[resources.north-large]\npaused = true")
    pool = pool.replace("[resources.south-large]", "[resources.south-large]\npaused = true")
    async with opened(pool) as place:
        [quota] = [limit for limit in place.providers.own["west"] if limit.per == "day"]
        quota.others = 146.0  # of 150
        for _ in range(2):
            assert (await place.ask(service_tier="flex"))[0] == 200
        third = asyncio.create_task(place.ask(service_tier="flex"))
        await asyncio.sleep(1.0)
        assert not third.done()  # by the last answer two are left, of which it leaves a hundredth to the more urgent
        assert quota.refused == 0
        third.cancel()


async def test_a_caller_that_hangs_up_takes_its_call_back(opened: Opened) -> None:
    paused = TEXT.replace(LARGE, f"{LARGE}\npaused = true").replace('takes = ["chat-small"]', "takes = []")
    async with opened(paused) as place:
        asking = asyncio.create_task(place.ask(service_tier="flex"))
        await until(lambda: place.example.gateway._callers)
        [id_] = place.example.gateway._callers
        asking.cancel()
        await until(lambda: not place.example.gateway._callers)
        scheduling = place.example.gateway.scheduling
        assert (await scheduling.result("models", id_, timeout_s=20)).state == "cancelled"


async def test_a_caller_learns_that_a_provider_broke_off(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as place:
        event, written = place.module.event, list[Any]()

        def broken(told: Any) -> bytes:
            written.append(told)
            if len(written) > 1:
                raise RuntimeError("the provider breaks off")
            return event(told)

        monkeypatch.setattr(place.module, "event", broken)
        status, text = await place.ask(stream=True)
        assert status == 200
        assert "broke off" in text
        assert len(written) == 2  # nobody tried it again
