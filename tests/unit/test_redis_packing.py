"""Commands to Redis are the same bytes, whether they are packed in C or in pieces."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
import redis.asyncio

from emq_stores.redis.packing import LARGE, pack_in_c

BIG = bytes(LARGE + 1)


@pytest.mark.parametrize(
    ("words", "in_pieces"),
    [
        (("EVALSHA", "ab", 1, "key", b"small", 7, -1, 0.5), False),
        (("EVALSHA", "ab", 1, "key", 7, BIG), True),
        (("EVALSHA", "ab", 1, "key", BIG, 1, 2, "late", 4, 5, "", 0), True),
        (("EVALSHA", "ab", 1, "schlüssel", *[b"x" * 100] * 2_000, BIG), True),
        (("EVALSHA", "ab", 1, "key", BIG, *[b"x" * 100] * 2_000), False),
    ],
)
async def test_large_arguments_are_sent_as_they_are(words: tuple[Any, ...], in_pieces: bool) -> None:
    client = redis.asyncio.Redis()
    pack_in_c(client)
    connection = client.connection_pool.make_connection()
    packed = connection.pack_command(*words)
    assert b"".join(packed) == hiredis.pack_command(words)
    assert any(piece is BIG for piece in packed) is in_pieces
    await client.aclose()
