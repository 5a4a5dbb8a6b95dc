"""Traces: a span for each publish and each delivery, linked over retries, batches and strange headers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import emq
from emq.runtime import errors
from emq_otel import Tracing
from emq_testing import Harness

PAGE = Path(__file__).parents[2] / "docs/tracing.md"


class Spans:
    """The spans that an app exports."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = emq.App("memory:", options=emq.Settings(), middleware=[Tracing(self.provider, **options)])

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    @property
    def published(self) -> list[ReadableSpan]:
        return self.of(SpanKind.PRODUCER)

    @property
    def delivered(self) -> list[ReadableSpan]:
        return self.of(SpanKind.CONSUMER)


async def ignore(_: object) -> None: ...


def attributes(span: ReadableSpan | Event) -> dict[str, Any]:
    return dict(span.attributes or {})


@contextlib.asynccontextmanager
async def traced(
    handle: Callable[[Any], object] = ignore, *, batch_size: int = 1, one_trace: bool = False, **options: Any
) -> AsyncIterator[tuple[Spans, Harness]]:
    """An app with a topic `t`, which ends when all that was published in the block is settled."""
    spans = Spans(one_trace=one_trace)
    spans.app.handler("t", batch_size=batch_size)(handle)
    async with Harness(spans.app) as t:
        await spans.app.create_topic("t", 100, group_qps=100, **options)
        yield spans, t
        await t.settled()


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


async def test_a_delivery_is_linked_to_its_publish() -> None:
    spans = Spans()
    seen: list[int] = []

    @spans.app.handler("mail.*")
    async def send(message: emq.Message) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        await asyncio.sleep(0)
        assert set(message.headers or ()) == {"mine", "traceparent"}

    async with Harness(spans.app) as t:
        await spans.app.create_topic("mail.acme", qps=50)
        id_ = await t.publish("mail.acme", b"x", headers={"mine": "1"})
        await t.settled()
        assert not t.dead_letters
    [published], [delivered] = spans.published, spans.delivered
    assert (published.name, delivered.name) == ("publish mail.acme", "process mail.*")
    assert attributes(published) == {
        "messaging.system": "emq",
        "messaging.destination.name": "mail.acme",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": id_,
    }
    assert attributes(delivered) == {
        "messaging.system": "emq",
        "messaging.destination.name": "mail.acme",
        "messaging.destination.template": "mail.*",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": id_,
        "emq.message.attempt": 1,
        "code.function.name": "test_a_delivery_is_linked_to_its_publish.<locals>.send",
    }
    assert published.context is not None
    assert delivered.context is not None
    assert linked(delivered) == {published.context.span_id}
    assert delivered.parent is None
    assert delivered.context.trace_id != published.context.trace_id
    assert seen == [delivered.context.span_id]
    assert delivered.status.status_code is StatusCode.UNSET
    assert not trace.get_current_span().get_span_context().is_valid


async def test_one_trace_may_hold_publish_handler_and_what_the_handler_publishes() -> None:
    spans = Spans(one_trace=True)
    app = spans.app

    @app.handler("first")
    def first(message: emq.Message) -> Any:
        return app.publish("second", b"y")

    @app.handler("second")
    async def second(message: emq.Message) -> None: ...

    async with Harness(app) as t:
        await app.create_topic("first", qps=50)
        await app.create_topic("second", qps=50)
        await t.publish("first", b"x")
        await t.settled()
    assert len(spans.published) == len(spans.delivered) == 2
    assert len({span.context.trace_id for span in (*spans.published, *spans.delivered) if span.context}) == 1
    parents = {span.name: span.parent.span_id if span.parent else None for span in (*spans.published, *spans.delivered)}
    ids = {span.name: span.context.span_id for span in (*spans.published, *spans.delivered) if span.context}
    assert parents == {
        "publish first": None,
        "process first": ids["publish first"],
        "publish second": ids["process first"],
        "process second": ids["publish second"],
    }


async def test_each_attempt_has_a_span_and_failures_say_why() -> None:
    async def handle(message: emq.Message) -> None:
        if message.attempt == 1:
            raise ValueError("boom")
        if message.attempt == 2:
            raise emq.Retry("not yet", after_s=1)
        raise emq.Reject("never")

    async with traced(handle) as (spans, t):
        await t.publish("t", b"x")
        await t.settled()
        for _ in range(3):
            await t.advance(3600)
            await t.settled()
        assert len(t.dead_letters) == 1
    [published] = spans.published
    assert published.context is not None
    assert [attributes(span)["emq.message.attempt"] for span in spans.delivered] == [1, 2, 3]
    assert all(linked(span) == {published.context.span_id} for span in spans.delivered)
    assert [attributes(span)["error.type"] for span in spans.delivered] == ["ValueError", "Retry", "Reject"]
    assert [span.status.status_code for span in spans.delivered] == [StatusCode.ERROR] * 3
    assert [[event.name for event in span.events] for span in spans.delivered] == [["exception"], [], []]


class NoText(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("an error of the error")


class RejectWithoutText(emq.Reject, NoText):
    __str__ = NoText.__str__


FAILURES: dict[bytes, Exception] = {
    b"no text": NoText(),
    b"reject": RejectWithoutText("never"),
    b"huge": ValueError("x" * 100_000),
    b"half": ValueError("half a character: \udc80"),
}


@pytest.mark.parametrize("batch_size", [1, 5])
async def test_an_error_decides_on_its_message_as_without_traces_and_takes_little_room(batch_size: int) -> None:
    reasons: list[list[str]] = []
    spans = Spans()
    for app in (spans.app, emq.App("memory:", options=emq.Settings())):

        async def one(message: emq.Message) -> None:
            raise FAILURES[message.payload]

        async def many(messages: list[emq.Message]) -> None:
            raise emq.PartialFailure({m.id: FAILURES[m.payload] for m in messages})

        app.handler("t", batch_size=batch_size)(one if batch_size == 1 else many)
        async with Harness(app) as t:
            await app.create_topic("t", 100)
            for payload in FAILURES:
                await t.publish("t", payload)
                await t.settled()
            reasons.append([failure.reason for failure in t.failures])
            assert [letter.reason for letter in t.dead_letters] == ["rejected: never"]
    assert reasons[0] == reasons[1]
    assert len(spans.delivered) == len(FAILURES)
    for span, payload in zip(spans.delivered, FAILURES, strict=True):
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ([] if payload == b"reject" else ["exception"])
        told = [span.status.description or "", *(str(v) for e in span.events for v in attributes(e).values())]
        assert sum(map(len, told)) < 20_000
        "".join(told).encode()  # as an exporter does with all spans that it sends together
    [event] = spans.delivered[0].events
    assert attributes(event)["exception.type"] == f"{NoText.__module__}.NoText"
    assert "raise FAILURES[" in str(attributes(event)["exception.stacktrace"]) or batch_size > 1


async def test_names_that_are_no_names_spoil_no_span() -> None:
    spans = Spans()

    @spans.app.handler("[t\udc80]*")
    async def handle(message: emq.Message) -> None: ...

    async with Harness(spans.app) as t:
        await spans.app.create_topic("t1", qps=50)
        await t.publish("t1", b"x")
        await t.settled()
        for topic in ("half \udc80", NoTextAtAll()):
            with pytest.raises(errors.InvalidTopic):
                await spans.app.publish(topic, b"x")  # type: ignore[arg-type]
    assert len(spans.delivered) == 1
    assert len(spans.published) == 3
    for span in (*spans.delivered, *spans.published):
        f"{span.name} {attributes(span)}".encode()


class NoTextAtAll:
    def __repr__(self) -> str:
        raise RuntimeError("an error of the value")


async def test_the_errors_of_a_batch_are_told_by_message() -> None:
    async def handle(messages: list[emq.Message]) -> None:
        failures: dict[str, Exception] = {m.id: ValueError(m.id) for m in messages[1:]}
        raise emq.PartialFailure({**failures, messages[0].id: emq.Retry("later")})

    async with traced(handle, batch_size=20) as (spans, _):
        ids = await spans.app.publish_many("t", [b"x"] * 20)
    told = [e.attributes or {} for span in spans.delivered for e in span.events if "x" in e.name]
    assert [a["messaging.message.id"] for a in told] == [a["exception.message"] for a in told]
    assert {str(a["messaging.message.id"]) for a in told} < set(ids)
    assert all(0 < len(span.events) <= 8 for span in spans.delivered)


async def test_a_delivery_that_took_too_long_is_an_error() -> None:
    async def handle(message: emq.Message) -> None:
        await asyncio.sleep(60)

    async with traced(handle, handler_timeout_s=1.0) as (spans, t):
        await t.publish("t", b"x")
        await t.advance(2)
    assert [attributes(span)["error.type"] for span in spans.delivered] == ["cancelled"]
    assert [span.status.status_code for span in spans.delivered] == [StatusCode.ERROR]


async def test_an_inner_middleware_that_returns_no_ids_is_named() -> None:
    class Forgetful(emq.Middleware):
        async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
            await call_next(call)
            return None  # type: ignore[return-value]

    spans = Spans()
    app = emq.App("memory:", options=emq.Settings(), middleware=[Tracing(spans.provider), Forgetful()])
    async with Harness(app):
        await app.create_topic("t", 100)
        with pytest.raises(errors.InvalidSettings, match="Forgetful"):
            await app.publish("t", b"x")


async def test_a_propagator_that_breaks_keeps_no_message_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("not these headers")

    async with traced() as (spans, t):
        await t.publish("t", b"x")
        monkeypatch.setattr("opentelemetry.propagate.extract", broken)
    assert [m.payload for m in t.delivered] == [b"x"]
    assert not spans.delivered[0].links


async def test_a_batch_is_one_span_with_a_link_for_each_publish() -> None:
    async with traced(batch_size=10) as (spans, t):
        await spans.app.publish_many("t", [b"x"] * 3)
        await t.publish("t", b"y")
    many, one = spans.published
    assert attributes(many)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(many)
    assert sum(len(span.links) for span in spans.delivered) == 4
    assert set().union(*(linked(span) for span in spans.delivered)) == {
        span.context.span_id for span in (many, one) if span.context
    }


async def test_a_refused_publish_is_an_error() -> None:
    async with traced() as (spans, _):
        with pytest.raises(errors.InvalidMessage):
            await spans.app.publish("t", b"x", priority="none such")
    [published] = spans.published
    assert published.status.status_code is StatusCode.ERROR
    assert attributes(published)["error.type"] == "InvalidMessage"


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "00-" + "g" * 32 + "-" + "1" * 16 + "-01"},
        {"traceparent": "x" * 10_000, "tracestate": "," * 10_000, "baggage": "=;,=" * 1_000},
        {"tracestate": "a=b"},
    ],
)
async def test_strange_headers_of_others_keep_no_message_back(headers: dict[str, str]) -> None:
    async with traced(one_trace=True) as (spans, t):
        await spans.app.producer.publish("t", b"x", headers=headers)  # below the middleware
    assert len(t.delivered) == 1
    assert not t.dead_letters
    [delivered] = spans.delivered
    assert not delivered.links
    assert delivered.parent is None


async def test_a_message_without_headers_and_a_schedule_are_traced() -> None:
    async with traced() as (spans, t):
        await spans.app.producer.publish("t", b"x")
        await spans.app.schedule("t", b"y", every_s=60, repeat=2)
        await t.settled()
        await t.advance(200)
    [published] = spans.published
    assert published.context is not None
    assert [linked(span) for span in spans.delivered] == [set(), *[{published.context.span_id}] * 3]


def test_a_program_without_the_extra_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "emq_otel.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        errors.InvalidSettings, match=r"emq_otel needs the module 'opentelemetry'; (pip install|install EMQ)"
    ):
        importlib.import_module("emq_otel.tracing")


async def test_the_page_is_right() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exporter = InMemorySpanExporter()
    found: dict[str, Any] = {}
    exec(snippet.replace("ConsoleSpanExporter()", "exporter"), {"exporter": exporter}, found)
    async with Harness(found["app"]) as t:
        await t.publish("orders.acme", b"x")
        await t.settled()
    assert [span.name for span in exporter.get_finished_spans()] == ["publish orders.acme", "process orders.*"]
