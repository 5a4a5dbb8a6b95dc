"""A stand-in for the providers: answers as they do, and counts their limits by its own code, exactly.

It takes the limits from the pool's file. A call is charged its prompt and `max_tokens`, and settled at its end.

    python providers.py models.toml [PORT]
"""

from __future__ import annotations

import asyncio
import collections
import datetime
import json
import math
import random
import sys
import time
import tomllib
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

FIRST_S, PER_TOKEN_S, CHUNK = 0.15, 0.005, 10
USED_BY_OTHERS = {"west": 40.0}
"""Requests of today that others have used, who share the account."""

Settle = Callable[[float], None]


class Limit:
    """One limit. `left` says what it has now, `take` charges units and returns a function that settles them."""

    def __init__(
        self, of: str, name: str, amount: float, per: str, kind: str = "", burst: float = 0, zone: str = "UTC"
    ):
        self.of, self.name, self.amount, self.per, self.zone = of, name, amount, per, zoneinfo.ZoneInfo(zone)
        self.kind = per if per == "in_flight" else kind or ("calendar" if per == "day" else "rolling")
        self.most = burst or amount
        self.level, self.at, self.window = self.most, time.time(), 0
        self.taken: collections.deque[list[float]] = collections.deque()  # of a rolling minute: when, and how much
        self.used: dict[int, float] = collections.defaultdict(float)  # units by minute, of a day
        self.refused = 0
        self.others = USED_BY_OTHERS.get(of, 0.0) if per == "day" else 0.0

    def left(self, now: float) -> float:
        if self.kind == "rolling":
            while self.taken and self.taken[0][0] <= now - 60:
                self.taken.popleft()
            return self.amount - sum(units for _, units in self.taken)
        if self.kind == "bucket":
            self.level = min(self.most, self.level + (now - self.at) * self.amount / 60)
        elif self.kind == "calendar" and self.window != (window := self._window(now)):
            self.level = self.amount - (0.0 if self.window else self.others)
            self.window = window
        self.at = now
        return self.level

    def take(self, units: float, now: float) -> Settle:
        self.left(now)
        entry, window, minute = [now, units], self.window, int(now // 60)
        self.level -= units
        self.used[minute] += units
        self.used.pop(minute - 1_440, None)
        if self.kind == "rolling":
            self.taken.append(entry)

        def settle(actual: float) -> None:
            self.used[minute] -= units - actual
            entry[1] = actual
            back = units if self.kind == "in_flight" else units - actual
            if self.window == window:
                self.level = min(self.most, self.level + back)

        return settle

    def reset_s(self, units: float, now: float) -> float:
        """Return the seconds until it has so many units, if nobody takes any."""
        if self.kind == "rolling":
            lacks, free_at = units - self.left(now), now
            for at, taken in self.taken:
                if lacks <= 0:
                    break
                lacks, free_at = lacks - taken, at + 60
            return free_at - now
        if self.kind == "bucket":
            return max(0.0, units - self.left(now)) * 60 / self.amount
        if self.kind == "in_flight":
            return 1.0
        local = datetime.datetime.fromtimestamp(now, self.zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0) + datetime.timedelta(days=1)
        return midnight.timestamp() - now if self.per == "day" else 60 - now % 60

    def _window(self, now: float) -> int:
        if self.per == "day":
            return datetime.datetime.fromtimestamp(now, self.zone).toordinal()
        return int(now // 60)


class Providers:
    """The providers of a pool's file."""

    def __init__(self, pool: dict[str, Any]) -> None:
        self.parents = {name: each.get("parent") for name, each in pool["resources"].items()}
        self.own = {
            name: [Limit(name, **one) for one in each.get("limits", ())] for name, each in pool["resources"].items()
        }
        self.by_user: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()

    def limits(self, model: str | None) -> list[Limit]:
        found = []
        while model is not None:
            found += self.own[model]
            model = self.parents[model]
        return found

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body, now = await request.json(), time.time()
        prompt = " ".join(each["content"] for each in body["messages"])
        tokens = len(prompt.split())
        costs = {"tokens": tokens + body["max_tokens"]}
        limits = self.limits(body["model"])
        for each in limits:
            if each.left(now) < costs.get(each.name, 1):
                return self._refused(each, costs.get(each.name, 1), now)
        settles = [(each.name, each.take(costs.get(each.name, 1), now)) for each in limits]
        answer = min(body["max_tokens"], int(random.Random(prompt).lognormvariate(5, 0.5)))
        usage = {"prompt_tokens": tokens, "completion_tokens": answer, "total_tokens": tokens + answer}
        self.calls[body["model"]] += 1
        try:
            await asyncio.sleep(FIRST_S)
            return await (self._streamed if body.get("stream") else self._at_once)(request, body, usage, limits)
        finally:
            self.by_user[body.get("user", "")] += tokens + answer
            for name, settle in settles:
                settle(tokens + answer if name == "tokens" else 1)

    def _refused(self, limit: Limit, units: float, now: float) -> web.Response:
        limit.refused += 1
        wait_s = limit.reset_s(units, now)
        text = f"Rate limit reached for {limit.name} per {limit.per} of {limit.of}: {limit.amount:g}"
        body = {"error": {"message": text, "type": limit.name, "code": "rate_limit_exceeded", "param": None}}
        return web.json_response(
            body, status=429, headers=headers([limit], now) | {"Retry-After": str(math.ceil(wait_s))}
        )

    async def _at_once(self, _: web.Request, body: Any, usage: Any, limits: list[Limit]) -> web.Response:
        await asyncio.sleep(usage["completion_tokens"] * PER_TOKEN_S)
        message = {"role": "assistant", "content": "word " * usage["completion_tokens"]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(chunk(body, "chat.completion", [choice], usage), headers=headers(limits, time.time()))

    async def _streamed(self, request: web.Request, body: Any, usage: Any, limits: list[Limit]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | headers(limits, time.time()))
        await response.prepare(request)
        left = usage["completion_tokens"]
        while left > 0:
            words = min(CHUNK, left)
            choice = {"index": 0, "delta": {"role": "assistant", "content": "word " * words}, "finish_reason": None}
            await response.write(event(chunk(body, "chat.completion.chunk", [choice])))
            await asyncio.sleep(words * PER_TOKEN_S)
            left -= words
        done = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await response.write(event(chunk(body, "chat.completion.chunk", [done])))
        await response.write(event(chunk(body, "chat.completion.chunk", [], usage)) + b"data: [DONE]\n\n")
        return response

    async def stats(self, _: web.Request) -> web.Response:
        """Tell what each limit has counted, by minute."""
        told = [
            {"of": each.of, "name": each.name, "per": each.per, "kind": each.kind, "amount": each.amount}
            | {"burst": each.most, "used": each.used, "used_by_others": each.others, "refused": each.refused}
            for limits in self.own.values()
            for each in limits
        ]
        return web.json_response({"limits": told, "tokens_by_user": self.by_user, "calls": self.calls})

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self.complete), web.get("/stats", self.stats)])
        return app


def headers(limits: list[Limit], now: float) -> dict[str, str]:
    """Return what is left, and when it will be the whole amount again; the quota of a day has names of its own."""
    found = {}
    for each in limits:
        if each.kind != "in_flight":
            name = f"{each.name}-day" if each.per == "day" else each.name
            found[f"x-ratelimit-remaining-{name}"] = f"{max(0.0, each.left(now)):.0f}"
            found[f"x-ratelimit-reset-{name}"] = f"{each.reset_s(each.most, now):.3f}"
    return found


def chunk(body: Any, kind: str, choices: list[Any], usage: Any = None) -> dict[str, Any]:
    told = {"id": "chatcmpl-1", "object": kind, "created": int(time.time()), "model": body["model"], "choices": choices}
    return told if usage is None else told | {"usage": usage}


def event(told: Any) -> bytes:
    return f"data: {json.dumps(told)}\n\n".encode()


if __name__ == "__main__":
    pool = tomllib.loads(Path(sys.argv[1]).read_text())
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8070
    web.run_app(Providers(pool).app(), host="127.0.0.1", port=port)
