"""Names that several modules know: attributes of topics, a header. No imports: the command line loads this."""

URL = "push.url"

DISABLED = "push.disabled"
"""The attribute of a topic whose endpoint gets nothing, with the reason."""

PAUSED = "push.paused"
"""Why the endpoint of a topic gets nothing while its tenant is paused."""

FAILING_SINCE = "push.failing_since"
"""The attribute in which hosts note since when an endpoint fails, in seconds since the epoch."""

EVENT_TYPE = "event-type"
"""The header of a message in which endpoints find its event type."""
