"""A merge key apart from the payload: messages of one key become one, and a fold says what becomes of the payloads.

The fold in Lua needs the extra `lua`, except on Redis, which brings its own.
"""

import asyncio
import os
import pathlib
from typing import Any

from emq import App, EMQError, Message, Settings

app = App(os.environ.get("EMQ_STORE", "memory:"), options=Settings(lua_folds=True))
OWN_FOLD = pathlib.Path(__file__).with_name("merge_key.lua").read_text()  # runs in the store, atomically with the add


@app.handler("*")
async def show(message: Message) -> None:
    text = message.payload.decode().replace("\n", " + ")
    print(f"{message.topic}: {text} (merged from {message.merged}, last sent by {(message.headers or {})['by']})")


async def main() -> None:
    async with app:
        merging: dict[str, Any] = {
            "qps": 100,
            "kind": "range_merge",
            "time_range_ms": 1_000,
            "merge": "key",
            "exist_ok": True,
        }
        await app.create_topic("stock-moved", fold="sum", **merging)
        await app.create_topic("profile-saved", fold="latest", **merging)
        await app.create_topic("basket", fold="union", **merging)
        await app.create_topic("temperature", fold="lua", fold_lua=OWN_FOLD, **merging)
        payloads = {
            "stock-moved": ["-1", "-1", "12", "-3"],
            "profile-saved": ["name=An", "name=Ann", "name=Anna"],
            "basket": ["apples", "bread\nbutter", "apples"],
            "temperature": ["18.5", "21", "17", "19.5"],
        }
        for topic, texts in payloads.items():
            for number, text in enumerate(texts, 1):
                await app.publish(topic, text, merge_key="item 42", headers={"by": f"sender {number}"})
        async with app.running():
            await asyncio.sleep(2.2)


try:
    asyncio.run(main())
except EMQError as exc:
    raise SystemExit(f"merge_key.py: {exc}") from None
