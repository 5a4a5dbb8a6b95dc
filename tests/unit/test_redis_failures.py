"""A broken connection in plain words, whatever objects and numbers the driver puts into its errors."""

from __future__ import annotations

import pytest
import redis.exceptions

from emq_stores.redis.failures import translated

HANDLER = (
    "unable to perform operation on <TCPTransport closed=True reading=False 0x55e56c860e90>; the handler is closed"
)
RESET = "Error while reading from 127.0.0.1:39109 : (104, 'Connection reset by peer')"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (RuntimeError(HANDLER), "the handler is closed"),
        (redis.exceptions.ConnectionError(RESET), "Connection reset by peer"),
        (
            redis.exceptions.ConnectionError("Error UNKNOWN while writing to socket. Connection lost."),
            "Connection lost",
        ),
        (redis.exceptions.ConnectionError("Error 32 while writing to socket. Broken pipe."), "Broken pipe"),
        (redis.exceptions.ConnectionError("Connection closed by server."), "Connection closed by server"),
    ],
)
def test_the_reason_of_a_broken_connection_is_plain(failure: Exception, said: str) -> None:
    assert str(translated(failure, "redis://h/0")) == f"connection to redis://h/0 broke: {said}"
