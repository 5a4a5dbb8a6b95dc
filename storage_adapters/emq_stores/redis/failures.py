"""Translates the driver's errors to EMQ's errors."""

from __future__ import annotations

import re
from collections.abc import Sequence

import redis.exceptions

from emq.runtime import errors
from emq.runtime.troubles import Unexpected
from emq.storage.answers import unexpected

_NOT_SENT = ("connecting to", "Connect call failed", "not known", "No master found", "previous master is now a slave")


_NOISE = re.compile(
    r"<redis\..*?> - |Error while reading from \S+ : |Error \w+ while (writing to|reading from) \S+ ?|^unable to .*; "
)
"""What says nothing to people: objects, hundreds of characters each, and the driver's word that it was at work."""

_NUMBERED = re.compile(r"^\(\d+, '(.*)'\)$")
"""An error of the operating system, as a tuple."""


TRANSPORT = (redis.exceptions.RedisError, OSError, RuntimeError, EOFError)
"""The errors of a broken connection. uvloop raises a bare RuntimeError for a write to a closed connection, and the
driver lets it pass."""


class MetWrongType(errors.OutcomeUnknown):
    """A script met a key of another type than the script works on, and ended there."""


def translated(exc: Exception, url: str) -> errors.EMQError:
    """Return the EMQ error for an error reply of the server at `url`, or for a broken connection to it."""
    if not isinstance(exc, TRANSPORT):
        return unexpected(exc)
    text = _NUMBERED.sub(r"\1", _NOISE.sub("", str(exc)))
    if isinstance(exc, redis.exceptions.OutOfMemoryError) or "OOM" in text:
        return errors.StoreFull(f"{url} is out of memory; raise maxmemory or let consumers catch up")
    if isinstance(exc, (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)):
        return errors.StoreUnavailable(f"{url} refused the credentials: {text}; correct the URL's user and password")
    if isinstance(exc, redis.exceptions.MovedError):
        return errors.StoreUnavailable(f"{url} is one node of a cluster; begin the URL with redis+cluster://")
    if isinstance(exc, (redis.exceptions.BusyLoadingError, redis.exceptions.MaxConnectionsError)):
        return errors.StoreUnavailable(f"{url} refused a call: {text}")
    if isinstance(exc, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, *TRANSPORT[1:])):
        if any(sign in text for sign in _NOT_SENT):
            return errors.StoreUnavailable(f"cannot reach {url}: {text.rstrip('.')}; is the server running?")
        return errors.OutcomeUnknown(f"connection to {url} broke: {text.rstrip('.')}")
    if "WRONGTYPE" in text:
        return MetWrongType(f"{url} holds a value that EMQ did not write: {text}")
    if "Script attempted to access" in text:  # some of its keys moved to another node while it ran
        return errors.OutcomeUnknown(f"{url} gave up in the middle of a call: {text}")
    if "@user_script" in text:  # the script failed in the middle, as on a value that EMQ did not write
        return Unexpected(f"{url} gave up in the middle of a call: {text}")
    return errors.StoreUnavailable(f"{url} refused a call: {text}")


def of_several(outcomes: Sequence[object]) -> errors.EMQError | None:
    """Return the error for a call that was sent in parts, from the parts' results and errors; None if all succeeded.

    Raises:
        BaseException: the error of a part, if EMQ does not define it.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not failures:
        return None
    for failure in failures:
        if not isinstance(failure, errors.EMQError):
            raise failure
    first = failures[0]
    assert isinstance(first, errors.EMQError)
    unknown = next((f for f in failures if isinstance(f, errors.OutcomeUnknown)), None)
    if unknown is not None:
        return unknown
    return partly(first) if len(failures) < len(outcomes) else first


def partly(failure: errors.EMQError) -> errors.OutcomeUnknown:
    """Return the error for a call of which one part failed and another part succeeded."""
    if isinstance(failure, errors.OutcomeUnknown):
        return failure
    return errors.OutcomeUnknown(f"part of a call was done, but not all of it: {failure}")
