"""Traces by OpenTelemetry: `Tracing`, a middleware for `emq.App`."""

from emq_otel.tracing import Tracing

__all__ = ["Tracing"]
