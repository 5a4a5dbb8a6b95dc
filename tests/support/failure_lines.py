"""Lines of the log about failed deliveries, in tests whose handlers fail on purpose."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_LOGGER = logging.getLogger("emq.dispatch.failure_log")


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


@contextlib.contextmanager
def without_tracebacks() -> Iterator[None]:
    """Leave the handlers' tracebacks out of the log, so that any other traceback in it tells of a fault."""
    _LOGGER.addFilter(_without_traceback)
    try:
        yield
    finally:
        _LOGGER.removeFilter(_without_traceback)
