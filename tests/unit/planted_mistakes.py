"""A user's program with mistakes, of which a type checker must name each and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic

import emq
import emq_testing


@dataclasses.dataclass
class Order:
    id: int


class Refund(TypedDict):
    id: int


class View(msgspec.Struct):
    page: str


class User(pydantic.BaseModel):
    name: str


class Pool: ...


async def pool() -> Pool:
    return Pool()


async def session(of: Pool = emq.Depends(pool)) -> AsyncIterator[str]:
    yield str(of)


def tenant(message: emq.Message) -> str:
    return message.topic


class Timing(emq.Middleware):
    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
        call.headers["a"] = "b"
        call.payloads = [{"wrapped": payload} for payload in call.payloads]
        return await call_next(call)

    async def handle(self, call: emq.HandlerCall, call_next: emq.HandleNext) -> object:
        return await call_next(call.with_messages(call.messages))


class Shouting(emq.Middleware):
    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> str:  # mistake
        return "id"


class Swapped(emq.Middleware):
    async def handle(self, call: emq.PublishCall, call_next: emq.HandleNext) -> object:  # mistake
        return None


app = emq.App("memory:", middleware=[Timing()], content_type="application/msgpack")
wrong = emq.App("memory:", middleware=[Timing])  # mistake
other = emq.App("memory:", content_type="text/csv")  # mistake


@app.handler("untyped")
async def untyped(message: emq.Message) -> None: ...


@app.handler("orders.*")
async def ship(order: Order, message: emq.Message, held: Annotated[str, emq.Depends(session)]) -> None:
    number: int = order.id
    held.join([str(number)])


@app.handler("refunds")
def refund(refund: Refund, of: Pool = emq.Depends(pool), within: str = emq.Depends(session)) -> None: ...


@app.handler("views", batch_size=100)
async def count(views: list[View], messages: list[emq.Message]) -> None: ...


@app.handler("users")
async def greet(user: User, *, name: str = emq.Depends(tenant)) -> None:
    user.name = name


app.handler("lambda")(lambda message: None)


@app.handler("nothing")  # mistake
async def nothing() -> None: ...


@app.handler("one", batch_size=10)  # mistake
async def one_of_many(order: Order) -> None: ...


@app.handler("pools")
async def of_pools(order: Order, held: int = emq.Depends(pool)) -> None: ...  # mistake


returns = app.family("returns.*", Order, qps=50, max_attempts=5)
plain = app.family("plain.*", bytes, qps=1)
app.family("views.*", View, qps=1, max_atempts=5)  # mistake


@returns.handler
async def take_back(order: Order, held: Pool = emq.Depends(pool)) -> None: ...


@returns.handler
async def look_at(message: emq.Message) -> None: ...


@returns.handler  # mistake
async def other_payload(view: View) -> None: ...


async def main() -> None:
    async with app:
        await returns.publish("acme", Order(1), key="a")
        await returns.publish("acme", View("x"))  # mistake
        await returns.publish_many("acme", [Order(1), Order(2)], keys=["a", "b"])
        await plain.publish("acme", b"x")
        await app.pause("returns.*")
        late: int = await app.lag("returns.*")
        await app.delete("returns.*", force=late > 0)
        await app.create_topic("orders.acme", 50, kind="log", max_attempts=5, exist_ok=True)
        await app.create_topic("orders.acme", 50, max_atempts=5)  # mistake
        await app.update_topic("orders.acme", backoff_s=3)  # mistake
        await app.publish("orders.acme", Order(1), key="a", content_type="application/json")
        await app.publish("refunds", Refund(id=1), delay="30s")
        await app.publish("views", View("x"), headers={"a": "b"})
        await app.publish("users", User(name="x"))
        await app.publish("users", {"name": ["x"]})
        await app.publish("bytes", b"x")
        await app.publish("text", "x")
        await app.publish_many("users", [User(name="x"), User(name="y")])
        await app.publish_many("views", (View(str(i)) for i in range(3)), keys=["a", "b", "c"])
        await app.schedule("views", View("x"), every_s=5)
        await app.publish("orders.acme", 17)  # mistake


def override() -> dict[str, Any]:
    app.dependency_overrides[pool] = Pool
    return {"harness": emq_testing.Harness(app, overrides={pool: Pool})}
