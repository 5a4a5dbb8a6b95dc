"""Runs the load through LiteLLM's router, in an environment of its own.

It gets the limits that it can express: of each model the least of its own, its account's and its provider's, by the
minute, the day and in flight; fallbacks of chats, and priorities.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # look for no list of prices on the network

import litellm
import uvloop
from litellm import Router

from bench.gateway import load

litellm.suppress_debug_info = True

POLL_S = 0.05
"""Time between the looks of a call that waits for room; with the default of 3 ms, dozens that wait leave no CPU."""


def deployments(orders: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "model_name": each["group"],
            "litellm_params": {
                "model": f"openai/{each['model']}",
                "api_base": each["url"],
                "api_key": each["key"],
                **each["limits"],
            },
        }
        for each in orders["deployments"]
    ]


async def main(orders: dict[str, Any]) -> None:
    router = Router(
        model_list=deployments(orders),
        fallbacks=[{"large": ["small"]}],
        polling_interval=POLL_S,
        **orders["settings"],
    )

    async def stream(messages: Any, *, max_tokens: int, tenant: str, kind: str) -> AsyncIterator[str]:
        more = {"priority": 0} if kind == load.CHAT else {"priority": 2, "disable_fallbacks": True}
        asked = {
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked |= {"user": tenant, "allowed_openai_params": ["user"]}
        try:
            chunks = await router.acompletion("large", **asked, **more)
            async for chunk in chunks:
                for choice in chunk.choices:
                    yield choice.delta.content or ""
        except litellm.RateLimitError as exc:
            raise load.Refused(str(exc), float(exc.response.headers.get("retry-after") or 0)) from exc

    loaded = load.Load(stream, await load.begun(orders))
    await loaded.run()
    load.tell(loaded)


if __name__ == "__main__":
    uvloop.run(main(load.orders()))
