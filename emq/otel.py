"""Traces by OpenTelemetry: a span around each publish, and one around each call of a handler, linked to it.

Only the API of OpenTelemetry is needed (extra `otel`); a program that exports traces brings and sets up the SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

from emq import errors, extras
from emq.calls.middleware import HandleNext, HandlerCall, Middleware, PublishCall, PublishNext
from emq.message import Message

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as exc:
    raise errors.InvalidSettings(f"emq.otel needs the module {exc.name!r}; {extras.remedy('otel')}") from exc

SYSTEM = "emq"

_ANSWERS = (errors.Retry, errors.Reject)
"""Errors by which a handler answers; nobody needs to see where they were raised."""


class Tracing(Middleware):
    """Middleware that makes spans by the conventions for messaging; `App(middleware=[Tracing()])`.

    **Publish**: one span of the kind producer for each call of `publish`, `publish_many` or `schedule`. Its context
    travels in the headers of the messages (`traceparent`, `tracestate`, as the program's propagator writes them), over
    all retries, delays and hosts.

    **Delivery**: one span of the kind consumer for each call of a handler, linked to the publish of each of its
    messages. So each attempt of a message has a span of its own. A failed delivery has the status error.

    Args:
        provider: makes the tracer; None for the global one of the program.
        one_trace: continue the trace of the publish in the delivery of a single message. False, as the conventions
            have it, begins a new trace for each delivery, unless a middleware before this one has begun one.
    """

    def __init__(self, provider: TracerProvider | None = None, *, one_trace: bool = False) -> None:
        self._tracer = trace.get_tracer("emq", _version(), provider)
        self._one_trace = one_trace

    async def publish(self, call: PublishCall, call_next: PublishNext) -> list[str]:
        """Publish within a span, with the span's context in the headers."""
        attributes = _attributes("publish", "send", call.topic)
        if call.method == "publish_many":
            attributes["messaging.batch.message_count"] = len(call.payloads)
        with self._span(f"publish {call.topic}", SpanKind.PRODUCER, attributes) as span:
            propagate.inject(call.headers)
            ids = await call_next(call)
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", ids[0])
            return ids

    async def handle(self, call: HandlerCall, call_next: HandleNext) -> object:
        """Have the messages handled within a span that is linked to their publishes."""
        attributes = _attributes("process", "process", call.topic)
        if call.pattern != call.topic:
            attributes["messaging.destination.template"] = call.pattern
        attributes["code.function.name"] = call.handler
        published = [_published(message) for message in call.messages]
        if len(call.messages) == 1:
            attributes["messaging.message.id"] = call.message.id
            attributes["emq.message.attempt"] = call.message.attempt
        else:
            attributes["messaging.batch.message_count"] = len(call.messages)
        links = [
            Link(found) for each in published if (found := trace.get_current_span(each).get_span_context()).is_valid
        ]
        parent = published[0] if self._one_trace and len(published) == 1 else None
        with self._span(f"process {call.pattern}", SpanKind.CONSUMER, attributes, links, parent):
            return await call_next(call)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        links: list[Link] | None = None,
        parent: context.Context | None = None,
    ) -> Iterator[Span]:
        """Make a span current for a block; an error of the block is the span's."""
        span = self._tracer.start_span(name, parent, kind, attributes, links)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except asyncio.CancelledError:
                span.set_attribute("error.type", "cancelled")
                raise
            except Exception as exc:
                span.set_attribute("error.type", type(exc).__qualname__)
                span.set_status(StatusCode.ERROR, str(exc))
                if not isinstance(exc, _ANSWERS):
                    span.record_exception(exc)
                raise


def _attributes(operation: str, kind: str, topic: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


def _published(message: Message) -> context.Context:
    """Return the context of the message's publish; an empty one if its headers tell of none."""
    headers = message.headers
    return propagate.extract(headers if isinstance(headers, dict) else {}, context=context.Context())


def _version() -> str | None:
    try:
        return metadata.version("emq")
    except metadata.PackageNotFoundError:
        return None
