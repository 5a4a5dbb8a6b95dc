"""Traces by OpenTelemetry: a span around each publish, and one around each call of a handler, linked to it.

Only the API of OpenTelemetry is needed (extra `otel`); a program that exports traces brings and sets up the SDK.

A span never changes the outcome of a message, even if an error has no text or headers are malformed. The size of an
error in a span is bounded, since exporters send many spans together.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata

from emq.calls.middleware import HandleNext, HandlerCall, Middleware, PublishCall, PublishNext
from emq.dispatch import retry
from emq.runtime import errors, extras, inputs
from emq.storage.message import Message

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as exc:
    raise errors.InvalidSettings(f"emq_otel needs the module {exc.name!r}; {extras.remedy('otel')}") from exc

SYSTEM = "emq"

MAX_TRACEBACK = 16_000
"""Most characters of a traceback in a span. The text of an error, which is part of it, may be of any length."""

MAX_FAILURES = 8
"""Most failed messages of a batch whose errors are in its span."""

_ANSWERS = (errors.Retry, errors.Reject)
"""Errors that a handler raises on purpose: their spans need no traceback."""


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
        topic = call.topic if isinstance(call.topic, str) else inputs.shown(call.topic)  # the producer refuses others
        attributes = _attributes("publish", "send", topic)
        if call.method == "publish_many":
            attributes["messaging.batch.message_count"] = len(call.payloads)
        with self._span(f"publish {topic}", SpanKind.PRODUCER, attributes) as span:
            propagate.inject(call.headers)
            ids = await call_next(call)
            if isinstance(ids, list) and len(ids) == 1:  # the app refuses other answers of inner middleware
                span.set_attribute("messaging.message.id", ids[0])
            return ids

    async def handle(self, call: HandlerCall, call_next: HandleNext) -> object:
        """Call the handler within a span that is linked to the publishes of the messages."""
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

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        links: list[Link] | None = None,
        parent: context.Context | None = None,
    ) -> Iterator[Span]:
        """Make a span current for a block; an error of the block is the span's."""
        told = {key: _encodable(value) if isinstance(value, str) else value for key, value in attributes.items()}
        span = self._tracer.start_span(_encodable(name), parent, kind, told, links)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except asyncio.CancelledError:
                span.set_attribute("error.type", "cancelled")
                span.set_status(StatusCode.ERROR, "cancelled: it took too long, or its process stops")
                raise
            except Exception as exc:
                with contextlib.suppress(Exception):  # of the handler's own classes
                    _tell(span, exc)
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
    try:
        return propagate.extract(headers if isinstance(headers, dict) else {}, context=context.Context())
    except Exception:  # the propagator is the program's, and the headers are anybody's
        return context.Context()


def _tell(span: Span, failure: Exception) -> None:
    """Mark the span as that of a failed call."""
    span.set_attribute("error.type", _encodable(type(failure).__qualname__))
    span.set_status(StatusCode.ERROR, retry.describe(failure))
    if not isinstance(failure, errors.PartialFailure):
        if not isinstance(failure, _ANSWERS):
            _record(span, failure)
        return
    failed = retry.of_names(failure) or {}
    unexpected = [(id_, each) for id_, each in failed.items() if not isinstance(each, _ANSWERS)]
    for id_, each in unexpected[:MAX_FAILURES]:
        _record(span, each, {"messaging.message.id": _encodable(str(id_))})


def _record(span: Span, failure: BaseException, more: Mapping[str, AttributeValue] | None = None) -> None:
    """Add an error by the conventions. `Span.record_exception` would bound nothing."""
    kind, half = type(failure), MAX_TRACEBACK // 2
    text = _encodable("".join(traceback.format_exception(failure)))
    told = {
        "exception.type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": retry.describe(failure).removeprefix(f"{kind.__name__}: "),
        "exception.stacktrace": text if len(text) <= MAX_TRACEBACK else f"{text[:half]}\n[...]\n{text[-half:]}",
    }
    span.add_event("exception", {**told, **(more or {})})


def _encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: an exporter would drop the whole batch of spans."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _version() -> str | None:
    try:
        return metadata.version("emq")
    except metadata.PackageNotFoundError:
        return None
