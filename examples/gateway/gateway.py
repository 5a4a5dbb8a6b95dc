"""A gateway to models: one address for the models of all providers, which exceeds no limit of theirs.

It speaks the protocol of OpenAI's chat completions. Each call is a task of the pool `models` (models.toml): EMQ starts
it on a model that has room, chats before batches, and batches of tenants by their weights.

    emq scheduling import models.toml
    emq up --app gateway
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

import emq
from emq_scheduling import Overloaded, ResourceFailed, Run, Scheduling, Task

TENANTS = {"sk-acme": "acme", "sk-bolt": "bolt", "sk-crux": "crux"}
"""Tenants by the keys that callers send. Keep yours in a database."""

FALLBACKS = {"chat": ["chat", "chat-small"]}
PATIENCE_S = 2.0
"""After this time without room, a chat goes to its fallback."""

LONGEST_S = {"chat": 60.0, "batch": 3_600.0}
"""Longest time for which a caller waits for the next chunk."""

Chunk = dict[str, Any]


class Failed(Exception):
    """The provider refused the call itself, or broke off in the middle: nobody tries it again."""


class Gateway:
    """Calls of models as tasks of a pool. Callers and the performer meet in this process."""

    def __init__(self, app: emq.App) -> None:
        self.scheduling = Scheduling(app)
        self.scheduling.performer("models")(self._call)
        self._callers: dict[str, asyncio.Queue[Chunk | Failed | None]] = {}
        app.on_startup(host_only=True)(self._connected)

    async def stream(self, body: Chunk, *, tenant: str = "", kind: str = "chat") -> AsyncGenerator[Chunk]:
        """Yield the chunks of an answer as they come. Raises `TaskRefused`, `TimeoutError`, `Failed`."""
        words = sum(len(str(each["content"]).split()) for each in body["messages"])  # count tokens as your models do
        id_ = uuid.uuid4().hex
        chunks = self._callers[id_] = asyncio.Queue()
        try:
            await self.scheduling.submit(
                "models",
                kind,
                json.dumps(body),
                id=id_,
                tenant=tenant,
                costs={"tokens": words + body["max_tokens"]},
                tries=FALLBACKS.get(kind),
                patience_s=PATIENCE_S if kind in FALLBACKS else None,
            )
            while (chunk := await asyncio.wait_for(chunks.get(), LONGEST_S[kind])) is not None:
                if isinstance(chunk, Failed):
                    raise chunk
                yield chunk
        except (asyncio.CancelledError, GeneratorExit, TimeoutError):
            await self.scheduling.cancel("models", id_)  # nobody waits for it any more
            raise
        finally:
            del self._callers[id_]

    async def _call(self, task: Task, run: Run) -> None:
        """Do one call on the model `run.resource`."""
        caller = self._callers.get(task.id, asyncio.Queue())  # after a restart, the caller of a task is gone
        body = json.loads(task.payload) | {"model": run.resource, "user": task.tenant}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        url, secret = run.attributes["url"], {"Authorization": f"Bearer {run.attributes['key']}"}
        has_begun = False
        try:
            async with self._session.post(f"{url}/chat/completions", json=body, headers=secret) as answer:
                await _look(run, answer)
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        chunk = json.loads(line.removeprefix(b"data: "))
                        if chunk.get("usage"):
                            run.used(tokens=chunk["usage"]["total_tokens"])
                        caller.put_nowait(chunk)
                        has_begun = True
            caller.put_nowait(None)
        except aiohttp.ClientError as exc:
            if not has_begun:
                raise ResourceFailed(f"{run.resource}: {exc}") from exc  # another model does it
            caller.put_nowait(Failed(f"{run.resource} broke off: {exc}"))
            raise emq.Reject(str(exc)) from exc
        except Failed as exc:
            caller.put_nowait(exc)
            raise emq.Reject(str(exc)) from exc

    async def _connected(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._session:
            yield


async def _look(run: Run, answer: aiohttp.ClientResponse) -> None:
    """Tell EMQ what the provider says of its limits, and raise unless the call goes on."""
    if (left := answer.headers.get("x-ratelimit-remaining-requests-day")) is not None:
        run.left("requests", float(left), reset_s=float(answer.headers["x-ratelimit-reset-requests-day"]), per="day")
    if answer.status == 429:
        raise Overloaded(await answer.text(), after_s=float(answer.headers.get("Retry-After", 1)))
    if answer.status >= 500:
        raise ResourceFailed(f"{answer.status} {answer.reason}")
    if answer.status != 200:
        raise Failed(await answer.text())


app = emq.App()
gateway = Gateway(app)


async def completions(request: web.Request) -> web.StreamResponse:
    """Answer `POST /v1/chat/completions`; `"service_tier": "flex"` makes it a batch call."""
    tenant = TENANTS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
    if tenant is None:
        raise web.HTTPUnauthorized(text="send a key of a tenant: Authorization: Bearer ...")
    body = {"max_tokens": 300, "messages": []} | await request.json()
    kind = "batch" if body.pop("service_tier", "") == "flex" else "chat"
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    chunks = []
    try:
        async with contextlib.aclosing(gateway.stream(body, tenant=tenant, kind=kind)) as stream:
            async for chunk in stream:
                if not body.get("stream"):
                    chunks.append(chunk)
                    continue
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"data: %s\n\n" % json.dumps(chunk).encode())
    except (emq.TaskRefused, TimeoutError, Failed) as exc:
        if not response.prepared:
            refusal = web.HTTPServiceUnavailable if isinstance(exc, TimeoutError) else web.HTTPBadRequest
            raise refusal(text=str(exc) or "no model had room in time") from exc
        await response.write(b"data: %s\n\n" % json.dumps({"error": {"message": str(exc)}}).encode())
    if not body.get("stream"):
        return web.json_response(whole(chunks))
    await response.write(b"data: [DONE]\n\n")
    return response


def whole(chunks: list[Chunk]) -> Chunk:
    """Return one answer instead of its chunks."""
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(texts)}, "finish_reason": "stop"}
    return chunks[-1] | {"object": "chat.completion", "choices": [choice]}


@app.on_startup(host_only=True)
async def serve() -> AsyncIterator[None]:
    """Serve callers while the host runs."""
    site = web.Application()
    site.add_routes([web.post("/v1/chat/completions", completions)])
    runner = web.AppRunner(
        site, handler_cancellation=True, shutdown_timeout=5
    )  # a caller that hangs up takes its task back
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(os.environ.get("GATEWAY_PORT", "8060"))).start()
    yield
    await runner.cleanup()
